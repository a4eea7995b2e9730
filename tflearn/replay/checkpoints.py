"""The checkpoints of one replay server, whichever backend wrote them, and how long a save takes.

Backends take a table's settings and signature from the checkpoint. Here a checkpoint with other settings than the run's
is refused, and left unchanged; the error names the differences.
"""

import os
import pathlib
import shutil
import tempfile
import time
from collections.abc import Callable, Collection
from typing import Any

from absl import logging

from tflearn.core import forms
from tflearn.core.errors import UserValueError
from tflearn.files.numbered import Numbered
from tflearn.files.run_dir import read_json, write_json
from tflearn.files.temporary import remove_leftovers

_UNFINISHED = '.unfinished'
_PROBE_BYTES = 8 << 20
COMPLETE = 'DONE'  # the file that a complete checkpoint holds, as Reverb marks it


class DamagedCheckpoint(UserValueError):
    """A checkpoint that cannot be read."""


def damaged(checkpoint: pathlib.Path, reason: str) -> DamagedCheckpoint:
    """Returns the error for a checkpoint that cannot be read."""
    return DamagedCheckpoint(
        f'got the replay checkpoint {checkpoint}, which cannot be read ({reason}); need a complete one; remove this '
        'directory to continue with an older one, or with an empty replay if there is none'
    )


class CheckpointDirectory:
    """The checkpoints of one replay server. A checkpoint is complete when it holds the file DONE.

    Reverb names a checkpoint by the local time, and keeps only the one with the greatest name. After a change of the
    time zone or of the clock that may be an older one, or one that was never completed. So a backend saves into an
    empty directory, and a completed checkpoint is renamed to the next number.

    Attributes:
      unfinished: the directory that a backend saves to; it exists only meanwhile.
    """

    def __init__(self, path: pathlib.Path, needed: Callable[[], Collection[str]] = tuple):
        """
        Args:
          needed: returns the names of the checkpoints that are kept besides the newest one.
        """
        self._numbered, self._needed = Numbered(path, '{:08}', needs=(COMPLETE,)), needed
        self.path, self.unfinished = path, path / _UNFINISHED
        self._settings = path.parent / 'tables.json'

    def newest(self) -> pathlib.Path | None:
        """Returns the newest complete checkpoint; None if there is none."""
        if saved := self._saved():
            return saved[-1]
        number = self._numbered.newest
        return None if number is None else self._numbered.path(number)

    def chosen(self, name: str | None) -> pathlib.Path | None:
        """Returns the checkpoint of this name, one of those that are needed; for None the newest one, or None."""
        return self.path / name if name else self.newest()

    def _saved(self) -> list[pathlib.Path]:
        """Returns the complete checkpoints that were saved and have no number yet, by age."""
        done = sorted(self.unfinished.glob(f'*/{COMPLETE}'), key=lambda path: path.stat().st_mtime_ns)
        return [path.parent for path in done]

    def clean(self) -> None:
        """Takes over what was saved; a backend calls it before it starts, before it saves and after that.

        A complete checkpoint becomes the newest one and replaces all others that are not needed, also if an earlier
        process left it. Incomplete ones are removed.

        Raises:
          OSError: if the directory cannot be written to.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        remove_leftovers(self.path, shared=False)
        for path in self._saved():
            path.rename(self._numbered.next_path())
            self.prune()
        if self.unfinished.exists():
            shutil.rmtree(self.unfinished)

    def write_settings(self, tables: dict[str, Any]) -> None:
        """Writes the settings of the tables, as JSON values; before a checkpoint, which is refused without them."""
        write_json(self._settings, tables)

    def settings(self, checkpoint: pathlib.Path) -> dict[str, Any]:
        """Returns what was written before a checkpoint. Raises ValueError if it is not there."""
        if (tables := read_json(self._settings)) is None:
            raise damaged(checkpoint, f'there is no {self._settings}, which belongs to it, also in a backup')
        return dict(tables)

    def refuse_differences(self, checkpoint: pathlib.Path, tables: dict[str, Any]) -> None:
        """Raises ValueError if a checkpoint holds tables with other settings.

        Args:
          tables: the settings of the run's tables, as JSON values.
        """
        if found := _differences(self.settings(checkpoint), tables, 'table'):
            raise UserValueError(
                f'got the replay checkpoint {checkpoint}, made with other tables: {"; ".join(found[:4])}; need the '
                'same settings; change them back, or start another --root_dir'
            )

    def prune(self) -> None:
        """Removes all checkpoints but the newest one with a number and those that are needed."""
        if (newest := self._numbered.newest) is not None:
            self._numbered.prune({newest, *map(int, self._needed())})


def _differences(saved: dict[str, Any], wanted: dict[str, Any], name: str) -> list[str]:
    """Returns a line for each difference between two descriptions, depth first."""
    found = []
    for key in sorted(saved.keys() | wanted.keys()):
        before, now, its_name = saved.get(key), wanted.get(key), forms.inner_name(name, key)
        if isinstance(before, dict) and isinstance(now, dict):
            found += _differences(before, now, its_name)
        elif before != now:
            found.append(f'{its_name} is {before!a:.100} in the checkpoint, {now!a:.100} in this run')
    return found


class SaveTime:
    """How long the next save will take, so that a stop does not begin one that it cannot end.

    It takes as long as the last one, in proportion to the bytes that the tables hold.

    Before the first save it is the time that the disk needs for as many bytes, by a small file; that is an upper bound
    where the content can be compressed, and a lower one on a machine that is short of processors.
    """

    def __init__(self, directory: pathlib.Path, clock: Callable[[], float] = time.monotonic):
        """Measures the disk.

        Args:
          directory: where saves are written; created if needed.
        """
        self._clock, self._secs_per_byte = clock, 0.0
        start = clock()
        try:
            directory.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=directory) as file:
                file.write(os.urandom(_PROBE_BYTES))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:  # a full disk; the saves will say so
            logging.warning('could not measure how fast %s is written: %s', directory, error.strerror)
            return
        self._secs_per_byte = (clock() - start) / _PROBE_BYTES

    def expected_secs(self, num_bytes: int) -> float:
        """Returns how long a save of tables with so many bytes will take."""
        return num_bytes * self._secs_per_byte

    def measure(self, save: Callable[[], str], num_bytes: int) -> str:
        """Saves, and measures it; returns what `save` returns.

        Args:
          num_bytes: what the tables hold now.
        """
        start = self._clock()
        saved = save()
        secs = self._clock() - start
        logging.info('saved the replay in %.1f s: %s', secs, saved)
        if num_bytes >= _PROBE_BYTES:  # with less the fixed costs count
            self._secs_per_byte = secs / num_bytes
        return saved
