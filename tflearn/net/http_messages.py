"""What HTTP servers of ours answer, and JSON of their requests.
It needs only the standard library.
"""

import dataclasses
import json
from collections.abc import Collection, Mapping, Sequence
from http import HTTPStatus
from types import MappingProxyType
from typing import Any

from tflearn.core.errors import UserValueError


@dataclasses.dataclass(frozen=True)
class Response:
    """What a request is answered.

    Attributes:
      body: its bytes, in parts.
      headers: those beside the size.
    """

    body: Sequence[bytes | memoryview] = ()
    status: HTTPStatus = HTTPStatus.OK
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)


def json_response(message: Mapping[str, Any], status: HTTPStatus = HTTPStatus.OK) -> Response:
    """Returns a response whose body is a JSON object."""
    return Response([(json.dumps(message) + '\n').encode()], status, {'Content-Type': 'application/json'})


def json_object(
    data: bytes | memoryview, needed: Mapping[str, Any] = MappingProxyType({}), known: Collection[str] | None = None
) -> dict[str, Any]:
    """Returns the JSON object in some bytes.

    Args:
      needed: keys that it must have, each with the type of its value.
      known: keys that it may have; None is any.

    Raises:
      ValueError: if it is something else.
    """
    try:
        message = json.loads(bytes(data))
    except (ValueError, RecursionError) as error:
        raise UserValueError(f'got a body that is no JSON ({error}); need a JSON object') from error
    names = ', '.join(sorted(needed)) or 'any keys'
    if not isinstance(message, dict):
        raise UserValueError(f'got a JSON {type(message).__name__}; need an object with {names}')
    if missing := needed.keys() - message.keys():
        raise UserValueError(f'got a message without {", ".join(sorted(missing))}; need {names}')
    if known is not None and (unknown := message.keys() - known):
        raise UserValueError(f'got a message with {", ".join(sorted(unknown))}; need only {", ".join(sorted(known))}')
    for name, kind in needed.items():
        value = message[name]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind not in (bool, object)):
            need = getattr(kind, '__name__', kind)
            raise UserValueError(f'got {name} of the type {type(value).__name__}; need {need}')
    return message


class HttpRefusal(Exception):
    """A request is answered with this status and {"error": ...}."""

    def __init__(self, status: HTTPStatus, error: str):
        super().__init__(error)
        self.status = status
