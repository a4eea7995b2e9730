"""CheckpointDirectory: finds the replay's newest checkpoint independently of the clock and the time zone.

Reverb names a checkpoint by the local time, and keeps only the one with the greatest name. After a change of the time
zone or of the clock that may be an older one, or one that was never completed. So Reverb saves into an empty directory,
and a completed checkpoint is renamed to the next number.
"""

import pathlib
import re
import shutil
from collections.abc import Iterator

_UNFINISHED = '.unfinished'
_FILES = ('tables.tfrecord', 'items.tfrecord', 'chunks.tfrecord')
_NUMBER = re.compile(r'\d+')
_REVERB_NAME = re.compile(r'\d+-\d\d-\d\dT\d\d:\d\d:.*')  # version 0.1 did not rename checkpoints


class CheckpointDirectory:
    """The checkpoints of one replay server. A checkpoint is complete when it holds Reverb's file DONE."""

    def __init__(self, path: pathlib.Path):
        self._path = path

    @property
    def reverb_root(self) -> pathlib.Path:
        """The directory that Reverb saves to. It exists only while something is saved."""
        return self._path / _UNFINISHED

    def newest(self) -> pathlib.Path | None:
        """Returns the newest complete checkpoint; None if there is none."""
        found = [path for directory in (self._path, self.reverb_root) for path in _complete(directory)]
        return max(found, key=self._order) if found else None

    def clean(self) -> None:
        """Takes over what Reverb has saved; call it before Reverb starts and after it has saved.

        A complete checkpoint becomes the newest one and replaces all others, also if an earlier process left it.
        Incomplete ones are removed.

        Raises:
          OSError: if the directory cannot be written to.
        """
        self._path.mkdir(parents=True, exist_ok=True)
        for path in sorted(_complete(self.reverb_root), key=self._order):
            self._replace_others(path)
        if self.reverb_root.exists():
            shutil.rmtree(self.reverb_root)

    def _replace_others(self, saved: pathlib.Path) -> None:
        others = [path for path in self._path.iterdir() if path.is_dir() and _is_ours(path.name)]
        numbers = [int(path.name) for path in others if _NUMBER.fullmatch(path.name)]
        saved.rename(self._path / f'{max(numbers, default=0) + 1:08d}')
        for path in others:
            shutil.rmtree(path, ignore_errors=True)

    def _order(self, checkpoint: pathlib.Path) -> tuple[int, int, int]:
        """Returns the sort key by age: Reverb's names of version 0.1, then numbers, then those not yet renamed."""
        written_at = (checkpoint / 'DONE').stat().st_mtime_ns
        if checkpoint.parent == self.reverb_root:
            return 2, 0, written_at
        if _NUMBER.fullmatch(checkpoint.name):
            return 1, int(checkpoint.name), written_at
        return 0, 0, written_at


def missing_files(checkpoint: pathlib.Path) -> list[str]:
    """Returns the files that a complete checkpoint lacks. Without them Reverb would restore an empty replay."""
    return [name for name in _FILES if not (checkpoint / name).exists()]


def _complete(directory: pathlib.Path) -> Iterator[pathlib.Path]:
    return (path.parent for path in directory.glob('*/DONE'))


def _is_ours(name: str) -> bool:
    return bool(_NUMBER.fullmatch(name) or _REVERB_NAME.fullmatch(name))
