"""Failures of environments, which are then rebuilt: counts and logs them; too many in a row are an error.

This file must stay importable without TensorFlow: workers import it.
"""

import traceback
from collections.abc import Container, Sequence

import numpy as np
from absl import logging

MAX_IN_A_ROW = 5


class Failures:
    """Counts the failures of N environments."""

    def __init__(self, num_environments: int, max_in_a_row: int = MAX_IN_A_ROW):
        """Starts at 0."""
        self.num_rebuilt = 0
        self._in_a_row = [0] * num_environments
        self._max_in_a_row = max_in_a_row
        self._any = False

    def add(self, environments: Sequence[int], cause: str) -> None:
        """Counts a failure of `environments`, which the caller then rebuilds.

        Raises:
          RuntimeError: with the cause, if they have failed too often in a row.
        """
        self._any = True
        for i in environments:
            self._in_a_row[i] += 1
        in_a_row = max(self._in_a_row[i] for i in environments)
        names = f'environment {", ".join(map(str, environments))}'
        if in_a_row > self._max_in_a_row:
            raise RuntimeError(
                f'got {in_a_row} failures in a row of {names}; need one that can be made, reset and stepped; fix the '
                f'cause: {cause}'
            )
        self.num_rebuilt += len(environments)
        logging.warning('rebuilding %s (failure %d in a row): %s', names, in_a_row, cause)

    def record_step(self, failed: Container[int] = ()) -> None:
        """Records that all environments except `failed` made a step."""
        if self._any:
            self._in_a_row = [count if i in failed else 0 for i, count in enumerate(self._in_a_row)]
            self._any = any(self._in_a_row)


def cause_of(error: BaseException) -> str:
    """Returns the error in one line, followed by its traceback."""
    trace = ''.join(traceback.format_exception(error)).strip()
    return f'{trace.splitlines()[-1]}\n{trace}'


def seed_of(seed: int | None, index: int, num_rebuilt: int) -> int | None:
    """Returns the seed of environment `index`; a rebuilt one gets another, so that it does not fail in the same way.

    Args:
      num_rebuilt: the number of environments rebuilt so far; 0 gives seed + index.
    """
    if seed is None or not num_rebuilt:
        return None if seed is None else seed + index
    return int(np.random.SeedSequence((seed + index, num_rebuilt)).generate_state(1)[0])
