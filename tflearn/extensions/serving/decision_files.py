"""The files of a decision log: JSON lines in files that appear whole. They are written by a process of their own.

A line is one decision: id, time, model, version, arm, inputs by their names, action, probability, mask; or, in files of
their own, one outcome. A file is begun under a hidden name and renamed when it is full, after some seconds, or when the
server ends, also by SIGKILL: then its pipe ends. What a machine that failed has left is completed by the next server in
the directory, without a torn line.
"""

import contextlib
import hashlib
import hmac
import itertools
import json
import os
import pathlib
import signal
import socket
import time
import uuid
from collections.abc import Iterator, Mapping
from multiprocessing import connection
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from absl import logging

from tflearn.core import extensions
from tflearn.core.errors import UserOSError
from tflearn.core.settings import Fraction, PositiveFloat, PositiveInt, checked_dataclass
from tflearn.files.lock import try_lock
from tflearn.files.run_dir import is_url

KINDS = ('decisions', 'outcomes')
_SUFFIX = '.jsonl'
_NICE = 10
_encode = json.JSONEncoder(separators=(',', ':')).encode
_POLL_SECS = 0.5

# What is pickled fast: arrays as (dtype, shape, bytes) by name; a request's id, rows, time and arm of an experiment.
Packed = Mapping[str, tuple[str, tuple[int, ...], bytes]]
RequestOf = tuple[str, int, float, str]


class Decisions(NamedTuple):
    """The decisions of some requests, row after row; `probabilities` and `mask` are empty where they are unknown."""

    requests: list[RequestOf]
    model: str
    version: int
    inputs: Packed
    actions: Packed
    probabilities: list[float] | None
    mask: Packed


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


def write(options: DecisionLogOptions, spool: pathlib.Path, pipe: connection.Connection) -> None:
    """Writes what comes by a pipe until it ends: lists of `Decisions`, each with lines of outcomes."""
    os.nice(_NICE)  # requests go first
    for number in (signal.SIGINT, signal.SIGTERM):  # for the server, which ends the pipe
        signal.signal(number, signal.SIG_IGN)
    with contextlib.ExitStack() as ending:
        ending.enter_context(contextlib.suppress(EOFError))
        files = [ending.enter_context(contextlib.closing(DecisionFiles(options, spool, kind))) for kind in KINDS]
        while True:
            if pipe.poll(_POLL_SECS):
                decisions, outcomes = pipe.recv()
                files[0].write(b''.join(line for each in decisions for line in lines_of(options, each)))
                files[1].write(outcomes)
            for each in files:
                each.rotate()


class DecisionFiles:
    """The files in one directory. Errors of the file system are logged: a full disk must not end the service."""

    def __init__(self, options: DecisionLogOptions, spool: pathlib.Path, kind: str):
        """Makes the directory, completes what others have left, and begins a file.

        Args:
          options: what is logged, and where.
          spool: the directory of files on their way to a store.
          kind: one of KINDS.

        Raises:
          ValueError: if the URL cannot be used.
          OSError: if the directory cannot be written to.
        """
        self._options, self._store, self._kind = options, None, kind
        if is_url(options.directory):
            self._store = extensions.load('objects').Objects(options.directory)
            self._store.check_writable()
        self._directory = spool if self._store else pathlib.Path(options.directory)
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            self._recover()
            self._file, self._begun, self._size = self._begin(), time.monotonic(), 0
        except OSError as error:
            raise UserOSError(
                f'got --decision_log={options.directory} ({error}); need one that can be written'
            ) from error

    def write(self, lines: bytes) -> None:
        """Writes some lines, all or none of them."""
        with _logged_errors():
            written = self._file.write(lines)
            if written < len(lines):  # a disk that is full now took a part of a line
                self._file.truncate(self._size)
                self._file.seek(self._size)
                written = 0
                logging.log_every_n_seconds(logging.WARNING, 'the disk is full: lost %s of the log', 30.0, self._kind)
            self._size += written

    def rotate(self) -> None:
        """Begins another file, if this one is full or old."""
        is_due = self._size >= self._options.file_bytes or time.monotonic() - self._begun >= self._options.file_secs
        if self._size and is_due:
            with _logged_errors():
                self._complete()
                self._file, self._begun, self._size = self._begin(), time.monotonic(), 0

    def close(self) -> None:
        """Completes the file."""
        with _logged_errors():
            self._complete()

    def _begin(self) -> BinaryIO:
        now = time.time_ns()
        at = f'{time.strftime("%Y%m%dT%H%M%S", time.gmtime(now // 10**9))}.{now % 10**9:09}Z'
        name = f'.{self._kind}-{at}-{socket.gethostname()}-{uuid.uuid4().hex[:8]}{_SUFFIX}'
        file: Any = (self._directory / name).open('xb', buffering=0)
        try_lock(file)  # what is locked is of a server that is alive
        return file

    def _complete(self) -> None:
        path = pathlib.Path(self._file.name)
        with self._file:
            if os.path.getsize(path):
                path.rename(path.with_name(path.name[1:]))
            else:
                path.unlink()
        for whole in sorted(self._directory.glob(f'{self._kind}-*{_SUFFIX}')):
            if self._store:
                self._store.upload(whole, whole.name)
                whole.unlink()
            elif self._options.keep_days and time.time() - whole.stat().st_mtime > self._options.keep_days * 86_400:
                whole.unlink()

    def _recover(self) -> None:
        for path in self._directory.glob(f'.{self._kind}-*{_SUFFIX}'):
            with contextlib.suppress(FileNotFoundError), path.open('r+b') as file:
                if try_lock(file):
                    file.truncate(file.read().rfind(b'\n') + 1)
                    path.rename(path.with_name(path.name[1:]))


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
    head = {'model': decisions.model, 'version': decisions.version}
    values = zip(*shown.values(), strict=False)
    for request_id, rows, at, arm in decisions.requests:
        begin = {'time': at, **head, 'arm': arm}
        for event_id in ids(request_id, rows):
            yield _encode({'id': event_id, **begin, **dict(zip(shown, next(values), strict=True))}).encode() + b'\n'


def _bytes(row: np.ndarray) -> bytes:
    return '\0'.join(row.ravel().tolist()).encode() if row.dtype.kind == 'U' else row.tobytes()


def _array(packed: tuple[str, tuple[int, ...], bytes]) -> np.ndarray:
    dtype, shape, data = packed
    return np.frombuffer(data, dtype).reshape(shape)


@contextlib.contextmanager
def _logged_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        logging.log_every_n_seconds(logging.WARNING, 'could not write the decision log: %s', 30.0, error)
