"""The numbers that a run's jobs report, as Prometheus reads them: what autoscalers and dashboards of a cluster see."""

import contextlib
import http.server
import re
import time
from typing import Any

from tflearn.launch.topology import KINDS
from tflearn.run_dir import RunDir, read_json

_FRESH_SECS = 60.0
_TYPE = 'text/plain; version=0.0.4; charset=utf-8'


def text(run_dir: RunDir, run: str) -> str:
    """Returns the newest numbers of all jobs in Prometheus' text format, one gauge for each kind of job and field.

    Jobs that have not reported for a minute are left out, so that nothing acts on what was.

    Args:
      run_dir: the run's directory.
      run: the value of the label `run`.
    """
    gauges: dict[str, list[str]] = {}
    for path in sorted(run_dir.status('train').parent.glob('[!.]*.json')):
        status: dict[str, Any] = {}
        with contextlib.suppress(OSError, ValueError):  # It was removed, or damaged, meanwhile.
            status = read_json(path) or {}
        # A collector's name is its pod's on a cluster.
        kind = next((kind for kind in KINDS if re.fullmatch(rf'{kind}(_\d+)?', path.stem)), None)
        kind = kind or ('collect' if 'policy_version' in status else None)
        reported_at = _number(status.get('time'))
        if kind is None or reported_at is None or time.time() - reported_at > _FRESH_SECS:
            continue
        for field, value in status.items():
            if (number := _number(value)) is not None and field not in ('pid', 'time'):
                name = f'tflearn_{kind}_{re.sub(r"[^a-zA-Z0-9_]", "_", field)}'
                gauges.setdefault(name, []).append(f'{name}{{run="{run}",job="{path.stem}"}} {number:g}')
    lines = [line for name, values in gauges.items() for line in (f'# TYPE {name} gauge', *values)]
    return ''.join(f'{line}\n' for line in lines)


def _number(value: object) -> float | None:
    with contextlib.suppress(OverflowError):  # of an integer with hundreds of digits, in a damaged file
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
    return None


class MetricsServer(http.server.ThreadingHTTPServer):
    """Answers GET /metrics with the newest numbers of a run."""

    def __init__(self, run_dir: RunDir, run: str, host: str, port: int):
        """Listens at host:port; 0 takes a free port, see `server_port`. Raises OSError if another one listens there."""
        self.run_dir, self.run = run_dir, run
        super().__init__((host, port), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Logs nothing: a client vanished, or spoke no HTTP."""


class _Handler(http.server.BaseHTTPRequestHandler):
    server: MetricsServer
    timeout = 10.0

    def do_GET(self) -> None:
        if self.path != '/metrics':
            self.send_error(404)
            return
        body = text(self.server.run_dir, self.server.run).encode()
        self.send_response(200)
        self.send_header('Content-Type', _TYPE)
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        """Logs nothing: it is asked every few seconds."""
