"""Reads weights of a coordinator or its relays: one connection, the next server when one is lost."""

import contextlib
import hashlib
import http.client
import json
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any

import numpy as np
from absl import logging

from tflearn.coordinator import weights_messages
from tflearn.coordinator.weights_messages import Message
from tflearn.net.http_client import HttpClient

PATH, STATUS_PATH = '/v1/weights', '/v1/status'
DELTA = 'tflearn-delta'
_WAIT_SECS = 30.0
_ANSWER_SECS = 15.0  # beyond what the server is asked to wait
_LARGEST_PAUSE_SECS = 5.0
_BLOCK_BYTES = 1 << 20
SLOWEST_BYTES_PER_SEC = 1e6
_KEPT = 2  # memory of earlier messages
_FIND_SECS = 30.0


class Lost(RuntimeError):
    """No server answered."""


class Refused(RuntimeError):
    """A server answers, but not as asked: another learner has taken over, there is no token, ...

    Attributes:
      facts: what the answer says besides, such as the 'newest_version' that refused weights are older than.
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
          name: what the reader's order of the relays is made from, by rendezvous hashing: each prefers another one.
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
        """Returns the newest publication with all its data; None if it is `known`, or there is none.

        Args:
          wait_secs: how long the server waits for another one before it says so [s].

        Raises:
          Lost: if no answer came in time; the next call asks the next server.
          Refused: if the server answers something else.
        """
        self._find_relays()
        headers = {'Prefer': f'wait={int(wait_secs)}'}
        if known:
            headers |= {'If-None-Match': f'"{known.tag}"', 'A-IM': DELTA}
        with self._response('GET', PATH, wait_secs, headers=headers) as response:
            if response.status in (HTTPStatus.NOT_MODIFIED, HTTPStatus.NOT_FOUND):
                response.read()
                return None
            self._check(response)
            return weights_messages.parse(self._read_all(response)).completed(known)

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

    @contextlib.contextmanager
    def _response(
        self, method: str, path: str, wait_secs: float = 0.0, **given: Any
    ) -> Iterator[http.client.HTTPResponse]:
        """Asks, and gives the response; makes Lost of what goes wrong in the block."""
        with self._asking:
            try:
                yield self._servers[0].ask(method, path, wait_secs + _ANSWER_SECS, **given)
            except (OSError, http.client.HTTPException, ValueError) as error:
                raise self._lost(error) from error
            self._failures = 0

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
        """Returns memory for a message: that of an earlier one, or new memory, whose first use takes long."""
        fitting = next((i for i, each in enumerate(self._free) if len(each) >= size), None)
        owner = np.empty(size, np.uint8) if fitting is None else self._free.pop(fitting)
        lent = owner[:size]
        weakref.finalize(lent, self._keep, owner)
        return lent.data

    def _keep(self, memory: np.ndarray) -> None:
        """Keeps the memory of a message that nobody needs any more."""
        self._free[:] = [memory, *self._free[: _KEPT - 1]]

    def _check(self, response: http.client.HTTPResponse) -> None:
        if response.status != HTTPStatus.OK:
            text = response.read(4096).decode(errors='replace')
            self._servers[0].drop()
            with contextlib.suppress(ValueError, KeyError, TypeError):
                text = json.loads(text)['error']
            raise Refused(f'the coordinator at {self.address} answers {response.status}: {text}')

    def _lost(self, error: Exception) -> Lost:
        """Drops the connection, and asks the next server from now on."""
        self._servers[0].drop()
        self._failures += 1
        lost = Lost(f'the coordinator at {self.address} does not answer ({error or type(error).__name__})')
        if len(self._servers) > 1 and not self._closed.is_set():
            self._servers.append(self._servers.pop(0))
            logging.warning('%s; asking %s', lost, self.address)
        return lost


def _weight(name: str, address: str) -> bytes:
    return hashlib.blake2b(f'{name}/{address}'.encode(), digest_size=8).digest()
