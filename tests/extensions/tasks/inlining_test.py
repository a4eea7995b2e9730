import numpy as np
import pytest

from tflearn.extensions.tasks import inlining
from tflearn.extensions.tasks.inlining import FEATURES, Inlining


def _program(sizes, calls):
    """Returns an environment at the start of a given program; `calls` are (caller, callee, arguments, constants)."""
    environment = Inlining(len(sizes), len(calls))
    environment.reset(seed=0)
    environment._sizes, environment._users = np.array(sizes), np.zeros(len(sizes), int)
    environment._loops = np.zeros(len(sizes), int)
    environment._calls = [inlining._Call(*call) for call in calls]
    for call in environment._calls:
        environment._users[call.callee] += 1
    environment._before = environment._total()
    return environment


def _play(environment, act, seed=None):
    """Returns the return of an episode, the number of its steps, and its observations."""
    observation, _ = environment.reset(seed=seed)
    total, seen, ended = 0.0, [], False
    while not ended:
        assert environment.observation_space.contains(observation)
        seen.append(observation)
        observation, reward, ended, truncated, _ = environment.step(act(observation))
        assert not truncated and (ended or not reward), 'the reward comes at the end'
        total += reward
    return total, len(seen), seen


def test_what_inlining_saves():
    """A body of 40 without one constant of two, called twice by one function: 2 (34 - 5) more, and 40 less at last."""
    calls = [(0, 1, 2, 1), (0, 1, 2, 1)]
    for actions, size in (((0, 0), 100), ((1, 0), 129), ((0, 1), 129), ((1, 1), 118)):
        environment = _program([60, 40], calls)
        environment.step(actions[0])
        _, reward, ended, _, _ = environment.step(actions[1])
        assert ended and reward == pytest.approx(100 * (1 - size / 100)), actions


def test_features_and_the_reference():
    environment = _program([60, 40], [(0, 1, 2, 1), (0, 1, 2, 1)])
    first = environment._observation()
    assert set(first) == set(FEATURES)
    need = {'cost_estimate': 40, 'call_argument_setup': 5, 'callee_users': 2, 'constant_args': 1, 'node_count': 2}
    assert need.items() <= {name: int(value) for name, value in first.items()}.items()
    assert inlining.reference_action(first) == 0, '34 is more than 5'
    second = environment.step(1)[0]
    assert second['callee_users'] == 1 and second['caller_basic_block_count'] == 1 + 89 // 6
    assert inlining.reference_action(second) == 1, 'the function goes too'
    small = _program([60, 4], [(0, 1, 2, 0), (0, 1, 0, 0), (0, 1, 0, 0)])
    assert inlining.reference_action(small._observation()) == 1, '4 is less than 5'
    assert inlining.reference_action(small.step(0)[0]) == 0, 'but more than 3'


def test_the_reference_is_much_better_than_one_answer():
    environment, random = Inlining(8, 12), np.random.default_rng(0)
    policies = {
        'reference': inlining.reference_action,
        'never': lambda _: 0,
        'always': lambda _: 1,
        'random': lambda _: int(random.integers(2)),
    }
    means = {name: np.mean([_play(environment, act, seed)[0] for seed in range(300)]) for name, act in policies.items()}
    assert means['never'] == 0 and means['reference'] > 8
    assert max(means['always'], means['random']) < -10
    _, length, seen = _play(environment, lambda _: 0, seed=1)
    assert length == 12
    assert len({int(each['cost_estimate']) for each in seen}) > 1


def test_a_batch_follows_its_seed_and_refuses_small_numbers():
    batches = [inlining.make(3, seed) for seed in (5, 5, 6)]
    sizes = [batch.reset().observation['cost_estimate'].tolist() for batch in batches]
    assert sizes[0] == sizes[1] != sizes[2]
    assert batches[0].specs.observation['cost_estimate'].dtype == np.int64
    for batch in batches:
        batch.close()
