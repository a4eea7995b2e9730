"""Serves metrics to Prometheus at http://HOST:PORT/metrics, and whether a job is ready.
Needs the extra `serving`.
"""

from collections.abc import Callable
from http import HTTPStatus

from tflearn.core import extras
from tflearn.net.http_messages import Response
from tflearn.net.http_server import HttpServer, Route
from tflearn.net.server_options import ServerOptions

with extras.needed_by('serving'):
    import prometheus_client as prometheus_client

_MAX_CONNECTIONS = 32


def serve(
    registry: prometheus_client.CollectorRegistry,
    host: str,
    port: int,
    setting: str,
    is_ready: Callable[[], bool] | None = None,
) -> HttpServer:
    """Returns a server of the metrics in a registry, which has started.

    Args:
      host: the name or address to listen at; '' is all networks.
      port: 0 takes a free one.
      setting: where a user gives the port, for the error.
      is_ready: what `/ready` answers: 200, or 503. None has no such path.

    Raises:
      ValueError: if it cannot listen there.
    """
    headers = {'Content-Type': prometheus_client.CONTENT_TYPE_LATEST}
    routes: dict[str, Route] = {
        'GET /metrics': lambda request: Response([prometheus_client.generate_latest(registry)], headers=headers)
    }
    if is_ready:
        routes['GET /ready'] = lambda request: Response(
            status=HTTPStatus.OK if is_ready() else HTTPStatus.SERVICE_UNAVAILABLE
        )
    server = HttpServer(ServerOptions(host, port, _MAX_CONNECTIONS), routes, 'metrics_server', (setting, ''))
    server.start()
    return server
