"""The errors that a user can cause and correct:
programs print them in one line and end with exit status 2.

Everything else that a program raises is a defect, or a failure of the machine: it is shown with its
traceback. Each class is also the built-in error of its kind, so `except ValueError` catches a
`UserValueError`.
"""

from collections.abc import Sequence

# EX_TEMPFAIL and EX_UNAVAILABLE of sysexits.h: for whatever starts jobs again. A deadline passes
# because of a wrong address, or because the other job's machine is not there yet: a scheduler tries
# again what waited in vain.
TRY_AGAIN_EXIT_STATUS, DEADLINE_EXIT_STATUS = 75, 69
NEED_ROOM = 'need room; make room, and start the same command again'


class UserError(Exception):
    """The user's input, configuration or environment is wrong. The message says: got X; need Y;
    do Z.
    """


class UserValueError(UserError, ValueError):
    """A value that cannot be used."""


class UserTypeError(UserError, TypeError):
    """A value of the wrong type, or an argument that is missing."""


class UserTimeoutError(UserError, TimeoutError):
    """Something that the user has to provide was not there in time."""


class UserImportError(UserError, ImportError):
    """A package that is missing or has the wrong version."""


class UserOSError(UserError, OSError):
    """A file that cannot be read or written."""


class UserFileNotFoundError(UserOSError, FileNotFoundError):
    """A file that does not exist."""


class UserRuntimeError(UserError, RuntimeError):
    """A call that can no longer succeed."""


class LoggedError(RuntimeError):
    """Too many failures, each of which is in the log with its traceback:
    programs add theirs to no traceback, and end with exit status 1.
    """


def is_temporary(error: BaseException | None) -> bool:
    """Returns whether an error, or its cause, is of the machine:
    no handles or memory, a lost disk.
    """
    while error is not None:
        # TensorFlow's own error is known by its name: this module does not load TensorFlow.
        is_tensorflows = type(error).__name__ == 'ResourceExhaustedError'
        if is_tensorflows or isinstance(error, OSError | MemoryError):
            return not isinstance(error, FileNotFoundError)
        error = error.__cause__
    return False


def first_few(texts: Sequence[str], most: int = 3) -> str:
    """Returns the first of several reasons, and how many more there are."""
    more = f' (and {len(texts) - most} more)' if len(texts) > most else ''
    return f'{"; ".join(texts[:most])}{more}'
