import numpy as np

from tests.environments import conformance
from tflearn.extensions.tasks import bit_flip


def test_flips_bits_until_the_goal():
    """Whoever flips the bits that differ gets -1 for each step but the last, which ends the episode."""
    environments, num_bits = bit_flip.make(16, seed=3, num_bits=6), 6
    time_step = environments.reset()
    start = time_step.observation
    np.testing.assert_array_equal(start['observation'], start['achieved_goal'])
    distance = (start['observation'] != start['desired_goal']).sum(axis=1)
    assert distance.min() >= 1 and len(set(distance.tolist())) > 3
    returns, lengths = np.zeros(16), np.zeros(16, int)
    for step in range(num_bits):
        running = lengths == 0
        bits, goal = time_step.observation['observation'], time_step.observation['desired_goal']
        time_step = environments.step((bits != goal).argmax(axis=1))
        returns += time_step.reward * running
        ends = running & (time_step.step_type == 2)
        assert (time_step.discount[ends] == 0).all()
        lengths[ends] = step + 1
    np.testing.assert_array_equal(lengths, distance)
    np.testing.assert_array_equal(returns, 1 - distance)


def test_is_truncated_after_as_many_steps_as_bits():
    environments = bit_flip.make(1, seed=0, num_bits=4)
    time_step = environments.reset()
    wrong = int((time_step.observation['observation'] == time_step.observation['desired_goal'])[0].argmax())
    steps = [environments.step(np.array([wrong])) for _ in range(4)]
    assert [int(step.step_type[0]) for step in steps] == [1, 1, 1, 2]
    assert steps[-1].discount[0] == 1 and sum(step.reward[0] for step in steps) == -4


def test_conforms():
    conformance.check(lambda num_environments, seed: bit_flip.make(num_environments, seed, 5))
