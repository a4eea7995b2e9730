"""Configures a job from its run's gin file, strictly: what is misspelt, unused or missing is an error that names it.

One file serves every job of a run. All names are looked up here, before gin sees them: gin knows neither which bindings
a run uses nor, on the command line, what the files import.
"""

import contextlib
import dataclasses
import importlib
import pathlib
import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import gin
from tflearn.config import checks, names, reader, usage
from tflearn.config.names import Configurable
from tflearn.config.reader import Import, Reference, join_scope
from tflearn.config.usage import Bound
from tflearn.errors import UserValueError

# By a job's argument: another job, and the name of its argument.
Taken = Mapping[str, tuple[Callable[..., None], str]]


@dataclasses.dataclass(frozen=True)
class ConfiguredJob:
    """A job whose arguments are all there.

    Attributes:
      job: the job's function.
      arguments: what its program gives it.
      bounds: the run's bindings.
      text: what counts in the run's configuration, in gin's own order; as a gin file it configures the same run.
    """

    job: Configurable
    arguments: Mapping[str, Any]
    bounds: Sequence[Bound]
    text: str

    def run(self) -> None:
        """Runs the job.

        Raises:
          UserValueError: if nothing gives an argument of the job, or of a function that is bound in it, its value.
        """
        with _gin_errors_are_the_users():
            gin.get_configurable(self.job.function)(**self.arguments)

    def texts(self) -> dict[str, str]:
        """What TensorBoard shows of the configuration: all of it, what was used until now, and what was not."""
        unused = ''.join(f'* {binding}\n' for binding in self.inoperative())
        return {
            'gin/config': _verbatim(self.text),
            'gin/operative': _verbatim(operative_text()),
            'gin/inoperative': unused or 'none',
        }

    def inoperative(self) -> list[str]:
        """The bindings that this job might have used and has not used until now, as they were written."""
        used, _ = usage.resolve(reader.read_text(operative_text()), [])
        operative = usage.Usage()
        parameters = set()
        for bound in used:
            if bound.target:
                operative.configurables.setdefault(bound.target, set()).add(bound.binding.scope)
                parameters.add((bound.target, bound.binding.parameter))
        mine = usage.reach(self.bounds, [self.job])
        return [
            f'{bound.binding.written} ({bound.binding.place})'
            for bound in self.bounds
            if bound.target in mine.configurables
            and not (operative.uses(bound) and (bound.target, bound.binding.parameter) in parameters)
        ]


def configure(
    job: Callable[..., None],
    arguments: Mapping[str, Any],
    gin_file: pathlib.Path,
    flag_bindings: Sequence[str] = (),
    takes: Taken | None = None,
) -> ConfiguredJob:
    """Binds a job's arguments from the run's gin file and the command line. Forgets what was configured before.

    Args:
      job: the job's function. The run's other jobs are those beside it: functions that have their module's name, in
        modules of the same package that the files import.
      arguments: what the job's program gives it.
      gin_file: the run's gin file.
      flag_bindings: gin statements that come after the file.
      takes: arguments of the job that other jobs have too, under that name or another: what is bound there holds here.

    Raises:
      ValueError: for anything in file or flags that is not gin, that stands for nothing, that nothing uses, or that is
        missing; it says where, and what the nearest valid name is.
      ImportError: if an imported module needs a package that is not installed.
    """
    gin.clear_config()  # at once: a locked configuration lets no module register what it has
    statements = reader.read(gin_file, flag_bindings)
    names.import_modules(statements.imports)
    this = Configurable(job, job.__module__, job.__qualname__)
    jobs = jobs_of(this, statements.imports)
    bounds, mistakes = usage.resolve(statements, jobs)
    checks.check_names(bounds, mistakes, usage.reach(bounds, jobs), jobs, statements.imports)
    bounds = usage.with_taken(bounds, this, _sources(takes or {}))
    final = usage.final(bounds, jobs)
    checks.check_required(this, arguments.keys(), final, gin_file)

    with _gin_errors_are_the_users():
        gin.external_configurable(job, module=job.__module__)
        gin.parse_config(_gin_text(final))
        gin.finalize()
    return ConfiguredJob(this, arguments, bounds, gin.config_str())


def operative_text() -> str:
    """What configured functions have used until now, defaults included."""
    return gin.operative_config_str()


@contextlib.contextmanager
def _gin_errors_are_the_users() -> Iterator[None]:
    """Raises a UserValueError where gin itself failed: a value is missing, or cannot be bound."""
    try:
        yield
    except (TypeError, ValueError) as error:
        *_, (frame, _) = traceback.walk_tb(error.__traceback__)
        if str(frame.f_globals.get('__name__')).partition('.')[0] != 'gin':
            raise
        raise UserValueError(plain_message(error)) from error


def _verbatim(text: str) -> str:
    return ''.join(f'    {line}\n' for line in text.splitlines())  # as markdown has it


def plain_message(error: BaseException) -> str:
    """The message of an error that passed through gin, without what gin appends to it, in one line."""
    text = str(error)
    for appended in ('\n  No values supplied by Gin', '\n  In call to configurable'):
        text = text.partition(appended)[0]
    text = ' '.join(text.split())
    if isinstance(error, TypeError) and re.search(r'missing \d+ required', text):
        return f'got {text}; need values for these: bind them in the gin file or with --gin_bindings'
    return text


def jobs_of(
    this: Configurable, imports: Iterable[Import], load: names.Load = importlib.import_module
) -> list[Configurable]:
    """The functions that the programs of the run call: `this` first. `load`: see `names.import_modules`."""
    package = this.module.rpartition('.')[0]
    modules = sorted({item.module for item in imports if package and item.module.rpartition('.')[0] == package})
    functions = {module: getattr(load(module), module.rpartition('.')[2], None) for module in modules}
    others = [Configurable(function, module, function.__name__) for module, function in functions.items() if function]
    return list(dict.fromkeys([this, *others]))


def _sources(takes: Taken) -> dict[str, tuple[Configurable, str]]:
    return {
        name: (Configurable(job, job.__module__, job.__qualname__), parameter)
        for name, (job, parameter) in takes.items()
    }


def _gin_text(bounds: Sequence[Bound]) -> str:
    """The bindings in one text for gin, every name under an import of its own."""
    names: dict[str, str] = {}
    imports = ['from __gin__ import dynamic_registration']

    def selector(configurable: Configurable) -> str:
        if configurable.module not in names:
            package, _, name = configurable.module.rpartition('.')
            unique = name
            while unique in names.values() or unique == 'gin':
                unique += '_'
            names[configurable.module] = unique
            start = f'from {package} import {name}' if package else f'import {name}'
            imports.append(start if unique == name else f'{start} as {unique}')
        return f'{names[configurable.module]}.{configurable.attribute}'

    def renamed(value: Any, references: Mapping[Reference, Configurable]) -> Any:
        if isinstance(value, Reference):
            return dataclasses.replace(value, selector=selector(references[value]))
        if isinstance(value, dict):
            return {renamed(key, references): renamed(item, references) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return type(value)(renamed(item, references) for item in value)
        return value

    bindings = []
    for bound in bounds:
        name = bound.binding.written
        if bound.target:
            name = join_scope(bound.binding.scope, f'{selector(bound.target)}.{bound.binding.parameter}')
        bindings.append(f'{name} = {renamed(bound.binding.value, bound.references)!r}')
    return '\n'.join([*imports, *bindings])
