"""Serves the numbers that a run's jobs report to Prometheus:
what autoscalers and dashboards of a cluster see.
"""

import contextlib
import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tflearn.files.run_dir import RunDir, job_kind
from tflearn.net import metrics_server
from tflearn.net.metrics_server import prometheus_client

_FRESH_SECS = 60.0
_WAIT_SECS = 60.0
# Fields that count since the run's, or the job's, start: all other numbers may fall.
_COUNTERS = re.compile(
    r'(num_)?(train|env|cloning)_steps?|(num_)?episodes|\w*_episodes|(num_)?inserts|\w+_(inserts|bytes)'
    r'|(policy|environment|writing)_secs|side_task_failures'
)


def serve(
    run_dir: RunDir, run: str, kinds: Sequence[str], host: str, port: int, listening: Callable[[str], object]
) -> None:
    """Serves the metrics of a run at http://HOST:PORT/metrics, without an end.

    Args:
      run: the value of the label `run`.
      kinds: the kinds of jobs, by which their status files are named.
      port: 0 takes a free one.
      listening: called with the URL.

    Raises:
      ValueError: if it cannot listen there.
    """
    registry = prometheus_client.CollectorRegistry()
    registry.register(RunMetrics(run_dir, run, kinds))
    server = metrics_server.serve(registry, host, port, '--port')
    listening(f'http://{host}:{server.port}/metrics')
    while not server.wait(_WAIT_SECS):
        pass


class RunMetrics:
    """The state of the run and of its jobs, and their newest numbers, one metric for each kind of job
    and field, for a registry of Prometheus.

    Jobs that have not reported for a minute are left out, so that nothing acts on what was.
    """

    def __init__(self, run_dir: RunDir, run: str, kinds: Sequence[str]):
        """
        Args:
          run: the value of the label `run`.
          kinds: the kinds of jobs, by which their status files are named.
        """
        self._run_dir, self._run, self._kinds = run_dir, run, kinds

    def collect(self) -> Iterator[Any]:
        """Yields the metrics; see `prometheus_client.registry.Collector`."""
        families, found, statuses = prometheus_client.metrics_core, dict[str, Any](), self._run_dir.statuses()
        done = families.GaugeMetricFamily('tflearn_run_done', '1 when the run has ended by itself', labels=['run'])
        done.add_metric([self._run], self._run_dir.done.exists())
        states = families.GaugeMetricFamily('tflearn_job_state', '1 of what it does', labels=['run', 'job', 'state'])
        restarts = families.CounterMetricFamily('tflearn_job_restarts', 'by tflearn-launch', labels=['run', 'job'])
        for job, count in (statuses.pop('launch', {}).get('restarts') or {}).items():
            restarts.add_metric([self._run, job], _number(count) or 0)
        for job, status in statuses.items():
            kind = job_kind(job, status, self._kinds)
            reported_at = _number(status.get('time'))
            if kind is None or reported_at is None or time.time() - reported_at > _FRESH_SECS:
                continue
            states.add_metric([self._run, job, str(status.get('state', '')).partition(' ')[0]], 1)
            for field, value in status.items():
                if (number := _number(value)) is None or field in ('pid', 'time'):
                    continue
                name = f'tflearn_{kind}_{re.sub(r"[^a-zA-Z0-9_]", "_", field)}'
                if name not in found:
                    counts = _COUNTERS.fullmatch(field)
                    family = families.CounterMetricFamily if counts else families.GaugeMetricFamily
                    found[name] = family(name, f'{field}, as {kind} reports it', labels=['run', 'job'])
                found[name].add_metric([self._run, job], number)
        yield from [done, states, restarts, *found.values()]


def _number(value: object) -> float | None:
    # Of an integer with hundreds of digits, in a damaged file.
    with contextlib.suppress(OverflowError):
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
    return None
