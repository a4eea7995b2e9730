"""Logs of one JSON object a line, for collectors of logs: `TFLEARN_LOG_FORMAT=json`, which jobs inherit.

Not those of libraries in C++, and stacks of a crash: they are written past Python.
"""

import contextlib
import io
import json
import logging
import os
import sys
import time
from typing import Any, TextIO, cast

from tflearn.core.errors import UserValueError

VARIABLE = 'TFLEARN_LOG_FORMAT'


def is_json() -> bool:
    """Returns whether logs are JSON. Raises ValueError if it is neither that nor text."""
    if (value := os.environ.get(VARIABLE, 'text')) not in ('json', 'text'):
        raise UserValueError(f'got {VARIABLE}={value}; need json or text')
    return value == 'json'


def set_up(job: str) -> None:
    """Makes what this process prints to stderr lines of `job`."""
    sys.stderr = stream(job, getattr(sys.stderr, 'stream', sys.stderr))


def stream(job: str, out: TextIO) -> TextIO:
    """Returns a stream that writes to `out` in the format of logs."""
    return cast(TextIO, JsonLines(job, out)) if is_json() else out


def lines(job: str, text: str) -> str:
    """Returns lines in the format of logs."""
    stream(job, written := io.StringIO()).write(text)
    return written.getvalue()


def plain(line: str) -> str:
    """Returns a logged line as text, with its traceback."""
    with contextlib.suppress(ValueError, TypeError, KeyError):
        values = json.loads(line)
        return '\n'.join([values['message'], *values.get('traceback', '').splitlines()])
    return line


def _line(job: str, level: str, message: str, at: float, **more: Any) -> str:
    moment = f'{time.strftime("%FT%T", time.gmtime(at))}.{int(at % 1 * 1000):03d}Z'
    return json.dumps({'time': moment, 'level': level, 'job': job, 'message': message, **more})


class JsonFormatter(logging.Formatter):
    """Formats records of `logging`, each with its traceback."""

    def __init__(self, job: str):
        super().__init__()
        self._job = job

    def format(self, record: logging.LogRecord) -> str:
        more = {'traceback': self.formatException(record.exc_info)} if record.exc_info else {}
        where = f'{record.filename}:{record.lineno}'
        return _line(self._job, record.levelname, record.getMessage(), record.created, where=where, **more)


class JsonLines(io.TextIOBase):
    """Writes each line that is printed as an object to `stream`."""

    def __init__(self, job: str, out: TextIO):
        self.stream, self._job, self._rest = out, job, ''

    def write(self, text: str) -> int:
        *whole, self._rest = f'{self._rest}{text}'.split('\n')
        for line in filter(str.strip, whole):
            level = 'ERROR' if ': error: ' in line else 'WARNING' if ': warning: ' in line else 'INFO'
            self.stream.write(_line(self._job, level, line, time.time()) + '\n')
        return len(text)

    def flush(self) -> None:
        self.stream.flush()

    def fileno(self) -> int:
        return self.stream.fileno()
