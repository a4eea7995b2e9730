"""Every setting with a declared range or choices refuses what is just outside, wherever it is declared."""

import dataclasses
import importlib
import inspect
import math
import pkgutil
import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import numpy as np
import pytest

import tflearn
from tflearn.core import settings
from tflearn.core.errors import UserError, UserTypeError, UserValueError
from tflearn.core.settings import PositiveFloat, PositiveInt, Range, checked, checked_dataclass


@checked_dataclass(frozen=True)
class Options:
    """Settings of each kind."""

    share: Annotated[float, Range(least=0, below=1)] = 0.0
    interval_steps: PositiveInt | None = None
    rate: PositiveFloat | Literal['auto'] = 'auto'
    kind: Literal['adam', 'rmsprop'] = 'adam'
    compile: bool | Literal['auto'] = 'auto'
    text: str = ''

    def __post_init__(self):
        if self.share == 0.5 and self.interval_steps:
            raise UserValueError('got both')


@pytest.mark.parametrize(
    ('given', 'kind', 'message'),
    [
        ({'share': 1.0}, UserValueError, 'got Options.share=1.0; need a number of at least 0 and below 1'),
        ({'share': math.nan}, UserValueError, 'got Options.share=nan; need a finite number of at least 0 and below 1'),
        ({'rate': 10**400}, UserValueError, f"got Options.rate=1{'0' * 99}; need a number above 0, or 'auto'"),
        ({'rate': math.inf}, UserValueError, "got Options.rate=inf; need a finite number above 0, or 'auto'"),
        (
            {'interval_steps': 0},
            UserValueError,
            'got Options.interval_steps=0; need an integer of at least 1 [steps], or None',
        ),
        (
            {'interval_steps': True},
            UserTypeError,
            'got Options.interval_steps=True; need an integer of at least 1 [steps], or None',
        ),
        ({'rate': 'slow'}, UserValueError, "got Options.rate='slow'; need a number above 0, or 'auto'"),
        ({'kind': 'sgd'}, UserValueError, "got Options.kind='sgd'; need one of adam, rmsprop"),
        ({'kind': None}, UserTypeError, 'got Options.kind=None; need one of adam, rmsprop'),
        ({'compile': 1}, UserTypeError, "got Options.compile=1; need True or False, or 'auto'"),
        ({'share': 0.5, 'interval_steps': 1}, UserValueError, 'got both'),
    ],
)
def test_errors_name_the_setting_and_what_it_needs(given, kind, message):
    with pytest.raises(kind, match=f'^{re.escape(message)}$'):
        Options(**given)


def test_accepts_the_bounds_and_numbers_of_numpy():
    made = Options(share=np.float32(0), interval_steps=np.int64(1), rate=1, compile=False, text=3)
    assert dataclasses.replace(made, kind='rmsprop').interval_steps == 1


def test_functions_and_constructors_name_their_arguments():
    @checked
    def double(number: PositiveInt, *, scale: PositiveFloat = 1.0) -> float:
        return 2 * number * scale

    class Doubling:
        @checked
        def __init__(self, number: PositiveInt):
            self.number = number

    assert double(3) == 6
    assert list(inspect.signature(double).parameters) == ['number', 'scale']
    with pytest.raises(ValueError, match='^got number=0; need an integer of at least 1$'):
        double(0)
    with pytest.raises(TypeError, match="^got scale='x'; need a number above 0$"):
        double(1, scale='x')
    with pytest.raises(ValueError, match=r'Doubling.number=0; need'):
        Doubling(0)


def _modules() -> Iterator[Any]:
    for item in pkgutil.walk_packages(tflearn.__path__, 'tflearn.'):
        try:
            yield importlib.import_module(item.name)
        except ModuleNotFoundError as error:
            assert not error.name.startswith('tflearn'), error  # a library that is not installed here


def _declared() -> Iterator[tuple[str, Any, dict[str, settings.Rule]]]:
    """Yields what declares ranges: its name, what is called with the values, and the rules of these."""
    for module in _modules():
        for item in vars(module).values():
            if getattr(item, '__module__', None) != module.__name__ or not callable(item):
                continue
            functions = [item]
            if isinstance(item, type):
                functions = [value for value in vars(item).values() if inspect.isfunction(value)]
                if dataclasses.is_dataclass(item):
                    functions = [item, *(value for value in functions if value.__name__ != '__init__')]
            for function in functions:
                fields = dataclasses.fields(function) if isinstance(function, type) else ()
                hints = {field.name: field.type for field in fields} or getattr(function, '__annotations__', {})
                found = settings.rules(hints)
                if found and (not function.__name__.startswith('_') or function.__name__ == '__init__'):
                    yield f'{module.__name__}.{function.__qualname__}', function, found


def _outside(rule: settings.Rule) -> Iterator[Any]:
    """Yields values just outside of what a rule accepts, and of other kinds."""
    for kind, bounds in rule.ranges.items():
        step = lambda bound: 1 if kind is int else max(1e-9, 1e-9 * abs(bound))  # noqa: B023, E731
        yield from (kind(bound - step(bound)) for bound in [bounds.least] if math.isfinite(bound))
        yield from (kind(bound + step(bound)) for bound in [bounds.most] if math.isfinite(bound))
        yield from (kind(bound) for bound in (bounds.above, bounds.below) if math.isfinite(bound))
        yield from () if kind is int else (math.nan, math.inf)
    for value in (None, True, 'other', (), 1j):
        if not any(settings.is_kind(value, kind) for kind in rule.others):
            yield value


def _inside(rule: settings.Rule | None) -> Any:
    """Returns a value that a rule accepts."""
    if rule is None or not rule.ranges:
        return rule and rule.choices[0]
    kind, bounds = next(iter(rule.ranges.items()))
    between = (max(bounds.above, bounds.least, -1) + min(bounds.below, bounds.most, 10)) / 2
    return next(kind(number) for number in (bounds.least, bounds.most, between) if number in bounds)


def _is_checked(called: Any) -> bool:
    function = getattr(called, '__post_init__', None) if isinstance(called, type) else called
    return function is not None and function.__code__.co_filename == settings.__file__


@pytest.mark.extensions
def test_all_settings_with_ranges_refuse_what_is_just_outside():
    """They do so before anything else happens, so that the other arguments need not fit."""
    count, unchecked, wrong = 0, [], []
    for owner, called, rules in _declared():
        if not _is_checked(called):
            # A type hint of choices alone stands where nothing is checked too.
            unchecked += [owner] if any(rule.ranges for rule in rules.values()) else []
            continue
        fields = dataclasses.fields(called) if isinstance(called, type) else ()
        needed = {field.name: _inside(rules.get(field.name)) for field in fields if field.init}
        for name, rule in rules.items():
            for value in _outside(rule):
                count += 1
                try:
                    called(**{**needed, name: value})
                    wrong.append(f'{owner}: {name}={value!r} was accepted')
                except UserError as error:
                    if not re.match(rf'got (\w+\.)?{name}={re.escape(repr(value))}; need ', str(error)):
                        wrong.append(f'{owner}: {name}={value!r} raised {error}')
    assert unchecked == [], 'decorate these with checked or checked_dataclass'
    assert wrong == []
    assert count > 100
