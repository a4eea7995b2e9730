"""Runs a function in a fork of this process, which has loaded the libraries, and judges how it ended.

The process that forks may import TensorFlow, but must not use it: a fork would have the locks of its threads, but not
the threads.
"""

import contextlib
import dataclasses
import os
import pathlib
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable

_POLL_SECS = 0.005
_ERROR = re.compile(r'tflearn[- ][a-z-]+( [a-z]+)?: error: (.*)')
_LOG = re.compile(r'[DIWEF] ?\d{4}[ -]\S+ |WARNING:|I\d{4} |W\d{4} ')
# What a line says that says what to do.
_ADVICE = re.compile(r'\b(need|needs|needed|see|remove|use|choose|install|correct|give|restore|bind|write|make room)\b')


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a case ended.

    Attributes:
      code: the exit status; negative: the signal that killed it; None: it was killed after the deadline.
      output: what it wrote to stdout and stderr.
      secs: how long it took.
    """

    code: int | None
    output: str
    secs: float

    @property
    def accepted(self) -> bool:
        """Whether the input was accepted."""
        return self.code == 0

    @property
    def defect(self) -> str | None:
        """Returns what is wrong; None if the input was accepted, or refused in one line that says what to do."""
        if self.code is None:
            return 'it hangs'
        if 'Traceback (most recent call last)' in self.output:
            return 'a traceback'
        if self.code == 0:
            return None
        if self.code != 2:
            return f'exit status {self.code}'
        lines = [line for line in self.output.splitlines() if line.strip() and not _LOG.match(line)]
        errors = [match for line in lines if (match := _ERROR.match(line))]
        if len(errors) != 1:
            return f'{len(errors)} error lines'
        if not _ADVICE.search(errors[0][2]):
            return 'an error line that does not say what to do'
        return None


def run(function: Callable[[], object], output: pathlib.Path, deadline_secs: float) -> Outcome:
    """Runs `function` in a fork; its exit status is that of `SystemExit`, 0 if it returns, else 70."""
    start = time.monotonic()
    pid = os.fork()
    if pid == 0:
        _child(function, output)
    pause, code = threading.Event(), None
    while time.monotonic() - start < deadline_secs:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            break
        pause.wait(_POLL_SECS)
    else:
        os.kill(pid, signal.SIGUSR1)
        pause.wait(0.3)
    _kill_group(pid)
    if code is None:
        os.waitpid(pid, 0)
    return Outcome(code, output.read_text(encoding='utf-8', errors='replace'), time.monotonic() - start)


def _child(function: Callable[[], object], output: pathlib.Path) -> None:
    os.setsid()
    written = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for number in (1, 2):
        os.dup2(written, number)
    # pytest has others.
    sys.stdout, sys.stderr = (os.fdopen(os.dup(number), 'w', 1, errors='backslashreplace') for number in (1, 2))
    code: object = 0
    try:
        function()
    except SystemExit as error:
        code = error.code
    except BaseException:
        traceback.print_exc()
        code = 70
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
