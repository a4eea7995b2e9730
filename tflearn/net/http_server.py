"""An HTTP server: aiohttp on an event loop in a thread of its own, with limits, a token and TLS.

All HTTP ports of ours are such servers. aiohttp reads requests and sends answers. What it lacks
stands here and in
`http_connections`: a limit of connections, deadlines of heads and bodies, and certificates that are
  replaced.
"""

import asyncio
import concurrent.futures
import contextlib
import inspect
import logging as python_logging
import re
import socket
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from http import HTTPStatus
from types import MappingProxyType
from typing import Any

from absl import logging
from aiohttp import web

from tflearn.core import background, tokens
from tflearn.core.errors import UserTypeError, UserValueError
from tflearn.core.waiting import is_listening
from tflearn.net.http_connections import Connection, Connections
from tflearn.net.http_messages import HttpRefusal, Response, json_object, json_response
from tflearn.net.limited_warnings import LimitedWarnings
from tflearn.net.server_options import ServerOptions
from tflearn.net.tls import Renewed

# Answers a request; it also gets the words of its path that stand at 'ID' in the route. A coroutine
# function is run on the event loop and must not wait; any other one in a thread.
Route = Callable[..., Response | Awaitable[Response]]

_BACKLOG = 1024
_IDLE_SECS = 600.0  # between two requests of a connection
_LINE_BYTES, _FIELD_BYTES, _HEADERS = 8190, 4096, 32
_SMALL_BODY, _LARGE_BODIES = 1 << 16, 16  # larger ones that are received together
_BODY_SECS, _SLOWEST_BYTES_PER_SEC = 10.0, 1e6
_SEND_SECS = 30.0  # for each block of a response
_BLOCK_BYTES = 1 << 18
_LINGER_SECS = 1.0  # in which what a client still sends is dropped, so that it sees the answer
_END_SECS = 10.0
_MAX_QUOTED = 500  # characters of an error that a client gets
_CLOSING = (HTTPStatus.UNAUTHORIZED, HTTPStatus.SERVICE_UNAVAILABLE)
# Or each malformed request writes a traceback.
_REFUSALS, _FAILURES = LimitedWarnings(), LimitedWarnings()
_NO_LOG = python_logging.Logger('aiohttp', python_logging.CRITICAL + 1)


class Request:
    """A request that is being answered: its `command`, such as GET, its `path` and its `headers`.

    Attributes:
      num_received: bytes of the body that came so far.
      max_bytes: the size of the largest body.
    """

    def __init__(self, asked: web.BaseRequest, server: 'HttpServer', connection: Connection):
        """Reads nothing yet."""
        self.command, self.path, self.headers = asked.method, asked.raw_path.partition('?')[0], asked.headers
        self.num_received, self.max_bytes = 0, server.options.max_request_bytes
        self.client_address = connection.address
        self._asked, self._server, self._connection = asked, server, connection
        self._body: memoryview | None = None

    @property
    def certificate(self) -> Mapping[str, Any]:
        """The client's certificate, as `ssl.SSLSocket.getpeercert` describes it;
        {} if it had to show none.
        """
        return self._asked.get_extra_info('peercert') or {}

    @property
    def is_unread(self) -> bool:
        """Whether there is a body, and not all of it was read."""
        return self._asked.body_exists and self._body is None

    def length(self) -> int:
        """Returns the size of the body. Raises HttpRefusal if there is none, or it is too large."""
        text, most = self.headers.get('Content-Length', ''), self.max_bytes
        if not text.isdecimal():
            raise HttpRefusal(HTTPStatus.LENGTH_REQUIRED, 'got no Content-Length; need the size of the body')
        if len(text) > 18 or int(text) > most:
            error = f'got a request of {text[:18]} bytes; need at most {most}'
            raise HttpRefusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, error)
        return int(text)

    async def read(self) -> memoryview:
        """Returns the body, on the event loop.

        Raises:
          HttpRefusal: if there is none, it is too large, or it comes slower than 1 MB/s after 10 s.
        """
        if self._body is None:
            length = self.length()
            room: Any = self._server.large_bodies if length > _SMALL_BODY else contextlib.nullcontext()
            async with room:
                self._connection.is_kept = False
                self._body = await self._received(length)
                self._connection.is_kept = True
        return self._body

    async def _received(self, length: int) -> memoryview:
        received, start = memoryview(bytearray(length)), time.monotonic()
        while (at := self.num_received) < length:
            secs = start + _BODY_SECS + at / _SLOWEST_BYTES_PER_SEC - time.monotonic()
            try:
                async with asyncio.timeout(secs):
                    data = await self._asked.content.readany()
            except (OSError, web.RequestPayloadError):  # a TimeoutError is an OSError
                data = b''
            if not data:
                raise HttpRefusal(HTTPStatus.REQUEST_TIMEOUT, 'got a part of a message; need all of it')
            received[at : at + len(data)] = data
            self.num_received += len(data)
        return received

    def body(self) -> memoryview:
        """Returns the body, in the thread of a route; see `read`."""
        return self._server.run(self.read()) if self._body is None else self._body

    def text(self) -> str:
        """Returns the text in the body. Raises ValueError if it is none."""
        try:
            return bytes(self.body()).decode()
        except UnicodeDecodeError as error:
            raise UserValueError(f'got a body that is no text ({error}); need UTF-8') from error

    def json(
        self, needed: Mapping[str, Any] = MappingProxyType({}), known: Collection[str] | None = None
    ) -> dict[str, Any]:
        """Returns the JSON object in the body; see `json_object`."""
        return json_object(self.body(), needed, known)

    def end(self) -> None:
        """Ends the connection, from another thread."""
        self._server.call_soon(self._connection.end)


class HttpServer:
    """Answers requests by their routes, from `start` until `close`.

    Attributes:
      options: where it listens, and its limits.
      port: where it listens.
      large_bodies: has a place for each large body that may be received at a time.
    """

    def __init__(
        self,
        options: ServerOptions,
        routes: Mapping[str, Route],
        name: str,
        settings: tuple[str, str],
        shared: bool = False,
        limits: Mapping[str, int] = MappingProxyType({}),
    ):
        """Takes the port.

        Args:
          routes: what answers, by method and path, such as 'GET /v1/status'. 'ID' in a path is any
            word, 'NAME' also one with dots and hyphens.
          name: the server's name, for its thread.
          settings: where a user gives port and token, for errors.
          shared: whether the port may be held for it by a socket of this user that does not listen.
          limits: the largest bodies of routes, if they are smaller than that of the options.

        Raises:
          ValueError: if no port is free, the machine has no such name, a file of TLS is invalid, or
            there is no token.
        """
        self.options, self._token = options, options.read_token(settings[1])
        self._routes, self._limits, self._name = routes, limits, name
        self._coroutines = {route for route, answer in routes.items() if inspect.iscoroutinefunction(answer)}
        tls = Renewed(options.tls.names, options.tls.context) if options.tls else None
        self._socket = _listen(options, settings[0], shared)
        self.large_bodies = asyncio.Semaphore(_LARGE_BODIES)
        self.port = int(self._socket.getsockname()[1])
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(_log_failure)
        self._connections = Connections(
            self._socket,
            options.max_connections,
            tls,
            manager=web.Server(self._answer, loop=self._loop),
            loop=self._loop,
            keepalive_timeout=_IDLE_SECS,
            lingering_time=_LINGER_SECS,
            max_line_size=_LINE_BYTES,
            max_field_size=_FIELD_BYTES,
            max_headers=_HEADERS,
            auto_decompress=False,  # of a few bytes it would make any number of them
            access_log=None,
            logger=_NO_LOG,
        )
        self._thread = background.Thread(target=self._run, name=name)

    def start(self) -> None:
        """Starts to answer."""
        self._thread.start()

    @property
    def num_requests(self) -> int:
        """The number of requests that are being answered."""
        return self._connections.num_requests

    def wait(self, timeout_secs: float) -> bool:
        """Waits so long for its end; returns whether it has ended."""
        self._thread.join(timeout_secs)
        return not self._thread.is_alive()

    def close(self, grace_secs: float = 0.0) -> None:
        """Stops listening, and waits so long for the requests that are being answered.
        May be called twice.
        """
        if not self._thread.is_alive():
            return
        with contextlib.suppress(RuntimeError):  # it has just ended
            self.run(self._connections.close(grace_secs))
            self.call_soon(self._loop.stop)
        self._thread.join(_END_SECS)

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Runs a coroutine on the event loop, from another thread; returns its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def call_soon(self, call: Callable[[], object]) -> None:
        """Calls something on the event loop, from another thread."""
        self._loop.call_soon_threadsafe(call)

    async def in_thread(self, work: Callable[[], Any]) -> Any:
        """Returns the result of work that may wait, or takes long: it is done in a thread."""
        done: concurrent.futures.Future[Any] = concurrent.futures.Future()
        # So that it cannot be cancelled: the thread goes on after the server's end.
        done.set_running_or_notify_cancel()

        def run() -> None:
            try:
                done.set_result(work())
            except BaseException as error:
                done.set_exception(error)

        background.Thread(target=run, name=f'{self._name}_request').start()
        return await asyncio.wrap_future(done)

    def _run(self) -> None:
        accepting = self._loop.create_task(self._connections.run())
        try:
            self._loop.run_forever()
        finally:
            accepting.cancel()
            self._loop.run_until_complete(_end_tasks())
            self._loop.close()

    def _route(self, method: str, path: str) -> tuple[str, tuple[str, ...]]:
        """Returns the route of a request, and the words of its path.
        Raises HttpRefusal if there is none.
        """
        status = HTTPStatus.NOT_FOUND
        for route in self._routes:
            known, _, pattern = route.partition(' ')
            pattern = pattern.replace('/ID', r'/(\w{1,64})').replace('/NAME', r'/([\w.-]{1,200})')
            if match := re.fullmatch(pattern, path):
                if known == method:
                    return route, match.groups()
                status = HTTPStatus.METHOD_NOT_ALLOWED
        raise HttpRefusal(status, f'got {method[:20]} {path[:80]}; need {", ".join(self._routes)}')

    async def _answer(self, asked: web.BaseRequest) -> web.StreamResponse:
        connection = asked.protocol
        assert isinstance(connection, Connection)
        request = Request(asked, self, connection)
        with connection.answering():
            try:
                response = await self._response(request)
            except Exception as error:
                response = _refusal(error, request)
            closes = request.is_unread or response.status in _CLOSING
            return await _send(asked, response, closes or self._connections.are_closing)

    async def _response(self, request: Request) -> Response:
        shown = tokens.received(request.headers.get('Authorization'))
        if self._token and not tokens.equal(shown, self._token):
            error = 'got no token, or another; need Authorization: Bearer TOKEN'
            raise HttpRefusal(HTTPStatus.UNAUTHORIZED, error)
        route, words = self._route(request.command, request.path)
        request.max_bytes = min(request.max_bytes, self._limits.get(route, request.max_bytes))
        answer = self._routes[route]
        if route in self._coroutines:
            response: Response = await answer(request, *words)  # type: ignore[misc]
            return response
        if request.is_unread and request.headers.get('Content-Length') and request.length() <= _SMALL_BODY:
            await request.read()  # or the thread would wait for it
        return await self.in_thread(lambda: answer(request, *words))


async def _end_tasks() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    # The socket of a transport that is closed is closed in the next turn of the loop.
    await asyncio.sleep(0)


def _listen(options: ServerOptions, setting: str, shared: bool) -> socket.socket:
    """Returns a socket that listens at the first of the ports that is free,
    with IPv4 if the name has both.
    """
    failures: list[str] = []
    for port in options.ports:
        if shared and port and is_listening(f'{options.host}:{port}'):  # both would get connections
            failures.append(f'{port}: another server listens there')
            continue
        for family, address in _addresses(options.host.strip('[]'), port, failures):
            listening = socket.socket(family, socket.SOCK_STREAM)
            try:
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if shared and port:
                    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                listening.bind(address)
                listening.listen(_BACKLOG)
                listening.setblocking(False)
                return listening
            except OSError as error:
                listening.close()
                failures.append(f'{port}: {error.strerror or error}')
    raise UserValueError(
        f'got host={options.host!r}, which cannot be listened at ({"; ".join(failures)}); need a name of this machine '
        f'and a free port; give others by {setting}'
    )


def _addresses(host: str, port: int, failures: list[str]) -> list[tuple[Any, Any]]:
    """Returns the addresses of a name, those of IPv4 first;
    adds why there is none to `failures`.
    """
    try:
        found = socket.getaddrinfo(host or '0.0.0.0', port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError, OverflowError) as error:
        failures.append(f'{port}: {getattr(error, "strerror", None) or error}')
        return []
    found.sort(key=lambda each: each[0] != socket.AF_INET)
    return [(family, address) for family, _, _, _, address in found]


def _refusal(error: Exception, request: Request) -> Response:
    """Returns what is answered for an error."""
    if isinstance(error, HttpRefusal | UserValueError | UserTypeError):
        status = error.status if isinstance(error, HttpRefusal) else HTTPStatus.BAD_REQUEST
        text = str(error)[:_MAX_QUOTED]
        if status == HTTPStatus.PRECONDITION_FAILED:  # that job registers again by itself
            logging.info('%s has to register again', request.client_address)
        else:
            _REFUSALS.log('refused a request of %s: %s', request.client_address, text)
        return json_response({'error': text}, status)
    logging.error('a request failed', exc_info=error)
    text = f'{type(error).__name__}: the server has the details in its log'
    return json_response({'error': text}, HTTPStatus.INTERNAL_SERVER_ERROR)


async def _send(asked: web.BaseRequest, response: Response, closes: bool) -> web.StreamResponse:
    """Sends a response in blocks, so that a client that does not take them is noticed."""
    answer = web.StreamResponse(status=response.status, headers=dict(response.headers))
    answer.content_length = sum(map(len, response.body))
    if response.status == HTTPStatus.UNAUTHORIZED:
        answer.headers['WWW-Authenticate'] = 'Bearer'
    if closes:
        answer.force_close()
    try:
        async with asyncio.timeout(_SEND_SECS):
            await answer.prepare(asked)
        for part in map(memoryview, response.body):
            for at in range(0, len(part), _BLOCK_BYTES):
                async with asyncio.timeout(_SEND_SECS):
                    await answer.write(part[at : at + _BLOCK_BYTES])
        async with asyncio.timeout(_SEND_SECS):
            await answer.write_eof()
    except OSError:  # it is gone, or too slow: a TimeoutError is one too
        if asked.transport is not None:
            asked.transport.abort()
        raise
    return answer


def _log_failure(loop: asyncio.AbstractEventLoop, context: Mapping[str, Any]) -> None:
    _FAILURES.log('a connection failed: %s', context.get('exception') or context['message'])
