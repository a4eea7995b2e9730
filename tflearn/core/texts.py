"""The check of a text that somebody else has sent, before it is kept or logged."""

from typing import Any

from tflearn.core.errors import UserValueError


def check_text(what: str, text: Any, most: int = 256) -> None:
    """Raises ValueError for a text that a log, a file or a metric's name could not hold."""
    if not isinstance(text, str) or not 0 < len(text) <= most or not text.isprintable():
        raise UserValueError(f'got {what}={text!a:.100}; need a printable text of 1 to {most} characters')
