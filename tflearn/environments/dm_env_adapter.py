"""dm_env environments as gymnasium environments.

This file must stay importable without TensorFlow: workers import it.
"""

from collections.abc import Callable, Mapping
from typing import Any

import dm_env
import gymnasium
import numpy as np
from dm_env import specs as dm_specs
from gymnasium import spaces

from tflearn.core.errors import UserValueError

# seed -> environment
MakeDmEnvironment = Callable[[int | None], dm_env.Environment]


class DmEnvironment(gymnasium.Env):
    """A dm_env environment: LAST with discount 0 is a termination,
    with another discount a truncation.

    A dm_env takes its seed at construction, so a `reset` with a seed makes a new one.
    """

    def __init__(self, make_one: MakeDmEnvironment):
        """Makes the environment.

        Raises:
          ValueError: for specs without a corresponding gymnasium space, or rewards that are not
            single numbers.
        """
        self._make_one = make_one
        self._environment = make_one(None)
        self.observation_space = to_space(self._environment.observation_spec())
        self.action_space = to_space(self._environment.action_spec())
        if shape := self._environment.reward_spec().shape:
            raise UserValueError(f'got rewards of shape {shape}; need one number')

    @property
    def adapted(self) -> dm_env.Environment:
        """The dm_env environment."""
        return self._environment

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self._environment.close()
            self._environment = self._make_one(seed)
        return self._environment.reset().observation, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time_step = self._environment.step(action)
        if not time_step.last() and time_step.discount != 1.0:
            raise UserValueError(
                f'got a discount of {time_step.discount} within an episode; need 1; set the discount in the agent'
            )
        terminated = time_step.last() and time_step.discount == 0.0
        return time_step.observation, time_step.reward, terminated, time_step.last() and not terminated, {}

    def set_progress(self, train_step: int, env_steps: int) -> None:
        if setter := getattr(self._environment, 'set_progress', None):
            setter(train_step, env_steps)

    def close(self) -> None:
        self._environment.close()


def adapt(make_one: MakeDmEnvironment, flatten_observations: bool) -> gymnasium.Env:
    """Returns the environment as a gymnasium environment;
    `flatten_observations` makes observations one vector.
    """
    environment = DmEnvironment(make_one)
    return gymnasium.wrappers.FlattenObservation(environment) if flatten_observations else environment


def load(domain: str, task: str, seed: int | None) -> dm_env.Environment:
    """Returns a task of the control suite."""
    from dm_control import suite

    return suite.load(domain, task, task_kwargs={'random': seed})


def to_space(spec: Any) -> spaces.Space:
    """Returns the gymnasium space of a nest of dm_env specs.
    Raises ValueError for a spec that is not of numbers.
    """
    if isinstance(spec, Mapping):
        return spaces.Dict({key: to_space(part) for key, part in spec.items()})
    if isinstance(spec, list | tuple):
        return spaces.Tuple([to_space(part) for part in spec])
    if isinstance(spec, dm_specs.DiscreteArray):
        return spaces.Discrete(spec.num_values)
    if spec.dtype == bool:
        return spaces.MultiBinary(spec.shape)
    if spec.dtype.kind not in 'iuf':
        raise UserValueError(f'got {spec}; need arrays of numbers')
    if isinstance(spec, dm_specs.BoundedArray):
        low, high = spec.minimum, spec.maximum
    elif spec.dtype.kind == 'f':
        low, high = -np.inf, np.inf
    else:
        low, high = np.iinfo(spec.dtype).min, np.iinfo(spec.dtype).max
    shape = spec.shape
    return spaces.Box(
        np.broadcast_to(low, shape).astype(spec.dtype),
        np.broadcast_to(high, shape).astype(spec.dtype),
        shape,
        spec.dtype,
    )
