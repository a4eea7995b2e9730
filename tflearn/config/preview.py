"""Checks a run's configuration in a moment, for whoever starts its jobs: without TensorFlow.

The jobs check all of it again, and what is not seen here.
"""

import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tflearn.config import checks, job_config, names, reader, usage
from tflearn.config.names import Configurable
from tflearn.config.outline import Outlines, Stub
from tflearn.config.reader import Macro, Reference


def check(
    gin_file: pathlib.Path,
    flag_bindings: Sequence[str],
    jobs: Iterable[str],
    check_factory: Callable[[str, Mapping[str, Any]], None] = lambda *_: None,
) -> None:
    """Checks names, values that are needed, and packages that are needed.

    Args:
      gin_file: the run's gin file.
      flag_bindings: gin statements that come after it.
      jobs: the modules of the run's jobs, each of which has a function of its name.
      check_factory: checks a function that the run uses, by its full name and the values bound to its arguments.

    Raises:
      ValueError: what `job_config.configure` raises; or what `check_factory` raises.
      ImportError: if a module that the files import needs a package that is not installed.
    """
    statements = reader.read(gin_file, flag_bindings)
    outlines = Outlines()
    names.import_modules(statements.imports, outlines.load)
    functions = [
        Configurable(getattr(outlines.load(module), name := module.rpartition('.')[2]), module, name) for module in jobs
    ]
    roots = job_config.jobs_of(functions[0], statements.imports, outlines.load)
    bounds, mistakes = usage.resolve(statements, roots, outlines.load)
    if any(_is_opaque(item) for bound in bounds for item in (bound.target, *bound.references.values())):
        return  # Two names may be one thing, which importing alone can show.
    reached = usage.reach(bounds, roots)
    checks.check_names(bounds, mistakes, reached, roots, statements.imports, outlines.load)
    final = usage.final(bounds, roots)
    for function in functions:
        checks.check_required(function, checks.GIVEN_BY_PROGRAMS, final, gin_file)
    # A module of the run's own may register environments when it is imported.
    registers = any(item.module.partition('.')[0] != 'tflearn' for item in statements.imports)
    for function in usage.reach(final, roots).configurables:
        values = _values(function, final)
        check_factory(function.full_name, {**values, 'name': None} if registers else values)


def _is_opaque(item: Configurable | None) -> bool:
    return item is not None and isinstance(item.function, Stub) and item.function.is_opaque


def _values(function: Configurable, bounds: Iterable[usage.Bound]) -> dict[str, Any]:
    """Returns what is bound to the parameters of `function`: plain values; None for what gin has yet to evaluate."""
    values = {}
    for bound in bounds:
        if bound.target == function:
            plain = not isinstance(bound.binding.value, Macro | Reference) and not bound.binding.scope
            values[bound.binding.parameter] = bound.binding.value if plain else None
    return values
