"""Serves metrics to Prometheus at http://HOST:PORT/metrics. Needs the extra `serving`."""

from tflearn.core import extras
from tflearn.net.http_messages import Response
from tflearn.net.http_server import HttpServer
from tflearn.net.server_options import ServerOptions

with extras.needed_by('serving'):
    import prometheus_client as prometheus_client

_MAX_CONNECTIONS = 32


def serve(registry: prometheus_client.CollectorRegistry, host: str, port: int, setting: str) -> HttpServer:
    """Returns a server of the metrics in a registry, which has started.

    Args:
      host: the name or address to listen at; '' is all networks.
      port: 0 takes a free one.
      setting: where a user gives the port, for the error.

    Raises:
      ValueError: if it cannot listen there.
    """
    headers = {'Content-Type': prometheus_client.CONTENT_TYPE_LATEST}
    routes = {'GET /metrics': lambda request: Response([prometheus_client.generate_latest(registry)], headers=headers)}
    server = HttpServer(ServerOptions(host, port, _MAX_CONNECTIONS), routes, 'metrics_server', (setting, ''))
    server.start()
    return server
