"""Serves metrics to Prometheus at http://HOST:PORT/metrics. Needs the extra `serving`."""

from http import HTTPStatus
from typing import Any

from tflearn.core import background, extras
from tflearn.net import http_server

try:
    import prometheus_client as prometheus_client
except ImportError as error:
    raise extras.import_error(error, 'serving') from error

_MAX_CONNECTIONS = 32


class MetricsServer:
    """Answers GET /metrics from its construction until `close`.

    Attributes:
      port: where it listens.
    """

    def __init__(self, registry: prometheus_client.CollectorRegistry, host: str, port: int, setting: str):
        """Starts to listen.

        Args:
          registry: the metrics.
          host: the name or address to listen at; '' is all networks.
          port: 0 takes a free one.
          setting: where a user gives the port, for the error.

        Raises:
          ValueError: if it cannot listen there.
        """
        handler = type('Handler', (_Handler,), {'registry': registry})
        self._server = http_server.listen(host, [port], handler, _MAX_CONNECTIONS, setting=setting)
        self.port = int(self._server.server_address[1])
        self._thread = background.Thread(target=self._server.serve_forever, name='metrics_server')
        self._thread.start()

    def wait(self, timeout_secs: float) -> bool:
        """Waits so long for its end; returns whether it has ended."""
        self._thread.join(timeout_secs)
        return not self._thread.is_alive()

    def close(self) -> None:
        """Stops listening."""
        self._server.shutdown()
        self._server.end_connections()
        self._server.server_close()
        self._thread.join(10.0)


class _Handler(http_server.Handler):
    """Handles the requests of one connection.

    Attributes:
      registry: the metrics; set by a subclass.
    """

    registry: Any

    def answer(self) -> None:
        """See `http_server.Handler`."""
        if (self.command, self.path.partition('?')[0]) != ('GET', '/metrics'):
            self.refuse(HTTPStatus.NOT_FOUND, f'got {self.command} {self.path[:80]}; need GET /metrics')
            return
        body = prometheus_client.generate_latest(self.registry)
        self.send_response(HTTPStatus.OK)
        self.send_header('Content-Type', prometheus_client.CONTENT_TYPE_LATEST)
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)
