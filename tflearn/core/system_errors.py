"""Errors of the system, and of TensorFlow, that are for the user to correct:
no permission, a full disk.
"""

import errno
import os

from tflearn.core.errors import NEED_ROOM, UserError, UserOSError


def as_user_error(error: BaseException) -> BaseException:
    """Returns an error that the user can correct as the user's, and any other as it is."""
    if isinstance(error, PermissionError) and error.filename and not isinstance(error, UserError):
        return UserOSError(
            f'got {os.fspath(error.filename)!r}, which this user may not use ({error.strerror}); need permission; '
            'change its mode or owner, or choose another path'
        )
    if type(error).__name__ == 'PermissionDeniedError':  # TensorFlow's, of its own files
        return UserOSError(f'got a file without permission ({error}); need it; change its mode, or choose another path')
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        where = f' of {os.fspath(error.filename)!r}' if error.filename else ''
        return UserOSError(f'got a full disk{where} ({error.strerror}); {NEED_ROOM}')
    return error
