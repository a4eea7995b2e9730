"""CartPole-v1 whose observation is a nested dict of numbers:
to compare with the same numbers in one vector.
"""

from typing import Any

import gymnasium
import numpy as np

from tflearn.core.settings import PositiveInt, checked
from tflearn.core.types import BatchedEnvironment
from tflearn.environments import vector_env

_PARTS = (('cart', 'position'), ('cart', 'velocity'), ('pole', 'angle'), ('pole', 'velocity'))


@checked
def make(num_environments: PositiveInt, seed: int | None) -> BatchedEnvironment:
    """Makes a batch of CartPole-v1.

    Raises:
      ValueError: if there is no environment.
    """
    return vector_env.in_process(
        lambda: Parts(gymnasium.make('CartPole-v1', disable_env_checker=True)), num_environments, seed
    )


class Parts(gymnasium.ObservationWrapper):
    """CartPole's four numbers as {'cart': {'position', 'velocity'}, 'pole': {'angle', 'velocity'}},
    each a float32.
    """

    def __init__(self, environment: gymnasium.Env):
        """Takes a CartPole environment."""
        super().__init__(environment)
        space: Any = environment.observation_space
        bounds = [
            gymnasium.spaces.Box(low, high, (), np.float32) for low, high in zip(space.low, space.high, strict=True)
        ]
        self.observation_space = gymnasium.spaces.Dict(
            {name: gymnasium.spaces.Dict(part) for name, part in _parts(bounds).items()}
        )

    def observation(self, observation: np.ndarray) -> dict[str, dict[str, Any]]:
        """Returns the parts of an observation, float32 [4]."""
        return _parts(list(observation))


def _parts(values: list[Any]) -> dict[str, dict[str, Any]]:
    nest: dict[str, dict[str, Any]] = {'cart': {}, 'pole': {}}
    for (body, name), value in zip(_PARTS, values, strict=True):
        nest[body][name] = value
    return nest
