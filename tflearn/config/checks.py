"""Checks of gin files: every name exists, every binding is used, every required value is bound."""

import cmath
import dataclasses
import importlib
import inspect
import pathlib
import types
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from tflearn.config import names, reader
from tflearn.config.names import Configurable, nearest
from tflearn.config.reader import FLAG, Binding, Macro, Reference, join_scope, leaves
from tflearn.core import settings
from tflearn.core.errors import UserValueError

# Arguments of the jobs that their programs set; a binding of one would have no effect.
GIVEN_BY_PROGRAMS = frozenset({'run'})

# Types of which a binding's value can be.
_PLAIN = (int, float, str, bool, types.NoneType)

# gin's way to say in a file that a value must be bound elsewhere.
_REQUIRED = Macro('gin.REQUIRED')

# For each function, and each macro by name: the gin scopes in which the run may use it.
Usage = dict[Configurable | str, set[str]]


def read_run(
    gin_file: pathlib.Path, flag_bindings: Sequence[str], job: Configurable
) -> tuple[reader.Statements, list[Configurable]]:
    """Reads a run's configuration, looks up its names,
    and checks that all of them exist and are used.

    Args:
      job: a job of the run. The other jobs are the functions with their module's name in those
        modules of the same package that the files import.

    Returns:
      The statements, with their names looked up, and the jobs.

    Raises:
      ValueError: naming the first binding that is wrong, its place and the nearest valid name.
      ImportError: if an imported module needs a package that is not installed.
    """
    statements = reader.read(gin_file, flag_bindings)
    names.import_modules(statements.imports)
    jobs = _jobs(job, statements.imports)
    mistakes = names.resolve(statements, jobs)
    bindings = statements.bindings
    usage = reach(bindings, jobs)
    for written, place, why in mistakes:
        functions = [item.name for item in usage if isinstance(item, Configurable)]
        functions += names.callables(statements.imports)
        valid = [f'@{name}' for name in functions] if written.startswith('@') else _names(usage, jobs, place)
        raise UserValueError(_misspelt(written, place, why, valid))
    macros = {binding.written for binding in bindings if not binding.parameter}
    for binding in bindings:
        _check_macros(binding, macros)
        _check_finite(binding, binding.value)
        if binding.parameter:
            _check_parameter(binding, usage, jobs)
    for binding in bindings:
        if not _is_used(binding, usage):
            raise UserValueError(_unused(binding, usage, jobs))
    return statements, jobs


def final(bindings: Iterable[Binding], jobs: Iterable[Configurable]) -> list[Binding]:
    """Returns the effective bindings: the last one for each parameter,
    and only those that `jobs` reach.
    """
    last = {(binding.owner, binding.scope, binding.parameter): binding for binding in bindings}
    usage = reach(list(last.values()), jobs)
    return [binding for binding in last.values() if _is_used(binding, usage)]


def reach(bindings: Sequence[Binding], jobs: Iterable[Configurable]) -> Usage:
    """Follows references and macros from `jobs`.

    A binding that a later one overrides counts too: a user who replaces a schedule by a number need
    not remove the schedule's bindings.
    """
    usage: Usage = {}
    todo: list[tuple[Configurable | str, str]] = [(job, '') for job in jobs]
    while todo:
        item, scope = todo.pop()
        if scope in usage.setdefault(item, set()):
            continue
        usage[item].add(scope)
        for binding in bindings:
            if binding.owner == item and covers(binding.scope, scope):
                todo += _used_by(binding.value, scope)
    return usage


def _used_by(value: Any, scope: str) -> Iterator[tuple[Configurable | str, str]]:
    """Yields the functions and macros that a value uses in a scope,
    each with the scope of its own bindings.
    """
    for leaf in leaves(value):
        if isinstance(leaf, Macro):
            yield leaf.name, leaf.name  # gin evaluates a macro in a scope of its own name.
        elif leaf.target:
            yield leaf.target, leaf.scope or scope
            if not leaf.scope and not leaf.evaluate:
                yield leaf.target, ''  # It is called later, in any scope.


def covers(binding_scope: str, scope: str) -> bool:
    """Returns whether a binding in `binding_scope` holds for calls in `scope`."""
    return not binding_scope or f'{scope}/'.startswith(f'{binding_scope}/')


def check_required(
    job: Configurable, given: Collection[str], bindings: Sequence[Binding], gin_file: pathlib.Path
) -> None:
    """Checks that every argument without a default, of `job` and of what it calls, is bound,
    and not to %gin.REQUIRED.

    Args:
      given: the arguments that the program sets.

    Raises:
      ValueError: naming what is missing.
    """
    missing = [binding.written for binding in bindings if binding.value == _REQUIRED]
    for function, name in {job: job.name, **_called(bindings, job)}.items():
        bound = {binding.parameter for binding in bindings if binding.target == function}
        bound.update(given if function == job else ())
        missing += [f'{name}.{parameter}' for parameter in _required(function) if parameter not in bound]
    if missing:
        raise UserValueError(
            f"got no value for {missing[0]} in {gin_file}; need one: bind it there or with {FLAG}='{missing[0]}=...'"
        )


def _called(bindings: Sequence[Binding], job: Configurable) -> dict[Configurable, str]:
    """Returns what a job calls for its arguments, and how that is written."""
    used = reach(bindings, [job])
    mine = (binding.value for binding in bindings if binding.owner in used)
    found = [leaf for value in mine for leaf in leaves(value) if isinstance(leaf, Reference)]
    return {leaf.target: leaf.selector for leaf in found if leaf.evaluate}


def _required(function: Configurable) -> list[str]:
    """Returns the parameters that have no default."""
    return [
        name
        for name, parameter in function.parameters.items()
        if parameter.default is inspect.Parameter.empty and parameter.kind != parameter.VAR_KEYWORD
    ]


def _jobs(job: Configurable, imports: Iterable[reader.Import]) -> list[Configurable]:
    package = job.module.rpartition('.')[0]
    modules = sorted({item.module for item in imports if package and item.module.rpartition('.')[0] == package})
    functions = {
        module: getattr(importlib.import_module(module), module.rpartition('.')[2], None) for module in modules
    }
    others = [Configurable(function, module, function.__name__) for module, function in functions.items() if function]
    return list(dict.fromkeys([job, *others]))


def _check_macros(binding: Binding, defined: Collection[str]) -> None:
    for leaf in leaves(binding.value):
        if isinstance(leaf, Macro) and leaf != _REQUIRED and leaf.name not in defined:
            there_are = f' (there is %{nearest(leaf.name, defined)})' if defined else ''
            raise UserValueError(
                f'got {leaf} in {binding.place}, but nothing defines this macro{there_are}; need a line '
                f'{leaf.name} = ... in one of the files of the run'
            )


def _check_finite(binding: Binding, value: Any) -> None:
    """Raises ValueError for 1e999: gin reads it, but writes inf, which it could not read again."""
    if isinstance(value, dict | list | tuple):
        for item in [*value, *value.values()] if isinstance(value, dict) else value:
            _check_finite(binding, item)
    elif isinstance(value, float | complex) and not cmath.isfinite(value):
        raise UserValueError(f'got {binding.written} = {binding.value!r} in {binding.place}; need finite numbers')


def _check_parameter(binding: Binding, usage: Usage, jobs: Collection[Configurable]) -> None:
    target, written, place = binding.target, binding.written, binding.place
    if not target.takes(binding.parameter):
        why = f'{target.name} has no parameter {binding.parameter!r}'
        raise UserValueError(_misspelt(written, place, why, _names(usage, jobs, place)))
    if target in jobs and binding.parameter in GIVEN_BY_PROGRAMS:
        raise UserValueError(
            f'got {written} in {place}, which the job gets from its program; need it as a flag (see --help); remove '
            'the binding'
        )
    if needed := _wrong_type(target.parameters.get(binding.parameter), binding.value):
        raise UserValueError(f'got {written} = {binding.value!r} in {place}; need {needed}')


def _wrong_type(parameter: inspect.Parameter | None, value: object) -> str | None:
    """Returns what a parameter needs of numbers, strings, booleans, functions or settings,
    if it is bound to another.

    Functions check their other parameters. An integer is accepted for a float.
    """
    if parameter is None or isinstance(value, Macro):
        return None
    rule = settings.Rule(parameter.annotation)
    if rule and not isinstance(value, Reference):
        return rule.needs(parameter.name) if rule.error(parameter.name, value) else None
    kinds = [kind for kind, _ in settings.parts(parameter.annotation)]
    others = [kind for kind in kinds if kind not in _PLAIN]
    if any(not (settings.is_function(kind) or dataclasses.is_dataclass(kind)) for kind in others):
        return None
    if isinstance(value, Reference):
        is_wrong = not value.evaluate and others and not any(map(settings.is_function, others))
    else:
        is_wrong = type(value) not in {*kinds, *([int] if float in kinds else [])}
    return ' or '.join(map(_needed, kinds)) if is_wrong else None


def _needed(kind: Any) -> str:
    if settings.is_function(kind):
        return 'a function, such as @module.function'
    return f'@{kind.__name__}()' if dataclasses.is_dataclass(kind) else kind.__name__.removesuffix('Type')


def _is_used(binding: Binding, usage: Usage) -> bool:
    return any(covers(binding.scope, scope) for scope in usage.get(binding.owner, ()))


def _unused(binding: Binding, usage: Usage, jobs: Collection[Configurable]) -> str:
    if binding.target is None:
        why = 'nothing uses a macro of this name'
    elif binding.target in usage:
        why = f'nothing uses {binding.target.name} in the scope {binding.scope!r}'
    else:
        name = binding.target.name
        why = f'no job of this run uses {name} (bind a parameter that takes it to @{name}())'
    macros = [item for item in usage if isinstance(item, str)]
    return (
        f'got {binding.written} in {binding.place}, but {why}; need a binding that is used: the nearest is '
        f'{nearest(binding.written, [*_names(usage, jobs, binding.place), *macros])}; correct or remove it'
    )


def _misspelt(written: str, place: str, why: str, valid: Iterable[str]) -> str:
    near = nearest(written, valid)
    advice = '' if near == written else f': the nearest is {near}'
    return f'got {written} in {place}, but {why}; need a valid name{advice}'


def _names(usage: Usage, jobs: Collection[Configurable], place: str) -> list[str]:
    """Returns what can be bound in this run, as it would be written in `place`."""
    return [
        join_scope(scope, f'{function}.{parameter}')
        for item, scopes in usage.items()
        if isinstance(item, Configurable)
        for scope in {'', *scopes} - {macro for macro in usage if isinstance(macro, str)}
        for function in [item.name, *([item.attribute] if place == FLAG else [])]
        for parameter in item.parameters.keys() - (GIVEN_BY_PROGRAMS if item in jobs else ())
    ]
