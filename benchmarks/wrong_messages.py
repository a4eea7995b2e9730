"""Valid and half-valid messages for every route and every file: each is a good one in which one thing is changed.

A number becomes infinite, negative or larger than 64 bits, a text half a character or very long, a field is left out or
added, lists are nested deep. Whoever reads the message answers it, or refuses it by the field's name.
"""

import copy
import dataclasses
import http.client
import json
import math
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

DEADLINE_SECS = 20.0
_LARGE = 100_000
_VALUES: tuple[Callable[[], Any], ...] = (
    lambda: None,
    lambda: True,
    lambda: 0,
    lambda: -1,
    lambda: 0.5,
    lambda: 1e39,
    lambda: -1e308,
    lambda: math.nan,
    lambda: math.inf,
    lambda: -math.inf,
    lambda: 2**31,
    lambda: 2**53 + 1,
    lambda: 2**63 - 2,
    lambda: 2**63,
    lambda: 10**400,
    lambda: '',
    lambda: 'x',
    lambda: '1',
    lambda: '\ud800',
    lambda: 'a\nb\0',
    lambda: 'nan',
    lambda: 'x' * _LARGE,
    lambda: ['x' * _LARGE, *[''] * _LARGE],
    list,
    dict,
    lambda: [[[]]],
    lambda: [1, [2]],
    lambda: {'x': {'x': 1}},
    lambda: [{}],
    lambda: [0] * _LARGE,
    lambda: {str(i): i for i in range(20_000)},
    lambda: _nested(50),
    lambda: _nested(900),
)
_ADDED = 'added_field'
_LEFT = 0.1  # of all messages are as they were


class Changed(NamedTuple):
    """A message in which one thing was changed.

    Attributes:
      value: the message.
      fields: the names on the way to what was changed, the innermost first; () if nothing was.
      what: what was changed, for a person.
      added: a name in what was put there, which an error may name too.
    """

    value: Any
    fields: tuple[str, ...]
    what: str
    added: tuple[str, ...] = ()


def _nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Returns the ways to all values within a message, but to the later ones of a list."""
    if path:
        yield path
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _places(part, (*path, key))
    elif isinstance(value, list | tuple):
        for i, part in enumerate(value[:2]):
            yield from _places(part, (*path, i))


def changed(message: Any, chance: random.Random) -> Changed:
    """Returns a copy of a JSON value in which at most one thing is changed."""
    made = copy.deepcopy(message)
    places = list(_places(made))
    if not places or chance.random() < _LEFT:
        return Changed(made, (), 'nothing')
    path = chance.choice(places)
    inner = made
    for key in path[:-1]:
        inner = inner[key]
    fields = tuple(key for key in reversed(path) if isinstance(key, str))
    kind = chance.random()
    if kind < 0.1:
        del inner[path[-1]]
        return Changed(made, fields, f'without {path}')
    if kind < 0.2 and isinstance(inner, dict):
        inner[_ADDED] = chance.choice(_VALUES)()
        return Changed(made, (_ADDED, *fields), f'with {_ADDED} beside {path}')
    if kind < 0.25 and isinstance(inner, list):
        inner.extend([inner[path[-1]]] * chance.choice([1, 2, 2_000]))
        return Changed(made, fields, f'repeated {path}')
    value = chance.choice(_VALUES)()
    inner[path[-1]] = value
    added = tuple(value)[:1] if isinstance(value, dict) else ()
    return Changed(made, fields, f'{path} = {_short(value)}', added)


def damaged(data: bytes, chance: random.Random) -> bytes:
    """Returns the bytes of a message with a fault that is none of JSON's values."""
    at = chance.randrange(len(data) + 1)
    return chance.choice(
        [
            b'',
            b'\xff\xfe' + data,
            data[:at],
            data[:at] + bytes([chance.randrange(256)]) + data[at + 1 :],
            data + data,
            b'[' * _LARGE,
            b'{"a":' * 5_000,
            b'[1]',
            b'null',
            b'"' + b'\\ud800' * 100 + b'"',
            b'{"x": ' + b'9' * 5_000 + b'}',
        ]
    )


def encoded(value: Any) -> bytes:
    """Returns the JSON of a value, as Python's own encoder writes it: also NaN and infinities."""
    return json.dumps(value).encode()


def _short(value: Any) -> str:
    if isinstance(value, str | list | dict) and len(value) > 20:
        return f'{type(value).__name__} of {len(value)}'
    return ascii(value)[:40]


@dataclasses.dataclass(frozen=True)
class Form:
    """What a route takes.

    Attributes:
      route: 'POST /v1/reports'.
      message: a valid one; None for a route without a body; bytes for one that is no JSON.
      headers: those that are changed too.
      words: the parts of the path that are changed, by their name: `{name}` stands in the route.
      also: other names by which an error may call a field.
    """

    route: str
    message: Any = None
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    words: Mapping[str, str] = dataclasses.field(default_factory=dict)
    also: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)


class Sent(NamedTuple):
    """A request.

    Attributes:
      fields: see `Changed`; None if the fault has no name.
    """

    method: str
    path: str
    headers: dict[str, str]
    body: bytes | None
    fields: tuple[str, ...] | None
    what: str


_TEXTS = ('', 'x', '-1', '1e3', '0', '9' * 30, 'nan', 'x' * 300, 'a/b', '%00', '..', '\xe4', '\xff', '1/', '/1', '"')


def requests(forms: Sequence[Form], count: int, seed: int) -> Iterator[Sent]:
    """Returns so many requests, of each form as many as of the others."""
    chance = random.Random(seed)
    for i in range(count):
        yield _request(forms[i % len(forms)], chance)


def _request(form: Form, chance: random.Random) -> Sent:
    method, _, path = form.route.partition(' ')
    headers, words = dict(form.headers), dict(form.words)
    parts: list[str] = ['headers'] * bool(headers) + ['words'] * bool(words) + ['body', 'bytes', 'body', 'body', 'body']
    part = chance.choice(parts) if form.message is not None else chance.choice([*parts[: -len('bbbbb')], 'none'])
    fields: tuple[str, ...] | None = None
    what = part
    if part in ('headers', 'words'):
        changes = headers if part == 'headers' else words
        name = chance.choice(sorted(changes))
        changes[name] = chance.choice(_TEXTS)
        what = f'{name}: {changes[name]!r:.40}'
    message = form.message
    body = message if isinstance(message, bytes) or message is None else encoded(message)
    if part == 'body' and not isinstance(message, bytes):
        made = changed(message, chance)
        body, fields, what = encoded(made.value), _with_others(made, form.also), made.what
    elif part in ('body', 'bytes') and body is not None:
        body = damaged(body, chance)
    return Sent(method, path.format(**words), headers, body, fields, what)


def _with_others(made: Changed, also: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    others = (other for field in made.fields for other in also.get(field, ()))
    return (*made.fields[:1], *made.added, *others)


class Port:
    """Sends requests to a port of this machine, and judges the answers.

    Attributes:
      faults: what an answer should not have been, a line each.
      statuses: how many answers had each status.
    """

    def __init__(self, port: int):
        self.faults: list[str] = []
        self.statuses: dict[int, int] = {}
        self._port = port
        self._connection: http.client.HTTPConnection | None = None

    def send(self, sent: Sent) -> tuple[int, Any]:
        """Returns the status and the JSON of the answer; (0, None) if there is none, which is a fault."""
        try:
            status, body = self._asked(sent)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            self.faults.append(f'{sent.method} {sent.path:.60} ({sent.what}): no answer ({error!r:.80})')
            return 0, None
        self.statuses[status] = self.statuses.get(status, 0) + 1
        answer = strict_json(body)
        if fault := judged(sent, status, answer, body):
            self.faults.append(f'{sent.method} {sent.path:.60} ({sent.what}): {status} {fault}')
        return status, answer

    def _asked(self, sent: Sent) -> tuple[int, bytes]:
        if self._connection is None:
            self._connection = http.client.HTTPConnection('127.0.0.1', self._port, timeout=DEADLINE_SECS)
        path = ''.join(f'%{ord(c):02x}' if not 32 < ord(c) < 127 else c for c in sent.path)
        headers = {name: text.encode('latin-1') for name, text in sent.headers.items()}
        try:
            self._connection.request(sent.method, path, sent.body, headers)  # type: ignore[arg-type]
            answer = self._connection.getresponse()
        except (BrokenPipeError, ConnectionResetError):  # refused before all of the body was sent
            answer = http.client.HTTPResponse(self._connection.sock)
            answer.begin()
        body = answer.read()
        if answer.will_close:
            self.close()
        return answer.status, body

    def close(self) -> None:
        """Closes the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def strict_json(body: bytes) -> Any:
    """Returns the JSON in a body that every program can read, without NaN and infinities; None if it is none."""

    def refuse(constant: str) -> None:
        raise ValueError(constant)

    try:
        return json.loads(body, parse_constant=refuse)
    except (ValueError, RecursionError):
        return None


def judged(sent: Sent, status: int, answer: Any, body: bytes) -> str:
    """Returns what is wrong with an answer; '' if nothing is."""
    if status >= 500 and status not in (503, 504):
        return f'{body[:200]!r}'
    if status < 400:
        return ''
    error = answer.get('error') if isinstance(answer, dict) else None
    if status == 404 and not body:  # there is no publication yet
        return ''
    if not isinstance(error, str) or '\n' in error:
        return f'no error in one line: {body[:200]!r}'
    if status == 400 and sent.fields and not names(error, sent.fields):
        return f'does not name {" or ".join(sent.fields)}: {error[:200]}'
    return ''


def names(error: str, fields: Sequence[str]) -> bool:
    """Returns whether an error names one of the fields."""
    return any(re.search(rf'(?<![A-Za-z0-9]){re.escape(field)}', error) for field in fields)
