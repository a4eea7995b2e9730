"""Configures a job from its run's gin file.
What is misspelt, unused or missing is an error that names it.

One file serves every job of a run. All names are looked up before gin reads them: gin knows neither
which bindings a run uses nor, on the command line, what the files import.
"""

import contextlib
import dataclasses
import difflib
import importlib
import json
import pathlib
import re
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from absl import logging

import gin
from tflearn.config import checks, effective, names, reader
from tflearn.config.going_on import Effective
from tflearn.config.names import Configurable
from tflearn.config.reader import Binding, Reference, join_scope
from tflearn.core.errors import UserValueError
from tflearn.files.numbered import Numbered
from tflearn.files.run_dir import RunDir, write_atomically

# Calls of gin within each other: settings of settings take some dozens.
_MANY_CALLS = 100

# By a job's argument: 'job.argument' of another job of the same package.
SharedArguments = Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class ConfiguredJob:
    """A job with all its arguments.

    Attributes:
      text: the effective bindings, which configure the same run as a gin file.
      effective: the same as plain values.
    """

    job: Configurable
    arguments: Mapping[str, Any]
    bindings: Sequence[Binding]
    text: str
    effective: Effective

    def run(self) -> Any:
        """Runs the job, and returns what it returns.

        Raises:
          UserValueError: if an argument of the job, or of a function that is bound in it, has no
            value.
        """
        with _gin_errors_as_user_errors():
            return gin.get_configurable(self.job.function)(**self.arguments)

    def texts(self) -> dict[str, str]:
        """Returns the texts for TensorBoard: all of the configuration, what was used so far,
        and what was not.
        """
        unused = ''.join(f'* {binding}\n' for binding in self.inoperative())
        return {
            'gin/config': _verbatim(self.text),
            'gin/operative': _verbatim(operative_text()),
            'gin/inoperative': unused or 'none',
        }

    def inoperative(self) -> list[str]:
        """Returns the bindings that this job could use and has not used so far,
        as they were written.
        """
        used = reader.read(None, [operative_text()])
        names.resolve(used, [])
        usage = {(item.target, item.parameter, item.scope) for item in used.bindings}
        mine = checks.reach(self.bindings, [self.job])
        return [
            f'{binding.written} ({binding.place})'
            for binding in self.bindings
            if binding.target in mine
            and not any(
                (binding.target, binding.parameter) == used[:2] and checks.covers(binding.scope, used[2])
                for used in usage
            )
        ]


def configure(
    job: Callable[..., Any],
    arguments: Mapping[str, Any],
    gin_file: pathlib.Path,
    flag_bindings: Sequence[str] = (),
    shared_arguments: SharedArguments | None = None,
) -> ConfiguredJob:
    """Binds a job's arguments from the run's gin file and the command line.
    Forgets what was configured before.

    Args:
      shared_arguments: the arguments of the job that get their values from bindings of other jobs.

    Raises:
      ValueError: for what is not gin, does not exist, is not used or is missing; the message names
        the place and the nearest valid name.
      ImportError: if an imported module needs a package that is not installed.
    """
    gin.clear_config()  # First: a locked configuration lets no module register its functions.
    this = Configurable(job, job.__module__, job.__qualname__)
    statements, jobs = checks.read_run(gin_file, flag_bindings, this)
    package = job.__module__.rpartition('.')[0]
    shared_names = {
        f'{package}.{other.partition(".")[0]}.{other}': name for name, other in (shared_arguments or {}).items()
    }
    bindings = []
    for binding in statements.bindings:
        bindings.append(binding)
        name = binding.target and shared_names.get(f'{binding.target.full_name}.{binding.parameter}')
        if name and not binding.scope:
            bindings.append(dataclasses.replace(binding, target=this, parameter=name))
    final = checks.final(bindings, jobs)
    checks.check_required(this, arguments.keys(), final, gin_file)
    found = effective.of(final)  # before references get the names that gin knows
    with _gin_errors_as_user_errors():
        gin.external_configurable(job, module=job.__module__)
        gin.parse_config(_gin_text(final))
        gin.finalize()
    return ConfiguredJob(this, arguments, bindings, gin.config_str(), found)


def check(
    gin_file: pathlib.Path,
    flag_bindings: Sequence[str],
    jobs: Sequence[str],
    check_factory: Callable[[str, Mapping[str, Any]], None] = lambda *_: None,
) -> Effective:
    """Checks a run's names, values and packages for several jobs; returns its effective bindings.

    Args:
      jobs: the modules of the run's jobs, each of which has a function of its name.
      check_factory: checks a function that the run uses, by its full name and the values bound to
        its arguments; a value is None if only gin can evaluate it.

    Raises:
      ValueError, ImportError: what `configure` raises; or what `check_factory` raises.
    """
    gin.clear_config()
    functions = [_function_of(job) for job in jobs]
    statements, roots = checks.read_run(gin_file, flag_bindings, functions[0])
    final = checks.final(statements.bindings, roots)
    for function in functions:
        checks.check_required(function, checks.GIVEN_BY_PROGRAMS, final, gin_file)
    for item in checks.reach(final, roots):
        if isinstance(item, Configurable):
            values = {bound.parameter: _plain_value(bound) for bound in final if bound.target == item}
            check_factory(item.full_name, values)
    read = {str(path): text for path, text in statements.files.items()}
    return dataclasses.replace(effective.of(final), files=read)


def _function_of(job: str) -> Configurable:
    name = job.rpartition('.')[2]
    return Configurable(getattr(importlib.import_module(job), name), job, name)


def _plain_value(binding: Binding) -> Any:
    """Returns the value of a binding if it is the same in all scopes and gin need not evaluate it."""
    return None if binding.scope or isinstance(binding.value, reader.Macro | Reference) else binding.value


def operative_text() -> str:
    """Returns what configured functions have used so far, defaults included."""
    return gin.operative_config_str()


def plain_message(error: BaseException) -> str:
    """Returns the message of an error in one line, without what gin appends to it."""
    text = re.split(r'\n  (No values supplied by Gin|In call to configurable)', str(error))[0]
    text = ' '.join(text.split())
    if isinstance(error, TypeError) and re.search(r'missing \d+ required', text):
        return f'got {text}; need values for these: bind them in the gin file or with --gin_bindings'
    return text


@contextlib.contextmanager
def _gin_errors_as_user_errors() -> Iterator[None]:
    """Turns an error of gin itself into a UserValueError: a value is missing, cannot be bound,
    or needs itself.
    """
    try:
        yield
    except (TypeError, ValueError) as error:
        if not _in_gin(error)[-1]:
            raise
        raise UserValueError(plain_message(error)) from error
    except RecursionError as error:
        if sum(_in_gin(error)) < _MANY_CALLS:
            raise
        raise UserValueError(
            'got bindings that refer to each other in a circle, such as x = %x or f.x = @f(); need values; run '
            'with fewer --gin_bindings to find them'
        ) from error


def _in_gin(error: BaseException) -> list[bool]:
    """Returns which calls that led to an error are gin's own."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return [str(frame.f_globals.get('__name__')).partition('.')[0] == 'gin' for frame in frames]


def _verbatim(text: str) -> str:
    return ''.join(f'    {line}\n' for line in text.splitlines())  # as Markdown has it


def _gin_text(bindings: Sequence[Binding]) -> str:
    """Returns the bindings in one text for gin,
    with an import for each module under a name of its own.
    """
    modules: dict[str, str] = {}

    def selector(item: Configurable) -> str:
        name = item.module.rpartition('.')[2]
        while name == 'gin' or modules.setdefault(name, item.module) != item.module:
            name += '_'
        return f'{name}.{item.attribute}'

    statements = []
    for binding in bindings:
        for leaf in reader.leaves(binding.value):
            if isinstance(leaf, Reference):
                leaf.selector = selector(leaf.target)
        name = f'{selector(binding.target)}.{binding.parameter}' if binding.target else binding.selector
        statements.append(f'{join_scope(binding.scope, name)} = {binding.value!r}')
    imports = [reader.import_text(module, name) for name, module in modules.items()]
    return '\n'.join(['from __gin__ import dynamic_registration', *imports, *statements])


def save(run_dir: RunDir, configured: ConfiguredJob) -> None:
    """Writes config.gin, and the same settings by name as config_values.json.

    An older config.gin that differs is kept as config-1.gin, config-2.gin, ..., and the difference
    is logged.

    A finished run keeps its configuration.

    Raises:
      ValueError: if the old one cannot be read.
    """
    path, text = run_dir.config, configured.text
    try:
        old = path.read_text(encoding='utf-8') if path.exists() else None
    except (OSError, UnicodeDecodeError) as error:
        raise UserValueError(f'got {path}, which cannot be read ({error}); need a text file; remove it') from error
    if old == text or run_dir.done.exists():
        return
    if old is not None:
        kept = Numbered(path.parent, f'{path.stem}-{{}}{path.suffix}').next_path()
        write_atomically(kept, old)
        lines = difflib.unified_diff(old.splitlines(), text.splitlines(), kept.name, path.name, lineterm='', n=0)
        logging.info('continues with another configuration than before:\n%s', '\n'.join(lines))
    write_atomically(run_dir.config_values, json.dumps(dict(configured.effective.values), indent=1))
    write_atomically(path, text)
