"""Composition: what environments are made of, by paths,
to tell whether two programs made the same ones.

That is what pickle would write of a new one: its class and wrappers, and what they keep of their
arguments. The code of a class does not count, since an object that is restored has that of the
running program. Needs no TensorFlow.
"""

import collections
import hashlib
import inspect
import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

_RANDOM = (np.random.Generator, np.random.BitGenerator, np.random.RandomState, np.random.SeedSequence, random.Random)
_PLAIN = (bool, int, float, complex, np.bool_, np.number, str, bytes, type(None))
_MAX_TEXT = 60
_MAX_PARTS = 10_000  # of one environment: far beyond those of a usual one
# The value of a part that is another one in each copy: no argument, but what was drawn.
_DIFFERS = '(differs)'
_FEW = 3

_Parts = tuple[dict[str, str], dict[str, str]]


def composition(copies: Sequence[Any]) -> dict[str, str]:
    """Returns the parts of equal environments by their paths:
    classes, and the values that all copies have.

    Args:
      copies: new environments, which were not reset yet.
    """
    parts = [_parts(each) for each in copies]
    return {**_values([values for _, values in parts]), **_classes([classes for classes, _ in parts])}


def _values(copies: Sequence[Mapping[str, str]]) -> dict[str, str]:
    texts = {path: {values.get(path) for values in copies} for values in copies for path in values}
    return {path: str(found.pop()) if len(found) == 1 else _DIFFERS for path, found in texts.items()}


def _classes(copies: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Returns the class at each path; where copies have several, that of each,
    with its number before the path.
    """
    found: dict[str, str] = {}
    for path in dict.fromkeys(path for classes in copies for path in classes):
        names = [classes.get(path, 'none') for classes in copies]
        found |= {path: names[0]} if len({*names}) == 1 else {f'{i}{path}': name for i, name in enumerate(names)}
    return found


def difference(before: Mapping[str, str], now: Mapping[str, str]) -> str | None:
    """Returns in which parts two compositions differ, for a message; None if they do not."""
    pairs = {path: (before.get(path, 'none'), now.get(path, 'none')) for path in {**before, **now}}
    found = [
        f'{path or "class"}: {" -> ".join(pair)}'
        for path, pair in sorted(pairs.items(), key=lambda item: (not item[0].isidentifier(), len(item[0])))
        if pair[0] != pair[1] and _DIFFERS not in pair
    ]
    more = f', and {len(found) - _FEW} more' if len(found) > _FEW else ''
    return f'{", ".join(found[:_FEW])}{more}' if found else None


def _parts(value: Any) -> _Parts:
    """Returns the classes of an object and of all that it holds,
    and the values of what is no object, by path.
    """
    classes: dict[str, str] = {}
    values: dict[str, str] = {}
    # All that was opened is kept until the end, so that no two of them have the same id.
    opened: dict[int, Any] = {}
    # Breadth first, since arguments are not deep in an object.
    pending = collections.deque([('', value)])
    while pending and len(classes) + len(values) < _MAX_PARTS:
        path, each = pending.popleft()
        if (text := _text(each)) is not None:
            values[path] = text
            continue
        classes[path] = _name(type(each))
        if id(each) not in opened:
            inner = _inner(each)
            opened[id(each)] = each, inner
            pending += [(path + step, part) for step, part in inner]
    return classes, values


def _text(value: Any) -> str | None:
    """Returns what is compared of a value; None for an object, whose parts are."""
    if isinstance(value, _RANDOM):
        return 'random numbers'  # where they are depends on what was drawn
    if inspect.isclass(value) or inspect.isroutine(value) or inspect.ismodule(value):
        return _name(value)
    if isinstance(value, np.ndarray) and value.dtype != object:
        return _short(f'{value.dtype}{[*value.shape]} {value.tolist() if value.size < _FEW else _digest(value)}')
    if isinstance(value, set | frozenset):
        return _short(str(sorted(map(_element, value))))
    return _short(repr(value)) if _is_plain(value) else None


def _element(value: Any) -> str:
    return repr(value) if type(value) in _PLAIN else _name(type(value))


def _is_plain(value: Any) -> bool:
    if type(value) in (list, tuple):
        return all(type(each) in _PLAIN for each in value)
    return isinstance(value, _PLAIN)


def _inner(value: Any) -> list[tuple[str, Any]]:
    """Returns the parts of an object, as pickle would write them,
    and the step of the path to each.
    """
    if isinstance(value, dict):
        return [(f'[{key!r}]', part) for key, part in value.items()]
    if isinstance(value, list | tuple):
        return [(f'[{i}]', part) for i, part in enumerate(value)]
    try:
        reduced = value.__reduce_ex__(4)
    except Exception:  # it may be anybody's; what cannot be pickled is not saved either
        return []
    return [('.name', reduced)] if isinstance(reduced, str) else _reduced(*reduced)


def _reduced(
    function: Any, arguments: Any, state: Any = None, items: Any = None, pairs: Any = None, *_: Any
) -> list[tuple[str, Any]]:
    """Returns the parts in what `__reduce_ex__` of an object returned;
    see pickle for the arguments.
    """
    del function
    # The class is the first argument of most.
    found = [(f'({i})', part) for i, part in enumerate(arguments) if not inspect.isclass(part)] + _attributes(state)
    found += [(f'[{i}]', part) for i, part in enumerate(items or ())]
    return found + [(f'[{key!r}]', part) for key, part in pairs or ()]


def _attributes(state: Any) -> list[tuple[str, Any]]:
    """Returns the parts of an object's state: a dict, with those of slots in a second one,
    or anything else.
    """
    found: list[tuple[str, Any]] = []
    for i, each in enumerate(state if isinstance(state, tuple) else (state,)):
        found += [(f'.{name}', part) for name, part in each.items()] if isinstance(each, dict) else [(f'.{i}', each)]
    return found


def _name(value: Any) -> str:
    module = getattr(value, '__module__', None)
    name = str(getattr(value, '__qualname__', getattr(value, '__name__', type(value).__name__)))
    return f'{module}.{name}' if module and module != 'builtins' else name


def _digest(array: np.ndarray) -> str:
    return hashlib.blake2b(np.ascontiguousarray(array).data, digest_size=8).hexdigest()


def _short(text: str) -> str:
    """Returns a text, or the beginning of a long one and a digest of it."""
    if len(text) <= _MAX_TEXT:
        return text
    return f'{text[:_MAX_TEXT]}... {hashlib.blake2b(text.encode(errors="replace"), digest_size=8).hexdigest()}'
