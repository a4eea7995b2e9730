"""PolicyServer: a gRPC server of policies that TensorFlow Serving's clients can talk to."""

from typing import Any

import grpc
import tensorflow as tf

from tflearn.net import grpc_server
from tflearn.net.server_options import ServerOptions
from tflearn.serving.clients import Clients
from tflearn.serving.metrics import ServingMetrics
from tflearn.serving.models import Models, NotReady, NotServed
from tflearn.serving.prediction_service import PredictionService
from tflearn.serving.request_queue import RequestQueue
from tflearn.serving.served_version import InvalidRequest

_PREDICTION = 'tensorflow.serving.PredictionService'


class PolicyServer:
    """Answers requests at `port` from its construction until `close`."""

    def __init__(
        self,
        models: Models,
        options: ServerOptions,
        metrics: ServingMetrics | None = None,
        clients: Clients | None = None,
        num_threads: int = 1,
        max_concurrent_requests: int = 1024,
    ):
        """Starts to listen.

        Args:
          models: the models to serve. Call `reloaded` after they have changed.
          metrics: counts the requests; None counts none.
          clients: those that may send requests; None is everybody.
          num_threads: TensorFlow calls at the same time, each with one request or more.
          max_concurrent_requests: requests accepted at the same time, waiting ones included.

        Raises:
          ValueError: if it cannot listen at the address, or a file of `options.tls` is invalid.
        """
        self._models, self._metrics = models, metrics
        self._requests = RequestQueue(num_threads)
        service = PredictionService(
            models, self._requests, options.max_request_bytes, *([metrics.record_rows] if metrics else [])
        )
        given: dict[str, Any] = {'max_concurrent_requests': max_concurrent_requests}
        if metrics is not None:
            given['record'] = metrics.record_request
        if clients is not None:
            given['admit'] = clients.admit
        self._server = grpc_server.Server(service.methods, options, _status_of, **given)
        self.port = self._server.port
        self.reloaded()

    def reloaded(self) -> None:
        """Updates health and metrics to the versions that are served now. Health follows soon after the return."""
        ready = {holder.name: holder.ready for holder in self._models.holders}
        complete = not self._models.missing
        self._server.set_health({**ready, '': complete, _PREDICTION: complete})
        if self._metrics:
            self._metrics.record_reload()

    def close(self, grace_secs: float = 5.0) -> None:
        """Accepts no more requests, and waits at most `grace_secs` for those that are being answered."""
        self._server.close(grace_secs)
        self._requests.close()


def _status_of(error: Exception) -> tuple[Any, str] | None:
    """Returns the gRPC status of an error that a request causes."""
    if isinstance(error, InvalidRequest):
        return grpc.StatusCode.INVALID_ARGUMENT, str(error)
    if isinstance(error, tf.errors.InvalidArgumentError):
        return (
            grpc.StatusCode.INVALID_ARGUMENT,
            f'the policy cannot compute these values: {" ".join(error.message.split())}',
        )
    if isinstance(error, NotServed):
        return grpc.StatusCode.NOT_FOUND, str(error)
    if isinstance(error, NotReady):
        return grpc.StatusCode.UNAVAILABLE, str(error)
    if isinstance(error, tf.errors.UnavailableError):
        return grpc.StatusCode.RESOURCE_EXHAUSTED, 'too many batches wait; send less at a time, or try again later'
    return None
