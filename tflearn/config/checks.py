"""The strictness of gin files: every name stands for something, every binding is used, every needed value is there."""

import importlib
import inspect
import pathlib
import types
import typing
from collections.abc import Collection, Iterable, Sequence

from tflearn.config import names
from tflearn.config.names import Configurable, nearest
from tflearn.config.reader import FLAG, Binding, Import, Macro, Reference, join_scope, leaves
from tflearn.config.usage import Bound, Mistake, Usage
from tflearn.errors import UserValueError

# Arguments of the jobs that their programs give them; binding these would do nothing.
GIVEN_BY_PROGRAMS = frozenset(
    {'run_dir', 'replay_address', 'connect_timeout_secs', 'stop', 'name', 'on_restored', 'describe'}
)

# gin's way to say in a file that a value must be bound elsewhere.
_REQUIRED = Macro('gin.REQUIRED')


def check_names(
    bounds: Sequence[Bound],
    mistakes: Sequence[Mistake],
    usage: Usage,
    jobs: Collection[Configurable],
    imports: Sequence[Import],
    load: names.Load = importlib.import_module,
) -> None:
    """Checks that all names stand for something, that values are of the right kind, and that all bindings are used.

    Args:
      bounds: the run's bindings.
      mistakes: those names in them that stand for nothing.
      usage: what the run's jobs reach.
      jobs: the run's jobs.
      imports: the run's imports.
      load: see `names.import_modules`.

    Raises:
      ValueError: naming the first binding that is wrong, its place and the nearest valid name.
    """
    macros = {bound.binding.written for bound in bounds if not bound.binding.parameter}
    for mistake in mistakes:
        valid = (
            [f'@{name}' for name in _functions(usage, imports, load)]
            if mistake.in_value
            else _names(usage, jobs, mistake.place)
        )
        raise UserValueError(_misspelt(mistake.written, mistake.place, mistake.why, valid))
    for bound in bounds:
        _check_macros(bound.binding, macros)
        if bound.target:
            _check_parameter(bound.target, bound.binding, usage, jobs)
    for bound in bounds:
        if not usage.uses(bound):
            _raise_unused(bound, usage, jobs)


def check_required(job: Configurable, given: Collection[str], bounds: Sequence[Bound], gin_file: pathlib.Path) -> None:
    """Checks that every argument of `job` that has no default is bound, and that nothing is left at %gin.REQUIRED.

    Args:
      job: the job at hand.
      given: arguments that the program gives.
      bounds: the bindings that count.
      gin_file: where the user may bind what is missing.

    Raises:
      ValueError: naming what is missing.
    """
    missing = [bound.binding.written for bound in bounds if bound.binding.value == _REQUIRED]
    bound_here = {bound.binding.parameter for bound in bounds if bound.target == job and not bound.binding.scope}
    for name, parameter in job.parameters.items():
        has_default = parameter.default is not inspect.Parameter.empty or parameter.kind == parameter.VAR_KEYWORD
        if not has_default and name not in given and name not in bound_here:
            missing.append(f'{job.name}.{name}')
    if missing:
        raise UserValueError(
            f"got no value for {missing[0]} in {gin_file}; need one: bind it there or with {FLAG}='{missing[0]}=...'"
        )


def _check_macros(binding: Binding, defined: Collection[str]) -> None:
    for leaf in leaves(binding.value):
        if isinstance(leaf, Macro) and leaf != _REQUIRED and leaf.name not in defined:
            there_are = f' (there is %{nearest(leaf.name, defined)})' if defined else ''
            raise UserValueError(
                f'got {leaf} in {binding.place}, but nothing defines this macro{there_are}; need a line '
                f'{leaf.name} = ... in one of the files of the run'
            )


def _check_parameter(target: Configurable, binding: Binding, usage: Usage, jobs: Collection[Configurable]) -> None:
    if not target.takes(binding.parameter):
        why = f'{target.name} has no parameter {binding.parameter!r}'
        raise UserValueError(_misspelt(binding.written, binding.place, why, _names(usage, jobs, binding.place)))
    if target in jobs and binding.parameter in GIVEN_BY_PROGRAMS:
        raise UserValueError(
            f'got {binding.written} in {binding.place}, which the job gets from its program; need it as a flag '
            '(see --help); remove the binding'
        )
    if needed := _other_kind(target, binding):
        raise UserValueError(f'got {binding.written} = {binding.value!r} in {binding.place}; need {needed}')


def _other_kind(target: Configurable, binding: Binding) -> str | None:
    """Says what a parameter of numbers, text or truth values needs, if it is bound to a value of another kind.

    Other parameters are for their functions to check. An integer will do for a float.
    """
    parameter = target.parameters.get(binding.parameter)
    if parameter is None or isinstance(binding.value, (Reference, Macro)):
        return None
    annotation = parameter.annotation
    is_union = typing.get_origin(annotation) in (types.UnionType, typing.Union)
    kinds = typing.get_args(annotation) if is_union else (annotation,)
    if not {int, float, str, bool, types.NoneType}.issuperset(kinds):
        return None
    accepted = {*kinds, *([int] if float in kinds else [])}
    return (
        None if type(binding.value) in accepted else ' or '.join(kind.__name__.removesuffix('Type') for kind in kinds)
    )


def _raise_unused(bound: Bound, usage: Usage, jobs: Collection[Configurable]) -> None:
    binding = bound.binding
    if bound.target is None:
        why = 'nothing uses a macro of this name'
    elif bound.target in usage.configurables:
        why = f'nothing uses {bound.target.name} in the scope {binding.scope!r}'
    else:
        why = f'no job of this run uses {bound.target.name}'
    valid = nearest(binding.written, [*_names(usage, jobs, binding.place), *usage.macros])
    raise UserValueError(
        f'got {binding.written} in {binding.place}, but {why}; need a binding that is used: the nearest is {valid}; '
        'correct or remove it'
    )


def _misspelt(written: str, place: str, why: str, valid: Iterable[str]) -> str:
    return f'got {written} in {place}, but {why}; need a valid name: the nearest is {nearest(written, valid)}'


def _names(usage: Usage, jobs: Collection[Configurable], place: str) -> list[str]:
    """What can be bound in this run, as it would be written in `place`."""
    names = []
    for configurable in usage.configurables:
        parameters = configurable.parameters.keys() - (GIVEN_BY_PROGRAMS if configurable in jobs else ())
        scopes = ['', *(scope for item, scope in usage.explicit if item == configurable)]
        functions = [configurable.name, *([configurable.attribute] if place == FLAG else [])]
        names += [
            join_scope(scope, f'{function}.{parameter}')
            for scope in scopes
            for function in functions
            for parameter in parameters
        ]
    return names


def _functions(usage: Usage, imports: Iterable[Import], load: names.Load) -> list[str]:
    """What references may name in this run."""
    return [*(configurable.name for configurable in usage.configurables), *names.callables(imports, load)]
