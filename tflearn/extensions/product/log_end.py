"""Where a log ends: until then all that was reported is in its files. What would come later is not known."""

import math
import pathlib
from collections.abc import Iterable, Sequence

import numpy as np

from tflearn.extensions.product import log_files
from tflearn.extensions.serving.decision_files import CLOCK_SECS, begun_at


class LogEnd:
    """Finds the end of a log, the least of

    - the newest time of each source of outcomes: the files of one directory whose names have the same words;
    - the newest time of the decisions, since a wrong clock of those who report outcomes must not close windows;
    - the begin of each file of a server that is not among those that are read, such as one that it still writes.

    No time counts that is later than the change of its file: so a log never ends after its files were listed.
    """

    def __init__(self, outcomes: Sequence[pathlib.Path]):
        """Takes the files of outcomes."""
        self._sources = {log_files.source(path): -math.inf for path in outcomes}
        self._decided = -math.inf
        self._unread = min(_unread(outcomes), default=(math.inf, ''))

    def add_outcomes(self, path: pathlib.Path, times: np.ndarray) -> None:
        """Takes the times of outcomes in a file."""
        source = log_files.source(path)
        self._sources[source] = max(self._sources[source], _newest(path, times))

    def add_decisions(self, path: pathlib.Path, times: np.ndarray) -> None:
        """Takes the times of decisions in a file."""
        self._decided = max(self._decided, _newest(path, times))

    def find(self) -> tuple[float, str]:
        """Returns the time of the end [s since 1970], and what it is the time of."""
        sources = [(at, f'the newest outcome of {name}') for name, at in self._sources.items()]
        return min([*sources, (self._decided, 'the newest decision'), self._unread])


def latest(path: pathlib.Path) -> float:
    """Returns the latest time that a row of a file can have: its last change, and by how much clocks differ."""
    return path.stat().st_mtime + CLOCK_SECS


def _newest(path: pathlib.Path, times: np.ndarray) -> float:
    return min(float(times.max(initial=-math.inf)), path.stat().st_mtime)


def _unread(paths: Sequence[pathlib.Path]) -> Iterable[tuple[float, str]]:
    """Yields the begin of files of servers that stand beside those that are read, and are not among them."""
    read = {path.resolve() for path in paths}
    for directory in {path.parent for path in read if begun_at(path.name, 'outcomes') is not None}:
        for path in directory.iterdir():
            begun = begun_at(path.name, 'outcomes')
            if begun is not None and path not in read:
                yield begun, f'the begin of {path}, which is not read'
