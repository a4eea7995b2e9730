"""A gRPC server, of a mapping of methods: its address, TLS, limits and health;
and channels to servers.
"""

import asyncio
import contextlib
import dataclasses
import pathlib
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent import futures
from typing import Any

from absl import logging

from tflearn.core import background, extras, tokens
from tflearn.core.errors import UserValueError
from tflearn.core.settings import PositiveInt, checked
from tflearn.net import server_options
from tflearn.net.server_options import ServerOptions, url_host
from tflearn.net.tls import Renewed, TlsFiles

with extras.needed_by('a gRPC server'):
    import grpc
    from google.protobuf.message import DecodeError
    from grpc_health.v1 import health, health_pb2

# Bytes of a request -> the response, a protobuf message.
Method = Callable[[bytes], Awaitable[Any]]
# An exception of a method -> gRPC's status code and the details; None for an error of the server
# itself.
StatusOf = Callable[[Exception], tuple[Any, str] | None]

_HEALTH = '/grpc.health.v1.Health'
# gRPC sends the details in a header, whose size is limited; names in them come from the client.
_MAX_DETAILS = 1000
_WHOLE_SECS = 10.0  # until when a request has to be there
_FULL = 'RESOURCE_EXHAUSTED'
# The work on the event loop takes milliseconds.
_LOOP_SECS = 10.0

# Limits for unknown clients: heads and streams of a connection, the bytes that it reads at once and
# those of a request before it is read, and the age of a connection without requests. What is
# compressed could be unpacked to any size.
_LIMITS = (
    ('grpc.so_reuseport', 0),
    ('grpc.server_handshake_timeout_ms', 10_000),
    ('grpc.max_concurrent_streams', 128),
    ('grpc.experimental.tcp_max_read_chunk_size', 1 << 16),
    ('grpc.http2.bdp_probe', 0),
    ('grpc.keepalive_time_ms', 60_000),
    ('grpc.keepalive_timeout_ms', 20_000),
    ('grpc.max_connection_idle_ms', 600_000),
    ('grpc.max_connection_age_ms', 3_600_000),
    ('grpc.max_connection_age_grace_ms', 60_000),
)
_MAX_WATCHES = 64

# A client finds a restarted server within a second; gRPC's own delay grows with each attempt, up to
# two minutes.
_OPTIONS = (('grpc.max_reconnect_backoff_ms', 1000),)


def server_credentials(files: TlsFiles) -> Any:
    """Returns gRPC's credentials, which take over replaced files at the next connection.

    Raises:
      ValueError: if a file cannot be read or is not what it should be. (gRPC would blame the port.)
    """
    renewed = Renewed(files.names, lambda: _configuration(files))
    sent = first = renewed.get()

    def changed() -> Any:
        nonlocal sent
        newest = renewed.get()
        if newest is sent:
            return None
        sent = newest
        return newest

    return grpc.dynamic_ssl_server_credentials(
        first, changed, require_client_authentication=files.client_ca is not None
    )


def _configuration(files: TlsFiles) -> Any:
    files.context()  # checks what gRPC does not
    pair = (pathlib.Path(files.key).read_bytes(), pathlib.Path(files.certificate).read_bytes())
    ca = pathlib.Path(files.client_ca).read_bytes() if files.client_ca else None
    return grpc.ssl_server_certificate_configuration([pair], ca)


class GrpcRefusal(RuntimeError):
    """A request is answered with this status of gRPC and this message."""

    def __init__(self, code: str, message: str):
        """`code` is the status' name, such as 'RESOURCE_EXHAUSTED'."""
        super().__init__(message)
        self.code = grpc.StatusCode[code]


@dataclasses.dataclass(frozen=True)
class Caller:
    """Who sends a request.

    Attributes:
      metadata: the request's metadata, by name in lower case.
      certificate_names: the common name and the DNS names in the client's certificate, if it had to
        show one.
    """

    metadata: Mapping[str, str]
    certificate_names: tuple[str, ...] = ()


# Admits a request for the time of a block, or raises GrpcRefusal.
Admit = Callable[[Caller], contextlib.AbstractContextManager[None]]


class GrpcServer:
    """Answers requests at `port` from its construction until `close`,
    on one event loop in its own thread.
    """

    @checked
    def __init__(
        self,
        methods: Mapping[str, Method],
        options: ServerOptions,
        status_of: StatusOf = lambda error: None,
        record: Callable[[str, str, float], object] = lambda method, code, secs: None,
        admit: Admit = lambda caller: contextlib.nullcontext(),
        max_concurrent_requests: PositiveInt = 1024,
    ):
        """Starts to listen.

        Args:
          methods: the methods by their full gRPC names, such as '/package.Service/Method'.
          status_of: the status of an exception that a request causes. Others are logged, and
            answered as INTERNAL.
          record: called after each request with the method's name, the status code's name and the
            seconds it took.
          admit: admits each request, on the thread of the event loop. (Health checks need no
            admission.)
          max_concurrent_requests: requests accepted at the same time, waiting ones included; the
            server rejects more with RESOURCE_EXHAUSTED.

        Raises:
          ValueError: if it cannot listen at the address, a file of `options.tls` is invalid, or
            there is no token.
        """
        # gRPC's own limit, maximum_concurrent_rpcs, accepts one more for each request that it
        # rejected.
        self._slots, self._token = asyncio.Semaphore(max_concurrent_requests), options.read_token('token')
        self._status_of, self._record, self._admit = status_of, record, admit
        self._watches = 0
        self._health = health.aio.HealthServicer()
        self._loop = asyncio.new_event_loop()
        self._thread = background.Thread(target=self._loop.run_forever, name='rpc_server')
        self._thread.start()
        handlers = {
            name: grpc.stream_unary_rpc_method_handler(self._answering(name.rpartition('/')[2], method))
            for name, method in methods.items()
        }
        handlers[f'{_HEALTH}/Check'] = grpc.stream_unary_rpc_method_handler(self._check_health)
        handlers[f'{_HEALTH}/Watch'] = grpc.stream_stream_rpc_method_handler(
            self._watch_health, response_serializer=health_pb2.HealthCheckResponse.SerializeToString
        )
        try:
            self._server, self.port = self._run(_start(options, handlers))
        except BaseException:
            self._end()
            raise

    def set_health(self, serving: Mapping[str, bool]) -> None:
        """Sets the health of services by their names, '' for the whole server; returns at once."""
        self._submit(self._set_health(serving))

    def close(self, grace_secs: float = 5.0) -> None:
        """Accepts no more requests, and waits at most `grace_secs` for those that are being answered."""
        if self._loop.is_closed():
            return
        self._submit(self._health.enter_graceful_shutdown())
        try:
            self._run(self._server.stop(grace_secs), grace_secs + _LOOP_SECS)
        except Exception as error:
            logging.warning('could not end all requests: %s: %s', type(error).__name__, error)
        finally:
            self._end()

    def call(
        self, name: str, caller: Caller, method: Callable[[], Awaitable[Any]], timeout_secs: float
    ) -> futures.Future[Any]:
        """Answers a request of another protocol as one of gRPC, on the event loop;
        called on another thread.

        Returns:
          What will be gRPC's status code, the details, and what `method` has returned.
        """
        answer = self._call(name, caller, lambda: asyncio.wait_for(method(), timeout_secs))
        return asyncio.run_coroutine_threadsafe(answer, self._loop)

    def _answering(self, name: str, method: Method) -> Callable[[bytes, Any], Awaitable[bytes]]:
        # Read here, not by gRPC: it would take all bytes of a request before its client was
        # admitted.
        async def answer(unread: Any, context: Any) -> bytes:
            async def respond() -> Any:
                return (await method(await _read(context))).SerializeToString()

            code, details, response = await self._call(name, _caller(context), respond)
            if code is not grpc.StatusCode.OK:
                context.set_code(code)
                context.set_details(details)
            return response or b''

        return answer

    async def _call(self, name: str, caller: Caller, respond: Callable[[], Awaitable[Any]]) -> Any:
        start = time.perf_counter()
        # By the client or its deadline: not caught below.
        code, details, response = grpc.StatusCode.CANCELLED, '', None
        try:
            with self._admit(self._authenticated(caller)):
                if self._slots.locked():
                    raise GrpcRefusal(_FULL, 'too many requests at the same time; send less, or try again later')
                async with self._slots:
                    response = await respond()
            code = grpc.StatusCode.OK
        except Exception as error:
            code, details = self._status(error)
        finally:
            self._record(name, code.name, time.perf_counter() - start)
        return code, details[:_MAX_DETAILS], response

    def _authenticated(self, caller: Caller) -> Caller:
        """Returns the caller. Raises GrpcRefusal if it does not show the token."""
        if self._token and not tokens.equal(tokens.received(caller.metadata.get('authorization')), self._token):
            raise GrpcRefusal(
                'UNAUTHENTICATED', 'got no token, or another; need the metadata authorization: Bearer TOKEN'
            )
        return caller

    async def _check_health(self, unread: Any, context: Any) -> bytes:
        request = await self._health_request(context)
        answer = await self._health.Check(request, context) if request else None
        return answer.SerializeToString() if answer else b''

    async def _watch_health(self, unread: Any, context: Any) -> None:
        self._watches += 1
        try:
            if self._watches > _MAX_WATCHES:
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f'got more than {_MAX_WATCHES} watches')
            if request := await self._health_request(context):
                await self._health.Watch(request, context)
        finally:
            self._watches -= 1

    async def _health_request(self, context: Any) -> Any:
        try:
            return health_pb2.HealthCheckRequest.FromString(await _read(context))
        except (DecodeError, GrpcRefusal):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, 'got no HealthCheckRequest')

    def _status(self, error: Exception) -> tuple[Any, str]:
        if isinstance(error, GrpcRefusal):
            return error.code, str(error)
        if isinstance(error, TimeoutError):
            return grpc.StatusCode.DEADLINE_EXCEEDED, 'got no answer in time; send less at a time, or try again later'
        if status := self._status_of(error):
            return status
        logging.error('a request failed', exc_info=error)
        return grpc.StatusCode.INTERNAL, f'{type(error).__name__}: the server has the details in its log'

    async def _set_health(self, serving: Mapping[str, bool]) -> None:
        states = health_pb2.HealthCheckResponse
        codes = {name: states.SERVING if is_serving else states.NOT_SERVING for name, is_serving in serving.items()}
        # Concurrently, since one of them may wait for a client that watches it and does not read.
        await asyncio.gather(*(self._health.set(name, code) for name, code in codes.items()))

    def _submit(self, work: Coroutine[Any, Any, Any]) -> None:
        """Starts `work` after the work submitted before, and does not wait for it."""
        asyncio.run_coroutine_threadsafe(work, self._loop).add_done_callback(_log_failure)

    def _run(self, work: Coroutine[Any, Any, Any], timeout_secs: float = _LOOP_SECS) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout_secs)

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(_stop, self._loop)
        self._thread.join(_LOOP_SECS)
        if not self._thread.is_alive():
            self._loop.close()


async def _read(context: Any) -> bytes:
    """Returns the bytes of a request. Raises GrpcRefusal if it takes too long, or there is none."""
    try:
        data = await asyncio.wait_for(context.read(), _WHOLE_SECS)
    except TimeoutError:
        raise GrpcRefusal(_FULL, 'got a part of a request; send all of it at once, or try again later') from None
    if not isinstance(data, bytes):  # the client ended the request, or its connection
        raise GrpcRefusal('INVALID_ARGUMENT', 'got no message; need one')
    return data


def _caller(context: Any) -> Caller:
    auth_context = context.auth_context()
    names = [
        name for key in ('x509_common_name', 'x509_subject_alternative_name') for name in auth_context.get(key, ())
    ]
    metadata = {key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)}
    return Caller(metadata, tuple(name.decode(errors='replace') for name in names))


async def _start(options: ServerOptions, handlers: Mapping[str, Any]) -> tuple[Any, int]:
    """Starts gRPC's server; returns it and its port."""
    services: dict[str, dict[str, Any]] = {}
    for name, handler in handlers.items():
        _, service, method = name.split('/')
        services.setdefault(service, {})[method] = handler
    server = grpc.aio.server(
        handlers=[grpc.method_handlers_generic_handler(*each) for each in services.items()],
        options=[
            ('grpc.max_receive_message_length', options.max_request_bytes),
            ('grpc.max_allowed_incoming_connections', server_options.places(options.max_connections)),
            *_LIMITS,
        ],
    )
    credentials = server_credentials(options.tls) if options.tls else None
    for port in options.ports:
        address = f'{url_host(options.host)}:{port}'
        try:
            port = server.add_secure_port(address, credentials) if credentials else server.add_insecure_port(address)
            break
        except RuntimeError as error:
            failure = error
    else:
        raise UserValueError(
            f'got the address {address}, which cannot be listened at; need a name of this machine and a free port; '
            'stop what uses it, or give others'
        ) from failure
    await server.start()
    return server, port


def _stop(loop: asyncio.AbstractEventLoop) -> None:
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.call_soon(loop.stop)  # after the tasks were cancelled


def _log_failure(ended: futures.Future[Any]) -> None:
    if not ended.cancelled() and (error := ended.exception()):
        logging.warning('could not update the health of the server: %s: %s', type(error).__name__, error)


def connect(address: str, credentials: Any = None) -> Any:
    """Returns a channel, which connects when it is first used.

    Args:
      address: the server's 'host:port'.
      credentials: `grpc.ssl_channel_credentials(...)`; None is no encryption.
    """
    if credentials is None:
        return grpc.insecure_channel(address, _OPTIONS)
    return grpc.secure_channel(address, credentials, _OPTIONS)
