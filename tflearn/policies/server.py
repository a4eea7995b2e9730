"""A gRPC server of policies that TensorFlow Serving's clients can talk to."""

import dataclasses
import pathlib
import time
from collections.abc import Callable
from concurrent import futures
from typing import Any

import tensorflow as tf
from absl import logging

from tflearn.policies.model_holder import Models, NotServed
from tflearn.policies.prediction_service import PredictionService
from tflearn.policies.served_version import InvalidRequest
from tflearn.policies.serving_metrics import ServingMetrics
from tflearn.policies.serving_protos import grpc, health, health_pb2, health_pb2_grpc

# gRPC sends the message in a header, which may not be long; names in it come from the client.
_MAX_MESSAGE = 1000
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
          OSError: if a file cannot be read.
        """
        ca = self.client_ca.read_bytes() if self.client_ca else None
        pair = (self.key.read_bytes(), self.certificate.read_bytes())
        return grpc.ssl_server_credentials([pair], ca, require_client_auth=ca is not None)


@dataclasses.dataclass(frozen=True)
class ServerOptions:
    """Where a server listens, and its limits.

    Attributes:
      host: name or address to listen at; '0.0.0.0' is all networks.
      port: to listen at; 0 takes a free one.
      num_threads: requests that are worked on at the same time; as many can be in one batch.
      max_concurrent_requests: accepted at the same time, waiting ones included; more are refused as RESOURCE_EXHAUSTED.
      max_request_bytes: of one request; larger ones are refused as RESOURCE_EXHAUSTED.
      tls: None listens without encryption.
    """

    host: str = 'localhost'
    port: int = 8500
    num_threads: int = 64
    max_concurrent_requests: int = 1024
    max_request_bytes: int = 4 * 1024 * 1024
    tls: TlsFiles | None = None

    def __post_init__(self) -> None:
        for name in ('num_threads', 'max_concurrent_requests', 'max_request_bytes'):
            if getattr(self, name) < 1:
                raise ValueError(f'got {name}={getattr(self, name)}; need at least 1')


class PolicyServer:
    """Answers requests from its construction until `close`."""

    def __init__(self, models: Models, options: ServerOptions, metrics: ServingMetrics | None = None):
        """Starts to listen.

        Args:
          models: what is served. Whoever refreshes them calls `reloaded` after a change.
          options: address and limits.
          metrics: counts the requests; None counts none.

        Raises:
          ValueError: if the port is taken.
          OSError: if a file of `options.tls` cannot be read.
        """
        self._models = models
        self._metrics = metrics
        self._health = health.HealthServicer()
        service = PredictionService(models, *([metrics.predicted] if metrics else []))
        self._server = grpc.server(
            futures.ThreadPoolExecutor(options.num_threads, 'policy_server'),
            handlers=[_Handler(service, metrics)],
            options=[('grpc.max_receive_message_length', options.max_request_bytes), ('grpc.so_reuseport', 0)],
            maximum_concurrent_rpcs=options.max_concurrent_requests,
        )
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        self.port = _listen(self._server, options)
        self.reloaded()
        self._server.start()

    def reloaded(self) -> None:
        """Takes in what the models serve now: health and metrics."""
        states = health_pb2.HealthCheckResponse
        ready = {holder.name: holder.ready for holder in self._models.holders}
        everything = bool(ready) and all(ready.values())
        for name, serving in {**ready, '': everything, _PREDICTION: everything}.items():
            self._health.set(name, states.SERVING if serving else states.NOT_SERVING)
        if self._metrics:
            self._metrics.reloaded()

    def close(self, grace_secs: float = 5.0) -> None:
        """Accepts no more requests, and waits for those that are worked on, at most `grace_secs`."""
        self._health.enter_graceful_shutdown()
        self._server.stop(grace_secs).wait(grace_secs + 1.0)


def _listen(server: Any, options: ServerOptions) -> int:
    address = f'{options.host}:{options.port}'
    try:
        if options.tls:
            return int(server.add_secure_port(address, options.tls.credentials()))
        return int(server.add_insecure_port(address))
    except RuntimeError as error:
        raise ValueError(f'got the address {address}, which cannot be listened at; need a free port') from error


class _Handler(grpc.GenericRpcHandler):
    """Finds the method of a request by its name; gRPC answers UNIMPLEMENTED where there is none."""

    def __init__(self, service: PredictionService, metrics: ServingMetrics | None):
        self._handlers = {
            name: grpc.unary_unary_rpc_method_handler(_answering(name.rpartition('/')[2], method, metrics))
            for name, method in service.methods.items()
        }

    def service(self, handler_call_details: Any) -> Any:
        return self._handlers.get(handler_call_details.method)


def _answering(name: str, method: Callable[[bytes], Any], metrics: ServingMetrics | None) -> Callable[..., bytes]:
    def answer(data: bytes, context: Any) -> bytes:
        start = time.perf_counter()
        code, message, response = grpc.StatusCode.OK, '', b''
        if not context.is_active():  # its deadline passed, or its client went away, while it waited for a thread
            code, message = grpc.StatusCode.DEADLINE_EXCEEDED, 'the request waited too long for a thread'
        else:
            try:
                response = method(data).SerializeToString()
            except Exception as error:
                code, message = _status(error)
        if metrics:
            metrics.answered(name, code.name, time.perf_counter() - start)
        if code is not grpc.StatusCode.OK:
            context.abort(code, message[:_MAX_MESSAGE])
        return response

    return answer


def _status(error: Exception) -> tuple[Any, str]:
    """Returns the gRPC status that tells `error`."""
    if isinstance(error, InvalidRequest):
        return grpc.StatusCode.INVALID_ARGUMENT, str(error)
    if isinstance(error, NotServed):
        return grpc.StatusCode.NOT_FOUND, str(error)
    if isinstance(error, tf.errors.UnavailableError):
        return grpc.StatusCode.RESOURCE_EXHAUSTED, 'too many batches wait; send less at a time, or try again later'
    logging.error('a request failed', exc_info=error)
    return grpc.StatusCode.INTERNAL, f'{type(error).__name__}: the server has the details in its log'
