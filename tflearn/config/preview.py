"""Checks a run's configuration without TensorFlow, before its jobs start.

The jobs check all of it again, and what cannot be checked here.
"""

import contextlib
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tflearn.config import checks
from tflearn.config.names import Configurable, UnclearNameError
from tflearn.config.outline import Outlines
from tflearn.config.reader import Binding, Macro, Reference


def check(
    gin_file: pathlib.Path,
    flag_bindings: Sequence[str],
    jobs: Iterable[str],
    check_factory: Callable[[str, Mapping[str, Any]], None] = lambda *_: None,
) -> None:
    """Checks names, required values and required packages.

    Args:
      jobs: the modules of the run's jobs, each of which has a function of its name.
      check_factory: checks a function that the run uses, by its full name and the values bound to its arguments; a
        value is None if only gin can evaluate it, or if a module of the run may register more names.

    Raises:
      ValueError: what `job_config.configure` raises; or what `check_factory` raises.
      ImportError: if a module that the files import needs a package that is not installed.
    """
    load = Outlines().load
    functions = [
        Configurable(getattr(load(module), name := module.rpartition('.')[2]), module, name) for module in jobs
    ]
    with contextlib.suppress(UnclearNameError):  # The jobs will check it.
        statements, roots = checks.read_run(gin_file, flag_bindings, functions[0], load)
        final = checks.final(statements.bindings, roots)
        for function in functions:
            checks.check_required(function, checks.GIVEN_BY_PROGRAMS, final, gin_file)
        registers = any(item.module.partition('.')[0] != 'tflearn' for item in statements.imports)
        for item in checks.reach(final, roots):
            if isinstance(item, Configurable):
                values = {bound.parameter: _plain_value(bound) for bound in final if bound.target == item}
                check_factory(item.full_name, {**values, 'name': None} if registers else values)


def effective(gin_file: pathlib.Path, flag_bindings: Sequence[str], job: str) -> list[Binding]:
    """Returns the effective bindings of a run, see `checks.final`.

    Args:
      job: the full name of the module of one of the run's jobs.

    Raises:
      UnclearNameError: if only an import of its modules shows whether its names exist.
      ValueError, ImportError: see `check`.
    """
    name = job.rpartition('.')[2]
    load = Outlines().load
    statements, roots = checks.read_run(
        gin_file, flag_bindings, Configurable(getattr(load(job), name), job, name), load
    )
    return checks.final(statements.bindings, roots)


def _plain_value(binding: Binding) -> Any:
    """Returns the value of a binding if it is the same in all scopes and gin need not evaluate it."""
    return None if binding.scope or isinstance(binding.value, Macro | Reference) else binding.value
