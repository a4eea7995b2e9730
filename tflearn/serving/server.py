"""A gRPC server of policies that TensorFlow Serving's clients can talk to."""

import asyncio
import dataclasses
import pathlib
import ssl
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent import futures
from typing import Any

import tensorflow as tf
from absl import logging

from tflearn.errors import UserValueError
from tflearn.serving.metrics import ServingMetrics
from tflearn.serving.models import Models, NotServed
from tflearn.serving.prediction_service import PredictionService
from tflearn.serving.protos import grpc, health, health_pb2, health_pb2_grpc
from tflearn.serving.request_queue import Overloaded, RequestQueue
from tflearn.serving.served_version import InvalidRequest

# gRPC sends the details in a header, which may not be long; names in them come from the client.
_MAX_DETAILS = 1000
# What the event loop is asked for takes milliseconds.
_LOOP_SECS = 10.0
_PREDICTION = 'tensorflow.serving.PredictionService'


@dataclasses.dataclass(frozen=True)
class TlsFiles:
    """PEM files of an encrypted server.

    Attributes:
      certificate: the server's, with its chain.
      key: of the certificate.
      client_ca: certificates that sign clients'; given, clients without such a certificate are refused (mutual TLS).
    """

    certificate: pathlib.Path
    key: pathlib.Path
    client_ca: pathlib.Path | None = None

    def credentials(self) -> Any:
        """Returns gRPC's credentials.

        Raises:
          ValueError: if a file cannot be read, or does not hold what it should. (gRPC itself would blame the port.)
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self.certificate, self.key)
            if self.client_ca:
                context.load_verify_locations(self.client_ca)
        except OSError as error:
            names = ', '.join(str(file) for file in (self.certificate, self.key, self.client_ca) if file)
            raise UserValueError(
                f'got the files {names} ({error}); need a certificate, its key, CAs, in PEM'
            ) from error
        ca = self.client_ca.read_bytes() if self.client_ca else None
        pair = (self.key.read_bytes(), self.certificate.read_bytes())
        return grpc.ssl_server_credentials([pair], ca, require_client_auth=ca is not None)


@dataclasses.dataclass(frozen=True)
class ServerOptions:
    """Where a server listens, and its limits.

    Attributes:
      host: name or address to listen at; '0.0.0.0' is all networks.
      port: to listen at; 0 takes a free one.
      num_threads: calls of TensorFlow at the same time, each with one request or more.
      max_concurrent_requests: accepted at the same time, waiting ones included; more are refused as RESOURCE_EXHAUSTED.
      max_request_bytes: of one request; larger ones are refused as RESOURCE_EXHAUSTED.
      tls: None listens without encryption.
    """

    host: str = 'localhost'
    port: int = 8500
    num_threads: int = 1
    max_concurrent_requests: int = 1024
    max_request_bytes: int = 4 * 1024 * 1024
    tls: TlsFiles | None = None

    def __post_init__(self) -> None:
        for name in ('num_threads', 'max_concurrent_requests', 'max_request_bytes'):
            if getattr(self, name) < 1:
                raise UserValueError(f'got {name}={getattr(self, name)}; need at least 1')


class PolicyServer:
    """Answers requests from its construction until `close`, on one event loop in a thread of its own."""

    def __init__(self, models: Models, options: ServerOptions, metrics: ServingMetrics | None = None):
        """Starts to listen.

        Args:
          models: what is served. Whoever refreshes them calls `reloaded` after a change.
          options: address and limits.
          metrics: counts the requests; None counts none.

        Raises:
          ValueError: if the address cannot be listened at, or a file of `options.tls` is not what it should be.
        """
        self._models = models
        self._metrics = metrics
        self._requests = RequestQueue(options.num_threads)
        self._health = health.aio.HealthServicer()
        service = PredictionService(models, self._requests, *([metrics.record_rows] if metrics else []))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name='policy_server', daemon=True)
        self._thread.start()
        try:
            self._server, self.port = self._on_loop(_start(options, _Handler(service, metrics, options), self._health))
            self.reloaded()
        except BaseException:
            self._end()
            raise

    def reloaded(self) -> None:
        """Takes in what the models serve now: health (which follows soon after) and metrics."""
        ready = {holder.name: holder.ready for holder in self._models.holders}
        everything = not self._models.missing
        self._soon(self._set_health({**ready, '': everything, _PREDICTION: everything}))
        if self._metrics:
            self._metrics.record_reload()

    def close(self, grace_secs: float = 5.0) -> None:
        """Accepts no more requests, and waits for those that are worked on, at most `grace_secs`."""
        if self._loop.is_closed():
            return
        self._soon(self._health.enter_graceful_shutdown())
        try:
            self._on_loop(self._server.stop(grace_secs), grace_secs + _LOOP_SECS)
        except Exception as error:
            logging.warning('could not end all requests: %s: %s', type(error).__name__, error)
        finally:
            self._end()

    async def _set_health(self, serving: Mapping[str, bool]) -> None:
        states = health_pb2.HealthCheckResponse
        # Each by itself: one may wait for a client that watches it and does not read.
        await asyncio.gather(
            *(
                self._health.set(name, states.SERVING if is_so else states.NOT_SERVING)
                for name, is_so in serving.items()
            )
        )

    def _soon(self, work: Coroutine[Any, Any, Any]) -> None:
        """Has `work` done after what was begun before; nobody waits for it."""
        asyncio.run_coroutine_threadsafe(work, self._loop).add_done_callback(_log_failure)

    def _on_loop(self, work: Coroutine[Any, Any, Any], timeout_secs: float = _LOOP_SECS) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout_secs)

    def _end(self) -> None:
        self._requests.close()
        self._loop.call_soon_threadsafe(_stop, self._loop)
        self._thread.join(_LOOP_SECS)
        if not self._thread.is_alive():
            self._loop.close()


def _stop(loop: asyncio.AbstractEventLoop) -> None:
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.call_soon(loop.stop)  # after the tasks have seen it


def _log_failure(ended: futures.Future[Any]) -> None:
    if not ended.cancelled() and (error := ended.exception()):
        logging.warning('could not tell the health of the server: %s: %s', type(error).__name__, error)


async def _start(options: ServerOptions, handler: Any, servicer: Any) -> tuple[Any, int]:
    """Starts gRPC's server; returns it and its port."""
    server = grpc.aio.server(
        handlers=[handler],
        options=[('grpc.max_receive_message_length', options.max_request_bytes), ('grpc.so_reuseport', 0)],
    )
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    address = f'{options.host}:{options.port}'
    credentials = options.tls.credentials() if options.tls else None
    try:
        if credentials:
            port = server.add_secure_port(address, credentials)
        else:
            port = server.add_insecure_port(address)
    except RuntimeError as error:
        raise UserValueError(
            f'got the address {address}, which cannot be listened at; need a name of this machine and a free port'
        ) from error
    await server.start()
    return server, port


class _Handler(grpc.GenericRpcHandler):
    """Finds the method of a request by its name; gRPC answers UNIMPLEMENTED where there is none."""

    def __init__(self, service: PredictionService, metrics: ServingMetrics | None, options: ServerOptions):
        # gRPC's own limit, maximum_concurrent_rpcs, lets one more in for each request that it refused.
        slots = asyncio.Semaphore(options.max_concurrent_requests)
        self._handlers = {
            name: grpc.unary_unary_rpc_method_handler(_answering(name.rpartition('/')[2], method, slots, metrics))
            for name, method in service.methods.items()
        }

    def service(self, handler_call_details: Any) -> Any:
        return self._handlers.get(handler_call_details.method)


def _answering(
    name: str, method: Callable[[bytes], Awaitable[Any]], slots: asyncio.Semaphore, metrics: ServingMetrics | None
) -> Callable[[bytes, Any], Awaitable[bytes]]:
    async def answer(data: bytes, context: Any) -> bytes:
        start = time.perf_counter()
        code, response = grpc.StatusCode.CANCELLED, b''  # by the client, or its deadline: only then nothing is caught
        try:
            if slots.locked():
                raise Overloaded('too many requests at the same time; send less, or try again later')
            async with slots:
                message = await method(data)
            code, response = grpc.StatusCode.OK, message.SerializeToString()
        except Exception as error:
            code, details = _status(error)
            context.set_code(code)
            context.set_details(details[:_MAX_DETAILS])
        finally:
            if metrics:
                metrics.record_request(name, code.name, time.perf_counter() - start)
        return response

    return answer


def _status(error: Exception) -> tuple[Any, str]:
    """Returns the gRPC status that tells `error`."""
    if isinstance(error, InvalidRequest):
        return grpc.StatusCode.INVALID_ARGUMENT, str(error)
    if isinstance(error, tf.errors.InvalidArgumentError):
        return grpc.StatusCode.INVALID_ARGUMENT, f'the policy cannot compute these values: {error.message}'
    if isinstance(error, NotServed):
        return grpc.StatusCode.NOT_FOUND, str(error)
    if isinstance(error, Overloaded):
        return grpc.StatusCode.RESOURCE_EXHAUSTED, str(error)
    if isinstance(error, tf.errors.UnavailableError):
        return grpc.StatusCode.RESOURCE_EXHAUSTED, 'too many batches wait; send less at a time, or try again later'
    logging.error('a request failed', exc_info=error)
    return grpc.StatusCode.INTERNAL, f'{type(error).__name__}: the server has the details in its log'
