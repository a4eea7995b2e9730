"""Command lines of programs that end before a job begins: their `main`s, one after another in one forked process.

A process for each would cost more than what the program does. The process is used again as long as programs end by
SystemExit; one that ends it itself, as jobs do, has the exit status of the process, and the next has a new one.
"""

import functools
import multiprocessing.connection
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback

from absl import flags, logging
from absl.testing import flagsaver

from tests.testing import console_programs, forks
from tflearn.core.waiting import wait_until

_START_SECS = 60.0
_NAMES = ('stdout', 'stderr')


def run(
    program: str, *arguments: object, timeout: float, cwd: pathlib.Path = forks.CHECKOUT
) -> subprocess.CompletedProcess[str]:
    """Runs a program or a verb, see `console_programs`, with these arguments, as `forks.run` does."""
    process = _process()
    process.connection.send((program, [*map(str, arguments)], str(cwd)))
    try:
        if not process.connection.poll(timeout):
            raise subprocess.TimeoutExpired(program, timeout)
        code = process.connection.recv()
        return subprocess.CompletedProcess([program, *arguments], code, *map(process.text, _NAMES))
    except (EOFError, ConnectionError):
        code = process.program.wait(timeout)
        ended = subprocess.CompletedProcess([program, *arguments], code, *map(process.text, _NAMES))
        process.close()
        return ended
    except BaseException:
        process.close()
        raise


class _Process:
    """The process, as tests see it."""

    def __init__(self):
        # Removed by the process, which outlives the tests by a moment, or by `close`.
        self._folder = folder = pathlib.Path(tempfile.mkdtemp())
        environment = {**os.environ, 'CUDA_VISIBLE_DEVICES': '-1'}
        self.program = forks.start('tests.testing.command_lines', folder, log=folder / 'log', env=environment)
        wait_until((folder / 'socket').exists, 'the process of command lines', _START_SECS, poll_secs=0.02)
        self.connection = multiprocessing.connection.Client(str(folder / 'socket'), 'AF_UNIX')

    def text(self, name: str) -> str:
        """Returns what the last program printed."""
        return (self._folder / name).read_text()

    def close(self) -> None:
        """Ends the process; the next program has a new one."""
        self.program.kill()
        self.connection.close()
        shutil.rmtree(self._folder)
        _process.cache_clear()


@functools.cache
def _process() -> _Process:
    return _Process()


def _main() -> None:
    folder = pathlib.Path(sys.argv[1])
    before = _State()
    listener = multiprocessing.connection.Listener(str(folder / 'starting'), 'AF_UNIX')
    (folder / 'starting').rename(folder / 'socket')  # a connection is accepted from now on
    connection = listener.accept()
    while True:
        try:
            program, arguments, cwd = connection.recv()
        except EOFError:
            shutil.rmtree(folder)
            os._exit(0)
        for name, descriptor in zip(_NAMES, (1, 2), strict=True):
            with (folder / name).open('wb') as file:
                os.dup2(file.fileno(), descriptor)
        os.chdir(cwd)
        code = _run(program, arguments)
        before.restore()
        sys.stdout.flush()
        sys.stderr.flush()
        connection.send(code)


class _State:
    """What programs change in their process, and a new process would not have."""

    def __init__(self):
        self._flags = flagsaver.save_flag_values()
        self._environment, self._path = dict(os.environ), list(sys.path)
        self._handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        self._verbosity = logging.get_verbosity()

    def restore(self) -> None:
        flagsaver.restore_flag_values(self._flags)
        flags.FLAGS.unparse_flags()
        logging.set_verbosity(self._verbosity)
        os.environ.clear()
        os.environ.update(self._environment)
        sys.path[:] = self._path
        for number, handler in self._handlers.items():
            signal.signal(number, handler)


def _run(program: str, arguments: list[str]) -> int:
    """Returns the exit status that the program's process would have."""
    try:
        console_programs.main(program, *arguments)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == '__main__':
    _main()
