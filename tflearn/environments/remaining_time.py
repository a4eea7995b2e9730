"""Environments that show how much of an episode's time is left.

Pardo et al. 2018, "Time Limits in Reinforcement Learning" (arXiv 1712.00378), section 2: where an
episode ends after a fixed number of steps, values depend on the time that is left, and an agent
that does not see it cannot learn them.
"""

from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts

from tflearn.core.errors import UserValueError
from tflearn.core.settings import PositiveInt, checked
from tflearn.core.types import BatchedEnvironment, EnvironmentFactory, EnvironmentSpecs
from tflearn.environments.wrappers import Wrapper

REMAINING_TIME = 'remaining_time'


@checked
def make(
    num_environments: int,
    seed: int | None,
    make_environment: EnvironmentFactory,
    time_limit: PositiveInt,
    terminates: bool = True,
) -> 'RemainingTime':
    """Makes the environments of `make_environment` with the time that is left as a part of their observation.

    Args:
      num_environments: the number of environments, which are stepped together.
      seed: as for `make_environment`.
      make_environment: makes environments whose episodes end after `time_limit` steps at the
        latest.
      time_limit: the steps after which an episode is truncated.
      terminates: whether the limit is a part of the task: the truncation becomes a termination,
        with discount 0, so that nothing after it counts. Else values are bootstrapped from the last
        observation, as without the time.
    """
    return RemainingTime(make_environment(num_environments=num_environments, seed=seed), time_limit, terminates)


class RemainingTime(Wrapper):
    """Another environment whose observation has the part 'remaining_time', float32 [1],
    from 1 down to 0.

    A dictionary gets it as a further key; any other observation becomes the part 'observation' of a
    dictionary.
    """

    def __init__(self, environment: BatchedEnvironment, time_limit: int, terminates: bool = True):
        """Takes over `environment`: it is closed with this, also if this raises.

        Raises:
          ValueError: if the limit is below 1, or the observation has such a part already.
        """
        try:
            spec = environment.specs.observation
            if isinstance(spec, dict) and REMAINING_TIME in spec:
                raise UserValueError(f'got an observation with the part {REMAINING_TIME!r}; need another name for it')
        except UserValueError:
            environment.close()
            raise
        super().__init__(environment)
        self._time_limit, self._terminates = time_limit, terminates
        self._num_steps = np.zeros(self.num_environments, np.int64)
        time = tensor_spec.BoundedTensorSpec((1,), tf.float32, 0.0, 1.0, f'observation/{REMAINING_TIME}')
        self.specs = EnvironmentSpecs(_with_time(spec, time), environment.specs.action, environment.specs.reward)

    def _changed(self, time_step: ts.TimeStep) -> ts.TimeStep:
        """See `Wrapper`. Raises ValueError if an episode takes longer than the limit."""
        self._num_steps = np.where(time_step.step_type == ts.StepType.FIRST, 0, self._num_steps + 1)
        if (self._num_steps > self._time_limit).any():
            raise UserValueError(
                f'got an episode of more than time_limit={self._time_limit} steps; need environments that end it then; '
                'set their own limit, such as gymnasium_env.make.max_episode_steps'
            )
        remaining = (1.0 - self._num_steps / self._time_limit).astype(np.float32)[:, np.newaxis]
        discount = time_step.discount
        if self._terminates:
            at_limit = (time_step.step_type == ts.StepType.LAST) & (self._num_steps == self._time_limit)
            discount = np.where(at_limit, np.float32(0.0), discount)
        return time_step._replace(discount=discount, observation=_with_time(time_step.observation, remaining))


def _with_time(observation: Any, time: Any) -> dict[str, Any]:
    parts = observation if isinstance(observation, dict) else {'observation': observation}
    return {**parts, REMAINING_TIME: time}
