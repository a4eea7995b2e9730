"""Options of a scheduler, from texts to a dataclass."""

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeVar

from tflearn.errors import UserValueError

Options = TypeVar('Options')


def read(kind: type[Options], texts: Sequence[str]) -> Options:
    """Returns the dataclass `kind` with the fields that 'name=value' texts set; its defaults are strings or integers.

    Raises:
      ValueError: that names the text that is wrong.
    """
    defaults: dict[str, Any] = {field.name: field.default for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition('=')
        if not equals or name not in defaults or name in values:
            raise UserValueError(f'got --backend_option={text}; need name=value, each name once: {", ".join(defaults)}')
        number = isinstance(defaults[name], int)
        if number and not value.isdecimal():
            raise UserValueError(f'got --backend_option={text}; need a number, such as {name}={defaults[name]}')
        values[name] = int(value) if number else value
    return kind(**values)
