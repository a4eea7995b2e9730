"""Runs a program of a scheduler and returns what it wrote."""

import subprocess
from collections.abc import Sequence

from tflearn.core.errors import UserFileNotFoundError, UserRuntimeError, UserTimeoutError

_TIMEOUT_SECS = 60.0


def output(command: Sequence[str], text: str = '', timeout_secs: float = _TIMEOUT_SECS) -> str:
    """Returns the standard output of `command`, which reads `text` as its standard input.

    Raises:
      FileNotFoundError: if there is no such program.
      TimeoutError: if it does not end in time.
      RuntimeError: if it fails, with what it wrote to standard error.
    """
    try:
        ended = subprocess.run(
            list(command), input=text, capture_output=True, text=True, timeout=timeout_secs, check=False
        )
    except FileNotFoundError as error:
        raise UserFileNotFoundError(
            f'got no program {command[0]!r}; need a machine from which jobs can be submitted; --render prints what '
            'would be submitted'
        ) from error
    except subprocess.TimeoutExpired as error:
        raise UserTimeoutError(f'got no answer from {command[0]} within {timeout_secs:g} s; need its server') from error
    if ended.returncode:
        words = ' '.join(ended.stderr.split()) or f'exit status {ended.returncode}'
        raise UserRuntimeError(f'got an error from {command[0]}: {words}; see {command[0]} --help')
    return ended.stdout
