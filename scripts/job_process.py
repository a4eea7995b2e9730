"""A job's process: runs the job in a thread, stops it on signals, and ends with an exit status."""

import contextlib
import cProfile
import faulthandler
import functools
import logging as standard_logging
import multiprocessing
import os
import pathlib
import re
import signal
import sys
import threading
import time
import types
from collections.abc import Callable
from typing import NoReturn

from absl import logging

from tflearn.config import job_config
from tflearn.core import background
from tflearn.core.errors import DEADLINE_EXIT_STATUS, TRY_AGAIN_EXIT_STATUS, LoggedError, UserError, UserTimeoutError
from tflearn.core.system_errors import as_user_error
from tflearn.core.waiting import PeerStopped, StopEvent, Stopped
from tflearn.files.run_dir import display_text
from tflearn.launch import log_format

# Libraries that log each SavedModel, each port and each deprecated call.
_CHATTY = re.compile(r'/(site|dist)-packages/(tensorflow|keras|tf_agents|portpicker)\b')

_JOIN_SECS = 0.5

# A copy, in case the descriptor of stderr is redirected while something hangs.
_STDERR = os.dup(2)


def run(
    program: str,
    job: str,
    work: Callable[[threading.Event], None],
    stop_timeout_secs: float,
    profile: str | None = None,
    done_by: int = 0,
) -> NoReturn:
    """Runs `work(stop)` in a thread until it ends, then ends the process.

    The main thread only waits: Python's signal handlers run in it, and would have to wait for TensorFlow.
    SIGINT and SIGTERM set `stop`; see `_Stopper`. SIGUSR2 asks for a checkpoint.

    Exit codes: 0 done; 2 a `UserError`; 69 a `UserTimeoutError`: a deadline has passed; 75 `PeerStopped`: start it
    again; 1 any other error; 128 + signal when stopped by one: whoever supervises a run has to tell a job that was
    stopped from one that is done. A server that only a signal ends is done by it.

    Args:
      program: the program's name, which begins the error line.
      job: the job's name, for the log.
      work: the job; returns when it is done or soon after `stop` is set.
      stop_timeout_secs: how long it may take to end then [seconds].
      profile: a folder for the profile of the job's Python code, <job>.prof; None profiles nothing.
      done_by: the signal after which a clean end has the exit code 0; 0: none.
    """
    _set_up_logging(job)
    stopper = _Stopper(program, stop_timeout_secs, done_by)
    codes: list[int] = []
    if profile:
        work = functools.partial(_profiled, work, pathlib.Path(profile) / f'{job}.prof')
    worker = background.Thread(target=lambda: codes.append(_attempt(program, work, stopper.stop)), name='job')
    stopper.listen()
    os.register_at_fork(after_in_child=_forget_signals)  # A forked child has no job to stop.
    worker.start()
    while worker.is_alive():
        # With a timeout: if another thread gets the signal, nothing wakes this one to handle it.
        worker.join(_JOIN_SECS)
        stopper.listen()  # again: the server of a TensorFlow worker replaces the handler of SIGTERM
    _exit(stopper.clean_code if stopper.signal and codes[0] in (0, TRY_AGAIN_EXIT_STATUS) else codes[0])


def _profiled(work: Callable[[threading.Event], None], path: pathlib.Path, stop: threading.Event) -> None:
    profiler = cProfile.Profile()
    try:
        profiler.runcall(work, stop)
    finally:
        path.parent.mkdir(parents=True, exist_ok=True)
        profiler.dump_stats(path)
        logging.info('the profile is in %s', path)


def _set_up_logging(job: str) -> None:
    """Logs to stderr with time stamps and the job's name, and prints all stacks on a crash and on SIGUSR1."""
    logging.use_absl_handler()
    handler = logging.get_absl_handler()
    plain = standard_logging.Formatter(f'%(levelname).1s %(asctime)s {job} %(filename)s:%(lineno)d] %(message)s')
    handler.setFormatter(log_format.JsonFormatter(job) if log_format.is_json() else plain)
    log_format.set_up(job)
    handler.addFilter(_is_for_the_user)
    faulthandler.enable(_STDERR)
    faulthandler.register(signal.SIGUSR1, _STDERR)


def _is_for_the_user(record: standard_logging.LogRecord) -> bool:
    """Returns whether a log record is for the user, and not a library's own."""
    if not _CHATTY.search(record.pathname):
        return True
    return record.levelno > standard_logging.INFO and not record.pathname.endswith('deprecation.py')


def _attempt(program: str, work: Callable[[threading.Event], None], stop: threading.Event) -> int:
    """Returns the exit code of `work(stop)`; writes its error line,
    after a traceback if that is of a defect, and not in the log already.
    """
    try:
        with background.ending_with_threads(stop):
            work(stop)
        return 0
    except BaseException as error:
        if isinstance(error, Stopped) and stop.is_set():
            return 0
        if isinstance(error, PeerStopped):
            logging.error('%s', error)
            return TRY_AGAIN_EXIT_STATUS
        error = as_user_error(error)
        text = display_text(job_config.plain_message(error))
        if not isinstance(error, UserError | LoggedError):
            logging.error('the job failed', exc_info=error)
            text = f'{type(error).__name__}: {text}'
        with contextlib.suppress(OSError):  # a full disk
            logging.flush()
            print(f'{program}: error: {text}', file=sys.stderr, flush=True)
        if isinstance(error, UserTimeoutError):
            return DEADLINE_EXIT_STATUS
        return 2 if isinstance(error, UserError) else 1


def _forget_signals() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


class _Stopper:
    """Sets `stop` on a signal. Ends the process at once if the job allows it, or if it does not end in time."""

    def __init__(self, program: str, timeout_secs: float, done_by: int):
        self.stop = StopEvent()
        self.signal = 0
        self._program, self._timeout_secs, self._done_by = program, timeout_secs, done_by
        self._stopped_at = 0.0

    @property
    def clean_code(self) -> int:
        """The exit code of an end in time after the signal."""
        return 0 if self.signal == self._done_by else 128 + self.signal

    def listen(self) -> None:
        """Begins to handle the signals. Called in the main thread."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self.on_signal)
        signal.signal(signal.SIGUSR2, self._request_save)

    def _request_save(self, number: int, frame: types.FrameType | None) -> None:
        self.stop.save_requested = True

    def on_signal(self, number: int, frame: types.FrameType | None) -> None:
        """A signal handler. A second signal, or a job that does not end in time, ends the process at once."""
        del frame
        name = signal.Signals(number).name
        if self.signal:
            # Within a second it is the same Ctrl-C, sent by the terminal and by the parent process.
            if time.monotonic() - self._stopped_at > 1.0:
                self._give_up(f'{name} while it was stopping')
            return
        self.signal, self._stopped_at = number, time.monotonic()
        self.stop.set()
        if before_exit := self.stop.before_exit:
            logging.info('got %s while the job was starting: there is nothing to save', name)
            before_exit()
            _exit(self.clean_code)
        late = f'no end of the job within {self._timeout_secs:g} s after {name} (--stop_timeout_secs)'
        background.Thread(self._give_up_later, 'stop_timeout', (late,)).start()
        logging.info('got %s; stopping (another one ends the process at once)', name)

    def _give_up_later(self, why: str) -> None:
        threading.Event().wait(self._timeout_secs)
        self._give_up(why)

    def _give_up(self, why: str) -> NoReturn:
        faulthandler.dump_traceback(_STDERR, all_threads=True)
        os.write(_STDERR, f'{self._program}: error: got {why}; where its threads were is above\n'.encode())
        os._exit(128 + self.signal)


def _exit(code: int) -> NoReturn:
    """Ends the process without Python's shutdown, which may hang because of threads of TensorFlow and Reverb."""
    for child in multiprocessing.active_children():
        child.kill()
    with contextlib.suppress(OSError):  # a full disk
        logging.flush()
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
