"""Lock: at most one learner, and one replay server, writes to a run directory.
And locks of open files.

A `Lock` is a small file, `<job>-<epoch>.json`. Who claims it creates the file of the next epoch,
which only one process can do, and renews it every few seconds. It ends when it is released, when
its process has died on this machine, or when it was not renewed for `LOCK_SECS` by the clock of the
process that watches it: clocks are never compared between machines. An owner of an older epoch
finds the newer file before it writes again, and stops (the epoch is a fencing token; Kleppmann
2016, "How to do distributed locking").

What several jobs write at the same time (locks, manifests), and what must have arrived before the
next step (checkpoints), goes through a `Store`; all other files are only read and written.

`try_lock` and `locked` lock an open file by the kernel: among the processes of one machine, until
all that have it open have ended.
"""

import contextlib
import fcntl
import json
import os
import pathlib
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import IO, Any

from absl import logging

from tflearn.core import background, forms
from tflearn.core.errors import UserRuntimeError
from tflearn.files import messages


def try_lock(file: IO[Any] | int) -> bool:
    """Locks an open file, or its descriptor; returns False if another process has locked it.

    Raises:
      OSError: if its file system has no locks.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def locked(path: pathlib.Path) -> Iterator[None]:
    """Locks a file, which is made, for the time of the block;
    waits for another process that has locked it.
    """
    with path.open('ab') as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


LOCK_SECS = 15.0
RENEW_SECS = 3.0
_POLL_SECS = 0.25
_CHECK_SECS = 1.0  # an owner that was not stopped for longer than this cannot have lost its lock
_KEPT_EPOCHS = 3
_LEAST_BYTES = 1024  # of a lock's file, so that no renewal needs more room than the first
_CARDS = pathlib.Path('/sys/class/net')
_BOOT = pathlib.Path('/proc/sys/kernel/random/boot_id')


class Store:
    """The files of a run directory that all jobs share by their file system.
    `StoreCopy` has those of a URL.

    Attributes:
      answers: whether the newest attempt to read what others have written succeeded.
      check_secs: an owner that looked at its lock within this time need not look again [s].
    """

    check_secs = 0.0
    answers = True

    def names(self, directory: pathlib.Path) -> list[str]:
        """Returns the names of the files in a directory; none if there is no such directory."""
        return os.listdir(directory) if directory.is_dir() else []

    def read(self, path: pathlib.Path) -> bytes:
        """Returns a file's content. Raises OSError if it cannot be read."""
        return path.read_bytes()

    def size(self, path: pathlib.Path) -> int:
        """Returns a file's size [bytes]. Raises OSError if there is none."""
        return path.stat().st_size

    def write(self, path: pathlib.Path, content: bytes) -> None:
        """Writes a file in its place, which needs no room on a full disk if it is not longer than before.

        It is not renamed; a reader may see a part of it. Raises OSError.
        """
        with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o666), 'wb', buffering=0) as file:
            file.write(content)
            file.truncate()

    def create(self, path: pathlib.Path, content: bytes) -> bool:
        """Creates a file, durably, for one of all that try at once; returns False if it exists.
        Raises OSError.
        """
        from tflearn.files import temporary  # which needs this module

        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.remove_leftovers_once(path.parent)
        written = temporary.temporary(path.with_name(f'{path.name}-{threading.get_ident()}'), temporary.PART)
        try:
            with written.open('wb', buffering=0) as file:
                file.write(content)
                os.fsync(file.fileno())
            return self._appear(written, path, content)
        except FileExistsError:
            return False
        finally:
            written.unlink(missing_ok=True)

    def _appear(self, written: pathlib.Path, path: pathlib.Path, content: bytes) -> bool:
        try:
            os.link(written, path)  # with its content: no reader, and no kill, finds an empty file
        except FileExistsError:
            raise
        except OSError:  # a file system without links
            with path.open('xb', buffering=0) as file:
                file.write(content)
        return True

    def delete(self, path: pathlib.Path) -> None:
        """Deletes a file, if it exists."""
        path.unlink(missing_ok=True)

    def begin(self, check: Callable[[], None]) -> None:
        """Is called when this process owns a part of the run; `check` raises when it stops to."""

    def upload(self) -> None:
        """Returns when all that this process has written can be read by the others.
        Raises OSError.
        """

    def end(self) -> None:
        """Is called when this process stops to own its part, before its lock ends.
        Raises OSError.
        """

    def refresh(self) -> None:
        """Returns when this process sees what the others have written."""


LOCAL = Store()


class Lock:
    """A lock that this process owns.

    Attributes:
      epoch: the number of the owner, from 1; greater than those of all owners before.
    """

    def __init__(self, directory: pathlib.Path, job: str, epoch: int, store: Store):
        """Use `hold`."""
        self.epoch = epoch
        self._directory, self._job, self._store = directory, job, store
        self._path = _path(directory, job, epoch)
        self._facts: dict[str, Any] = {'job': job, 'epoch': epoch, **_this_process(), 'since': time.time()}
        self._renewals = 0
        self._checked_at = _clocks()
        self._released, self._writing = threading.Event(), threading.Lock()

    def check(self) -> None:
        """Checks that no other process has taken the lock. Cheap: it seldom reads the directory.

        Raises:
          RuntimeError: if one has; it names the new owner.
        """
        elapsed = max(now - then for now, then in zip(_clocks(), self._checked_at, strict=True))
        if elapsed < max(_CHECK_SECS, self._store.check_secs):
            return
        try:
            self._look()
        except OSError as error:  # no answer; whoever saves something looks again
            logging.warning('could not check the lock in %s: %s', self._directory, error)

    def _look(self) -> None:
        now = _clocks()
        newest = _newest_epoch(self._store, self._directory, self._job)
        if newest > self.epoch:
            owner = _read(self._store, _path(self._directory, self._job, newest)) or {}
            raise UserRuntimeError(
                f'got another {self._job} job ({_described(owner)}), which took over {self._directory.parent} while '
                'this one had stopped; need one at a time; this one ends and writes nothing more'
            )
        self._checked_at = now

    def renew_until_released(self) -> None:
        """Renews the lock; runs on a thread of its own."""
        while not self._released.wait(RENEW_SECS):
            with (
                contextlib.suppress(RuntimeError, OSError),
                self._writing,
            ):  # the job finds out itself, before it writes
                if not self._released.is_set():
                    self._look()
                    self.write()

    def write(self, **more: Any) -> None:
        """Writes the file of the lock, without a rename, which not every store has."""
        self._store.write(self._path, self.content(**more))

    def content(self, **more: Any) -> bytes:
        """Returns the content of the next renewal."""
        self._renewals += 1
        text = json.dumps({**self._facts, 'renewals': self._renewals, 'time': time.time(), **more})
        return text.ljust(_LEAST_BYTES).encode()

    def release(self) -> None:
        """Ends the lock. A renewal that has begun is waited for: it would undo the release."""
        self._released.set()
        if not self._writing.acquire(timeout=LOCK_SECS):
            logging.warning('left the lock %s to expire: a renewal does not return', self._path)
            return
        with contextlib.suppress(RuntimeError, OSError):
            self._look()
            self.write(released=True)
        self._writing.release()


@contextlib.contextmanager
def hold(directory: pathlib.Path, job: str, stop: threading.Event, store: Store = LOCAL) -> Iterator[Lock | None]:
    """Claims the lock of `job`, renews it during the block, and releases it.

    Args:
      directory: the directory of the locks' files.
      job: the job's name, such as 'train'.
      stop: ends the wait for a lock that its owner no longer renews; the block then gets None.
      store: where the files are.

    Raises:
      RuntimeError: if another process has it and renews it; names its machine, process and age.
    """
    directory.mkdir(parents=True, exist_ok=True)
    lock = None
    while lock is None:
        epoch = _newest_epoch(store, directory, job)
        if epoch and not _wait_for_end(store, _path(directory, job, epoch), job, stop):
            yield None
            return
        lock = _claim(store, directory, job, epoch + 1)
    renewing = background.Thread(target=lock.renew_until_released, name='lock')
    renewing.start()
    try:
        yield lock
    finally:
        lock.release()
        renewing.join(RENEW_SECS)


def _claim(store: Store, directory: pathlib.Path, job: str, epoch: int) -> Lock | None:
    """Returns the lock of this epoch; None if another process was faster."""
    lock = Lock(directory, job, epoch, store)
    if not store.create(_path(directory, job, epoch), lock.content()):
        return None
    there = set(store.names(directory))
    for old in range(epoch - _KEPT_EPOCHS, 0, -1):
        path = _path(directory, job, old)
        if path.name not in there:
            break
        store.delete(path)
    return lock


def _wait_for_end(store: Store, path: pathlib.Path, job: str, stop: threading.Event) -> bool:
    """Waits until a lock has ended; returns False if `stop` was set meanwhile.

    Raises:
      RuntimeError: as soon as its owner renews it.
    """
    first, deadline = _read(store, path), time.monotonic() + LOCK_SECS
    if _has_ended(first):
        return True
    logging.info('%s: waiting up to %g s whether it still runs', _described(first or {}), LOCK_SECS)
    while time.monotonic() < deadline:
        if stop.wait(_POLL_SECS):
            return False
        owner = _read(store, path)
        if _has_ended(owner):
            return True
        if owner is not None and owner != first:
            raise UserRuntimeError(
                f'got root_dir={str(path.parent.parent)!r}, in which another {job} job works ({_described(owner)}); '
                'need one at a time, since each would overwrite what the other saves; stop it, or choose another '
                '--root_dir'
            )
    if _read(store, path) is None and path.name in store.names(path.parent):
        raise UserRuntimeError(
            f'got the lock {path}, which cannot be read; need to know whether another {job} job works in '
            f'{path.parent.parent}; if none does, remove the file'
        )
    logging.warning('%s did not renew its lock for %g s; taking over', _described(first or {}), LOCK_SECS)
    return True


def _has_ended(owner: dict[str, Any] | None) -> bool:
    """Returns whether an owner has released its lock, or its process has died here."""
    return owner is not None and bool(owner.get('released') or _has_died(owner))


def _path(directory: pathlib.Path, job: str, epoch: int) -> pathlib.Path:
    return directory / f'{job}-{epoch:06}.json'


def _newest_epoch(store: Store, directory: pathlib.Path, job: str) -> int:
    """Returns the newest epoch; 0 if there was none."""
    pattern = re.compile(rf'{re.escape(job)}-(\d+)\.json')
    found = (pattern.fullmatch(name) for name in store.names(directory))
    return max((int(match[1]) for match in found if match), default=0)


def _read(store: Store, path: pathlib.Path) -> dict[str, Any] | None:
    """Returns a lock's file; None while it is being written."""
    try:
        value = json.loads(store.read(path))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    # As of an owner of whom nothing is known: one that lives renews it.
    return {} if forms.fault(value, messages.Owner) else value


def _this_process() -> dict[str, Any]:
    return {'host': socket.gethostname(), 'machine': machine(), 'pid': os.getpid(), 'started': started(os.getpid())}


def _clocks() -> tuple[float, float]:
    """Returns the times that go on while this process does not run [s].

    The monotonic clock stands still while a machine is suspended, so an owner would not look
    whether it has lost its lock. A virtual machine that was paused sees that by its wall clock,
    once that is set.
    """
    return time.clock_gettime(time.CLOCK_BOOTTIME), time.time()


def machine() -> str:
    """Returns what differs between two machines, two starts of one, and two containers on it;
    '' if that is unknown.

    Clones of a virtual machine's snapshot have the same boot id; their network cards and names
    differ, mostly.
    """
    try:
        boot, processes = _BOOT.read_text(encoding='utf-8').strip(), os.readlink('/proc/self/ns/pid')
        cards = [(path.parent / 'address').read_text().strip() for path in sorted(_CARDS.glob('*/device'))]
        return ' '.join([boot, processes, socket.gethostname(), *cards])
    except OSError:
        return ''


def started(pid: int) -> str:
    """Returns when a process was started, in ticks since the machine's start;
    '' if it has ended.
    """
    try:
        fields = pathlib.Path(f'/proc/{pid}/stat').read_text(encoding='utf-8').rpartition(')')[2].split()
    except OSError:
        return ''
    return '' if fields[0] == 'Z' else fields[19]


def _has_died(owner: dict[str, Any]) -> bool:
    """Returns whether the owner ran on this machine and has ended."""
    here = machine()
    same_machine = bool(here) and owner.get('machine') == here
    return same_machine and isinstance(owner.get('pid'), int) and owner.get('started') != started(owner['pid'])


def _described(owner: dict[str, Any]) -> str:
    since = owner.get('since')
    if 'pid' not in owner or not isinstance(since, int | float):
        return 'one that has just begun'
    return f'pid {owner["pid"]} on {owner.get("host")}, for {max(0.0, time.time() - since):.0f} s'
