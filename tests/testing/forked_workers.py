"""Tests in several processes, forked from the one that has collected them: `pytest --workers=N`.

Loading TensorFlow and collecting cost 13 s of a processor, which each process of its own would pay again. So the parent
loads and collects, hands out units of tests, longest first, and reports what the workers send, through pytest's hooks:
summaries, junit files and exit statuses are pytest's. TensorFlow's runtime does not survive a fork: no module of tests
may start it while it is imported.
"""

import collections
import contextlib
import dataclasses
import itertools
import json
import math
import multiprocessing
import multiprocessing.connection
import os
import pathlib
import signal
import sys
import tempfile
import time
import traceback
import types
import warnings
from collections.abc import Generator, Iterator, Sequence
from typing import Any, NoReturn

import pytest
import tensorflow as tf
from _pytest.faulthandler import fault_handler_stderr_fd_key

from tests.testing import warm_parents
from tflearn.core import parent_death

# Seconds of each file's tests in the classic lane; `scripts/test --record-durations` writes it.
DURATIONS_FILE = pathlib.Path(__file__).parents[1] / 'durations.json'
_UNKNOWN_FILE_SECS = 5.0
# A longer file is divided, where its tests share nothing.
_UNIT_SECS = 15.0
# A test that takes longer belongs in tests/runs/, or is to become shorter.
_LONG_TEST_SECS = 5.0
_SHOWN_LONG_TESTS = 30
_END_SECS = 10.0
_POLL_SECS = 1.0
_SHOWN_LOG_BYTES = 20_000


def add_options(parser: pytest.Parser) -> None:
    """Adds the options of this plugin to pytest's."""
    group = parser.getgroup('workers')
    group.addoption('--workers', type=int, default=0, metavar='N', help='run the tests in N forked processes')
    group.addoption(
        '--record-durations', action='store_true', help=f'write {DURATIONS_FILE.name}, by which --workers orders files'
    )


def configure(config: pytest.Config) -> None:
    """Registers what the options ask for."""
    if config.option.workers and config.option.usepdb:
        raise pytest.UsageError('got --workers and --pdb; need one process for a debugger; leave one of them out')
    config.pluginmanager.register(_NoOperationsAtImport())
    config.pluginmanager.register(Durations(config))
    if config.option.workers > 0 and not config.option.collectonly:
        if config.args_source is pytest.Config.ArgsSource.TESTPATHS:  # of all tests, many start programs
            warm_parents.loaded()  # loads its libraries while this process collects
        config.pluginmanager.register(Parent(config))


def runtime_started() -> bool:
    """Returns whether TensorFlow's runtime, with its threads, has started in this process."""
    threads = tf.config.threading.get_inter_op_parallelism_threads()
    try:
        tf.config.threading.set_inter_op_parallelism_threads(threads + 1)
    except RuntimeError:
        return True
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    return False


def units_of(items: Sequence[pytest.Item], durations: dict[str, float]) -> list[list[int]]:
    """Returns the indices of the items in units that a worker runs, those of the longest files first.

    Args:
      items: the collected tests.
      durations: the seconds of each file of tests, by its node id.
    """
    files: dict[str, list[int]] = {}
    for i, item in enumerate(items):
        files.setdefault(file_of(item.nodeid), []).append(i)
    units = []
    # By the seconds of files, not of units: which test of a divided file takes long is not known.
    for file in sorted(files, key=lambda file: -durations.get(file, _UNKNOWN_FILE_SECS)):
        indices, secs = files[file], durations.get(file, _UNKNOWN_FILE_SECS)
        is_divisible = secs > _UNIT_SECS and not any(_shares(items[i]) for i in indices)
        num = min(len(indices), math.ceil(secs / _UNIT_SECS)) if is_divisible else 1
        bounds = [len(indices) * i // num for i in range(num + 1)]
        units += [indices[begin:end] for begin, end in itertools.pairwise(bounds)]
    return units


def file_of(nodeid: str) -> str:
    return nodeid.split('::')[0]


def _shares(item: pytest.Item) -> bool:
    """Returns whether a test shares something costly with others of its file: a fixture, or what a cache holds."""
    definitions = item._fixtureinfo.name2fixturedefs.values()  # type: ignore[attr-defined]
    scopes = {fixtures[-1].scope for fixtures in definitions if fixtures[-1].baseid.endswith('_test.py')}
    namespace = vars(getattr(item, 'module', types.SimpleNamespace()))
    return bool(scopes - {'function'}) or any(hasattr(each, 'cache_info') for each in namespace.values())


class _NoOperationsAtImport:
    """Refuses modules that run an operation while they are imported: no worker could be forked after them."""

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        had_started = runtime_started()
        report = yield
        if not had_started and runtime_started():
            report.outcome = 'failed'
            report.longrepr = (
                f'got an operation of TensorFlow while {collector.nodeid} was collected; need none, since workers are'
                ' forked afterwards; run it in a fixture or in a test'
            )
        return report


class Durations:
    """Adds up how long each test takes. Lists the long ones, and writes those of files where that is asked for."""

    def __init__(self, config: pytest.Config):
        self._secs: dict[str, float] = collections.defaultdict(float)
        self._records = config.option.record_durations
        # Otherwise the durations are not of interest, or those of a part of the tests.
        self._is_shown = self._records or config.option.workers > 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._secs[report.nodeid] += report.duration

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._is_shown:
            return
        is_long = {name: secs for name, secs in self._secs.items() if secs > _LONG_TEST_SECS}
        long = sorted(is_long, key=lambda name: -is_long[name])
        long = [name for name in long if not name.startswith('tests/runs/')]
        if long:
            terminalreporter.section(f'{len(long)} tests above {_LONG_TEST_SECS:.0f} s outside tests/runs/')
            for name in long[:_SHOWN_LONG_TESTS]:
                terminalreporter.line(f'{is_long[name]:6.1f} s  {name}')
        if self._records:
            self._write()

    def _write(self) -> None:
        files: dict[str, float] = collections.defaultdict(float)
        for name, secs in self._secs.items():
            files[file_of(name)] += secs
        known = {name: secs for name, secs in recorded().items() if (DURATIONS_FILE.parents[1] / name).exists()}
        rounded = {name: round(secs, 1) for name, secs in files.items()}
        DURATIONS_FILE.write_text(json.dumps(known | rounded, indent=0, sort_keys=True) + '\n', encoding='utf-8')


def recorded() -> dict[str, float]:
    """Returns the recorded seconds of each file of tests."""
    return dict(json.loads(DURATIONS_FILE.read_text(encoding='utf-8'))) if DURATIONS_FILE.exists() else {}


@dataclasses.dataclass
class Worker:
    """A forked process, as its parent sees it."""

    number: int
    pid: int
    connection: multiprocessing.connection.Connection
    log: Any  # an open file: stacks, and what is printed outside of tests
    unit: list[int] = dataclasses.field(default_factory=list)  # what is left of it, with the test that runs
    running: int | None = None

    def close(self) -> str:
        """Closes the files; returns the end of the log."""
        self.connection.close()
        with self.log:
            self.log.seek(max(0, self.log.seek(0, os.SEEK_END) - _SHOWN_LOG_BYTES))
            return self.log.read().decode(errors='replace')


class Parent:
    """pytest's loop over the tests, in the process that collected them."""

    def __init__(self, config: pytest.Config):
        self._config = config
        self._workers: list[Worker] = []
        self._units: collections.deque[list[int]] = collections.deque()
        self._forked = 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Runs the tests; the rules are those of pytest's own loop."""
        if session.testsfailed and not session.config.option.continue_on_collection_errors:
            raise session.Interrupted(f'{session.testsfailed} errors during collection')
        if runtime_started():
            raise pytest.UsageError("got TensorFlow's runtime before a fork; need none; start it in tests only")
        # The tests of several files alternate: their names would fill the screen.
        self._config.pluginmanager.getplugin('terminalreporter').showfspath = False
        self._units.extend(units_of(session.items, recorded()))
        with _terminations_interrupt():
            try:
                for _ in range(min(self._config.option.workers, len(self._units))):
                    self._fork(session)
                while self._workers:
                    self._receive(session)
                    if session.shouldfail:
                        raise session.Failed(session.shouldfail)
                    if session.shouldstop:
                        raise session.Interrupted(session.shouldstop)
            finally:
                self._end()
        return True

    def _fork(self, session: pytest.Session) -> None:
        number, self._forked = self._forked, self._forked + 1
        ours, theirs = multiprocessing.Pipe()
        log = tempfile.TemporaryFile()  # noqa: SIM115  (open as long as the worker lives)
        basetemp = self._config._tmp_path_factory.getbasetemp() / f'worker{number}'  # type: ignore[attr-defined]
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            # From Python 3.12 on. The threads that libraries have by now are idle.
            warnings.simplefilter('ignore', DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            for connection in (ours, *(worker.connection for worker in self._workers)):
                connection.close()
            _become_worker(session, theirs, log.fileno(), basetemp)
        theirs.close()
        self._workers.append(Worker(number, pid, ours, log))

    def _receive(self, session: pytest.Session) -> None:
        """Handles what has arrived, and ends of workers."""
        ready = multiprocessing.connection.wait([worker.connection for worker in self._workers], _POLL_SECS)
        for worker in list(self._workers):
            if worker.connection in ready:
                try:
                    self._handle(worker, *worker.connection.recv())
                except (EOFError, ConnectionError):
                    self._ended(session, worker)
            # Without an end of the connection: a program that outlives the worker may hold it.
            elif os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                self._ended(session, worker)

    def _handle(self, worker: Worker, kind: str, value: Any) -> None:
        hook = self._config.hook
        if kind == 'ready':
            worker.unit = self._units.popleft() if self._units else []
            worker.connection.send(worker.unit)
        elif kind == 'start':
            worker.running = value
        elif kind == 'finish':
            worker.running = None
            worker.unit.remove(value)
        elif kind == 'report':
            report = hook.pytest_report_from_serializable(config=self._config, data=value)
            hook.pytest_runtest_logreport(report=report)
        elif kind == 'warning':
            hook.pytest_warning_recorded.call_historic(kwargs=value)

    def _ended(self, session: pytest.Session, worker: Worker) -> None:
        """Reports the test that ended its worker, whose other tests another worker gets."""
        code = os.waitstatus_to_exitcode(os.waitpid(worker.pid, 0)[1])
        self._workers.remove(worker)
        log = worker.close()
        if code == 0 and not worker.unit:
            return
        cause = f'exit code {code}' if code >= 0 else signal.Signals(-code).name
        if worker.running is None:
            raise RuntimeError(f'worker {worker.number} ended by {cause} outside of tests; it printed:\n{log}')
        item = session.items[worker.running]
        text = f'worker {worker.number} ended by {cause} while it ran {item.nodeid}; it printed:\n{log}'
        report = pytest.TestReport(item.nodeid, item.location, {}, 'failed', text, 'call')
        self._config.hook.pytest_runtest_logreport(report=report)
        worker.unit.remove(worker.running)
        if worker.unit:
            self._units.appendleft(worker.unit)
        self._fork(session)

    def _end(self) -> None:
        """Ends the workers that are left, with their fixtures; those that do not end in time at once."""
        for worker in self._workers:
            os.kill(worker.pid, signal.SIGINT)
        deadline = time.monotonic() + _END_SECS
        for worker in self._workers:
            # What they send is not of interest any more, but a full connection would block them.
            while time.monotonic() < deadline and not os.waitid(
                os.P_PID, worker.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT
            ):
                with contextlib.suppress(EOFError, ConnectionError):
                    if worker.connection.poll(0.1):
                        worker.connection.recv()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(worker.pid, signal.SIGKILL)
            os.waitpid(worker.pid, 0)
            worker.close()
        self._workers.clear()


@contextlib.contextmanager
def _terminations_interrupt() -> Iterator[None]:
    """SIGTERM (of `timeout`, say) is a Ctrl-C: the workers are ended, and the summary is printed.

    So is SIGINT where who started the tests ignores it, as shells do for what is to run in the background. What tests
    start, and end by a Ctrl-C, would ignore it too.
    """
    before = {number: signal.signal(number, signal.default_int_handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Sender:
    """Sends a worker's reports to the parent, from when it is made."""

    def __init__(self, config: pytest.Config, connection: multiprocessing.connection.Connection):
        self._config, self._connection = config, connection
        self._forwards_warnings = False
        # pytest repeats to a new plugin what the parent has recorded by now.
        config.pluginmanager.register(self)
        self._forwards_warnings = True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._connection.send(('report', data))

    def pytest_warning_recorded(self, warning_message: warnings.WarningMessage, when: str, nodeid: str) -> None:
        if not self._forwards_warnings:
            return
        # A category of a test module could not be found again by the parent.
        message = warnings.WarningMessage(
            f'{warning_message.category.__name__}: {warning_message.message}',
            UserWarning,
            warning_message.filename,
            warning_message.lineno,
        )
        self._connection.send(
            ('warning', {'warning_message': message, 'when': when, 'nodeid': nodeid, 'location': None})
        )


class _NextUnit:
    """What follows the last test of a unit: fixtures of the session stay, those of its file are torn down."""

    def __init__(self, session: pytest.Session):
        self._session = session

    def listchain(self) -> list[pytest.Session]:
        return [self._session]


def _become_worker(
    session: pytest.Session, connection: multiprocessing.connection.Connection, log: int, basetemp: pathlib.Path
) -> NoReturn:
    """Makes this fork a worker, until the parent has no more units.

    Args:
      session: the session with the collected items.
      connection: the connection to the parent.
      log: the descriptor of the file for what is printed outside of tests, and for stacks.
      basetemp: the folder for temporary directories of tests.
    """
    code = 1
    try:
        # Ctrl-C is for the parent, which then interrupts each worker once.
        os.setpgid(0, 0)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        parent_death.end_with_parent(os.getppid(), signal.SIGKILL)
        _use_own_files(session.config, log, basetemp)
        _Sender(session.config, connection)
        _run_units(session, connection)
        code = 0
    except KeyboardInterrupt:
        session._setupstate.teardown_exact(None)
    except BaseException:
        os.write(log, traceback.format_exc().encode())
    finally:
        # Without the teardown of the process: see `pytest_unconfigure` in conftest.py.
        os._exit(code)


def _use_own_files(config: pytest.Config, log: int, basetemp: pathlib.Path) -> None:
    """Gives this process files of its own for its output, for what tests print, and for their directories."""
    capture = config.pluginmanager.getplugin('capturemanager')
    capture.stop_global_capturing()  # which gives 1 and 2 back as they were
    for descriptor in (1, 2, config.stash[fault_handler_stderr_fd_key]):
        os.dup2(log, descriptor)
    capture.start_global_capturing()
    capture.suspend_global_capture()
    config.option.basetemp = basetemp
    config._tmp_path_factory = pytest.TempPathFactory.from_config(config, _ispytest=True)  # type: ignore[attr-defined]


def _run_units(session: pytest.Session, connection: multiprocessing.connection.Connection) -> None:
    while True:
        connection.send(('ready', None))
        unit = connection.recv()
        if not unit:
            break
        followers = [*(session.items[i] for i in unit[1:]), _NextUnit(session)]
        for i, follower in zip(unit, followers, strict=True):
            connection.send(('start', i))
            item = session.items[i]
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=follower)
            connection.send(('finish', i))
    session._setupstate.teardown_exact(None)
