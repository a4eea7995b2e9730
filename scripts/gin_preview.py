"""Checks a run's configuration in a moment, for whoever starts its jobs: without TensorFlow.

The jobs check all of it again, and what is not seen here.
"""

import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

from tflearn.jobs import environment_check

from . import gin_checks, gin_config, gin_names, gin_reader, gin_usage
from .gin_names import Configurable
from .gin_outline import Outlines, Stub
from .gin_reader import Macro, Reference


def check(gin_file: pathlib.Path, flag_bindings: Sequence[str], jobs: Iterable[str]) -> None:
    """Checks names, values that are needed, and packages that are needed.

    Args:
      gin_file: the run's gin file.
      flag_bindings: gin statements that come after it.
      jobs: the modules of the run's jobs, each of which has a function of its name.

    Raises:
      ValueError: what `gin_config.configure` raises; or for an environment that is unknown, or whose extra is missing.
      ImportError: if a module that the files import needs a package that is not installed.
    """
    statements = gin_reader.read(gin_file, flag_bindings)
    outlines = Outlines()
    gin_names.import_modules(statements.imports, outlines.load)
    functions = [
        Configurable(getattr(outlines.load(module), name := module.rpartition('.')[2]), module, name) for module in jobs
    ]
    roots = gin_config.jobs_of(functions[0], statements.imports, outlines.load)
    bounds, mistakes = gin_usage.resolve(statements, roots, outlines.load)
    if any(_is_opaque(item) for bound in bounds for item in (bound.target, *bound.references.values())):
        return  # Two names may be one thing, which importing alone can show.
    usage = gin_usage.reach(bounds, roots)
    gin_checks.check_names(bounds, mistakes, usage, roots, statements.imports, outlines.load)
    final = gin_usage.final(bounds, roots)
    for function in functions:
        gin_checks.check_required(function, gin_checks.GIVEN_BY_PROGRAMS, final, gin_file)
    # A module of the run's own may register environments when it is imported.
    registers = any(item.module.partition('.')[0] != 'tflearn' for item in statements.imports)
    for function in gin_usage.reach(final, roots).configurables:
        values = _values(function, final)
        environment_check.check(function.full_name, {**values, 'name': None} if registers else values)


def _is_opaque(item: Configurable | None) -> bool:
    return item is not None and isinstance(item.function, Stub) and item.function.is_opaque


def _values(function: Configurable, bounds: Iterable[gin_usage.Bound]) -> dict[str, Any]:
    """Returns what is bound to the parameters of `function`: plain values; None for what gin has yet to evaluate."""
    values = {}
    for bound in bounds:
        if bound.target == function:
            plain = not isinstance(bound.binding.value, Macro | Reference) and not bound.binding.scope
            values[bound.binding.parameter] = bound.binding.value if plain else None
    return values
