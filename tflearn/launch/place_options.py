"""Options of a scheduler, from texts to a dataclass."""

import dataclasses
import difflib
from collections.abc import Sequence
from typing import Any, TypeVar

from tflearn.core.errors import UserValueError

Options = TypeVar('Options')


def read(kind: type[Options], texts: Sequence[str]) -> Options:
    """Returns the dataclass `kind` with the fields that 'name=value' texts set, its own and those of its parts.

    Defaults are strings or integers, or dataclasses of such (the parts).

    Raises:
      ValueError: that names the text that is wrong.
    """
    defaults = _defaults(kind)
    values: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition('=')
        if equals and name not in defaults:
            near = difflib.get_close_matches(name, defaults, n=1)
            advice = f' (did you mean {near[0]}?)' if near else ''
            raise UserValueError(
                f'got --backend_option={text}, an option that this backend does not have{advice}; need one of '
                f'{", ".join(defaults)}'
            )
        if not equals or name in values:
            raise UserValueError(f'got --backend_option={text}; need name=value, each name once: {", ".join(defaults)}')
        number = isinstance(defaults[name], int)
        if number and not value.isdecimal():
            raise UserValueError(f'got --backend_option={text}; need a number, such as {name}={defaults[name]}')
        values[name] = int(value) if number else value
    return _made(kind, values)


def _defaults(kind: type[Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        part = dataclasses.is_dataclass(field.default)
        found |= _defaults(type(field.default)) if part else {field.name: field.default}
    return found


def _made(kind: type[Options], values: dict[str, Any]) -> Options:
    parts = {
        field.name: _made(type(field.default), values)
        for field in dataclasses.fields(kind)  # type: ignore[arg-type]
        if dataclasses.is_dataclass(field.default)
    }
    own = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    return kind(**parts, **{name: value for name, value in values.items() if name in own})
