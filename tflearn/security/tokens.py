"""Shared secrets of clients and servers: where they come from, how they travel, how they are compared.

A token is never a flag's or a setting's value: those are shown by `ps`, in logs and in saved configurations.
"""

import hashlib
import hmac
import os
import pathlib

from tflearn.errors import UserValueError

MIN_CHARACTERS = 16
_SCHEME = 'Bearer '


def read(source: str, name: str) -> str:
    """Returns a token.

    Args:
      source: the path of a file that holds nothing else, or 'env:NAME' for an environment variable.
      name: the flag's or setting's name, for the error.

    Raises:
      ValueError: if there is none, or one that could be guessed. The message does not quote it.
    """
    if source.startswith('env:'):
        token = os.environ.get(source.removeprefix('env:'), '')
    else:
        try:
            token = pathlib.Path(source).expanduser().read_text(encoding='ascii')
        except (OSError, UnicodeError) as error:
            raise UserValueError(f'got {name}={source} ({error}); need a file with a token, or env:NAME') from error
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


def shown(value: str | None) -> str:
    """Returns the token in the value of such a header; '' if there is none."""
    return value.removeprefix(_SCHEME).strip() if value and value.startswith(_SCHEME) else ''


def digest(token: str) -> str:
    """Returns the SHA-256 of a token, in hexadecimal digits, by which a server may know it."""
    return hashlib.sha256(token.encode()).hexdigest()


def equal(one: str, other: str) -> bool:
    """Returns whether two tokens, or two digests, are the same; takes as long wherever they differ."""
    return hmac.compare_digest(one.encode(), other.encode())
