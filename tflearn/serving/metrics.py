"""Metrics of a policy server for Prometheus."""

from tflearn.serving.models import Models
from tflearn.serving.protos import prometheus_client

_LATENCY_SECS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class ServingMetrics:
    """Counts requests, and reports which versions are served."""

    def __init__(self, models: Models):
        self.registry = prometheus_client.CollectorRegistry()
        self._models = models
        self._requests = prometheus_client.Counter(
            'tflearn_requests', 'Answered requests by their gRPC status', ['method', 'code'], registry=self.registry
        )
        self._latency = prometheus_client.Histogram(
            'tflearn_request_seconds',
            'Time within the server',
            ['method'],
            registry=self.registry,
            buckets=_LATENCY_SECS,
        )
        self._rows = prometheus_client.Histogram(
            'tflearn_request_rows', 'Rows of a Predict request', ['model'], registry=self.registry, buckets=_ROWS
        )
        self._refused = prometheus_client.Counter(
            'tflearn_refused_requests',
            'Requests of unknown clients and beyond quotas',
            ['client', 'reason'],
            registry=self.registry,
        )
        self._version = prometheus_client.Gauge(
            'tflearn_served_version', 'Train step of the newest version served', ['model'], registry=self.registry
        )
        self._reloads = prometheus_client.Counter(
            'tflearn_reloads', 'Times that a change of versions was taken over', registry=self.registry
        )

    def record_refused(self, client: str, reason: str) -> None:
        """Counts a request that was refused before it was read: of an unknown client (''), or beyond a quota."""
        self._refused.labels(client, reason).inc()

    def record_request(self, method: str, code: str, secs: float) -> None:
        """Counts one request."""
        self._requests.labels(method, code).inc()
        self._latency.labels(method).observe(secs)

    def record_rows(self, model: str, rows: int) -> None:
        """Counts the rows of one request for a model."""
        self._rows.labels(model).observe(rows)

    def record_reload(self) -> None:
        """Counts a change of versions, and updates the gauges to the versions that are served now."""
        self._reloads.inc()
        for holder in self._models.holders:
            if holder.ready:
                self._version.labels(holder.name).set(holder.get().version)
