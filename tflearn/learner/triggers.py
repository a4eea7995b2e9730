"""Triggers: what happens every so many train steps."""

import dataclasses
from collections.abc import Callable

from tflearn.steps import crossed


@dataclasses.dataclass(frozen=True)
class IntervalTrigger:
    """Calls `action` whenever a multiple of `interval` was reached or passed.

    It keeps no state: it does not drift off the multiples, an action that raised is not taken for done, and a run that
    goes on from a checkpoint goes on with its triggers too.

    Attributes:
      interval: train steps between two calls; at least 1.
      action: gets the train step.
    """

    interval: int
    action: Callable[[int], object]

    def __post_init__(self) -> None:
        if self.interval < 1:
            raise ValueError(f'got interval={self.interval}; need at least 1 train step')

    def __call__(self, before: int, after: int) -> bool:
        """Says whether it fired for the train steps (before, after]."""
        if not crossed(self.interval, before, after):
            return False
        self.action(after)
        return True
