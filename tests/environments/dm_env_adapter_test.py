import collections

import numpy as np
import pytest

dm_env = pytest.importorskip('dm_env', reason='needs dm_env; pip install ".[dm-control]"')

from dm_env import specs as dm_specs  # noqa: E402 (after what it needs)
from gymnasium import spaces  # noqa: E402

from tests.environments import conformance  # noqa: E402
from tflearn.environments import dm_control_env, dm_env_adapter  # noqa: E402


class Countdown(dm_env.Environment):
    """Counts from 3 down to 0; ends with `last_discount`; before that the discount is `mid_discount`."""

    def __init__(self, last_discount, mid_discount=1.0):
        self._last_discount, self._mid_discount = last_discount, mid_discount

    def reset(self):
        self._count = 3
        return dm_env.restart(self._count)

    def step(self, action):
        self._count -= 1
        if self._count:
            return dm_env.transition(0.5, self._count, self._mid_discount)
        return dm_env.TimeStep(dm_env.StepType.LAST, 2.0, self._last_discount, self._count)

    def observation_spec(self):
        return dm_specs.BoundedArray((), np.int64, 0, 3)

    def action_spec(self):
        return dm_specs.DiscreteArray(2)


@pytest.mark.parametrize('last_discount', [0.0, 1.0])
def test_a_last_discount_of_0_is_termination(last_discount):
    environment = dm_control_env.from_dm_env(lambda seed: Countdown(last_discount), 2, 0, flatten_observations=False)
    time_steps = [environment.reset(), *(environment.step(np.zeros(2, np.int64)) for _ in range(4))]
    environment.close()
    assert [t.observation[0] for t in time_steps] == [3, 2, 1, 0, 3]
    assert [t.reward[0] for t in time_steps] == [0, 0.5, 0.5, 2, 0]
    assert [t.discount[0] for t in time_steps] == [1, 1, 1, last_discount, 1]
    assert time_steps[3].step_type[0] == conformance.LAST


def test_one_environment_for_all_copies_is_refused():
    one = Countdown(0.0)
    with pytest.raises(ValueError, match='got the same environment'):
        dm_control_env.from_dm_env(lambda seed: one, 2, 0, flatten_observations=False)
    dm_control_env.from_dm_env(lambda seed: one, 1, 0, flatten_observations=False).close()


def test_rejects_discounts_within_an_episode():
    environment = dm_env_adapter.DmEnvironment(lambda seed: Countdown(0.0, mid_discount=0.9))
    environment.reset()
    with pytest.raises(ValueError, match='got a discount of 0.9 within an episode; need 1'):
        environment.step(0)


def test_reset_with_a_seed_makes_a_new_environment():
    seeds = []
    environment = dm_env_adapter.DmEnvironment(lambda seed: seeds.append(seed) or Countdown(0.0))
    environment.reset(seed=7)
    environment.reset()
    assert seeds == [None, 7]


def test_spaces():
    nest = collections.OrderedDict(
        a=dm_specs.Array((2,), np.float64),
        b=[dm_specs.DiscreteArray(5), dm_specs.Array((3,), bool)],
        c=dm_specs.BoundedArray((2, 1), np.uint8, 0, 9),
        d=dm_specs.Array((), np.int32),
    )
    assert dm_env_adapter.to_space(nest) == spaces.Dict(
        a=spaces.Box(-np.inf, np.inf, (2,), np.float64),
        b=spaces.Tuple([spaces.Discrete(5), spaces.MultiBinary((3,))]),
        c=spaces.Box(0, 9, (2, 1), np.uint8),
        d=spaces.Box(-(2**31), 2**31 - 1, (), np.int32),
    )
    with pytest.raises(ValueError, match='need arrays of numbers'):
        dm_env_adapter.to_space(dm_specs.StringArray(()))
