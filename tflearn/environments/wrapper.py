"""Wrapper: what environments have in common that change something about another one."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from tf_agents.trajectories import time_step as ts

from tflearn import specs


class Wrapper:
    """A `specs.BatchedEnvironment` that does what another one does; subclasses override what differs.

    Attributes:
      num_environments: B.
      specs: of its observation, action and reward.
    """

    def __init__(self, environment: specs.BatchedEnvironment):
        """Takes over `environment`: it is closed with this."""
        self.num_environments = environment.num_environments
        self.specs = environment.specs
        self._environment = environment

    @property
    def info(self) -> Mapping[str, np.ndarray]:
        """Of the environment."""
        return self._environment.info

    @property
    def num_rebuilt(self) -> int:
        """Of the environment."""
        return self._environment.num_rebuilt

    def reset(self) -> ts.TimeStep:
        """Starts new episodes everywhere. Returns time steps [B]."""
        return self._environment.reset()

    def step(self, action: Any) -> ts.TimeStep:
        """Applies `action`. Returns time steps [B]."""
        return self._environment.step(action)

    def close(self) -> None:
        """Frees what the environments hold. Calling it twice is fine."""
        self._environment.close()
