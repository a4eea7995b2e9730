"""Publications on their way: as bytes, a header in JSON, then the variables one after the other;
and their reader.

A message is known by its content: the tag is a digest of the header, which has a digest of each
variable. So who has a message can be sent the difference to it: a message without the variables
that are the same. Only numpy is needed; a relay never looks at the values. A `WeightsReader` asks
the coordinator or its relays: over one connection, and the next server when one is lost.
"""

import contextlib
import dataclasses
import functools
import hashlib
import http.client
import json
import math
import random
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

import numpy as np
from absl import logging

from tflearn.coordinator import control
from tflearn.core.errors import UserValueError
from tflearn.net.http_client import HttpClient

PROTOCOL = 2
_MAGIC = b'tflearnW'
_HEADER_BYTES = 16  # the magic and the header's length
_MAX_HEADER_BYTES = 16 << 20
_MAX_DIMENSIONS = 32
# Of each data type of a variable; numpy itself does not know bfloat16.
_ITEM_BYTES = {
    **dict.fromkeys(('bool', 'int8', 'uint8'), 1),
    **dict.fromkeys(('int16', 'uint16', 'float16', 'bfloat16'), 2),
    **dict.fromkeys(('int32', 'uint32', 'float32'), 4),
    **dict.fromkeys(('int64', 'uint64', 'float64', 'complex64'), 8),
    'complex128': 16,
}


@dataclasses.dataclass(frozen=True)
class Variable:
    """What a message says of a variable.

    Attributes:
      name: for messages to users only.
      dtype: the variable's own data type.
      sent: the data type of its bytes in the message, which may be narrower.
      digest: BLAKE2b of these bytes, 16 of them in hexadecimal digits.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    sent: str
    num_bytes: int
    digest: str


@dataclasses.dataclass(frozen=True)
class Message:
    """A publication.

    Attributes:
      counters: the train step and so on, by name.
      variables: what there is, in the publisher's order.
      data: each variable's bytes; None where the receiver has them.
    """

    counters: Mapping[str, int | bool]
    variables: tuple[Variable, ...]
    data: tuple[memoryview | None, ...]

    @functools.cached_property
    def _header(self) -> bytes:
        fields = {'protocol': PROTOCOL, 'counters': dict(self.counters)}
        variables = [dataclasses.astuple(variable) for variable in self.variables]
        return json.dumps({**fields, 'variables': variables}).encode()

    @functools.cached_property
    def tag(self) -> str:
        """What identifies the message, with or without data."""
        return hashlib.blake2b(self._header, digest_size=16).hexdigest()

    @property
    def num_bytes(self) -> int:
        """The bytes of all variables, with or without data."""
        return sum(variable.num_bytes for variable in self.variables)

    def parts(self, than: 'Message | None' = None) -> list[bytes | memoryview]:
        """Returns the bytes to send: all of them, or the difference to what the receiver has.

        Args:
          than: the message that the receiver has.
        """
        known = {variable.digest for variable in than.variables} if than else set()
        pairs = zip(self.variables, self.data, strict=True)
        data = [each for variable, each in pairs if each is not None and variable.digest not in known]
        given = [variable.digest not in known for variable in self.variables]
        flags = np.packbits(given).tobytes() if given else b''
        length = len(self._header).to_bytes(8, 'little')
        return [_MAGIC, length, self._header, flags, *data]

    def completed(self, base: 'Message | None') -> 'Message':
        """Returns the message with all data, from those of `base` where it has none.

        Raises:
          ValueError: if `base` does not have them.
        """
        pairs = zip(base.variables, base.data, strict=True) if base else ()
        known = {variable.digest: each for variable, each in pairs}
        data = tuple(
            known.get(variable.digest) if each is None else each
            for variable, each in zip(self.variables, self.data, strict=True)
        )
        if any(each is None for each in data):
            raise UserValueError('got a part of a publication; need the one before it')
        return dataclasses.replace(self, data=data)


def make(
    counters: Mapping[str, int | bool], names: Sequence[str], values: Sequence[np.ndarray], narrow: Any
) -> Message:
    """Returns a publication.

    Args:
      names: of the variables.
      values: their values; arrays of float32 may be sent in a narrower type.
      narrow: a numpy data type for them, such as bfloat16; None sends all values as they are.
    """
    variables, data = [], []
    for name, value in zip(names, values, strict=True):
        sent = np.asarray(value, order='C')
        if narrow is not None and sent.dtype == np.float32:
            sent = sent.astype(narrow)
        view = sent.reshape(-1).view(np.uint8).data
        digest = hashlib.blake2b(view, digest_size=16).hexdigest()
        variables.append(Variable(name, value.shape, value.dtype.name, sent.dtype.name, view.nbytes, digest))
        data.append(view)
    return Message(dict(counters), tuple(variables), tuple(data))


def values(message: Message, dtype_of: Any = np.dtype) -> list[np.ndarray]:
    """Returns the variables' values.

    Args:
      dtype_of: returns numpy's data type by its name; numpy itself does not know bfloat16.
    """
    found = []
    for variable, data in zip(message.variables, message.data, strict=True):
        assert data is not None
        array = np.frombuffer(data, dtype_of(variable.sent)).reshape(variable.shape)
        found.append(array if variable.sent == variable.dtype else array.astype(dtype_of(variable.dtype)))
    return found


def parse(received: memoryview) -> Message:
    """Returns the message that `parts` made; its data are views of `received`.

    Raises:
      ValueError: if the bytes are no such message.
    """
    if received.nbytes < _HEADER_BYTES or bytes(received[: len(_MAGIC)]) != _MAGIC:
        raise UserValueError(f'got {received.nbytes} bytes that are no publication; need one of tflearn')
    length = int.from_bytes(received[len(_MAGIC) : _HEADER_BYTES], 'little')
    if length > min(_MAX_HEADER_BYTES, received.nbytes - _HEADER_BYTES):
        raise UserValueError(f'got a publication with a header of {length} bytes; need those of the message at most')
    at = _HEADER_BYTES + length
    try:
        message = _parse_header(json.loads(bytes(received[_HEADER_BYTES:at])))
    except (TypeError, KeyError, ValueError, AttributeError, RecursionError) as error:
        raise UserValueError(f'got a publication whose header is wrong ({error}); need one of tflearn') from error
    count = len(message.variables)
    packed = received[at : at + math.ceil(count / 8)]
    if packed.nbytes < math.ceil(count / 8):
        raise UserValueError(f'got a publication that ends at byte {received.nbytes}; need all of it')
    given = np.unpackbits(np.frombuffer(packed, np.uint8), count=count)
    at += packed.nbytes
    data: list[memoryview | None] = []
    for variable, is_there in zip(message.variables, given, strict=True):
        size = variable.num_bytes if is_there else 0
        data.append(received[at : at + size] if is_there else None)
        at += size
    if at != received.nbytes:
        raise UserValueError(f'got a publication of {received.nbytes} bytes; need {at}')
    return dataclasses.replace(message, data=tuple(data))


def _parse_header(fields: Any) -> Message:
    if fields['protocol'] != PROTOCOL:
        raise UserValueError(f'protocol {fields["protocol"]!r}, not {PROTOCOL}; start all jobs with the same tflearn')
    variables = tuple(map(_parse_variable, fields['variables']))
    counters = dict(fields['counters'])
    for name, value in counters.items():
        most = control.MAX_VERSION if name == 'policy_version' else 1 << 53
        if not name.isprintable() or not isinstance(value, int) or not -1 <= value <= most:
            raise UserValueError(f'the counter {name!a}={value!r:.40}, which is no whole number from -1 to {most}')
    return Message(counters, variables, (None,) * len(variables))


def _parse_variable(fields: Any) -> Variable:
    name, shape, dtype, sent, num_bytes, digest = fields
    are_words = all(isinstance(each, str) for each in (name, dtype, sent, digest))
    are_sizes = all(type(each) is int and each >= 0 for each in (*shape, num_bytes))
    if not (
        are_words
        and are_sizes
        and len(shape) <= _MAX_DIMENSIONS
        and _ITEM_BYTES.keys() >= {dtype, sent}
        and name.isprintable()
    ):
        raise UserValueError('a variable without a name, a shape, types, a size and a digest')
    if num_bytes != math.prod(shape) * _ITEM_BYTES[sent]:
        size = f'{num_bytes} bytes, not those of {shape} of {sent}'
        raise UserValueError(f'the variable {name} of {size}')
    return Variable(name, tuple(shape), dtype, sent, num_bytes, digest)


PATH, STATUS_PATH = '/v1/weights', '/v1/status'
DELTA = 'tflearn-delta'
_WAIT_SECS = 30.0
_ANSWER_SECS = 15.0  # beyond what the server is asked to wait
_LARGEST_PAUSE_SECS = 5.0
_BLOCK_BYTES = 1 << 20
SLOWEST_BYTES_PER_SEC = 1e6
_KEPT = 2  # memory of earlier messages
_FIND_SECS = 30.0


class CoordinatorLost(RuntimeError):
    """No server answered."""


class RequestRefused(RuntimeError):
    """A server answers, but not as asked: another learner has taken over, there is no token, ...

    Attributes:
      facts: what the answer says besides, such as the 'newest_version' that refused weights are
        older than.
    """

    def __init__(self, error: str, facts: Mapping[str, Any] | None = None):
        super().__init__(error)
        self.facts = facts or {}


class WeightsReader:
    """Asks servers for weights. For one thread, but `close`.

    Attributes:
      address: the server that is asked now.
    """

    def __init__(self, address: str, name: str, token: str = '', relays: Callable[[], Sequence[str]] = lambda: ()):
        """Connects to nothing yet.

        Args:
          address: the coordinator's, 'host:port'.
          name: what the reader's order of the relays is made from, by rendezvous hashing: each
            prefers another one.
          token: what it shows.
          relays: returns the addresses of relays that are asked first; called twice a minute.
        """
        self._last, self._name, self._token, self._relays = address, name, token, relays
        self._servers = [HttpClient(address, token)]  # the one that is asked now first
        self._found: Sequence[str] = ()
        self._find_at = 0.0
        self._closed, self._asking = threading.Event(), threading.Lock()
        self._failures = 0
        self._free: list[np.ndarray] = []

    @property
    def address(self) -> str:
        """The server that is asked now."""
        return self._servers[0].address

    def get(self, known: Message | None, wait_secs: float = _WAIT_SECS) -> Message | None:
        """Returns the newest publication with all its data;
        None if it is `known`, or there is none.

        Args:
          wait_secs: how long the server waits for another one before it says so [s].

        Raises:
          CoordinatorLost: if no answer came in time; the next call asks the next server.
          RequestRefused: if the server answers something else.
        """
        self._find_relays()
        headers = {'Prefer': f'wait={int(wait_secs)}'}
        if known:
            headers |= {'If-None-Match': f'"{known.tag}"', 'A-IM': DELTA}
        with self._asking:
            try:
                response = self._servers[0].ask('GET', PATH, wait_secs + _ANSWER_SECS, headers)
                message = self._received(response, known)
            except (OSError, http.client.HTTPException, ValueError) as error:
                raise self._lost(error) from error
            self._failures = 0
        return message

    def _find_relays(self) -> None:
        if time.monotonic() < self._find_at or self._closed.is_set():
            return
        self._find_at = time.monotonic() + _FIND_SECS
        found = self._relays()
        if set(found) != set(self._found):
            self._found = found
            ranked = sorted(found, key=lambda each: _weight(self._name, each))
            with self._asking:
                self._servers[0].drop()
                self._servers = [HttpClient(address, self._token) for address in (*ranked, self._last)]

    def pause(self) -> None:
        """Waits after a failure: longer each time, and not as long as other clients."""
        secs = min(_LARGEST_PAUSE_SECS, 0.1 * 2 ** min(self._failures, 10))
        self._closed.wait(random.SystemRandom().uniform(0.5, 1.0) * secs)

    def close(self) -> None:
        """Ends the request that another thread may wait for."""
        self._closed.set()
        for server in list(self._servers):
            server.close()
        with self._asking:
            self._servers[0].drop()

    def _received(self, response: http.client.HTTPResponse, known: Message | None) -> Message | None:
        if response.status in (HTTPStatus.NOT_MODIFIED, HTTPStatus.NOT_FOUND):
            response.read()
            return None
        if response.status == HTTPStatus.OK:
            return parse(self._read_all(response)).completed(known)
        text = response.read(4096).decode(errors='replace')
        self._servers[0].drop()
        with contextlib.suppress(ValueError, KeyError, TypeError):
            text = json.loads(text)['error']
        raise RequestRefused(f'the coordinator at {self.address} answers {response.status}: {text}')

    def _read_all(self, response: http.client.HTTPResponse) -> memoryview:
        """Returns the body; raises OSError if it comes too slowly."""
        received, at = self._memory(int(response.headers['Content-Length'] or 0)), 0
        deadline = time.monotonic() + _ANSWER_SECS + len(received) / SLOWEST_BYTES_PER_SEC
        while at < len(received):
            count = response.readinto(received[at : at + _BLOCK_BYTES])
            if not count or time.monotonic() > deadline:
                raise ConnectionError(f'{at} of {len(received)} bytes came')
            at += count
        return received

    def _memory(self, size: int) -> memoryview:
        """Returns memory for a message: that of an earlier one, or new memory,
        whose first use takes long.
        """
        fitting = next((i for i, each in enumerate(self._free) if len(each) >= size), None)
        owner = np.empty(size, np.uint8) if fitting is None else self._free.pop(fitting)
        lent = owner[:size]
        weakref.finalize(lent, self._keep, owner)
        return lent.data

    def _keep(self, memory: np.ndarray) -> None:
        """Keeps the memory of a message that nobody needs any more."""
        self._free[:] = [memory, *self._free[: _KEPT - 1]]

    def _lost(self, error: Exception) -> CoordinatorLost:
        """Drops the connection, and asks the next server from now on."""
        self._servers[0].drop()
        self._failures += 1
        lost = CoordinatorLost(f'the coordinator at {self.address} does not answer ({error or type(error).__name__})')
        if len(self._servers) > 1 and not self._closed.is_set():
            self._servers.append(self._servers.pop(0))
            logging.warning('%s; asking %s', lost, self.address)
        return lost


def _weight(name: str, address: str) -> bytes:
    return hashlib.blake2b(f'{name}/{address}'.encode(), digest_size=8).digest()
