"""Manifests: which checkpoints of the learner and of the replay servers belong together.

Every save of one of these jobs adds a manifest, `<number>.json`: the newest one, with the part of
that job replaced. So each manifest names one checkpoint of every job, and the last ones say which
of them were the newest at the same time.

Nothing relies on rename. A manifest is created exclusively, so that of two writers one has to read
again (compare and swap), begins with the length and the digest of its own content, and lists the
sizes and digests of the checkpoints' files. Readers skip what is torn, and what a job wrote whose
lock another process has taken over since (`lock`).
"""

import dataclasses
import datetime
import hashlib
import itertools
import json
import os
import pathlib
import re
import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from absl import logging

from tflearn.core.errors import UserRuntimeError, UserValueError
from tflearn.files.lock import LOCAL, Store
from tflearn.files.numbered import numbers_of
from tflearn.files.run_dir import is_inside

LEARNER = 'train'
_TORN_SECS, _POLL_SECS = 2.0, 0.05
# An index file, in which TensorFlow lists the checksum of every variable.
_MAX_DIGESTED_BYTES = 1 << 20
_NAME = '{:08}.json'
_CHECKPOINT = re.compile(r'(?:ckpt-)?\d+')


@dataclasses.dataclass(frozen=True)
class Part:
    """A job's checkpoint.

    Attributes:
      epoch: the epoch of the job's lock.
      checkpoint: its name, 'ckpt-500' or '00000003'; None while there is none.
      files: size [bytes], and SHA-256 if it is small, of each of its files, by path below the run
        directory.
    """

    epoch: int
    checkpoint: str | None
    files: Mapping[str, tuple[int, str | None]]

    @classmethod
    def of(cls, epoch: int, checkpoint: str | None, files: Mapping[str, Sequence[Any]]) -> 'Part':
        """Returns what a manifest says of a job. Raises ValueError or TypeError if no job of ours would write that."""
        if checkpoint is not None and not _CHECKPOINT.fullmatch(checkpoint):
            raise UserValueError(f'got the checkpoint {checkpoint[:80]!r}; need its name')
        if wrong := [name for name in files if not is_inside(name)]:
            raise UserValueError(f'got the file {wrong[0][:80]!r}; need files of the run directory')
        return cls(int(epoch), checkpoint, {name: (int(size), digest) for name, (size, digest) in files.items()})

    def fault(self, root: pathlib.Path, store: Store) -> str | None:
        """Returns which file is missing or changed; None if the checkpoint is whole."""
        changed = (name for name, wanted in self.files.items() if _identity(store, root / name) != wanted)
        return next(changed, None)


@dataclasses.dataclass(frozen=True)
class Manifest:
    """Checkpoints that belong together.

    Attributes:
      number: greater than those of all manifests before.
      time: when it was written, in UTC; only to be read by people.
      parts: by job.
    """

    number: int
    time: str
    parts: Mapping[str, Part]

    @property
    def train_step(self) -> int:
        """The learner's train step; 0 before its first checkpoint."""
        part = self.parts.get(LEARNER)
        return int(part.checkpoint.rpartition('-')[2]) if part and part.checkpoint else 0

    @property
    def replay(self) -> dict[str, str | None]:
        """The replay servers' checkpoints, by job."""
        return {job: part.checkpoint for job, part in self.parts.items() if job != LEARNER}

    def checkpoint(self, job: str) -> str | None:
        """Returns the name of a job's checkpoint; None if it has none."""
        return self.parts[job].checkpoint if job in self.parts else None

    def __str__(self) -> str:
        epoch = self.parts[LEARNER].epoch if LEARNER in self.parts else 0
        replay = ', '.join(f'{job} {name or "without a checkpoint"}' for job, name in self.replay.items()) or 'none'
        return f'manifest {self.number} (epoch {epoch}, train step {self.train_step}, replay: {replay})'

    def encode(self) -> bytes:
        """Returns the content of its file."""
        learner = self.parts.get(LEARNER)
        described = {
            'time': self.time,
            'epoch': learner.epoch if learner else 0,
            'train_step': self.train_step,
            'replay': self.replay,
            'parts': {job: dataclasses.asdict(part) for job, part in self.parts.items()},
        }
        body = json.dumps(described, indent=1).encode()
        return f'{len(body)} {hashlib.sha256(body).hexdigest()}\n'.encode() + body

    @classmethod
    def read(cls, store: Store, path: pathlib.Path) -> 'Manifest | None':
        """Returns the manifest of a file; None if the file is torn or gone."""
        try:
            header, _, body = store.read(path).partition(b'\n')
        except OSError:
            return None
        if header.decode(errors='replace') != f'{len(body)} {hashlib.sha256(body).hexdigest()}':
            return None
        try:
            content = json.loads(body)
            parts = {job: Part.of(**part) for job, part in content['parts'].items()}
            return cls(int(path.stem), str(content['time']), parts)
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
            logging.log_first_n(logging.WARNING, 'skipped the manifest %s, which is no such file: %s', 10, path, error)
            return None


class Manifests:
    """The manifests of a run, as one of its jobs reads and writes them.

    Attributes:
      job: the job's name, 'train' or that of its status file.
    """

    def __init__(
        self,
        root: pathlib.Path,
        directory: pathlib.Path,
        job: str,
        epoch: int,
        read_only: bool = False,
        store: Store = LOCAL,
    ):
        """
        Args:
          root: the run directory.
          directory: the manifests' directory; created with the first one.
          job: the job that writes.
          epoch: the epoch of its lock.
          read_only: `add` does nothing; for workers that are not the chief.
          store: where the manifests and the checkpoints are.
        """
        self._root, self._directory, self.job, self._epoch = root, directory, job, epoch
        self._read_only, self._store = read_only, store

    def newest_first(self) -> list[Manifest]:
        """Returns the manifests that are not torn,
        without those of owners that had lost their lock.
        """
        found, newest_epochs = [], dict[str, int]()
        for number in self._numbers():
            manifest = Manifest.read(self._store, self._path(number))
            if manifest is None:
                continue
            epochs = {job: part.epoch for job, part in manifest.parts.items()}
            if all(epoch >= newest_epochs.get(job, 0) for job, epoch in epochs.items()):
                newest_epochs |= epochs
                found.append(manifest)
        return found[::-1]

    def whole(self, jobs: Collection[str] | None = None) -> Iterable[Manifest]:
        """Yields the manifests whose checkpoints are whole, newest first;
        logs what is wrong with the others.

        Args:
          jobs: the jobs whose checkpoints are looked at; None is all.
        """
        for manifest in self.newest_first():
            parts = {job: part for job, part in manifest.parts.items() if jobs is None or job in jobs}
            faults = [
                f'{job}: {fault}' for job, part in parts.items() if (fault := part.fault(self._root, self._store))
            ]
            if faults:
                logging.warning('skipped %s: missing or changed: %s', manifest, '; '.join(faults))
            else:
                yield manifest

    def own(self) -> list[str]:
        """Returns the names of this job's checkpoints that are whole,
        those of the newest manifests first.
        """
        parts = [manifest.parts.get(self.job) for manifest in self.whole([self.job])]
        return list(dict.fromkeys(part.checkpoint for part in parts if part and part.checkpoint))

    def named(self) -> set[str]:
        """Returns the names of this job's checkpoints that a manifest names,
        which must not be deleted.
        """
        parts = [manifest.parts.get(self.job) for manifest in self.newest_first()]
        return {part.checkpoint for part in parts if part and part.checkpoint}

    def add(self, checkpoint: str | None, files: Iterable[pathlib.Path], base: Manifest | None = None) -> None:
        """Adds a manifest with a checkpoint of this job, which must be completely written;
        deletes old manifests.

        Args:
          checkpoint: its name; None if the job begins without one.
          files: its files.
          base: the manifest with the checkpoints of the other jobs; None is the newest one.

        Raises:
          ValueError: for a name that no checkpoint has, or a file outside of the run directory.
          RuntimeError: if another process has taken over this job.
          OSError: if it cannot be written.
        """
        if self._read_only:
            return
        identities = {os.path.relpath(path, self._root): _identity(LOCAL, path) for path in files}
        mine = Part.of(self._epoch, checkpoint, {name: each for name, each in identities.items() if each})
        self._store.upload()
        while not self._create(mine, base):
            pass  # another job was faster; its part belongs into this one
        self._prune()

    def _create(self, mine: Part, base: Manifest | None) -> bool:
        """Creates the next manifest; returns False if another process has created one at the same time."""
        number = max(self._numbers(), default=0)
        self._wait_until_written(number)
        found = self.newest_first()
        newest = found[0].parts if found else {}
        if self.job in newest and newest[self.job].epoch > mine.epoch:
            raise UserRuntimeError(
                f'got a checkpoint of the {self.job} job of epoch {mine.epoch}; need epoch '
                f'{newest[self.job].epoch}, which has taken over {self._root}; this one ends and writes nothing more'
            )
        others = (base or found[0]).parts if base or found else {}
        epochs = {job: max(part.epoch, newest[job].epoch if job in newest else 0) for job, part in others.items()}
        parts = {job: dataclasses.replace(part, epoch=epochs[job]) for job, part in others.items()}
        now = datetime.datetime.now(datetime.UTC)
        content = Manifest(number + 1, f'{now:%FT%TZ}', {**parts, self.job: mine}).encode()
        if not self._store.create(self._path(number + 1), content):
            return False
        # Other processes may have created and deleted one with this number meanwhile.
        return max(self._numbers()) == number + 1

    def _wait_until_written(self, number: int) -> None:
        """Waits while another process may be writing this manifest;
        one that stays torn is ignored.
        """
        deadline, pause = time.monotonic() + _TORN_SECS, threading.Event()
        path = self._path(number)
        while number and Manifest.read(self._store, path) is None and time.monotonic() < deadline:
            if path.name not in self._store.names(self._directory):
                return
            pause.wait(_POLL_SECS)

    def _prune(self) -> None:
        """Deletes all manifests but the newest one and, for each job,
        the newest one with its checkpoint before.
        """
        found = self.newest_first()
        if not found:  # other processes have just deleted what was listed
            return
        kept = {found[0].number}
        for job, part in found[0].parts.items():
            others = (each.number for each in found if each.checkpoint(job) != part.checkpoint)
            kept.update(itertools.islice(others, 1))
        for number in self._numbers():
            if number not in kept and number < found[0].number:
                self._store.delete(self._path(number))

    def _numbers(self) -> list[int]:
        return numbers_of(_NAME, self._store.names(self._directory))

    def _path(self, number: int) -> pathlib.Path:
        return self._directory / _NAME.format(number)


def _identity(store: Store, path: pathlib.Path) -> tuple[int, str | None] | None:
    """Returns a file's size and, if it is small, its digest; None if there is none."""
    try:
        size = store.size(path)
        return size, hashlib.sha256(store.read(path)).hexdigest() if size <= _MAX_DIGESTED_BYTES else None
    except OSError:
        return None
