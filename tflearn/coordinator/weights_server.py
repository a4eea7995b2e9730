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
import dataclasses
import re
import threading
import time
from http import HTTPStatus
from typing import Any

from absl import logging

from tflearn.coordinator import weights_messages
from tflearn.coordinator.weights_messages import Message
from tflearn.net.http_request import Refused, Request, Response, json_response
from tflearn.net.http_server import HttpServer
from tflearn.net.server_options import ServerOptions as ServerOptions

PATH, STATUS_PATH = '/v1/weights', '/v1/status'
DELTA = 'tflearn-delta'
MAX_WAIT_SECS = 30.0
MAX_BYTES = 4 << 30  # of a publication
_KEPT = 4  # publications to which a difference can be made
_SLOW_SECS, _PREFERRED_BYTES_PER_SEC, _END_SECS = 5.0, 1e7, 5.0
_MAX_EPOCHS_AHEAD = 1000
_WAIT = re.compile(r'\bwait=(\d{1,6})')


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
        self._counts = {'sent_messages': 0, 'sent_bytes': 0, 'received_bytes': 0}
        self._lock, self._putting = threading.Lock(), threading.Lock()
        self._sender: tuple[Request, float] | None = None  # who sends a publication now, and since when
        routes = {f'GET {PATH}': self._get, f'GET {STATUS_PATH}': lambda request: json_response(self.status())}
        routes |= {f'PUT {PATH}': self._put} if takes else {}
        settings = '--listen', '--weights_token'
        self._server = HttpServer(options, routes, 'weights_server', settings, shared=True)
        self.port = self._server.port
        self._server.start()

    def status(self) -> dict[str, Any]:
        """Returns what is served, and how much it sent, or began to send, since the start."""
        message = self.newest.message
        served = {**message.counters, 'bytes': message.num_bytes, 'tag': message.tag} if message else {}
        return {**served, 'clients': self._server.num_requests, **self._counts}

    def close(self) -> None:
        """Ends waiting requests and stops listening."""
        self.newest.close()
        self._server.close()

    def _count(self, **more: int) -> None:
        with self._lock:
            for name, number in more.items():
                self._counts[name] += number

    def _get(self, request: Request) -> Response:
        tag = request.headers.get('If-None-Match', '').strip('" ') or None
        wait = _WAIT.search(request.headers.get('Prefer', ''))
        message = self.newest.other(tag, min(float(wait[1]), MAX_WAIT_SECS) if wait else 0.0)
        if message is None:
            return Response(status=HTTPStatus.NOT_MODIFIED if self.newest.message else HTTPStatus.NOT_FOUND)
        parts = message.parts(self.newest.kept(tag) if request.headers.get('A-IM') == DELTA else None)
        self._count(sent_messages=1, sent_bytes=sum(map(len, parts)))
        return Response(parts, headers={'Content-Type': 'application/octet-stream', 'ETag': f'"{message.tag}"'})

    def _put(self, request: Request) -> Response:
        if not self._take_place():
            raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, 'another publication is being received; try again')
        try:
            self._sender = request, time.monotonic()
            received = request.body()
            message = weights_messages.parse(received).completed(None)
        finally:
            self._sender = None
            self._putting.release()
        self._count(received_bytes=len(received))
        before = self.newest.message
        most = (before.epoch if before else 0) + _MAX_EPOCHS_AHEAD
        if not self._server.token and message.epoch > most:  # it would lock the learner out
            error = f'got epoch {message.epoch}; need at most {most} without --weights_token'
            raise Refused(HTTPStatus.FORBIDDEN, error)
        if not self.newest.put(message):
            newest = self.newest.message
            error = f'got epoch {message.epoch}; need at least {newest and newest.epoch}: another learner has taken'
            raise Refused(HTTPStatus.CONFLICT, f'{error} over this run')
        return json_response({'tag': message.tag})

    def _take_place(self) -> bool:
        """Takes the only place for a publication, so that the memory is bounded; a slow sender loses it to the next."""
        if self._putting.acquire(blocking=False):
            return True
        if not (sender := self._sender):
            return False
        request, begun_at = sender
        secs = time.monotonic() - begun_at
        if secs <= _SLOW_SECS or request.num_received >= secs * _PREFERRED_BYTES_PER_SEC:
            return False
        logging.warning('gave up a publication of %s for another one: it came too slowly', request.client_address)
        request.end()
        return self._putting.acquire(timeout=_END_SECS)
