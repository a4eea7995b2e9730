"""Clients of a policy server: who they are, which policies they may ask, and how much.

A JSON file lists them by name; it is read again when it changes. Each is known by a token, of which
the file holds the digest (`openssl dgst -sha256`), or by a name in its certificate:

    {"robot": {"token_sha256": "9f86...", "policies": ["greedy_policy"], "requests_per_sec": 200, "max_in_flight": 8},
     "screen": {"certificate": "screen.example.org"}}
"""

import contextlib
import contextvars
import dataclasses
import math
import pathlib
import re
import time
from collections.abc import Callable, Iterator, Mapping

from tflearn.core import tokens
from tflearn.core.errors import UserValueError
from tflearn.core.settings import Range
from tflearn.files.run_dir import read_json
from tflearn.net.grpc_server import Caller, GrpcRefusal
from tflearn.net.tls import Renewed

_FORM = 'need an object of clients by name, each with "token_sha256" or "certificate"; see docs/serving.md'


@dataclasses.dataclass(frozen=True)
class ClientAccount:
    """What one client is known by, and what it may do.

    Attributes:
      token_sha256: the SHA-256 of its token, in hexadecimal digits.
      certificate: a name in its certificate: the common name or a DNS name.
      policies: the policies that it may ask; None is all.
      requests_per_sec: requests a second, on average; a second's worth may come at once. None is
        any number.
      max_in_flight: requests at the same time; None is any number.
    """

    name: str
    token_sha256: str | None = None
    certificate: str | None = None
    policies: tuple[str, ...] | None = None
    requests_per_sec: float | None = None
    max_in_flight: int | None = None

    @classmethod
    def parse(cls, name: str, values: object) -> 'ClientAccount':
        """Returns the client of an entry of the file.
        Raises ValueError for an entry of another form.
        """
        known = {field.name for field in dataclasses.fields(cls)} - {'name'}
        # Values, and names, may be tokens: not shown.
        if not isinstance(values, dict) or not values.keys() <= known:
            kind = 'other entries' if isinstance(values, dict) else f'a {type(values).__name__}'
            raise UserValueError(f'got the client {name!r} with {kind}; need an object with some of {sorted(known)}')
        policies = values.get('policies')
        if policies is not None and not (
            isinstance(policies, list) and all(isinstance(each, str) for each in policies)
        ):
            raise UserValueError(f'got the client {name!r} with other policies; need a list of names')
        client = cls(name, **{**values, 'policies': None if policies is None else tuple(policies)})
        if client.token_sha256 is None and client.certificate is None:
            raise UserValueError(f'got the client {name!r} without token_sha256 and certificate; need one of them')
        if not re.fullmatch('[0-9a-f]{64}', str(client.token_sha256 or '0' * 64)):
            raise UserValueError(f'got the client {name!r} with another token_sha256; need 64 hexadecimal digits')
        for quota in ('requests_per_sec', 'max_in_flight'):
            value = getattr(client, quota)
            if value is not None and not (type(value) in (int, float) and value in Range(above=0)):
                raise UserValueError(f'got the client {name!r} with another {quota}; need a number above 0')
        return client


@dataclasses.dataclass
class _Usage:
    """What a client has used.

    Attributes:
      left: requests that it may make at once.
      at: when that was computed, by the monotonic clock [seconds].
    """

    left: float = math.inf
    at: float = 0.0
    in_flight: int = 0


_asking: contextvars.ContextVar[ClientAccount | None] = contextvars.ContextVar('client', default=None)
# Of the request that is being answered.
caller_metadata: contextvars.ContextVar[Mapping[str, str]] = contextvars.ContextVar('metadata')


@contextlib.contextmanager
def everybody(caller: Caller) -> Iterator[None]:
    """Admits a request of any client."""
    caller_metadata.set(caller.metadata)  # the request has a task, and so a context, of its own
    yield


def check_policy(name: str) -> None:
    """Checks that the client of the request that is being answered may ask a policy.

    Raises:
      GrpcRefusal: if not.
    """
    client = _asking.get()
    if client is not None and client.policies is not None and name not in client.policies:
        raise GrpcRefusal(
            'PERMISSION_DENIED',
            f'got a request for {name[:100]!r} from the client {client.name!r}, which may not ask it',
        )


class Clients:
    """Admits requests of the clients in a file. Used on one thread."""

    def __init__(
        self,
        file: pathlib.Path,
        record_refused: Callable[[str, str], object] = lambda client, reason: None,
        clock: Callable[[], float] = time.monotonic,
    ):
        """
        Args:
          record_refused: called with the client's name, '' for an unknown client, and why a request
            was refused: 'unknown', 'requests_per_sec', 'max_in_flight'.

        Raises:
          ValueError: if the file is missing or of another form.
        """
        self._clients = Renewed([file], lambda: _read(file))
        self._record, self._clock = record_refused, clock
        self._usage: dict[str, _Usage] = {}

    @property
    def have_tokens(self) -> bool:
        """Whether a client is known by a token."""
        return any(client.token_sha256 for client in self._clients.get().values())

    @contextlib.contextmanager
    def admit(self, caller: Caller) -> Iterator[None]:
        """Admits one request for the time of the block.

        Raises:
          GrpcRefusal: if it is of no client in the file, or beyond the client's quota.
        """
        client = self._known(caller)
        usage = self._usage.setdefault(client.name, _Usage())
        self._take(client, usage)
        usage.in_flight += 1
        caller_metadata.set(caller.metadata)
        asking = _asking.set(client)
        try:
            yield
        finally:
            _asking.reset(asking)
            usage.in_flight -= 1

    def _known(self, caller: Caller) -> ClientAccount:
        token = tokens.received(caller.metadata.get('authorization'))
        digest = tokens.digest(token) if token else ''
        found = [
            client
            for client in self._clients.get().values()
            if (client.token_sha256 and tokens.equal(client.token_sha256, digest))
            or (client.certificate and client.certificate in caller.certificate_names)
        ]
        if not found:
            self._record('', 'unknown')
            raise GrpcRefusal(
                'UNAUTHENTICATED',
                'got no token or certificate of a known client; need the metadata authorization: Bearer TOKEN, or a '
                'certificate; ask who runs the server',
            )
        return found[0]

    def _take(self, client: ClientAccount, usage: _Usage) -> None:
        if client.max_in_flight is not None and usage.in_flight >= client.max_in_flight:
            self._record(client.name, 'max_in_flight')
            raise GrpcRefusal(
                'RESOURCE_EXHAUSTED',
                f'got more than {client.max_in_flight} requests at the same time; wait for answers',
            )
        if (rate := client.requests_per_sec) is None:
            return
        now = self._clock()
        usage.left = min(usage.left + (now - usage.at) * rate, max(rate, 1.0))
        usage.at = now
        if usage.left < 1.0:
            self._record(client.name, 'requests_per_sec')
            raise GrpcRefusal('RESOURCE_EXHAUSTED', f'got more than {rate:g} requests a second; send less')
        usage.left -= 1.0


def _read(file: pathlib.Path) -> Mapping[str, ClientAccount]:
    try:
        values = read_json(file)
    except OSError as error:
        raise UserValueError(f'got the clients {file} ({error}); need a file that can be read') from error
    if not isinstance(values, dict) or not values:
        raise UserValueError(f'got {"no clients" if values is None else values} in {file}; {_FORM}')
    try:
        return {name: ClientAccount.parse(name, entry) for name, entry in values.items()}
    except UserValueError as error:
        raise UserValueError(f'{error}; correct {file}') from error
