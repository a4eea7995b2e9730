"""Environments that show only a part of the observation: tasks that need memory."""

from collections.abc import Sequence

import tensorflow as tf
from tf_agents.trajectories import time_step as ts

from tflearn.core.errors import UserValueError
from tflearn.core.types import BatchedEnvironment, EnvironmentFactory, EnvironmentSpecs, with_shape
from tflearn.environments.wrappers import Wrapper


def make(
    num_environments: int, seed: int | None, make_environment: EnvironmentFactory, visible: Sequence[int]
) -> 'PartialView':
    """Makes the environments of `make_environment` with only the elements `visible` of their observation."""
    return PartialView(make_environment(num_environments=num_environments, seed=seed), visible)


class PartialView(Wrapper):
    """Another environment with only some elements of its observation, a vector."""

    def __init__(self, environment: BatchedEnvironment, visible: Sequence[int]):
        """Takes over `environment`: it is closed with this.

        Raises:
          ValueError: if the observation is not a vector, or an index is out of range; `environment`
            is then closed.
        """
        spec = environment.specs.observation
        size = spec.shape[0] if isinstance(spec, tf.TensorSpec) and spec.shape.rank == 1 else 0
        if not visible or not all(0 <= index < size for index in visible):
            environment.close()
            raise UserValueError(
                f'got visible={list(visible)} of the observation {spec}; need indices of a vector of numbers'
            )
        super().__init__(environment)
        self._visible = list(visible)
        part = with_shape(spec, (len(visible),), lambda bound: bound[self._visible])
        self.specs = EnvironmentSpecs(part, environment.specs.action, environment.specs.reward)

    def _changed(self, time_step: ts.TimeStep) -> ts.TimeStep:
        return time_step._replace(observation=time_step.observation[:, self._visible])
