"""Forms of JSON messages: a TypedDict says what a file has to hold,
and one function finds what differs from it.

    class Done(TypedDict):
        reason: str
        train_step: NonNegativeInt
        policy: NotRequired[str | None]

Numbers have the ranges of `core/settings`, texts are such that every program can write them; other
fields may be there. A reader that uses what a message holds without this check fails far from the
file, by an error that names neither it nor the field.
"""

import dataclasses
import functools
import itertools
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tflearn.core.settings import Rule

_MAX_NAME = 80
_MAX_INT = 1 << 63  # which no float, and no file of ours, has room for beyond
_LISTS, _OBJECTS = (list, tuple, Sequence), (dict, Mapping)
_rule = functools.lru_cache(None)(Rule)


def fault(value: Any, form: Any, name: str = '', where: str = '') -> str | None:
    """Returns what is wrong with a JSON value, 'got X; need Y'; None if nothing is.

    Args:
      form: a TypedDict or a dataclass; or the annotation of a part: a scalar or `Any`; a list,
        tuple or mapping of parts; or None besides.
      name: the field's name, 'evaluation.train_step'; '' is the whole message.
      where: what is written before it: 'DONE with '.
    """
    if form is Any:
        return _text_fault(value, name, where)
    container = _container(form)
    if container is None:
        return _scalar_fault(value, form, name, where)
    if value is None and types.NoneType in typing.get_args(form):
        return None
    is_list, length = typing.get_origin(container) in _LISTS, _length(container)
    if not isinstance(value, list if is_list else dict) or length not in (None, len(value)):
        return _text(value, name, where, f'a list of {length}' if length else 'a list' if is_list else 'a JSON object')
    if missing := [field for field, (_, needed) in _fields(container).items() if needed and field not in value]:
        return f'got {where}no {inner_name(name, missing[0])}; need that'
    faults = (fault(each, part, inner, where) for each, part, inner in _parts(value, container, name))
    return next(filter(None, faults), None)


def _parts(value: Any, container: Any, name: str) -> Iterator[tuple[Any, Any, str]]:
    """Yields the parts of a value, each with its form and its name."""
    arguments, fields = typing.get_args(container), _fields(container)
    if isinstance(value, dict):
        others = Any if fields else arguments[1]
        yield from ((each, fields.get(key, (others, False))[0], inner_name(name, key)) for key, each in value.items())
    else:
        forms = arguments if _length(container) else itertools.repeat(arguments[0])
        yield from ((each, part, f'{name}[{i}]') for i, (each, part) in enumerate(zip(value, forms, strict=False)))


def _scalar_fault(value: Any, form: Any, name: str, where: str) -> str | None:
    if error := _rule(form).error(where + name, value):
        return str(error)
    if isinstance(value, int) and abs(value) >= _MAX_INT:
        return _text(value, name, where, 'an integer of 64 bits')
    return _text_fault(value, name, where)


def _text_fault(value: Any, name: str, where: str) -> str | None:
    """Returns which text is none that a program can write: it has half of a pair of surrogates,
    which JSON can hold.
    """
    waiting = [(name, value)]
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, str) and not value.isprintable() and value != value.encode(errors='ignore').decode():
            return _text(value, name, where, 'text in UTF-8')
        if isinstance(value, list):
            waiting += [(name, each) for each in value]
        if isinstance(value, dict):
            waiting += [(inner_name(name, key), each) for key, each in value.items()] + [(name, key) for key in value]
    return None


def inner_name(name: str, field: str) -> str:
    """Returns the name of a field within another one, as one short line."""
    field = field if field.isprintable() and len(field) < _MAX_NAME else f'{field!a:.{_MAX_NAME}}'
    return f'{name}.{field}' if name else field


def _text(value: Any, name: str, where: str, need: str) -> str:
    return f'got {where}{name}{"=" * bool(name)}{value!a:.100}; need {need}'


@functools.cache
def _container(form: Any) -> Any:
    """Returns the form if it has parts, or its first alternative that has; else None."""
    alternatives = typing.get_args(form) if typing.get_origin(form) in (typing.Union, types.UnionType) else (form,)
    return next((each for each in alternatives if typing.get_origin(each) in _LISTS + _OBJECTS or _fields(each)), None)


def _length(container: Any) -> int | None:
    """Returns the length of a tuple that has one."""
    arguments = typing.get_args(container)
    return len(arguments) if typing.get_origin(container) is tuple and ... not in arguments else None


@functools.cache
def _fields(form: Any) -> dict[str, tuple[Any, bool]]:
    """Returns the fields of a TypedDict or a dataclass, each with whether it is needed;
    {} if it is none.
    """
    if dataclasses.is_dataclass(form):
        defaults = dataclasses.MISSING, dataclasses.MISSING
        needed = {each.name for each in dataclasses.fields(form) if (each.default, each.default_factory) == defaults}
    elif typing.is_typeddict(form):
        needed = form.__required_keys__
    else:
        return {}
    hints = typing.get_type_hints(form, include_extras=True)
    is_optional = {name: typing.get_origin(hint) is typing.NotRequired for name, hint in hints.items()}
    return {
        name: (typing.get_args(hint)[0] if is_optional[name] else hint, name in needed) for name, hint in hints.items()
    }
