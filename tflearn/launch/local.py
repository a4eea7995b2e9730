"""Runs a topology as processes of this machine and stays with them until the run has ended."""

import contextlib
import fcntl
import os
import pathlib
import random
import signal
import socket
import sys
import time
import types
from collections.abc import Iterator
from typing import Any, TextIO

from tflearn.errors import UserValueError
from tflearn.launch import run_summary
from tflearn.launch.plain_view import LineView
from tflearn.launch.processes import Guard
from tflearn.launch.supervisor import Crew, Failure, View
from tflearn.launch.topology import Topology
from tflearn.run_dir import RunDir, Status, read_json

STOP_TIMEOUT_SECS = 60.0
LINE_INTERVAL_SECS = 10.0

_FIRST_PORT = 10_000
_OUTGOING_PORTS = pathlib.Path('/proc/sys/net/ipv4/ip_local_port_range')


def free_port() -> int:
    """Returns a port that nothing listens on at this moment.

    It is below the range from which the system gives ports to outgoing connections, where there is room: one of these
    could take it before the server that it is for has started.
    """
    outgoing = _first_outgoing_port()
    system = random.SystemRandom()  # processes with one seed must not choose the same port
    candidates = (system.randrange(_FIRST_PORT, outgoing) for _ in range(100) if outgoing > _FIRST_PORT)
    port = next(filter(_is_free, candidates), None)
    if port is None:
        with socket.socket() as probe:
            probe.bind(('', 0))
            port = probe.getsockname()[1]
    return port


def _first_outgoing_port() -> int:
    try:
        return int(_OUTGOING_PORTS.read_text(encoding='utf-8').split()[0])
    except OSError:
        return 32_768


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(('', port))
        except OSError:
            return False
    return True


def free_address() -> str:
    """Returns 'localhost:port' with a port that nothing listens on; see `free_port`."""
    return f'localhost:{free_port()}'


def run(
    topology: Topology,
    run_dir: RunDir,
    *,
    out: TextIO | None = None,
    stop_timeout_secs: float = STOP_TIMEOUT_SECS,
    line_interval_secs: float = LINE_INTERVAL_SECS,
) -> int:
    """Starts the jobs, shows the run, stops the jobs. Call it from the main thread: it handles signals.

    The run has ended when every job that serves no other has ended with exit code 0. SIGINT, SIGTERM and SIGHUP stop
    it cleanly, a second one at once. Should this process be killed, its jobs are ended all the same.

    Args:
      topology: the jobs.
      run_dir: where logs go and metrics come from.
      out: where to show the run; standard output by default. A terminal gets a live view, anything else lines.
      stop_timeout_secs: how long a job may take to end after SIGTERM before it is killed [s].
      line_interval_secs: seconds between two lines of metrics.

    Returns:
      An exit code: 0 when the run is done (or was already); 2 if a job ended of the user's mistake, 1 if one failed
      otherwise; 128 + the signal's number when a signal ended the run.

    Raises:
      ValueError: if the run directory cannot be written to or another launch is at work in it.
      OSError: if a job cannot be started.
    """
    out = out or sys.stdout
    run_dir.make()
    if done := read_json(run_dir.done):
        _say(out, run_summary.already_done_line(run_dir, done))
        return 0
    with _locked_log(run_dir) as log, _StopSignals() as signals:
        status, state = Status(run_dir.status('launch'), 'launch'), 'failed'
        status.update('running')
        try:
            run_summary.write_commands(run_dir, topology)
            _say(out, f'Run in {run_summary.shown(run_dir.root)}; logs in {run_summary.shown(run_dir.logs)}.')
            view = _make_view(out, run_dir, line_interval_secs)
            with contextlib.closing(Guard(stop_timeout_secs, log.fileno())) as guard:
                failure = _work(Crew(topology, run_dir, guard, view, log), view, signals, stop_timeout_secs)
            code = _conclude(run_dir, out, log, failure, signals.received)
            state = {0: 'finished', 1: 'failed', 2: 'failed'}.get(code, 'stopped')
        finally:
            status.update(state)
        return code


def _work(crew: Crew, view: View, signals: '_StopSignals', stop_timeout_secs: float) -> Failure | None:
    """Starts the jobs, stays with them, stops them. Returns why the run failed, if it did."""
    failure = None
    try:
        view.open()
        crew.start()
        failure = crew.watch(stop=lambda: len(signals.received) > 0)
    finally:
        mistake = crew.stop(stop_timeout_secs, kill=lambda: len(signals.received) > 1)
        with contextlib.suppress(OSError):
            view.close()
    # A mistake of the user explains more than what another job died of.
    return mistake if mistake and failure and not failure.mistake else failure


def _conclude(run_dir: RunDir, out: TextIO, log: TextIO, failure: Failure | None, received: list[int]) -> int:
    """Says how the run ended, also in launch's own log. Returns the exit code."""
    if failure is not None:
        prefix = '' if failure.mistake else 'tflearn-launch: error: '
        code, where, text = 2 if failure.mistake else 1, sys.stderr, f'{prefix}{failure.message}'
    elif done := read_json(run_dir.done):
        code, where, text = 0, out, '\n'.join(run_summary.done_lines(run_dir, done))
    elif received:
        name = signal.Signals(received[0]).name
        code, where, text = 128 + received[0], out, run_summary.interrupted_line(run_dir, name)
    else:
        code, where, text = 1, sys.stderr, f'tflearn-launch: error: all jobs ended, but none wrote {run_dir.done}'
    log.write(f'{text}\n')
    _say(where, text)
    return code


def _say(where: TextIO, text: str) -> None:
    with contextlib.suppress(OSError):  # Nobody reads it any more.
        print(text, file=where, flush=True)


def _make_view(out: TextIO, run_dir: RunDir, line_interval_secs: float) -> View:
    if not out.isatty() or os.environ.get('TERM', 'dumb') == 'dumb':
        return LineView(out, line_interval_secs)
    # Imported here: rich takes a fifth of a second, which is for those who have a terminal.
    from tflearn.launch.live_view import LiveView

    return LiveView(run_summary.shown(run_dir.root), out)


@contextlib.contextmanager
def _locked_log(run_dir: RunDir) -> Iterator[TextIO]:
    """Opens launch's own log and holds it locked, so that one launch at a time works in a run directory.

    The lock is the kernel's: it goes with the processes that hold it, so none is ever left behind.
    """
    run_dir.logs.mkdir(exist_ok=True)
    with open(run_dir.log('launch'), 'a', encoding='utf-8') as log:
        try:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = (read_json(run_dir.status('launch')) or {}).get('pid', 'unknown')
            raise UserValueError(
                f'got root_dir={str(run_dir.root)!r}, where another launch (pid {pid}) is at work; need a directory '
                'for each run; wait for it, stop it or choose another --root_dir'
            ) from None
        except OSError as error:  # A file system without locks.
            print(f'tflearn-launch: warning: cannot lock {log.name} ({error.strerror})', file=sys.stderr)
        log.write(f'===== {time.strftime("%F %T")} launch, pid {os.getpid()}\n')
        yield log


class _StopSignals:
    """While entered, SIGINT, SIGTERM and SIGHUP end nothing but are noted, in order, in `received`."""

    def __init__(self) -> None:
        # Only appended to: a handler that set a threading.Event could meet its lock taken by the very thread it
        # interrupted.
        self.received: list[int] = []
        self._before: dict[int, Any] = {}

    def __enter__(self) -> '_StopSignals':
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # nohup ignores SIGHUP for its command's sake.
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: types.FrameType | None) -> None:
        self.received.append(number)
