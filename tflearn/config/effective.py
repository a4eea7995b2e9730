"""The effective bindings of a run as plain values, which another process can be sent."""

from collections.abc import Sequence
from typing import Any

from tflearn.config.going_on import CONDITIONS, Effective
from tflearn.config.names import Configurable
from tflearn.config.reader import Binding, Reference, join_scope, macros, resolved


def of(bindings: Sequence[Binding]) -> Effective:
    """Returns what `checks.final` returns as plain values."""
    return Effective(_conditions(bindings), _values(bindings))


def _conditions(bindings: Sequence[Binding]) -> dict[str, float | None]:
    """Returns the stop conditions that are bound to numbers; of several with one name the least."""
    found: dict[str, float | None] = {}
    defined = macros(bindings)
    for binding in bindings:
        if (name := _condition(binding)) is not None:
            value = resolved(binding.value, defined)
            if isinstance(value, int | float):
                found[name] = min(value, found.get(name) or value)
    return found


def _condition(binding: Binding) -> str | None:
    """Returns the name of the stop condition that is bound; None if it is another setting."""
    if not binding.target:
        return None
    origin, parameter = _origin(binding.target), binding.parameter
    names = (name for name, owners in CONDITIONS.items() if name.rpartition('.')[2] == parameter and origin in owners)
    return next(names, None)


def _values(bindings: Sequence[Binding]) -> dict[str, str]:
    defined = macros(bindings)
    return {
        join_scope(binding.scope, f'{_origin(binding.target)}.{binding.parameter}'): _shown(
            resolved(binding.value, defined)
        )
        for binding in bindings
        if binding.target
    }


def _shown(value: Any) -> str:
    if isinstance(value, Reference) and value.target:
        name = join_scope(value.scope, _origin(value.target))
        return f'@{name}{"()" if value.evaluate else ""}'
    return repr(value)


def _origin(target: Configurable) -> str:
    """Returns the name of a function with the last part of the module that it is written in."""
    function = target.function
    return f'{str(function.__module__).rpartition(".")[2]}.{getattr(function, "__name__", target.attribute)}'
