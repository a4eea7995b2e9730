"""The weights server: takes publications from the learner, or from another server, and gives them to whoever asks.

    PUT /v1/weights       a publication; 409 for one of an older epoch, 405 at a relay
    GET /v1/weights       the newest one; 404 while there is none
                          If-None-Match: "TAG"   the one that the client has: 304 if there is no other
                          Prefer: wait=SECS      waits so long for another one (RFC 7240)
                          A-IM: tflearn-delta    the difference to it will do (RFC 3229)
    GET /v1/status        JSON: what it serves, and how many bytes it has sent

A relay is such a server whose publications come from another one. So the learner's machine sends each publication once
for each relay, and a relay once for each of its collectors.
"""

import collections
import contextlib
import dataclasses
import re
import socket
import threading
import time
from http import HTTPStatus
from typing import Any

from absl import logging

from tflearn.coordinator import weights_messages
from tflearn.coordinator.weights_messages import Message
from tflearn.core import background, tokens
from tflearn.core.errors import UserValueError
from tflearn.core.settings import PositiveInt, checked_dataclass
from tflearn.net import http_server

PATH, STATUS_PATH = '/v1/weights', '/v1/status'
DELTA = 'tflearn-delta'
MAX_WAIT_SECS = 30.0
_KEPT = 4  # publications to which a difference can be made
_BLOCK_BYTES = 1 << 20
_SLOW_SECS, _PREFERRED_BYTES_PER_SEC, _END_SECS = 5.0, 1e7, 5.0
_MAX_EPOCHS_AHEAD = 1000
_WAIT = re.compile(r'\bwait=(\d{1,6})')


@checked_dataclass(frozen=True)
class ServerOptions:
    """Where a weights server listens, and its limits.

    Attributes:
      host: the name or address to listen at; '0.0.0.0' is all networks.
      port: 0 takes a free one.
      token: where the token is that everybody must show: a file's path, or 'env:NAME'; None asks for none.
      max_connections: at the same time: one for each job, and for each relay, that it serves.
      max_bytes: the size of the largest publication.
    """

    host: str = 'localhost'
    port: int = 0
    token: str | None = None
    max_connections: PositiveInt = 512
    max_bytes: PositiveInt = 4 << 30


class Newest:
    """The newest publication, for many threads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._message: Message | None = None
        self._kept: collections.deque[Message] = collections.deque(maxlen=_KEPT)
        self._closed = False

    @property
    def message(self) -> Message | None:
        """The newest publication; None if there is none yet."""
        return self._message

    def put(self, message: Message) -> bool:
        """Takes a publication with all its data. Returns False, and takes nothing, if its epoch is an old one."""
        with self._changed:
            if self._message and message.epoch < self._message.epoch:
                return False
            if self._message:  # only its digests are needed
                self._kept.append(dataclasses.replace(self._message, data=(None,) * len(self._message.data)))
            self._message = message
            self._changed.notify_all()
        return True

    def other(self, tag: str | None, secs: float) -> Message | None:
        """Returns the newest publication as soon as it is not the one with `tag`; None after `secs`."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or (self._message and self._message.tag != tag), secs)
            return self._message if self._message and self._message.tag != tag else None

    def kept(self, tag: str | None) -> Message | None:
        """Returns an earlier publication without its data; None if it is no longer known."""
        with self._changed:
            return next((message for message in self._kept if message.tag == tag), None)

    def close(self) -> None:
        """Ends all waiting."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class WeightsServer:
    """Serves publications from its construction until `close`.

    Attributes:
      newest: the publication that is served; a relay puts those of another server there.
      port: where it listens.
    """

    def __init__(self, options: ServerOptions, takes: bool = True):
        """Starts to listen.

        Args:
          takes: whether clients may put publications; False for a relay.

        Raises:
          ValueError: if it cannot listen there, or there is no token.
        """
        self.newest = Newest()
        self._takes, self._max_bytes = takes, options.max_bytes
        self._counts = {'clients': 0, 'sent_messages': 0, 'sent_bytes': 0, 'received_bytes': 0}
        self._lock, self._putting = threading.Lock(), threading.Lock()
        token = tokens.read(options.token, '--weights_token') if options.token else ''
        self._has_token = bool(token)
        self._sender: _Handler | None = None  # who sends a publication now
        handler = type('Handler', (_Handler,), {'server_of': self, 'token': token})
        self._server = http_server.listen(
            options.host, [options.port], handler, options.max_connections, setting='--listen', held=True
        )
        self.port = int(self._server.server_address[1])
        self._thread = background.Thread(target=self._server.serve_forever, name='weights_server')
        self._thread.start()

    def count(self, **more: int) -> None:
        """Adds to the counts that `status` shows."""
        with self._lock:
            for name, number in more.items():
                self._counts[name] += number

    def status(self) -> dict[str, Any]:
        """Returns what is served, and how much it sent, or began to send, since the start."""
        message = self.newest.message
        served = {**message.counters, 'bytes': message.num_bytes, 'tag': message.tag} if message else {}
        return {**served, **self._counts}

    def close(self) -> None:
        """Ends waiting requests and stops listening."""
        self.newest.close()
        self._server.shutdown()
        self._server.end_connections()
        self._server.server_close()
        self._thread.join(10.0)

    def put(self, handler: '_Handler', length: int) -> tuple[HTTPStatus, dict[str, Any]]:
        """Takes a publication from a client. Returns the answer."""
        if not self._take_place():
            return HTTPStatus.SERVICE_UNAVAILABLE, {'error': 'another publication is being received; try again'}
        try:
            self._sender, handler.begun_at = handler, time.monotonic()
            received = handler.read_body(length)
            if received is None:
                return HTTPStatus.REQUEST_TIMEOUT, {'error': 'got a part of a message; need all of it'}
            message = weights_messages.parse(received).completed(None)
        except UserValueError as error:
            return HTTPStatus.BAD_REQUEST, {'error': str(error)}
        finally:
            self._sender = None
            self._putting.release()
        self.count(received_bytes=length)
        before = self.newest.message
        most = (before.epoch if before else 0) + _MAX_EPOCHS_AHEAD
        if not self._has_token and message.epoch > most:  # it would lock the learner out
            refusal = f'got epoch {message.epoch}; need at most {most} without --weights_token'
            logging.warning('refused a publication: %s', refusal)
            return HTTPStatus.FORBIDDEN, {'error': refusal}
        if not self.newest.put(message):
            newest = self.newest.message
            epochs = f'got epoch {message.epoch}; need at least {newest and newest.epoch}'
            logging.warning('refused a publication of an older learner: %s', epochs)
            return HTTPStatus.CONFLICT, {'error': f'{epochs}: another learner has taken over this run'}
        return HTTPStatus.OK, {'tag': message.tag}

    def _take_place(self) -> bool:
        """Takes the only place for a publication, so that the memory is bounded; a slow sender loses it to the next."""
        if self._putting.acquire(blocking=False):
            return True
        sender = self._sender
        if sender is None or not sender.is_slow():
            return False
        sender.end()
        return self._putting.acquire(timeout=_END_SECS)


class _Handler(http_server.Handler):
    """Handles the requests of one connection.

    Attributes:
      server_of: has the publications; set by a subclass.
    """

    server_of: WeightsServer
    begun_at = 0.0

    def is_slow(self) -> bool:
        """Whether a publication comes so slowly that another one may take its place."""
        secs = time.monotonic() - self.begun_at
        return secs > _SLOW_SECS and self.num_received < secs * _PREFERRED_BYTES_PER_SEC

    def end(self) -> None:
        """Ends the connection from another thread."""
        logging.warning('gave up a publication of %s for another one: it came too slowly', self.client_address)
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def answer(self) -> None:
        """See `http_server.Handler`."""
        self.server_of.count(clients=1)
        try:
            if (self.command, self.path) == ('GET', PATH):
                self._get()
            elif (self.command, self.path) == ('GET', STATUS_PATH):
                self.send_json(HTTPStatus.OK, self.server_of.status())
            elif (self.command, self.path) == ('PUT', PATH) and self.server_of._takes:
                if (length := self.length_of_body(self.server_of._max_bytes)) is not None:
                    self._answer_put(*self.server_of.put(self, length))
            elif self.path == PATH:
                self.refuse(HTTPStatus.METHOD_NOT_ALLOWED, f'got {self.command}; this server takes no publications')
            else:
                self.refuse(HTTPStatus.NOT_FOUND, f'got {self.command}; need GET or PUT {PATH}, or GET {STATUS_PATH}')
        finally:
            self.server_of.count(clients=-1)

    def _answer_put(self, status: HTTPStatus, message: dict[str, Any]) -> None:
        if status in (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.SERVICE_UNAVAILABLE):
            self.close_connection = True  # the body was not read
        self.send_json(status, message)

    def _get(self) -> None:
        tag = self.headers.get('If-None-Match', '').strip('" ') or None
        wait = _WAIT.search(self.headers.get('Prefer', ''))
        newest = self.server_of.newest
        message = newest.other(tag, min(float(wait[1]), MAX_WAIT_SECS) if wait else 0.0)
        if message is None:
            status = HTTPStatus.NOT_MODIFIED if newest.message else HTTPStatus.NOT_FOUND
            self.send_response(status)
            self.send_header('Content-Length', '0')
            self.end_headers()
            return
        base = newest.kept(tag) if self.headers.get('A-IM') == DELTA else None
        parts = message.parts(base)
        length = sum(map(len, parts))
        self.server_of.count(sent_messages=1, sent_bytes=length)
        self.send_response(HTTPStatus.OK)
        self.send_header('Content-Type', 'application/octet-stream')
        self.send_header('ETag', f'"{message.tag}"')
        self.send_header('Content-Length', str(length))
        self.end_headers()
        self.wfile.flush()
        for part in parts:
            view = memoryview(part)
            for at in range(0, len(view), _BLOCK_BYTES):
                self.connection.sendall(view[at : at + _BLOCK_BYTES])
