"""Numbered entries of a directory: checkpoints, versions of a policy, old files.
Each is complete, or not there.

What is being written or removed has a name that starts with a dot. It is renamed to its number when
it is complete, on a file system with atomic renames, for one writer and any number of readers.
"""

import contextlib
import os
import pathlib
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from tflearn.core.errors import UserValueError
from tflearn.core.settings import PositiveFloat, PositiveInt, checked, checked_dataclass
from tflearn.files.run_dir import write_atomically
from tflearn.files.temporary import REMOVED, remove_leftovers, temporary


class Numbered:
    """The numbered entries of a directory.

    Attributes:
      directory: created with the first write.
    """

    def __init__(
        self, directory: str | os.PathLike[str], name: str = '{}', needs: Sequence[str] = (), others: str = ''
    ):
        """
        Args:
          name: an entry's name, with its number at '{}'; of several files that of the one that is
            written last and deleted first.
          needs: the files that a complete directory has.
          others: the pattern of the names of an entry's other files; '' if it has none.
        """
        self.directory = pathlib.Path(directory)
        self._name, self._needs, self._others = name, needs, others

    def path(self, number: int) -> pathlib.Path:
        """Returns the path of an entry, whether it exists or not."""
        return self.directory / self._name.format(number)

    def files(self, number: int) -> list[pathlib.Path]:
        """Returns the paths of an entry, in the order in which they are written."""
        others = self.directory.glob(self._others.format(number)) if self._others else ()
        return [*others, self.path(number)]

    def is_complete(self, number: int) -> bool:
        """Returns whether there is an entry, with all that it needs."""
        path = self.path(number)
        return all((path / need).is_file() for need in self._needs) if self._needs else path.exists()

    def listed(self) -> list[int]:
        """Returns the numbers of all entries, complete or not, in ascending order."""
        try:
            return numbers_of(self._name, os.listdir(self.directory))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def numbers(self) -> list[int]:
        """Returns the numbers of the complete entries in ascending order."""
        while True:
            listed = self.listed()
            found = [number for number in listed if self.is_complete(number)]
            # The writer may have replaced all that were listed by a newer one.
            if found or all(self.path(number).exists() for number in listed):
                return found

    @property
    def newest(self) -> int | None:
        """The greatest number of the complete entries; None if there is none."""
        return max(self.numbers(), default=None)

    def next_path(self) -> pathlib.Path:
        """Returns the path of the next entry."""
        return self.path(max(self.listed(), default=0) + 1)

    def remove(self, number: int) -> None:
        """Removes an entry, for readers atomically."""
        for path in reversed(self.files(number)):
            remove(path)

    def prune(self, kept: Collection[int]) -> None:
        """Removes all entries but those that are kept."""
        for number in self.listed():
            if number not in kept:
                self.remove(number)


def numbers_of(name: str, names: Iterable[str]) -> list[int]:
    """Returns the numbers of those names that are `name` with a number at '{}',
    in ascending order.
    """
    start, _, end = re.sub(r'\{.*\}', '\0', name).partition('\0')
    pattern = re.compile(f'{re.escape(start)}([0-9]+){re.escape(end)}')
    matches = [match for match in map(pattern.fullmatch, names) if match]
    return sorted(int(match[1]) for match in matches if name.format(int(match[1])) == match[0])


@contextlib.contextmanager
def writing(path: pathlib.Path) -> Iterator[pathlib.Path]:
    """Makes an empty directory beside `path`, in which to write what is then renamed to it;
    removes what is left.
    """
    written = temporary(path)
    shutil.rmtree(written, ignore_errors=True)
    written.mkdir(parents=True)
    try:
        yield written
    finally:
        shutil.rmtree(written, ignore_errors=True)


@contextlib.contextmanager
def new(path: pathlib.Path) -> Iterator[pathlib.Path]:
    """Makes an empty directory to write, which becomes `path` at the end.
    Raises ValueError if `path` exists.
    """
    if path.exists():
        raise UserValueError(f'got output={path}, which exists; need a new path; choose another')
    with writing(path) as written:
        yield written
        put(written, path)


def put(written: pathlib.Path, path: pathlib.Path) -> None:
    """Renames a written directory to `path`, durably: it survives a power failure."""
    sync(*written.rglob('*'), written)
    os.rename(written, path)
    sync(path.parent)


def put_link(path: pathlib.Path, target: str) -> None:
    """Makes a link, or replaces it, atomically. Raises OSError where file systems have none."""
    written = temporary(path)
    written.unlink(missing_ok=True)
    os.symlink(target, written)
    os.replace(written, path)


def sync(*paths: pathlib.Path) -> None:
    """Waits until files and directories are on the disk:
    a crash of the machine leaves no name without content.
    """
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def remove(path: pathlib.Path, is_kept: Callable[[pathlib.Path], bool] = lambda away: False) -> None:
    """Removes a file or a directory, for readers atomically.

    Args:
      is_kept: whether somebody has marked the directory, of which it gets the new path, meanwhile;
        then it comes back.
    """
    away = temporary(path, REMOVED)
    if not path.is_dir():
        path.unlink(missing_ok=True)
        return
    try:
        os.rename(path, away)
    except FileNotFoundError:
        return
    if is_kept(away):
        os.rename(away, path)
    else:
        shutil.rmtree(away, ignore_errors=True)


@checked_dataclass(frozen=True)
class KeepEvery:
    """Which checkpoints are never deleted; None: no such rule.

    Attributes:
      steps: the first one at or after each multiple of so many train steps.
      hours: the first one, and each that was written so long after the last one that this rule
        keeps.
    """

    steps: PositiveInt | None = None
    hours: PositiveFloat | None = None


class CheckpointFiles(Numbered):
    """The learner's checkpoints in one directory, written by one process.

    They have TensorFlow's own layout: `ckpt-<step>.index`, `ckpt-<step>.data-*`, and the file
    `checkpoint` that names them. The index files show which checkpoints there are. There is no
    other state.

    Attributes:
      damaged: train steps of the checkpoints that could not be read; the next write deletes them.
    """

    @checked
    def __init__(
        self,
        directory: str | os.PathLike[str],
        max_to_keep: PositiveInt = 1,
        keep_every: KeepEvery = KeepEvery(),
        needed: Callable[[], Collection[int]] = tuple,
    ):
        """
        Args:
          keep_every: which ones are never deleted, besides.
          needed: returns the train steps of more checkpoints that are kept.
        """
        super().__init__(directory, 'ckpt-{}.index', others='ckpt-{}.data-*')
        self.damaged: set[int] = set()
        self._max_to_keep, self._keep_every, self._needed = max_to_keep, keep_every, needed

    def prefix(self, step: int) -> str:
        """Returns the beginning of the paths of a checkpoint's files,
        as TensorFlow names the checkpoint.
        """
        return str(self.path(step).with_suffix(''))

    def set_aside(self, step: int) -> None:
        """Moves a checkpoint that is not used into the directory `unused`."""
        unused = self.directory / 'unused'
        unused.mkdir(exist_ok=True)
        for file in reversed(self.files(step)):
            os.replace(file, unused / file.name)

    def write(self, step: int, write: Callable[[str], object]) -> None:
        """Writes a checkpoint by `write(prefix)`, then deletes those that are no longer kept."""
        remove_leftovers(self.directory, shared=False)
        index = self.path(step)
        with writing(index) as folder:
            write(str(folder / index.stem))
            files = sorted(folder.iterdir(), key=lambda file: file.name == index.name)
            sync(*files)
            index.unlink(missing_ok=True)  # never an old index with new data
            for file in files:
                os.replace(file, self.directory / file.name)
        self.damaged.discard(step)
        kept = self._kept(step)
        self._write_state(sorted(kept))
        self.prune(kept)

    def _kept(self, written: int) -> set[int]:
        """Returns the train steps of the checkpoints to keep once the one of step `written` is there."""
        readable = [step for step in self.numbers() if step not in self.damaged]
        kept = {*readable[-self._max_to_keep :], written, *(set(self._needed()) & set(readable))}
        if self._keep_every.steps is not None:
            # The first after each multiple stays the first, whichever later ones are deleted.
            first = {step // self._keep_every.steps: step for step in reversed(readable)}
            kept |= {step for multiple, step in first.items() if multiple > 0}
        if self._keep_every.hours is not None:
            next_at = 0.0
            for step in readable:
                if (written_at := self.path(step).stat().st_mtime) >= next_at:
                    kept.add(step)
                    next_at = written_at + 3600 * self._keep_every.hours
        return kept

    def _write_state(self, steps: list[int]) -> None:
        lines = [f'model_checkpoint_path: "ckpt-{steps[-1]}"']
        lines += [f'all_model_checkpoint_paths: "ckpt-{step}"' for step in steps]
        lines += [f'all_model_checkpoint_timestamps: {self.path(step).stat().st_mtime}' for step in steps]
        write_atomically(self.directory / 'checkpoint', '\n'.join(lines) + '\n')


def newest_checkpoint(directory: str | os.PathLike[str]) -> str:
    """Returns the prefix of the newest checkpoint in a directory.
    Raises ValueError if there is none.
    """
    files = CheckpointFiles(directory)
    if files.newest is None:
        raise UserValueError(
            f'got directory {directory} without any ckpt-<step>.index; need a checkpoint; check the path'
        )
    return files.prefix(files.newest)
