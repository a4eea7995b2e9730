"""The coordinator's server: everything that jobs exchange besides experience.

    POST /v1/register      {"role": ..., "index": 0, "address": "host:port", "contract": {...}, "had_epoch": false};
                           answers what the job has to know, 409 with the run's contract if that is
                           another one
    GET  /v1/addresses/ROLE
    PUT  /v1/weights       a publication; 405 at a relay
    GET  /v1/weights       the newest one; 404 while there is none
                           If-None-Match: "TAG"   the one that the client has: 304 if there is no other
                           Prefer: wait=SECS      waits so long for another one (RFC 7240)
                           A-IM: tflearn-delta    the difference to it will do (RFC 3229)
    POST /v1/report        a report: {"received": 7, "acknowledged": 3}, the numbers of episodes; if it has a limit of
                           environment steps, also how many the sender may take:
                           "allowed_env_steps", "env_steps_left"
    POST /v1/reports       {"after": 0, "acknowledged": {...}, "env_steps": {...}}: {"number": 4, "reports": [...]}
    PUT  /v1/credits       the newest credits
    POST /v1/credits       {"number": 3, "wait": 2}: {"number": 4, "credits": ...}
    POST /v1/beat          {"state": "working"}, of the learner
    PUT  /v1/counts/INDEX  the counts of a replay server's tables
    GET  /v1/counts
    GET  /v1/status

Tflearn-Incarnation: what registering answered; 412 if that was before a restart: the job registers
again first. Tflearn-Claim: EPOCH/OWNER is the learner's; 409 if another one has taken over.

A relay is such a server whose weights come from another one, and which answers requests for weights
and for the status alone. So the coordinator's machine sends each publication once for each relay,
and a relay once for each of its collectors.
"""

import contextlib
import re
import threading
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

from absl import logging

from tflearn.coordinator import control, request_fields, weights_transport
from tflearn.coordinator.client import CLAIM, INCARNATION, Coordinator, Role
from tflearn.coordinator.state import MAX_WAIT_SECS, RELAY, Conflict, Newest, State, claim_of
from tflearn.coordinator.weights_transport import (
    DELTA,
    PATH,
    STATUS_PATH,
    CoordinatorLost,
    RequestRefused,
    WeightsReader,
)
from tflearn.core import background
from tflearn.core.access import Access
from tflearn.net import server_options
from tflearn.net.http_messages import HttpRefusal, Response, json_response
from tflearn.net.http_server import HttpServer, Request
from tflearn.net.server_options import ServerOptions

MAX_BYTES = 4 << 30  # of a publication
MAX_JSON_BYTES = 4 << 20  # of any other message; Python's lock is held while it is parsed
MAX_CONNECTIONS = 4096
SETTINGS = '--coordinator_address', '--coordinator_token'
_SLOW_SECS, _PREFERRED_BYTES_PER_SEC, _END_SECS = 5.0, 1e7, 5.0
_WAIT = re.compile(r'\bwait=(\d{1,6})')
_REPORT_SECS = 1.0
_REGISTERED = {'role': str, 'index': int, 'address': str, 'contract': dict, 'had_epoch': bool}
_REPORTED = {'after': int, 'acknowledged': dict, 'env_steps': dict}
_ASKED, _STATE = {'number': int, 'wait': int | float}, {'state': str}


class CoordinatorServer:
    """Serves from its construction until `close`.

    Attributes:
      state: what it knows.
      port: where it listens.
    """

    def __init__(self, options: ServerOptions, run_id: str = '', relays: bool = False):
        """Starts to listen.

        Args:
          run_id: see `State`.
          relays: whether it is a relay of weights, which another thread puts into `state.newest`.

        Raises:
          ValueError: if it cannot listen there, or there is no token.
        """
        self.state = State(run_id, options.token is not None)
        self._counting, self._putting = threading.Lock(), threading.Lock()
        self._counts = {'sent_messages': 0, 'sent_bytes': 0, 'received_bytes': 0}
        # Who sends a publication now, and since when.
        self._sender: tuple[Request, float] | None = None
        routes: dict[str, Callable[..., Response]] = {
            f'GET {PATH}': self._get,
            f'GET {STATUS_PATH}': lambda request: json_response(self.status()),
        }
        routes |= {} if relays else {route: self._checked(answer) for route, answer in self._routes().items()}
        limits = {route: MAX_JSON_BYTES for route in routes if route != f'PUT {PATH}'}
        self._server = HttpServer(options, routes, 'coordinator', SETTINGS, shared=True, limits=limits)
        self.port = self._server.port
        self._server.start()

    def status(self) -> dict[str, Any]:
        """Returns what is served, and how much it sent, or began to send, since the start."""
        return {**self.state.status(), 'clients': self._server.num_requests, **self._counts}

    def close(self) -> None:
        """Ends waiting requests and stops listening."""
        self.state.close()
        self._server.close()

    def _routes(self) -> dict[str, Callable[..., Mapping[str, Any] | None]]:
        """Returns what a coordinator answers, and a relay does not: JSON each."""
        state = self.state
        return {
            'POST /v1/register': self._register,
            'GET /v1/addresses/ID': lambda request, role: state.addresses(role),
            f'PUT {PATH}': self._put,
            'POST /v1/report': lambda request: state.put_report(control.decode(bytes(request.body()), control.Report)),
            'POST /v1/reports': self._reports,
            'PUT /v1/credits': self._put_credits,
            'POST /v1/credits': self._credits,
            'POST /v1/beat': self._beat,
            'PUT /v1/counts/ID': lambda request, index: state.put_counts(
                request_fields.index(index), request_fields.tables(request.json())
            ),
            'GET /v1/counts': lambda request: state.counts(),
        }

    def _checked(self, answer: Callable[..., Mapping[str, Any] | None]) -> Callable[..., Response]:
        """Returns a route that refuses jobs that registered before a restart."""

        def checked(request: Request, *words: str) -> Response:
            theirs = request.headers.get(INCARNATION)
            if theirs and theirs != self.state.incarnation:
                error = f'got incarnation {theirs[:40]}; need {self.state.incarnation}; register again'
                raise HttpRefusal(HTTPStatus.PRECONDITION_FAILED, error)
            try:
                return json_response(answer(request, *words) or {})
            except Conflict as conflict:
                return json_response({'error': str(conflict), **conflict.facts}, HTTPStatus.CONFLICT)

        return checked

    def _register(self, request: Request) -> Mapping[str, Any]:
        message = request.json(_REGISTERED, _REGISTERED)
        request_fields.check_registration(message)
        return self.state.register(**message, claim=_claim(request))

    def _reports(self, request: Request) -> Mapping[str, Any]:
        message = request.json(_REPORTED, _REPORTED)
        request_fields.check_reports(message)
        number, reports = self.state.reports(
            _claim(request), message['after'], message['acknowledged'], message['env_steps']
        )
        return {'number': number, 'reports': [control.encode(report) for report in reports]}

    def _credits(self, request: Request) -> Mapping[str, Any]:
        message = request.json(_ASKED, _ASKED)
        request_fields.check(message)  # a wait of NaN seconds would never be over
        number, text = self.state.credits(message['number'], min(message['wait'], MAX_WAIT_SECS))
        return {'number': number, 'credits': text}

    def _put_credits(self, request: Request) -> None:
        claim, text = _claim(request), request.text()
        control.decode(text, control.Credits)
        self.state.put_credits(claim, text)

    def _beat(self, request: Request) -> None:
        message = request.json(_STATE, _STATE)
        request_fields.check(message)
        self.state.beat(_claim(request), message['state'])

    def _get(self, request: Request) -> Response:
        """Answers with the newest publication, also at a relay."""
        newest, tag = self.state.newest, request.headers.get('If-None-Match', '').strip('" ') or None
        wait = _WAIT.search(request.headers.get('Prefer', ''))
        message = newest.other(tag, min(float(wait[1]), MAX_WAIT_SECS) if wait else 0.0)
        if message is None:
            return Response(status=HTTPStatus.NOT_MODIFIED if newest.message else HTTPStatus.NOT_FOUND)
        parts = message.parts(newest.kept(tag) if request.headers.get('A-IM') == DELTA else None)
        self._count(sent_messages=1, sent_bytes=sum(map(len, parts)))
        return Response(parts, headers={'Content-Type': 'application/octet-stream', 'ETag': f'"{message.tag}"'})

    def _count(self, **more: int) -> None:
        with self._counting:
            for name, number in more.items():
                self._counts[name] += number

    def _put(self, request: Request) -> Mapping[str, Any]:
        claim = _claim(request)
        self.state.check(claim)  # before the body, which may be large
        if not self._take_place():
            error = 'another publication is being received; try again'
            raise HttpRefusal(HTTPStatus.SERVICE_UNAVAILABLE, error)
        try:
            self._sender = request, time.monotonic()
            received = request.body()
            message = weights_transport.parse(received).completed(None)
        finally:
            self._sender = None
            self._putting.release()
        self._count(received_bytes=len(received))
        self.state.put_weights(claim, message)
        return {'tag': message.tag}

    def _take_place(self) -> bool:
        """Takes the only place for a publication, so that the memory is bounded;
        a slow sender loses it to the next.
        """
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


def _claim(request: Request) -> Any:
    return claim_of(request.headers.get(CLAIM))


def options(address: str, token: str | None, max_connections: int = MAX_CONNECTIONS) -> ServerOptions:
    """Returns where a server listens that others reach at `address`:
    on all networks, unless that is this machine.
    """
    host, _, port = address.rpartition(':')
    everywhere = '::' if ':' in host else '0.0.0.0'  # '::' takes IPv4 too
    listen = host.strip('[]') if host in server_options.LOCAL_HOSTS else everywhere
    return ServerOptions(listen, int(port), max_connections, MAX_BYTES, None, token)


def serve(
    options: ServerOptions,
    report: Callable[[Mapping[str, Any]], object],
    stop: threading.Event,
    run_id: str = '',
    upstream: str = '',
    relay: tuple[str, int] = ('', 0),
) -> None:
    """Serves until `stop` is set.

    Args:
      options: where it listens, and its limits.
      report: called every second with the server's status.
      run_id: see `State`.
      upstream: the coordinator whose weights it relays, 'host:port'; '' is none.
      relay: at which address others reach the relay, and its index.

    Raises:
      ValueError: if it cannot listen there, or there is no token.
    """
    with contextlib.ExitStack() as ending:
        server = ending.enter_context(contextlib.closing(CoordinatorServer(options, run_id, bool(upstream))))
        logging.info('%s at port %d', f'relays the weights of {upstream}' if upstream else 'coordinates', server.port)
        if upstream:
            token = options.read_token(SETTINGS[1])
            reader = ending.enter_context(contextlib.closing(WeightsReader(upstream, 'relay', token)))
            given = server.state.newest, reader, stop
            background.Thread(target=follow, args=given, name='relay').start()
            address = relay[0] or f'localhost:{server.port}'
            coordinator = Coordinator(Access(upstream, options.token), f'relay_{relay[1]}')
            ending.enter_context(contextlib.closing(coordinator))
            coordinator.announce(Role(RELAY, relay[1], address))
        while not stop.wait(_REPORT_SECS):
            report(server.status())


def follow(newest: Newest, reader: WeightsReader, stop: threading.Event) -> None:
    """Puts each new publication of another server into `newest`,
    until `stop` is set and `reader` is closed.

    While the other server is down, the relay serves what it has.
    """
    known = newest.message
    was_lost = False
    while not stop.is_set():
        try:
            message = reader.get(known)
        except (CoordinatorLost, RequestRefused) as error:
            if not (was_lost or stop.is_set()):
                logging.warning('%s; what is there is served until it does', error)
            was_lost = True
            reader.pause()
            continue
        if was_lost:
            logging.info('the coordinator at %s answers again', reader.address)
        was_lost = False
        if message is not None:
            known = message
            newest.put(message)
