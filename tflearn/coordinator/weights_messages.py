"""A publication as bytes, for the coordinator: a header in JSON, then the variables one after the other.

A message is known by its content: the tag is a digest of the header, which has a digest of each variable. So who has a
message can be sent the difference to it: a message without the variables that are the same. Only numpy is needed; a
relay never looks at the values.
"""

import dataclasses
import functools
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tflearn.core.errors import UserValueError

PROTOCOL = 2
_MAGIC = b'tflearnW'
_HEADER_BYTES = 16  # the magic and the header's length
_MAX_HEADER_BYTES = 16 << 20
_MAX_DIMENSIONS = 32


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
    variables = []
    for name, shape, dtype, sent, num_bytes, digest in fields['variables']:
        of = (isinstance(each, str) for each in (name, dtype, sent, digest))
        sizes = all(type(each) is int and each >= 0 for each in (*shape, num_bytes)) and len(shape) <= _MAX_DIMENSIONS
        if not (all(of) and sizes):
            raise UserValueError('a variable without a name, a shape, types, a size and a digest')
        variables.append(Variable(name, tuple(shape), dtype, sent, num_bytes, digest))
    counters = dict(fields['counters'])
    if not all(isinstance(value, int) for value in counters.values()):
        raise UserValueError('a counter that is no whole number')
    return Message(counters, tuple(variables), (None,) * len(variables))
