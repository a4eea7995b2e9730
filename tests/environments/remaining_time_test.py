import functools

import numpy as np
import pytest

from tests import fakes
from tests.environments import conformance
from tflearn.environments import gymnasium_env, remaining_time

ACROBOT = functools.partial(gymnasium_env.make, 'Acrobot-v1', max_episode_steps=20)


@pytest.mark.parametrize('terminates', [True, False])
def test_counts_down_and_ends_the_task(terminates):
    """At the limit only; an episode that ends before keeps its discount."""
    environment = remaining_time.RemainingTime(fakes.CheckedEnvironment((3, 5), (True, True)), 5, terminates)
    time_steps = [environment.reset()] + [environment.step(np.int64([0, 1])) for _ in range(8)]
    times = np.stack([time_step.observation['remaining_time'] for time_step in time_steps])
    assert times.shape == (9, 2, 1) and times.dtype == np.float32
    np.testing.assert_allclose(times[:, 0, 0], [1.0, 0.8, 0.6, 0.4, 1.0, 0.8, 0.6, 0.4, 1.0])
    np.testing.assert_allclose(times[:, 1, 0], [1.0, 0.8, 0.6, 0.4, 0.2, 0.0, 1.0, 0.8, 0.6], atol=1e-6)
    assert [time_step.discount[0] for time_step in time_steps] == [1.0] * 9
    assert time_steps[5].step_type[1] == 2 and time_steps[5].discount[1] == (0.0 if terminates else 1.0)
    np.testing.assert_array_equal(time_steps[4].observation['observation'][:, 1], [0.0, 4.0])


def test_conforms():
    conformance.check(lambda num_environments, seed: remaining_time.make(num_environments, seed, ACROBOT, 20))


def test_a_dictionary_gets_another_part():
    inner = remaining_time.RemainingTime(fakes.CheckedEnvironment((3,)), 3)
    with pytest.raises(ValueError, match="with the part 'remaining_time'"):
        remaining_time.RemainingTime(inner, 3)
    assert sorted(inner.specs.observation) == ['observation', 'remaining_time']


def test_refuses_episodes_that_are_too_long():
    environment = remaining_time.RemainingTime(fakes.CheckedEnvironment((3,)), 2)
    environment.reset()
    with pytest.raises(ValueError, match='more than time_limit=2 steps'):
        for _ in range(3):
            environment.step(np.int64([0]))
