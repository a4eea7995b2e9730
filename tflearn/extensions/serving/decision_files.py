"""The files of a decision log: JSON lines in files that appear whole.
They are written by a process of their own.

A line is one decision: id, time, model, version, arm, cluster, inputs by their names, action,
probability, mask; or, in files of their own, one outcome. A file is begun under a hidden name and
renamed when it is full, after some seconds, or when the server ends, also by SIGKILL: then its pipe
ends. What a machine that failed has left is completed by the next server in the directory, without
a torn line.
"""

import contextlib
import datetime
import hashlib
import hmac
import itertools
import json
import math
import os
import pathlib
import re
import signal
import socket
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from multiprocessing import connection
from types import MappingProxyType
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from absl import logging

from tflearn.core import background, extensions, side_tasks
from tflearn.core.errors import UserOSError
from tflearn.core.settings import Fraction, PositiveFloat, PositiveInt, checked_dataclass
from tflearn.files.lock import try_lock
from tflearn.files.run_dir import PRIVATE, is_url

KINDS = ('decisions', 'outcomes')
CLOCK_SECS = 300.0  # by which the clocks of those who report outcomes may be ahead
_SUFFIX = '.jsonl'
_BEGUN = re.compile(r'\.?(\w+)-(\d{8}T\d{6})\.\d{9}Z-.*\.jsonl')
_NICE = 10
_encode = json.JSONEncoder(separators=(',', ':')).encode
_POLL_SECS = 0.5
_RETRY_SECS, _DELIVERY_SECS = 5.0, 20.0  # between two attempts to deliver files; for the last one
_COPY_BYTES = 1 << 20

# What is pickled fast: arrays as (dtype, shape, bytes) by name; a request's id, rows, time, arm of an experiment,
# whether it is deferred, and whose decisions they are.
Packed = Mapping[str, tuple[str, tuple[int, ...], bytes]]
RequestOf = tuple[str, int, float, str, bool, str]


class Decisions(NamedTuple):
    """The decisions of some requests, row after row;
    `probabilities` and `mask` are empty where they are unknown, names where actions have none.
    """

    requests: list[RequestOf]
    model: str
    version: int
    inputs: Packed
    actions: Packed
    probabilities: list[float] | None
    mask: Packed
    names_of_actions: list[str]


@checked_dataclass(frozen=True)
class DecisionLogOptions:
    """What is logged of the decisions, and where.

    Attributes:
      directory: a directory, or the URL of one in an object store.
      share: the share of requests that are logged, chosen by a hash of their ids.
      omitted: inputs that are left out.
      hashed: inputs of which only a keyed hash is logged.
      key: the key of these hashes.
      file_secs: seconds after which a file is complete.
      file_bytes: bytes after which it is.
      keep_days: days after which files of the directory are deleted; None keeps them.
      max_waiting: requests that wait to be written; more are dropped, and counted.
    """

    directory: str
    share: Fraction = 1.0
    omitted: tuple[str, ...] = ()
    hashed: tuple[str, ...] = ()
    key: str = ''
    file_secs: PositiveFloat = 60.0
    file_bytes: PositiveInt = 64 << 20
    keep_days: PositiveFloat | None = None
    max_waiting: PositiveInt = 10_000


def ids(event_id: str, rows: int) -> list[str]:
    """Returns the ids of the decisions of a request."""
    return [event_id] if rows == 1 else [f'{event_id}-{i}' for i in range(rows)]


def begun_at(name: str, kind: str) -> float | None:
    """Returns when a server began a file of a kind [s since 1970], complete or not;
    None for any other name.
    """
    found = _BEGUN.fullmatch(name)
    if not found or found[1] != kind:
        return None
    return datetime.datetime.strptime(f'{found[2]}+0000', '%Y%m%dT%H%M%S%z').timestamp()


class Written(NamedTuple):
    """What became of lines.

    Attributes:
      error: why they were not written; '' if all were.
      again: whether another attempt may write them.
      file: the name of the file that has all lines that were written last.
      size: its bytes.
    """

    error: str = ''
    again: bool = False
    file: str = ''
    size: int = 0


def write(
    options: DecisionLogOptions,
    spool: pathlib.Path,
    token: str,
    sizes: Mapping[str, int],
    pipe: connection.Connection,
) -> None:
    """Writes what comes by a pipe until it ends: lists of `Decisions`, each with lines of outcomes.

    It answers each by what became of both (`Written`): nothing counts as logged before it is.

    Args:
      options: what is logged, and where.
      spool: the directory of files on their way to a store.
      token: marks the files of this server.
      sizes: by the names of such files that an earlier process has left, the bytes of them that
        count as logged. What is beyond them will come again.
      pipe: where they come from.
    """
    os.nice(_NICE)  # requests go first
    for number in (signal.SIGINT, signal.SIGTERM):  # for the server, which ends the pipe
        signal.signal(number, signal.SIG_IGN)
    with contextlib.ExitStack() as ending:
        # A ConnectionError is the end of a server that was killed.
        ending.enter_context(contextlib.suppress(EOFError, ConnectionError))
        made = [DecisionFiles(options, spool, kind, token, sizes) for kind in KINDS]
        files = [ending.enter_context(contextlib.closing(each)) for each in made]
        for each in files:
            each.begin()
        while True:
            if pipe.poll(_POLL_SECS):
                decisions, outcomes = pipe.recv()
                lines = (line for each in decisions for line in lines_of(options, each))
                answer = [_written(files[0], lines), _written(files[1], [outcomes])]
                with contextlib.suppress(ConnectionError):  # what has come is written all the same
                    pipe.send(answer)
            for each in files:
                each.rotate()


def _written(files: 'DecisionFiles', lines: Iterable[bytes]) -> Written:
    try:
        return Written('', False, *files.write(b''.join(lines)))
    except (OSError, MemoryError) as error:
        return Written(str(error) or type(error).__name__, True)
    except Exception as error:  # of these lines, which must not end the log of all others
        logging.exception('could not write lines of the decision log')
        return Written(f'{type(error).__name__}: {error}', False)


class DecisionFiles:
    """The files of one kind in one directory.

    A file that cannot be begun, completed or sent is tried again.
    """

    def __init__(
        self,
        options: DecisionLogOptions,
        spool: pathlib.Path,
        kind: str,
        token: str = '',
        sizes: Mapping[str, int] = MappingProxyType({}),
    ):
        """Touches no file yet.

        Args:
          options: what is logged, and where.
          spool: the directory of files on their way to a store.
          kind: one of KINDS.
          token: marks the files of this server; '' makes one.
          sizes: see `write`.
        """
        self._options, self._kind, self._sizes = options, kind, sizes
        self._token = token or uuid.uuid4().hex[:8]
        self._is_in_store = is_url(options.directory)
        self._directory = spool if self._is_in_store else pathlib.Path(options.directory)
        self._store: Any = None
        self._file: BinaryIO | None = None
        self._begun = 0.0
        self._has_recovered = False
        # On a thread of its own: lines are written while a store does not answer.
        self._delivery, self._delivered_at = background.Background('decision_delivery'), -math.inf

    def check(self) -> None:
        """Checks that files can be written, and leaves none.

        Raises:
          ValueError: if the URL cannot be used.
          OSError: if the directory cannot be written to.
        """
        if self._is_in_store:
            self._opened_store().check_writable()
        try:
            self._opened()
            self._complete()
        except OSError as error:
            raise UserOSError(
                f'got --decision_log={self._options.directory} ({error}); need one that can be written'
            ) from error

    def begin(self) -> None:
        """Completes what others have left, and begins a file."""
        with side_tasks.guarded(f'begin a file of {self._kind} in {self._directory}'):
            self._opened()

    def write(self, lines: bytes) -> tuple[str, int]:
        """Writes some lines, all or none of them.

        Returns:
          The name of their file, and its size.

        Raises:
          OSError: if it could not.
        """
        if not lines:
            return '', 0
        file = self._opened()
        size = _size(file)
        try:
            rest = memoryview(lines)
            while rest:
                rest = rest[file.write(rest) :]
        except OSError:
            file.truncate(size)  # a disk that is full has taken a part of them
            raise
        return pathlib.Path(file.name).name, _size(file)

    def rotate(self) -> None:
        """Completes the file, if it is full or old; the next lines begin another one."""
        now = time.monotonic()
        with side_tasks.guarded(f'complete a file of {self._kind} in {self._directory}'):
            if self._delivery.failed and now - self._delivered_at > _RETRY_SECS:
                self._deliver()
            size = _size(self._file) if self._file else 0
            is_old = now - self._begun >= self._options.file_secs
            # An empty file too: begun long ago, it would hold back the end of the log.
            if self._file and (is_old or size >= self._options.file_bytes):
                self._complete()
                self._deliver()

    def close(self) -> None:
        """Completes the file, and delivers what can be."""
        with side_tasks.guarded(f'complete a file of {self._kind} in {self._directory}'):
            self._complete()
        self._deliver()
        with side_tasks.guarded(f'deliver the files in {self._directory}'):
            self._delivery.join(_DELIVERY_SECS)

    def _opened(self) -> BinaryIO:
        """Returns the file that lines go to: a new one, or a copy if it was removed or moved."""
        if self._file is None:
            self._directory.mkdir(PRIVATE, parents=True, exist_ok=True)
            if not self._has_recovered:
                self._recover()
                self._has_recovered = True
            now = time.time_ns()
            at = f'{time.strftime("%Y%m%dT%H%M%S", time.gmtime(now // 10**9))}.{now % 10**9:09}Z'
            name = f'.{self._kind}-{at}-{socket.gethostname()}-{self._token}{_SUFFIX}'
            self._file, self._begun = self._open(self._directory / name), time.monotonic()
        elif not _is_in_place(self._file):
            self._file = self._copied(self._file)
        return self._file

    def _open(self, path: pathlib.Path) -> BinaryIO:
        # Appends: after somebody has truncated it, there must be no hole before the next line.
        file: Any = path.open('a+b', buffering=0)
        try:
            try_lock(file)  # what is locked is of a server that is alive
        except OSError:
            file.close()
            raise
        return file

    def _copied(self, lost: BinaryIO) -> BinaryIO:
        """Returns a file in place of one whose path is gone, with what that one holds."""
        path = pathlib.Path(lost.name)
        self._directory.mkdir(PRIVATE, parents=True, exist_ok=True)
        file = self._open(path)
        try:
            file.truncate(0)
            for begin in range(0, _size(lost), _COPY_BYTES):
                file.write(os.pread(lost.fileno(), _COPY_BYTES, begin))
            if _size(file) < _size(lost):
                raise UserOSError(f'got no room for {_size(lost)} bytes in {path}; need it')
        except OSError:
            path.unlink()
            file.close()
            raise
        what = '%s was removed or moved; its %d bytes are written again'
        logging.warning(what, path, _size(lost))
        lost.truncate(0)  # where it was moved to, nobody finds the lines a second time
        lost.close()
        return file

    def _complete(self) -> None:
        """Makes the file visible, if it has lines."""
        if self._file is None:
            return
        file = self._opened()
        path = pathlib.Path(file.name)
        if _size(file):
            path.rename(path.with_name(path.name[1:]))
        else:
            path.unlink()
        self._file = None
        file.close()

    def _deliver(self) -> None:
        """Sends complete files to the store, or deletes old ones, on a thread."""
        if self._is_in_store or self._options.keep_days:
            self._delivered_at = time.monotonic()
            self._delivery.submit(self._deliver_all)

    def _deliver_all(self) -> None:
        for whole in sorted(self._directory.glob(f'{self._kind}-*{_SUFFIX}')):
            if self._is_in_store:
                self._opened_store().upload(whole, whole.name)
                whole.unlink()
            elif self._options.keep_days and time.time() - whole.stat().st_mtime > self._options.keep_days * 86_400:
                whole.unlink()

    def _opened_store(self) -> Any:
        if self._store is None:
            self._store = extensions.load('objects').Objects(self._options.directory)
        return self._store

    def _recover(self) -> None:
        for path in self._directory.glob(f'.{self._kind}-*{_SUFFIX}'):
            with contextlib.suppress(FileNotFoundError), path.open('r+b') as file:
                if not try_lock(file):
                    continue
                is_ours = path.name.endswith(f'-{self._token}{_SUFFIX}')
                known = self._sizes.get(path.name, 0) if is_ours else file.read().rfind(b'\n') + 1
                file.truncate(min(known, _size(file)))
                if _size(file):
                    path.rename(path.with_name(path.name[1:]))
                else:
                    path.unlink()


def _size(file: BinaryIO) -> int:
    return os.fstat(file.fileno()).st_size


def _is_in_place(file: BinaryIO) -> bool:
    try:
        return os.path.samestat(os.stat(file.name), os.fstat(file.fileno()))
    except (FileNotFoundError, NotADirectoryError):
        return False


def lines_of(options: DecisionLogOptions, decisions: Decisions) -> Iterator[bytes]:
    """Yields a line of JSON for each decision."""
    hidden = {*options.omitted, *options.hashed}
    shown = {name: _array(packed).tolist() for name, packed in decisions.inputs.items() if name not in hidden}
    for name in {*options.hashed} & decisions.inputs.keys():
        array, key = _array(decisions.inputs[name]), options.key.encode()
        shown[name] = [hmac.new(key, _bytes(row), hashlib.sha256).hexdigest() for row in array]
    shown |= {name: _array(packed).tolist() for name, packed in decisions.actions.items()}
    shown['probability'] = decisions.probabilities or itertools.repeat(None)
    for packed in decisions.mask.values():
        shown['mask'] = [np.flatnonzero(row).tolist() for row in _array(packed)]
        if names := decisions.names_of_actions:
            shown['mask'] = [[names[i] for i in row] for row in shown['mask']]
    head = {'model': decisions.model, 'version': decisions.version}
    values = zip(*shown.values(), strict=False)
    for request_id, rows, at, arm, is_deferred, cluster in decisions.requests:
        # Until an outcome says that it was shown; a number, which files are read fastest with.
        deferred = {'activated': 0} if is_deferred else {}
        begin = {'time': at, **head, 'arm': arm, **({'cluster': cluster} if cluster else {}), **deferred}
        for event_id in ids(request_id, rows):
            yield _encode({'id': event_id, **begin, **dict(zip(shown, next(values), strict=True))}).encode() + b'\n'


def _bytes(row: np.ndarray) -> bytes:
    return '\0'.join(row.ravel().tolist()).encode() if row.dtype.kind == 'U' else row.tobytes()


def _array(packed: tuple[str, tuple[int, ...], bytes]) -> np.ndarray:
    dtype, shape, data = packed
    return np.frombuffer(data, dtype).reshape(shape)
