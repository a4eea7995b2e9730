"""Shared secrets of clients and servers: where they come from, how they travel,
how they are compared.

A token is never a flag's or a setting's value: those are shown by `ps`, in logs and in saved
configurations.
"""

import hashlib
import hmac
import os
import pathlib

from tflearn.core.errors import UserValueError

MIN_CHARACTERS = 16
_SCHEME = 'Bearer '


def read(source: str, name: str) -> str:
    """Returns a token.

    Args:
      source: the path of a file that holds nothing else, or 'env:NAME' for an environment variable.
      name: the flag's or setting's name, for the error.

    Raises:
      ValueError: if there is none, or one that could be guessed. The message quotes neither it nor
        what could be it.
    """
    is_variable = source.startswith('env:')
    try:
        token = (
            os.environ[source.removeprefix('env:')]
            if is_variable
            else pathlib.Path(source).expanduser().read_text(encoding='ascii', errors='replace')
        )
    except (KeyError, OSError, ValueError, RuntimeError) as error:  # each of them quotes the source
        reason = 'no such variable' if is_variable else getattr(error, 'strerror', None) or 'no path'
        raise UserValueError(
            f'got a {name} that cannot be read ({reason}), and is not shown, since it could be the token itself; need '
            'the path of a file with a token, or env:NAME'
        ) from None
    token = token.strip()
    if len(token) < MIN_CHARACTERS or not token.isascii() or not token.isprintable() or ' ' in token:
        raise UserValueError(
            f'got {name}={source}, which holds {len(token)} characters; need a token of at least {MIN_CHARACTERS}, of '
            'letters, digits and signs; make one: openssl rand -hex 32'
        )
    return token


def header(token: str) -> str:
    """Returns the value of the header, or metadata, `authorization` that shows the token."""
    return _SCHEME + token


def received(value: str | None) -> str:
    """Returns the token in the value of such a header; '' if there is none."""
    return value.removeprefix(_SCHEME).strip() if value and value.startswith(_SCHEME) else ''


def digest(token: str) -> str:
    """Returns the SHA-256 of a token, in hexadecimal digits, by which a server may know it."""
    return hashlib.sha256(token.encode()).hexdigest()


def equal(one: str, other: str) -> bool:
    """Returns whether two tokens, or two digests, are the same;
    takes as long wherever they differ.
    """
    return hmac.compare_digest(one.encode(), other.encode())
