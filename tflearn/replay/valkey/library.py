"""The only module that imports the client library valkey: connections whose errors are those of `backend`.

An address is 'valkey://host:port', or 'valkeys://host:port' over TLS; a '/number' behind it is a database other than 0.
User, password and client certificate are never part of it. They come from the environment; without it the password of a
server that this user started on this machine is found by its port.

The functions in Lua of functions.lua are what a server runs atomically; the replay server job loads them there.

All items of a server are entries of one stream. An entry's id has two numbers, see `entry_id`: so many items were
inserted into the table that is scanned, and so many into the queue, with this one. So the ids are the counts; nothing
has to be counted besides, and nothing is counted wrongly if a client dies. The readers of the queue are one consumer
group, whose last delivered id says what was drawn. An entry's only field is named after the tables that have it, and
holds the item's bytes, compressed if they are many and become fewer.

A function copies what it is given, which is most of the work if that is large. So large items are added by commands of
the server, XADD, in a transaction. Before each of them a function sets the stream's last id so that its next one is the
item's, and gives the stream another name, the only one that these commands know, if there is room.

A writer that finds the queue full leaves its name, and waits for a message to it: how many items it may send.
A call that was taken whole leaves its number for a minute: the next one, if it was sent before the answer, needs it.
"""

import contextlib
import json
import os
import pathlib
import re
import secrets
import ssl
import tempfile
import urllib.parse
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import valkey
from valkey import exceptions

from tflearn.core import tokens
from tflearn.core.errors import UserValueError
from tflearn.core.table_counts import TableCounts
from tflearn.files import compression
from tflearn.replay.backend import Lost
from tflearn.replay.storage import TableSpec

ITEMS, STATE, BLOCKED, PLACE = KEYS = 'tflearn:items', 'tflearn:state', 'tflearn:blocked', 'tflearn:place'
GROUP = 'tflearn'
NO_TABLES = re.compile('NOTABLES|Function not found')  # in the errors of a server that has none of our tables
INSERT, DELIVERED, STATUS = 'tflearn_insert', 'tflearn_delivered', 'tflearn_status'
MAKE_PLACE, PLACED = 'tflearn_make_place', 'tflearn_placed'
_FIRST = 1 << 50  # later than any clock's milliseconds: so XADD takes the number after the last one


def entry_id(scanned: int, queued: int) -> str:
    """Returns the id of an item with which so many were inserted into the two tables."""
    return f'{_FIRST + scanned}-{queued + 1}'


LIBRARY = f'#!lua name=tflearn\nlocal first = {_FIRST}\n' + (
    pathlib.Path(__file__).with_name('functions.lua').read_text(encoding='utf-8')
)


USER_VARIABLE, PASSWORD_VARIABLE = 'TFLEARN_VALKEY_USER', 'TFLEARN_VALKEY_PASSWORD'
CERTIFICATE_VARIABLE = 'TFLEARN_VALKEY_CERTIFICATE'
LOCALHOST = '127.0.0.1'
TLS = 'valkeys'
_LOCAL_HOSTS = (LOCALHOST, 'localhost', '[::1]')
_CONNECT_SECS, _READ_BYTES = 2.0, 1 << 18
_TLS_ENDS = (ssl.SSLEOFError, ssl.SSLZeroReturnError)  # of a server that dies


class Address(NamedTuple):
    """The parts of an address."""

    host: str
    port: int
    database: int
    is_encrypted: bool

    @classmethod
    def parse(cls, text: str) -> 'Address':
        """Returns the parts; raises a ValueError if it is none, or holds a password, which the error does not show."""
        try:
            parts = urllib.parse.urlsplit(text)
            if parts.scheme in ('valkey', TLS) and parts.hostname and parts.port and '@' not in text:
                host = f'[{parts.hostname}]' if ':' in parts.hostname else parts.hostname
                return cls(host, parts.port, int(parts.path.strip('/') or 0), parts.scheme == TLS)
        except ValueError:
            pass
        raise UserValueError(
            f'got the replay address {text.rpartition("@")[2]!r}; need valkey://HOST:PORT or valkeys://HOST:PORT, '
            f'without a user or a password; set {USER_VARIABLE} and {PASSWORD_VARIABLE} for these'
        )


def local_password(port: int) -> str:
    """Returns the password of this user's server at a port of this machine, which is made with the first call.

    Also makes the directory of its socket, if a password is given as well.
    """
    path = _password_file(port)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    found = path.parent.lstat()
    if found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise UserValueError(
            f'got the directory {path.parent}, which others can use; need one of this user alone, of mode 0700; remove '
            'it, or set TMPDIR'
        )
    if source := os.environ.get(PASSWORD_VARIABLE):
        return tokens.read(source, PASSWORD_VARIABLE)
    with contextlib.suppress(FileExistsError), tempfile.NamedTemporaryFile('w', dir=path.parent) as file:
        file.write(secrets.token_hex(32))
        file.flush()
        os.link(file.name, path)  # of mode 0600
    return tokens.read(str(path), PASSWORD_VARIABLE)


def _password_file(port: int) -> pathlib.Path:
    return pathlib.Path(tempfile.gettempdir(), f'tflearn-valkey-{os.getuid()}', str(port))


def socket_file(port: int) -> pathlib.Path:
    """Returns the path of the Unix socket of this user's server at a port of this machine."""
    return _password_file(port).with_suffix('.socket')


def _credentials(address: Address) -> dict[str, str]:
    """Returns user and password; nothing if there are none."""
    if source := os.environ.get(PASSWORD_VARIABLE):
        user = os.environ.get(USER_VARIABLE)
        return {'password': tokens.read(source, PASSWORD_VARIABLE)} | ({'username': user} if user else {})
    path = _password_file(address.port)
    if address.host in _LOCAL_HOSTS and path.exists() and path.stat().st_uid == os.getuid():
        return {'password': tokens.read(str(path), PASSWORD_VARIABLE)}
    return {}


def _encryption() -> dict[str, Any]:
    """Returns the options of TLS: whom we believe is up to the system, and to SSL_CERT_FILE."""
    certificate = os.environ.get(CERTIFICATE_VARIABLE)
    if certificate and not os.access(certificate, os.R_OK):
        raise UserValueError(
            f'got {CERTIFICATE_VARIABLE}={certificate}, which cannot be read; need the path of a PEM file with a '
            'certificate and its key; correct it'
        )
    return {'ssl_check_hostname': True, 'ssl_certfile': certificate}


class Full(Lost):
    """A server has no memory left for what was sent."""


class NoTables(Lost):
    """A server answers that it has none of our tables."""


class Connection:
    """A connection of its own to a server. For one thread. All calls raise `Lost` if the server does not answer.

    They raise a ValueError if it refuses the user or the password, or TLS fails.
    """

    def __init__(self, address: str, timeout_secs: float):
        """Connects.

        Args:
          timeout_secs: how long the server may take to take what is sent, or to answer where it is waited for.
        """
        self._address, self._text = Address.parse(address), address
        self._options = {
            'db': self._address.database,
            'socket_timeout': timeout_secs,
            'socket_connect_timeout': min(_CONNECT_SECS, timeout_secs),
            'socket_read_size': _READ_BYTES,
            'lib_name': None,
            'lib_version': None,
            **_credentials(self._address),
        }
        with self._errors():
            self._connection = self._connect()

    def _connect(self) -> valkey.Connection | valkey.UnixDomainSocketConnection:
        host, port, _, is_encrypted = self._address
        local = socket_file(port)
        if host in _LOCAL_HOSTS and not is_encrypted and local.exists() and local.stat().st_uid == os.getuid():
            # Several times as fast as TCP on a busy machine.
            connection = valkey.UnixDomainSocketConnection(path=str(local), **self._options)
            with contextlib.suppress(exceptions.ConnectionError):  # of a server that was killed
                connection.connect()
                return connection
        make, more = (valkey.SSLConnection, _encryption()) if is_encrypted else (valkey.Connection, {})
        connection = make(host=host.strip('[]'), port=port, socket_keepalive=True, **self._options, **more)
        connection.connect()
        return connection

    def send(self, *commands: Sequence[Any]) -> None:
        """Sends commands; each is answered, see `receive`."""
        with self._errors():
            self._connection.send_packed_command([_packed(commands)])

    def has_answer(self, timeout_secs: float) -> bool:
        """Waits for the begin of an answer; returns whether it came in time."""
        with self._errors():
            return self._connection.can_read(timeout_secs)

    def receive(self) -> Any:
        """Returns the answer to the next command of those that were sent."""
        with self._errors():
            return self._connection.read_response(disconnect_on_error=False)

    def receive_last(self, count: int) -> Any:
        """Returns the last one of so many answers: of a transaction that of its last command.

        Raises the first error among them, when all are there.
        """
        answers: list[Any] = []
        with self._errors():
            for _ in range(count):
                try:
                    answers.append(self._connection.read_response(disconnect_on_error=False))
                except exceptions.ResponseError as error:
                    answers.append(error)
            if count > 1 and isinstance(answers[-1], list):
                answers += answers[-1]
            for answer in answers:
                if isinstance(answer, Exception):
                    raise answer
        return answers[-1]

    def call(self, *command: Any) -> Any:
        """Sends a command and returns the answer."""
        self.send(command)
        return self.receive()

    def close(self) -> None:
        """Ends the connection."""
        self._connection.disconnect()

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (exceptions.AuthenticationError, exceptions.NoPermissionError) as error:
            raise UserValueError(
                f'got the server at {self._text}, which refuses this user or password ({error}); need those that it '
                f'knows; set {PASSWORD_VARIABLE} to the path of a file with the password, or to env:NAME, and '
                f'{USER_VARIABLE} to the user if it is not "default"'
            ) from None
        except exceptions.OutOfMemoryError as error:
            raise Full(f'the replay server at {self._text}: {error}') from error
        except exceptions.ResponseError as error:
            kind = NoTables if NO_TABLES.search(str(error)) else Lost
            raise kind(f'the replay server at {self._text}: {error}') from error
        except exceptions.ValkeyError as error:
            reason = error.__context__
            if isinstance(reason, ssl.SSLError) and not isinstance(reason, _TLS_ENDS):
                raise UserValueError(
                    f'got the server at {self._text}, with which TLS fails ({reason}); need a server with TLS whose '
                    f'certificate is of its name and trusted (SSL_CERT_FILE), and one of ours if it asks for it '
                    f'({CERTIFICATE_VARIABLE})'
                ) from None
            raise Lost(f'the replay server at {self._text}: {error}') from error


def _packed(commands: Iterable[Sequence[Any]]) -> bytes:
    """Returns commands as they are sent, in one copy: the library takes several times as long where items are large."""
    parts: list[bytes | memoryview] = []
    for command in commands:
        parts.append(b'*%d\r\n' % len(command))
        for value in command:
            part = value if isinstance(value, bytes | memoryview) else str(value).encode()
            parts += (b'$%d\r\n' % len(part), part, b'\r\n')
    return b''.join(parts)


@contextlib.contextmanager
def connected(address: str, timeout_secs: float) -> Iterator[Connection]:
    """Provides a connection for the block."""
    connection = Connection(address, timeout_secs)
    try:
        yield connection
    finally:
        connection.close()


def function(name: str, *arguments: Any) -> tuple[Any, ...]:
    """Returns the command that calls one of `functions`."""
    return ('FCALL', name, len(KEYS), *KEYS, *arguments)


class Status(NamedTuple):
    """What a server answers: its tables and their counts.

    Attributes:
      tables: the specs by name.
      scanned: items ever inserted into the table that is scanned.
      queued: items ever inserted into the queue.
      base: the number of `scanned` before which the table is empty since items were lost.
      past: the number of `scanned` with the item that was drawn last.
      drawn: items ever drawn from the queue.
    """

    tables: dict[str, TableSpec]
    scanned: int
    queued: int
    base: int
    past: int
    drawn: int

    @classmethod
    def read(cls, connection: Connection) -> 'Status':
        """Asks the server; raises Lost if it has no tables."""
        text, *counts = connection.call(*function(STATUS))
        return cls(parse_tables(text), *map(int, counts))

    @property
    def oldest(self) -> int:
        """The number of `scanned` with the oldest item of the table that is scanned."""
        most = next((table.max_size for table in self.tables.values() if table.order == 'scan'), 0)
        return max(self.base, self.scanned - most) + 1

    def counts(self) -> dict[str, TableCounts]:
        """Returns the counts by table name."""
        found = {}
        for name, table in self.tables.items():
            if table.order == 'scan':
                found[name] = TableCounts(
                    self.scanned + 1 - self.oldest, table.max_size, self.scanned, 0, signature=table.signature
                )
            else:
                sizes = self.queued - self.drawn, table.max_size, self.queued, self.drawn
                found[name] = TableCounts(*sizes, 1.0, 0.0, float(table.max_size), signature=table.signature)
        return found


def dump_tables(tables: Iterable[TableSpec]) -> str:
    """Returns the tables' settings as JSON."""
    return json.dumps([[table.name, table.max_size, _columns(table), table.order] for table in tables])


def _columns(table: TableSpec) -> list[Any]:
    return [[column, spec.dtype.name, list(spec.shape), spec.name] for column, spec in table.signature.items()]


def table_fields(tables: Sequence[TableSpec]) -> list[str | int]:
    """Returns the fields of the state and their values, alternating, that make the tables."""
    fields: dict[str, str | int] = {'tables': dump_tables(tables)}
    for order in ('scan', 'queue'):
        table = next((table for table in tables if table.order == order), None)
        fields |= {order: table.name if table else '', f'max_{order}': table.max_size if table else 0}
    return [part for field in fields.items() for part in field]


def parse_tables(text: str | bytes) -> dict[str, TableSpec]:
    """Returns the tables of `dump_tables` by name."""
    found = {}
    for name, max_size, columns, order in json.loads(text):
        signature = {column: tf.TensorSpec(shape, dtype, text) for column, dtype, shape, text in columns}
        found[name] = TableSpec(name, max_size, signature, order)
    return found


class Entry(NamedTuple):
    """An entry of the stream: its id, the names of its tables, and the item's bytes."""

    id: bytes
    tables: bytes
    item: bytes

    def is_in(self, table: str) -> bool:
        """Whether a table has it."""
        return table.encode() in self.tables.split(b',')

    @property
    def numbers(self) -> tuple[int, int]:
        """How many items were inserted into the table that is scanned, and into the queue, with this one."""
        scanned, queued = self.id.split(b'-')
        return int(scanned) - _FIRST, int(queued) - 1

    def array(self, shape: Sequence[int]) -> np.ndarray:
        """Returns the item, uint8."""
        return compression.unpacked(self.item, shape)


def entries_of(answer: Any) -> list[Entry]:
    """Returns the entries of an answer of XRANGE."""
    return [Entry(name, *fields) for name, fields in answer]


def entries(connection: Connection, status: Status, at_once: int) -> Iterator[list[Entry]]:
    """Reads all entries that were there at `status`, oldest first, so many at once."""
    start, last = '-', entry_id(status.scanned, status.queued)
    while found := entries_of(connection.call('XRANGE', ITEMS, start, last, 'COUNT', at_once)):
        yield found
        start = f'({found[-1].id.decode()}'
