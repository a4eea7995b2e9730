"""Settings with declared ranges: a range stands with the field or argument that it is for,
and one decorator reads it.

    @checked_dataclass(frozen=True)
    class Validation:
        share: Annotated[float, Range(least=0, below=1)] = 0.0
        interval_steps: PositiveInt = 1_000

`checked` does the same for the arguments of a function or constructor. An annotation is checked if
it declares a `Range` or a `Literal`; its alternatives (`None`, a function, a string, a dataclass,
...) are accepted besides. Gin files are checked by it before TensorFlow is loaded, and
docs/settings.md shows it. What several settings have to fulfil together stays code.
"""

import collections.abc
import dataclasses
import functools
import math
import numbers
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from tflearn.core.errors import UserError, UserTypeError, UserValueError

_UNITS = {'secs': 'seconds', 'gb': 'GB', **{unit: unit for unit in ('steps', 'items', 'episodes', 'bytes', 'percent')}}
_KINDS = {int: (numbers.Integral, 'an integer'), float: (numbers.Real, 'a number')}
_NAMES = {bool: 'True or False', str: 'a string', types.NoneType: 'None'}
_Function = TypeVar('_Function', bound=Callable[..., Any])


@dataclasses.dataclass(frozen=True)
class Range:
    """The finite numbers that a setting can be; `advice` is what to do instead of another."""

    _: dataclasses.KW_ONLY
    least: float = -math.inf
    above: float = -math.inf
    most: float = math.inf
    below: float = math.inf
    advice: str = ''

    def __contains__(self, value: Any) -> bool:
        try:
            is_finite = math.isfinite(value)
        except OverflowError:  # an integer that is larger than any float
            return False
        return bool(is_finite and self.least <= value <= self.most and self.above < value < self.below)

    def __str__(self) -> str:
        bounds = (('at least', self.least), ('above', self.above), ('at most', self.most), ('below', self.below))
        text = ' and '.join(f'{words} {bound}' for words, bound in bounds if not math.isinf(bound))
        return f'of {text}' if text.startswith('at') else text


PositiveInt = Annotated[int, Range(least=1)]
NonNegativeInt = Annotated[int, Range(least=0)]
PositiveFloat = Annotated[float, Range(above=0)]
NonNegativeFloat = Annotated[float, Range(least=0)]
Fraction = Annotated[float, Range(least=0, most=1)]
PositiveFraction = Annotated[float, Range(above=0, most=1)]
Finite = Annotated[float, Range()]


class Rule:
    """What an annotation declares; false where that is neither a range nor choices."""

    def __init__(self, annotation: Any):
        self._parts = list(parts(annotation))
        self.ranges = {kind: bounds for kind, bounds in self._parts if isinstance(bounds, Range)}
        self.choices = [each for _, bounds in self._parts if isinstance(bounds, tuple) for each in bounds]
        self.others = tuple(kind for kind, bounds in self._parts if bounds is None)

    def __bool__(self) -> bool:
        return bool(self.ranges or self.choices)

    def needs(self, name: str = '') -> str:
        """Describes the values that a setting of this name can have."""
        return ', or '.join(_text(kind, bounds, name) for kind, bounds in self._parts)

    def error(self, name: str, value: Any) -> UserError | None:
        """Returns what is wrong with the value of the setting `name` or `Owner.name`."""
        if any(is_kind(value, kind) for kind in self.others):
            return None
        if any(type(each) is type(value) and each == value for each in self.choices):
            return None
        kinds = [kind for kind in self.ranges if is_kind(value, kind)]
        if any(value in self.ranges[kind] for kind in kinds):
            return None
        need = self.needs(name)
        if isinstance(value, float) and not math.isfinite(value):
            need = need.replace('a number', 'a finite number')
        advice = next((f'; {bounds.advice}' for bounds in self.ranges.values() if bounds.advice), '')
        is_value = kinds or (self.choices and isinstance(value, str))
        kind = UserValueError if is_value else UserTypeError
        return kind(f'got {name}={value!r:.100}; need {need}{advice}')


def parts(annotation: Any) -> Iterator[tuple[Any, Any]]:
    """Yields the alternatives of an annotation: each type with its range, its choices, or None."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        for each in arguments:
            yield from parts(each)
    elif origin is Annotated:
        yield arguments[0], next((each for each in arguments if isinstance(each, Range)), None)
    elif origin is Literal:
        yield Literal, arguments
    else:
        yield origin or annotation, None


def is_function(kind: Any) -> bool:
    """Returns whether an alternative is a function: a Callable, or a protocol with `__call__`."""
    is_protocol = getattr(kind, '_is_protocol', False) and '__call__' in vars(kind)
    return kind is collections.abc.Callable or is_protocol


def is_kind(value: Any, kind: Any) -> bool:
    """Returns whether a value is of an alternative's kind."""
    if kind in _KINDS:
        return isinstance(value, _KINDS[kind][0]) and not isinstance(value, bool)
    if is_function(kind):
        return callable(value)
    is_class = isinstance(kind, type) and kind is not Any and not getattr(kind, '_is_protocol', False)
    return isinstance(value, kind) if is_class else True


def _text(kind: Any, bounds: Any, name: str) -> str:
    if kind in _KINDS:
        unit = _UNITS.get(name.rpartition('_')[2])
        return ' '.join(filter(None, [_KINDS[kind][1], str(bounds or ''), unit and f'[{unit}]']))
    if kind is Literal:
        return f'one of {", ".join(map(str, bounds))}' if len(bounds) > 1 else repr(bounds[0])
    if is_function(kind):
        return 'a function'
    return _NAMES.get(kind) or str(getattr(kind, '__name__', kind))


def rules(annotations: Mapping[str, Any]) -> dict[str, Rule]:
    """Returns the rules of those that declare a range or choices."""
    found = {name: Rule(annotation) for name, annotation in annotations.items()}
    return {name: rule for name, rule in found.items() if rule}


def check(found: Mapping[str, Rule], owner: str, values: Mapping[str, Any]) -> None:
    """Checks the values that rules are for; `owner` is written before their names.

    Raises:
      ValueError: for a value outside of its range, or not among its choices.
      TypeError: for a value of another kind.
    """
    for name, rule in found.items():
        if name in values and (error := rule.error(f'{owner}{name}', values[name])):
            raise error


def checked(function: _Function) -> _Function:
    """Decorates a function or constructor: its arguments are checked before it runs."""
    found = rules(function.__annotations__)
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    class_name, _, last = function.__qualname__.rpartition('.')
    owner = f'{class_name}.' if last == '__init__' else ''

    @functools.wraps(function)
    def checking(*args: Any, **kwargs: Any) -> Any:
        check(found, owner, {**dict(zip(names, args, strict=False)), **kwargs})
        return function(*args, **kwargs)

    return typing.cast(_Function, checking)


if TYPE_CHECKING:
    from dataclasses import dataclass as checked_dataclass
else:

    def checked_dataclass(cls: type | None = None, /, **options: Any) -> Any:
        """Decorates a class as `dataclasses.dataclass` does:
        its fields are checked before its `__post_init__`.
        """
        if cls is None:
            return functools.partial(checked_dataclass, **options)
        and_then = getattr(cls, '__post_init__', None)

        def post_init(self: Any) -> None:
            check(found, f'{cls.__name__}.', vars(self))
            if and_then:
                and_then(self)

        cls.__post_init__ = post_init
        made = dataclasses.dataclass(cls, **options)
        found = rules({field.name: field.type for field in dataclasses.fields(made)})
        return made
