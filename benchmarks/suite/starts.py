"""Evaluations of our side whose episodes have the same starts at every mark. For the peers: `peers.run`."""

import inspect
from collections.abc import Callable
from typing import Any

from tflearn.core.types import BatchedEnvironment, EnvironmentFactory


class SameStarts:
    """A batch that each reset makes again from its seed; the first reset is that of an evaluation."""

    def __init__(self, make_batch: Callable[[], BatchedEnvironment]):
        self._make_batch, self._batch = make_batch, make_batch()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def reset(self) -> Any:
        """Starts the first episodes of an evaluation."""
        self._batch.close()
        self._batch = self._make_batch()
        return self._batch.reset()


def make(make_environment: EnvironmentFactory, num_environments: int, seed: int | None) -> Any:
    """Makes a batch of the run's environment; see the class."""
    # The environments of a native batch share their random numbers, so a start depends on who was reset before.
    apart = 'vectorization' in inspect.signature(make_environment).parameters
    given: dict[str, Any] = {'vectorization': 'in_process'} if apart else {}
    return SameStarts(lambda: make_environment(num_environments=num_environments, seed=seed, **given))
