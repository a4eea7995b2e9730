"""Runs a topology as processes of this machine and watches them until the run has ended."""

import contextlib
import io
import math
import os
import pathlib
import random
import signal
import socket
import sys
import tempfile
import threading
import time
import types
from collections.abc import Callable, Iterator
from typing import Any, TextIO

from tflearn.core.errors import UserValueError
from tflearn.files import messages
from tflearn.files.lock import try_lock
from tflearn.files.run_dir import RunDir, read_json
from tflearn.files.status import Status
from tflearn.launch import log_format, reports
from tflearn.launch.processes import OrphanReaper
from tflearn.launch.reports import PlainView
from tflearn.launch.supervisor import Failure, Supervisor
from tflearn.launch.topology import Topology, commonest_environment, on_one_machine, place, this_machine
from tflearn.launch.warm_parent import WarmParent

LINE_INTERVAL_SECS = 10.0
_REAPER_SECS = 10.0  # longer than the jobs get to stop
_LOCK_POLL_SECS = 0.1
_SAME_SIGNAL_SECS = 1.0

_FIRST_PORT = 10_000
_OUTGOING_PORTS = pathlib.Path('/proc/sys/net/ipv4/ip_local_port_range')


def free_port() -> int:
    """Returns a port that nothing listens on at this moment.

    It is below the range of ports for outgoing connections if there is room: one of these could
    take the port before the server has started.
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


@contextlib.contextmanager
def held_address() -> Iterator[str]:
    """Provides 'localhost:port' with a port that only a gRPC server of this user can take during the block."""
    with socket.socket() as holder:
        # As gRPC does; nothing listens here.
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind(('', free_port()))
        yield f'localhost:{holder.getsockname()[1]}'


@contextlib.contextmanager
def ready_warm_parent(topology: Topology) -> Iterator[WarmParent | None]:
    """Provides the process that forks jobs of this machine, if the topology names one,
    once it has their libraries.
    """
    if topology.warm_parent is None:
        yield None
        return
    environment = commonest_environment(place(on_one_machine(topology), this_machine()))
    with (
        tempfile.TemporaryFile('w') as log,
        contextlib.closing(WarmParent(topology.warm_parent, log, environment)) as warm_parent,
    ):
        warm_parent.wait_until_ready(lambda: False)
        yield warm_parent


def run(
    topology: Topology,
    run_dir: RunDir,
    *,
    out: TextIO | None = None,
    line_interval_secs: float = LINE_INTERVAL_SECS,
    warm_parent: WarmParent | None = None,
) -> int:
    """Starts the jobs, shows the run, stops the jobs.
    Call it from the main thread: it handles signals.

    The run has ended when every job that serves no other has ended with exit code 0. SIGINT,
    SIGTERM and SIGHUP stop it cleanly, another one a second later at once. If this process is
    killed, its jobs are stopped too.

    Args:
      topology: the jobs, and the times that they get.
      run_dir: the run directory: logs are written to it, metrics are read from it.
      out: the stream that shows the run; standard output by default. A terminal gets a live view,
        anything else lines.
      line_interval_secs: seconds between two lines of metrics.
      warm_parent: forks the jobs, see `ready_warm_parent`; None starts them without.

    Returns:
      An exit code: 0 when the run is done (or was already); 2 if a job ended because of a user's
      error, 1 if one failed otherwise; 128 + the signal's number when a signal ended the run.

    Raises:
      ValueError: if the run directory cannot be written to or another launch uses it, or if the
        jobs ask for more than this machine has.
      OSError: if a job cannot be started.
    """
    out, topology = out or log_format.stream('launch', sys.stdout), on_one_machine(topology)
    placements = place(topology, this_machine())
    run_dir.make()
    if done := read_json(run_dir.done, messages.Done):
        _print(out, reports.already_done_line(run_dir, done))
        return 0
    with StopSignals() as signals, _locked_log(run_dir, topology, signals) as log:
        status, state = Status(run_dir.status('launch'), kept=('restarts',)), 'failed'
        status.update('running')
        try:
            reports.write_commands(run_dir, topology)
            _print(out, f'Run in {reports.quoted(run_dir.root)}; logs in {reports.quoted(run_dir.logs)}.')
            view = make_view(out, run_dir, line_interval_secs)
            with contextlib.closing(OrphanReaper(topology.stop_timeout_secs, log.fileno())) as reaper:
                supervisor = Supervisor(topology, run_dir, reaper, warm_parent, view, log, placements)
                supervisor.keep_restarts(status)
                failure = _work(supervisor, view, signals)
            code = _conclude(run_dir, out, log, failure, signals.received)
            state = {0: 'finished', 1: 'failed', 2: 'failed'}.get(code, 'stopped')
        finally:
            status.update(state)
        return code


def _work(supervisor: Supervisor, view: PlainView, signals: 'StopSignals') -> Failure | None:
    """Starts the jobs, watches them and stops them. Returns why the run failed, if it did."""
    failure = None
    before = signal.signal(signal.SIGUSR2, lambda number, frame: supervisor.request_save())
    try:
        view.open()
        if not signals.received:
            supervisor.start()
        failure = supervisor.watch(stop=lambda: len(signals.received) > 0)
    finally:
        user_error = supervisor.stop(kill=lambda: len(signals.received) > 1)
        signal.signal(signal.SIGUSR2, before)
        with contextlib.suppress(OSError):
            view.close()
    # A user's error explains more than the death of another job.
    return user_error if user_error and failure and not failure.is_user_error else failure


def _conclude(run_dir: RunDir, out: TextIO, log: TextIO, failure: Failure | None, received: list[int]) -> int:
    """Prints how the run ended and writes it to launch's own log. Returns the exit code."""
    run_dir.store.refresh()
    if failure is not None:
        prefix = '' if failure.is_user_error else 'tflearn-launch: error: '
        code, where, text = 2 if failure.is_user_error else 1, sys.stderr, f'{prefix}{failure.message}'
    elif done := read_json(run_dir.done, messages.Done):
        code, where, text = 0, out, '\n'.join(reports.done_lines(run_dir, done))
    elif received:
        name = signal.Signals(received[0]).name
        code, where, text = 128 + received[0], out, reports.interrupted_line(run_dir, name)
    else:
        code, where, text = 1, sys.stderr, f'tflearn-launch: error: all jobs ended, but none wrote {run_dir.done}'
    log.write(f'{text}\n')
    _print(where, text)
    return code


def _print(where: TextIO, text: str) -> None:
    with contextlib.suppress(OSError):  # Nobody reads the output any more.
        print(text, file=where, flush=True)


def make_view(out: TextIO, run_dir: RunDir, line_interval_secs: float = LINE_INTERVAL_SECS) -> PlainView:
    """Returns a live view in a terminal or a notebook, else one of lines."""
    if in_notebook():
        from tflearn.launch.live_view import NotebookView

        return NotebookView(reports.quoted(run_dir.root), out)
    if not out.isatty() or os.environ.get('TERM', 'dumb') == 'dumb':
        return PlainView(out, line_interval_secs)
    # Imported here: rich takes a fifth of a second, and only a terminal needs it.
    from tflearn.launch.live_view import LiveView

    return LiveView(reports.quoted(run_dir.root), out)


def in_notebook() -> bool:
    """Returns whether this process is the kernel of a notebook."""
    shell = getattr(sys.modules.get('IPython'), 'get_ipython', lambda: None)()
    return hasattr(shell, 'kernel')


@contextlib.contextmanager
def _locked_log(run_dir: RunDir, topology: Topology, signals: 'StopSignals') -> Iterator[TextIO]:
    """Opens launch's own log and locks it, so that a run directory has one launch at a time.

    The kernel releases the lock when the processes that hold it have ended: a launch, and the
    reaper of its jobs. It waits for the reaper of a launch that was killed.
    """
    run_dir.logs.mkdir(exist_ok=True)
    with _Log(run_dir.log('launch').open('ab'), encoding='utf-8') as log:
        deadline, told = time.monotonic() + topology.stop_timeout_secs + _REAPER_SECS, False
        # A launch that lives is refused at once. Of one that was killed the reaper has inherited the
        # lock, until it has ended the jobs.
        try:
            while not try_lock(log):
                pid = (read_json(run_dir.status('launch'), messages.Status) or {}).get('pid', 'unknown')
                if 'launch' in run_dir.living_jobs() or signals.received or time.monotonic() > deadline:
                    raise UserValueError(
                        f'got root_dir={str(run_dir.root)!r}, which another launch (pid {pid}) uses; need a directory '
                        'for each run; wait for it, stop it or choose another --root_dir'
                    )
                if not told:
                    text = f'tflearn-launch: launch {pid} was killed; waiting for the end of its jobs'
                    print(text, file=sys.stderr, flush=True)
                told = True
                threading.Event().wait(_LOCK_POLL_SECS)
        except OSError as error:  # A file system without locks.
            print(f'tflearn-launch: warning: cannot lock {log.name} ({error.strerror})', file=sys.stderr)
        _warn_of_jobs(run_dir)
        log.write(f'===== {time.strftime("%F %T")} launch, pid {os.getpid()}\n')
        yield log


def _warn_of_jobs(run_dir: RunDir) -> None:
    """Prints how to end what runs already: a job that was started by hand,
    or one that does not stop as it was told.
    """
    jobs = run_dir.living_jobs()
    if jobs.pop('launch', None) != os.getpid() and jobs:
        named = ', '.join(f'{job} (pid {pid})' for job, pid in jobs.items())
        print(
            f'tflearn-launch: warning: got jobs that run in {reports.quoted(run_dir.root)} already: {named}; if '
            f'they are of a launch that was killed, end them: kill {" ".join(map(str, jobs.values()))}',
            file=sys.stderr,
            flush=True,
        )


class _Log(io.TextIOWrapper):
    """A log without which launch goes on where the disk is full."""

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            os.write(self.fileno(), log_format.lines('launch', text).encode())
        return len(text)


def take_effect(number: int) -> None:
    """Raises a signal that was held back, which then does what it would have done when it came.

    SIGINT raises KeyboardInterrupt also where it is ignored, as a shell has it for its background jobs.
    """
    signal.raise_signal(number)
    if number == signal.SIGINT:
        raise KeyboardInterrupt


class StopSignals:
    """A context in which SIGINT, SIGTERM and SIGHUP do not end the process but are appended to `received`.

    Those within a second are one, as they are to a job: of a process whose parent was killed, the
    system and the parent's reaper send one each. Only the main thread can receive signals: on
    another one the context does nothing.
    """

    def __init__(self, stop: Callable[[], object] | None = None):
        """Takes what the first signal calls, if anything: then a second one takes effect as without this."""
        self._stop = stop
        self.received: list[int] = []
        self._received_at = -math.inf
        self._before: dict[int, Any] = {}

    def __enter__(self) -> 'StopSignals':
        if threading.current_thread() is not threading.main_thread():
            return self
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # nohup ignores SIGHUP for its command.
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        self.restore()

    def restore(self) -> None:
        """Puts the handlers back that were there before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: types.FrameType | None) -> None:
        if time.monotonic() - self._received_at > _SAME_SIGNAL_SECS:
            self.received.append(number)
            self._received_at = time.monotonic()
            if self._stop and len(self.received) > 1:
                self.restore()
                signal.raise_signal(number)
            elif self._stop:
                self._stop()
