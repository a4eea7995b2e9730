"""A run's parts as Python objects -> its gin file, for jobs in other processes, which import functions by name."""

import dataclasses
import functools
import importlib
import inspect
from collections.abc import Mapping
from typing import Any

from tflearn.api import synchronous_run
from tflearn.core.errors import UserTypeError
from tflearn.core.experience import Queue
from tflearn.jobs.collect_settings import CollectOptions
from tflearn.jobs.evaluate import evaluate
from tflearn.jobs.train_settings import Initial, Intervals, grouped

_HEAD = 'from __gin__ import dynamic_registration\n'
_LITERALS = (bool, int, float, str, type(None))


class GinText:
    """Gathers the statements of a gin file.

    Its values are literals, lists, tuples and dicts of values, functions and classes of modules, `functools.partial` of
    them, and instances of dataclasses.
    """

    def __init__(self) -> None:
        """Begins with no statement."""
        self._imports: dict[str, str] = {}  # the names in the text, by module
        self._lines: list[str] = []
        self._num_scopes = 0

    def bind(self, name: str, value: Any) -> None:
        """Adds the binding of a macro, or of an argument that has a name in the text."""
        self._lines.append(f'{name} = {self._text(value, name)}')

    def bind_argument(self, function: Any, argument: str, value: Any) -> None:
        """Adds the binding of a function's argument."""
        self.bind(f'{self._name(function, argument)}.{argument}', value)

    def text(self, *included: str) -> str:
        """Returns the gin file, which begins with the included ones."""
        imports = []
        for module, name in self._imports.items():
            package, _, last = module.rpartition('.')
            alias = '' if last == name else f' as {name}'
            imports.append(f'from {package} import {last}{alias}' if package else f'import {module}{alias}')
        files = [f"include '{file}'" for file in included]
        return '\n'.join([_HEAD, *imports, '', *files, '', *self._lines, ''])

    def _text(self, value: Any, what: str) -> str:
        """Returns a value as gin writes it; `what` it is, for an error."""
        if isinstance(value, _LITERALS):
            return repr(value)
        if isinstance(value, list | tuple):
            items = ', '.join(self._text(each, what) for each in value)
            return f'[{items}]' if isinstance(value, list) else f'({items}{"," if len(value) == 1 else ""})'
        if isinstance(value, Mapping):
            items = ', '.join(f'{self._text(key, what)}: {self._text(each, what)}' for key, each in value.items())
            return f'{{{items}}}'
        if isinstance(value, functools.partial):
            given = inspect.signature(value.func).bind_partial(*value.args).arguments
            return self._scoped(value.func, {**given, **value.keywords}, what)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
            defaults = {name: each.default for name, each in inspect.signature(type(value)).parameters.items()}
            changed = {name: each for name, each in fields.items() if each is not defaults[name]}
            return f'{self._scoped(type(value), changed, what)}()'
        return f'@{self._name(value, what)}'

    def _scoped(self, function: Any, arguments: Mapping[str, Any], what: str) -> str:
        """Binds arguments in a scope of their own, and returns the reference to the function there."""
        name = self._name(function, what)
        if not arguments:
            return f'@{name}'
        self._num_scopes += 1
        scoped = f'part_{self._num_scopes}/{name}'
        for argument, value in arguments.items():
            self.bind(f'{scoped}.{argument}', value)
        return f'@{scoped}'

    def _name(self, function: Any, what: str) -> str:
        """Returns the name of a function or class in the text, and imports its module there."""
        module, name = getattr(function, '__module__', None) or 'builtins', getattr(function, '__qualname__', '')
        if module == '__main__' or getattr(importlib.import_module(module), name, None) is not function:
            raise UserTypeError(
                f'got {function!r} in {what} for several processes; need what they can import: functions and classes '
                'of a module (not of the program itself), functools.partial of them, dataclasses, and literals; or '
                "take mode='synchronous'"
            )
        last = module.rpartition('.')[2]
        alias = last if last not in self._imports.values() else f'{last}_{len(self._imports)}'
        return f'{self._imports.setdefault(module, alias)}.{name}'


def of_run(arguments: Mapping[str, Any], evaluation: Mapping[str, Any]) -> str:
    """Returns the gin file of a run in several processes; its arguments are those of `synchronous_run.of_objects`."""
    given, made = grouped(arguments), GinText()
    initial, intervals = given.get('initial', Initial()), given.get('intervals', Intervals())
    if isinstance(given['experience'].replay, Queue) and not {'intervals', 'publish_interval_steps'} & arguments.keys():
        given['intervals'] = dataclasses.replace(intervals, publish_interval_steps=1)  # data of the newest weights
    if initial.seed is not None:
        options = given.get('collect_options', CollectOptions())
        if options.seed is None:
            given['collect_options'] = dataclasses.replace(options, seed=initial.seed)
        evaluation = {'seed': initial.seed + synchronous_run.EVALUATION_SEED, **evaluation}
    made.bind('demonstrations', initial.demonstrations)
    jobs = synchronous_run.shared_arguments()
    for name, value in given.items():
        if name in ('make_environment', 'make_agent', 'experience'):
            made.bind(name, value)
        else:
            made.bind_argument(*jobs[name], value)
    for name, value in evaluation.items():
        made.bind_argument(evaluate, name, value)
    return made.text('jobs.gin')
