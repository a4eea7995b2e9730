"""Rounds of the loop: each is a directory, whose first file names its input, and whose last one is its result."""

import dataclasses
import pathlib
import time
from collections.abc import Sequence
from typing import Any

from tflearn.core.errors import UserValueError
from tflearn.files import log_files
from tflearn.files.numbered import Numbered
from tflearn.files.run_dir import RunDir, read_json, write_json

_INPUTS, _RESULT = 'round.json', 'end.json'


@dataclasses.dataclass(frozen=True)
class Round:
    """A round that has begun.

    Attributes:
      directory: `rounds/<number>` of the loop's directory.
      inputs: when it began, and the files that it reads: `decisions` and `outcomes`.
    """

    directory: pathlib.Path
    inputs: dict[str, Any]

    @property
    def number(self) -> int:
        """Counted from 1."""
        return int(self.directory.name)

    @property
    def result(self) -> dict[str, Any] | None:
        """What came of it; None while it is not finished."""
        return read_json(self.directory / _RESULT)

    @property
    def run(self) -> RunDir:
        """The run that trains."""
        return RunDir(self.directory / 'run')

    def finish(self, **result: Any) -> None:
        """Writes the result."""
        write_json(self.directory / _RESULT, {'ended': time.time(), **result})


class Rounds:
    """The rounds in the directory of a loop."""

    def __init__(self, root: pathlib.Path):
        self._numbered = Numbered(root / 'rounds', needs=(_INPUTS,))
        self._lines: dict[pathlib.Path, int] = {}  # of complete files, which do not change

    def finished(self) -> list[Round]:
        """Returns those that have a result, in their order."""
        return [each for each in self._all() if each.result is not None]

    def unfinished(self) -> Round | None:
        """Returns the last one, if it has no result."""
        return next((each for each in self._all()[-1:] if each.result is None), None)

    def _all(self) -> list[Round]:
        paths = map(self._numbered.path, self._numbered.numbers())
        return [Round(path, read_json(path / _INPUTS, 'began', 'decisions', 'outcomes') or {}) for path in paths]

    def begin(
        self, decisions: Sequence[str], outcomes: Sequence[str], num_decisions: int | None, hours: float | None
    ) -> Round | None:
        """Begins the next round, if it is due: its files are settled from then on.

        Args:
          decisions: directories or files.
          outcomes: the same.
          num_decisions: a round is due when there are so many new decisions, ...
          hours: ... or so much time has passed since the last one began. Without both, with any new decision.
        """
        given = {'decisions': decisions, 'outcomes': outcomes}
        try:
            files = {name: log_files.find(paths, name) for name, paths in given.items()}
        except UserValueError:  # nothing is logged yet
            return None
        before = self._all()
        known = set(before[-1].inputs['decisions']) if before else set()
        new = sum(self._count(path) for path in files['decisions'] if str(path) not in known)
        waited = time.time() - before[-1].inputs['began'] if before else float('inf')
        is_late = hours is not None and waited >= hours * 3_600
        if not new or not (is_late or new >= (num_decisions or (1 if hours is None else float('inf')))):
            return None
        path = self._numbered.path((self._numbered.newest or 0) + 1)
        listed = {name: [str(each) for each in paths] for name, paths in files.items()}
        write_json(path / _INPUTS, {'began': time.time(), 'new_decisions': new, **listed})
        return self._all()[-1]

    def _count(self, path: pathlib.Path) -> int:
        if path not in self._lines:
            with path.open('rb') as file:
                self._lines[path] = sum(1 for _ in file)
        return self._lines[path]
