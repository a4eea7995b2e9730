"""The files of a directory of checkpoints: written atomically; which of them are kept.

TensorFlow's own layout: `ckpt-<step>.index`, `ckpt-<step>.data-*`, and the file `checkpoint` that names them. The index
files show which checkpoints there are: they are written last and deleted first. There is no other state.
"""

import os
import pathlib
import re
import shutil
from collections.abc import Callable, Collection

from tflearn.core.errors import UserValueError
from tflearn.core.settings import PositiveInt, checked
from tflearn.files.run_dir import write_atomically

_INDEX = re.compile(r'ckpt-(\d+)\.index')


class CheckpointFiles:
    """The checkpoints in one directory, written by one process.

    Attributes:
      directory: created with the first write.
      damaged: train steps of the checkpoints that could not be read; the next write deletes them.
    """

    @checked
    def __init__(
        self,
        directory: str | os.PathLike[str],
        max_to_keep: PositiveInt,
        keep_every_steps: PositiveInt | None,
        needed: Callable[[], Collection[int]] = tuple,
    ):
        """
        Args:
          keep_every_steps: the first checkpoint at or after each multiple is never deleted; None: no such rule.
          needed: returns the train steps of more checkpoints that are kept.
        """
        self.directory = pathlib.Path(directory)
        self.damaged: set[int] = set()
        self._max_to_keep, self._keep_every_steps, self._needed = max_to_keep, keep_every_steps, needed

    def steps(self) -> list[int]:
        """Returns the train steps of all checkpoints, in ascending order."""
        return _steps(self.directory)

    def path(self, step: int) -> str:
        """Returns the path prefix of the checkpoint of a train step."""
        return str(self.directory / f'ckpt-{step}')

    def files(self, step: int) -> list[pathlib.Path]:
        """Returns the files of the checkpoint of a train step."""
        return [*self.directory.glob(f'ckpt-{step}.data-*'), self._index(step)]

    def set_aside(self, step: int) -> None:
        """Moves a checkpoint that is not used into the directory `unused`."""
        unused = self.directory / 'unused'
        unused.mkdir(exist_ok=True)
        for file in self.files(step)[::-1]:
            os.replace(file, unused / file.name)

    def write(self, step: int, write: Callable[[str], object]) -> None:
        """Writes a checkpoint by `write(path prefix)`, then deletes those that are no longer kept."""
        temporary = self.directory / '.writing'
        shutil.rmtree(temporary, ignore_errors=True)  # from a process that was killed
        temporary.mkdir(parents=True)
        try:
            write(str(temporary / f'ckpt-{step}'))
            files = sorted(temporary.iterdir(), key=lambda file: file.suffix == '.index')
            for file in files:
                _flush(file)
            self._index(step).unlink(missing_ok=True)  # never an old index with new data
            for file in files:
                os.replace(file, self.directory / file.name)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        self.damaged.discard(step)
        kept = self._kept(step)
        self._write_state(sorted(kept))
        for other in set(self.steps()) - kept:
            self._delete(other)

    def _kept(self, written: int) -> set[int]:
        """Returns the train steps of the checkpoints to keep once the one of step `written` is there."""
        readable = [step for step in self.steps() if step not in self.damaged]
        kept = {*readable[-self._max_to_keep :], written, *(set(self._needed()) & set(readable))}
        if self._keep_every_steps is not None:
            # The first after each multiple stays the first, whichever later ones are deleted.
            first = {step // self._keep_every_steps: step for step in reversed(readable)}
            kept |= {step for multiple, step in first.items() if multiple > 0}
        return kept

    def _write_state(self, steps: list[int]) -> None:
        lines = [f'model_checkpoint_path: "ckpt-{steps[-1]}"']
        lines += [f'all_model_checkpoint_paths: "ckpt-{step}"' for step in steps]
        lines += [f'all_model_checkpoint_timestamps: {self._index(step).stat().st_mtime}' for step in steps]
        write_atomically(self.directory / 'checkpoint', '\n'.join(lines) + '\n')

    def _delete(self, step: int) -> None:
        for file in self.files(step)[::-1]:
            file.unlink(missing_ok=True)

    def _index(self, step: int) -> pathlib.Path:
        return self.directory / f'ckpt-{step}.index'


def newest_checkpoint(directory: str | os.PathLike[str]) -> str:
    """Returns the path prefix of the newest checkpoint in a directory. Raises ValueError if there is none."""
    steps = _steps(pathlib.Path(directory))
    if not steps:
        raise UserValueError(
            f'got directory {directory} without any ckpt-<step>.index; need a checkpoint; check the path'
        )
    return str(pathlib.Path(directory) / f'ckpt-{steps[-1]}')


def _steps(directory: pathlib.Path) -> list[int]:
    matches = map(_INDEX.fullmatch, os.listdir(directory) if directory.is_dir() else ())
    return sorted(int(match[1]) for match in matches if match)


def _flush(file: pathlib.Path) -> None:
    """Waits until a file is on the disk, so that a crash of the machine does not leave a name without content."""
    with file.open('rb') as opened:
        os.fsync(opened.fileno())
