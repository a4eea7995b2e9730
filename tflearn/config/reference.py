"""What gin can bind: each setting with the values that it can have, its default,
its unit and what it is.

Settings are the arguments of the jobs and of the factories that gin hands to them, and the fields
of the dataclasses among these. They are read from the modules themselves, which loads TensorFlow.
What packaged gin files bind them to is read from the files' text.
"""

import collections
import dataclasses
import difflib
import functools
import importlib
import inspect
import itertools
import pkgutil
import re
from collections.abc import Iterator, Mapping
from typing import Any

from tflearn.config import files, reader
from tflearn.config.names import Configurable
from tflearn.core import settings
from tflearn.core.errors import UserValueError

_UNITS = {
    'secs': 's',
    'seconds': 's',
    'gb': 'GB',
    'bytes': 'bytes',
    'items': 'items',
    'episodes': 'episodes',
}
_EMPTY = inspect.Parameter.empty


@dataclasses.dataclass(frozen=True)
class Section:
    """Functions of one kind.

    Attributes:
      title: what they are.
      packages: of tflearn, where their modules are.
      functions: a pattern of `module.function`.
      elsewhere: their arguments that do not come from gin.
    """

    title: str
    packages: tuple[str, ...]
    functions: str
    elsewhere: frozenset[str] = frozenset()


SECTIONS = (
    Section(
        'Jobs',
        ('jobs',),
        r'(replay_server|collect|train|synchronous|train_offline|evaluate)\.\1',
        frozenset({'run'}),
    ),
    Section('The product loop', ('extensions.product',), r'loop\.loop', frozenset({'run'})),
    Section('Algorithms', ('agents',), r'\w+\.make_agent', frozenset({'specs', 'train_step', 'experience'})),
    Section(
        'Transforms',
        ('transforms',),
        r'transformed\.make_agent|(image|rewards|stack|normalize|hindsight|rnd)\.\w+|statistics\.(Running|Window|Ema)',
        frozenset({'specs', 'train_step', 'experience'}),
    ),
    Section(
        'Optimizers and schedules',
        ('optimization',),
        r'optimizers\.OptimizerOptions|schedules\.[a-z]\w+',
    ),
    Section('Models for products', ('policies',), r'products\.ProductOptions'),
    Section('Networks', ('networks',), r'\w+\.(make_network|from_\w+)|own_heads\.mixture', frozenset({'spec', 'name'})),
    Section(
        'Environments',
        ('environments', 'extensions.games', 'extensions.tasks'),
        r'\w+\.(make|record|from_dm_env)|vector_env\.in_(worker_)?process(es)?',
        frozenset({'num_environments', 'seed', 'folder'}),
    ),
)


@dataclasses.dataclass(frozen=True)
class Setting:
    """One argument that gin can bind.

    Attributes:
      owner: the function or dataclass, as gin files write it: module.function.
      name: the argument's name.
      values: what it can be, in words.
      default: as source; '' if it has to be bound.
      unit: of a number, '' if it has none.
      text: what it is.
    """

    owner: str
    name: str
    values: str
    default: str
    unit: str
    text: str


@dataclasses.dataclass(frozen=True)
class Owner:
    """A function or dataclass whose arguments are settings.

    Attributes:
      configurable: what gin binds the arguments of.
      elsewhere: its arguments that do not come from gin.
    """

    configurable: Configurable
    elsewhere: frozenset[str]

    @property
    def about(self) -> str:
        """What it is, in one sentence."""
        paragraph = (inspect.getdoc(self.configurable.function) or '').split('\n\n')[0]
        return first_sentence(paragraph.replace('\n', ' '))

    def settings(self) -> Iterator[Setting]:
        """Yields its settings in their order."""
        texts = self._texts()
        for name, parameter in self._parameters().items():
            text, default = texts.get(name, ''), shown(parameter.default)
            values = '' if parameter.annotation is _EMPTY else settings.Rule(parameter.annotation).needs()
            unit = '' if isinstance(parameter.default, bool) else _unit(name, text)
            yield Setting(self.configurable.name, name, values, default, unit, first_sentence(text))

    def dataclasses(self) -> Iterator['Owner']:
        """Yields the dataclasses that its settings take, and theirs."""
        for parameter in self._parameters().values():
            for kind, _ in settings.parts(parameter.annotation):
                if isinstance(kind, type) and dataclasses.is_dataclass(kind):
                    found = Owner(Configurable(kind, kind.__module__, kind.__name__), self.elsewhere)
                    yield found
                    yield from found.dataclasses()

    def _parameters(self) -> Mapping[str, inspect.Parameter]:
        found = self.configurable.parameters
        return {name: found[name] for name in found if name not in self.elsewhere}

    def _texts(self) -> dict[str, str]:
        function: Any = self.configurable.function
        # What all algorithms take is described once.
        common = importlib.import_module('tflearn.agents.algorithm').Factory.__call__
        texts = descriptions(common) if self.configurable.attribute == 'make_agent' else {}
        is_plain_class = isinstance(function, type) and not dataclasses.is_dataclass(function)
        return texts | descriptions(function.__init__ if is_plain_class else function)


@functools.cache
def sections() -> dict[str, list[Owner]]:
    """Returns what has settings, by the title of its section;
    without modules whose library is not installed.
    """
    found: dict[str, list[Owner]] = {}
    names: set[str] = set()
    for section in SECTIONS:
        roots = [Owner(each, section.elsewhere) for each in _functions(section)]
        owners = [*roots, *(each for root in roots for each in root.dataclasses())]
        new = {each.configurable.full_name: each for each in owners if each.configurable.full_name not in names}
        names |= new.keys()
        found[section.title] = list(new.values())
    return found


def _functions(section: Section) -> Iterator[Configurable]:
    for package in section.packages:
        try:
            path = importlib.import_module(f'tflearn.{package}').__path__
        except ImportError:  # an extension that is not there
            continue
        for module_name in sorted(each.name for each in pkgutil.iter_modules(path)):
            try:
                module = importlib.import_module(f'tflearn.{package}.{module_name}')
            except ImportError:
                continue
            for name, value in vars(module).items():
                is_own = getattr(value, '__module__', '') == module.__name__ and not name.startswith('_')
                if is_own and callable(value) and re.fullmatch(section.functions, f'{module_name}.{name}'):
                    yield Configurable(value, module.__name__, name)


@functools.cache
def _written() -> Mapping[str, list[str]]:
    """Returns how gin files may write a dataclass, such as `loop.Logs`: by the module of what takes it."""
    found = collections.defaultdict[str, list[str]](list)
    for root in itertools.chain.from_iterable(sections().values()):
        module = importlib.import_module(root.configurable.module)
        for kind in (each.configurable for each in root.dataclasses()):
            name = f'{module.__name__.rpartition(".")[2]}.{kind.attribute}'
            is_there = getattr(module, kind.attribute, None) is kind.function
            if is_there and name not in (kind.name, *found[kind.name]):
                found[kind.name].append(name)
    return found


def find(name: str) -> list[Setting]:
    """Returns the settings of a function or dataclass, or those that have this name.

    Args:
      name: such as `experience.Uniform`, `Uniform`, `Uniform.max_size` or `max_size`, or as gin files write it.

    Raises:
      ValueError: if there is none, with the nearest names.
    """
    found = [setting for owners in sections().values() for owner in owners for setting in owner.settings()]
    matching = [each for each in found if name in _names_of(each)]
    if not matching:
        known = sorted({each for setting in found for each in _names_of(setting)})
        near = ', '.join(difflib.get_close_matches(name, {*known, *files.names()}, 3, cutoff=0.0))
        raise UserValueError(
            f'got {name!r}, which is the name of no setting and no packaged gin file; need one: the nearest are '
            f'{near}; write module.function, a setting of it, or a name that tflearn help lists'
        )
    return matching


def text(name: str) -> str:
    """Describes the settings that `find` finds, with one line for each fact;
    raises what it raises.
    """
    found, lines = find(name), []
    owners = {each.configurable.name: each for group in sections().values() for each in group}
    for owner in dict.fromkeys(each.owner for each in found):
        about = owners[owner]
        written = ', '.join(_written().get(owner, ()))
        lines += ['', f'{owner} (from {about.configurable.module}{written and f"; {written}"}): {about.about}.']
        for each in found:
            if each.owner == owner:
                unit = f' [{each.unit}]' if each.unit else ''
                default = f'; default {each.default}' if each.default else '; has to be bound'
                lines += [f'  {each.name}: {each.values}{unit}{default}', f'    {each.text}']
    return '\n'.join(lines[1:])


def run_list() -> str:
    """Returns a line for each packaged gin file of a run: its name, and what it trains."""
    about = {name: _header(files.resolve(f'{name}.gin').read_text(encoding='utf-8'))[:1] for name in files.runs()}
    width = max(map(len, about), default=0)
    return '\n'.join(f'{name:{width}}  {"".join(first)}' for name, first in about.items())


def gin_file_text(name: str) -> str:
    """Describes a gin file: what it trains, the files that it includes, and what all of them bind.

    Args:
      name: a path, or the name of a packaged file.

    Raises:
      ValueError: if there is none, or it is no gin file.
    """
    path = files.resolve(name)
    statements = reader.read(path)
    # What hands the same environment, agent and experience to every job says nothing about a run.
    wiring = files.folder() / 'jobs.gin'
    lines = []
    for each, content in statements.files.items():
        if each != wiring or path == wiring:
            lines += [f'{each}:', *(f'  {line}'.rstrip() for line in _header(content)), '']
    values = {
        each.written: each.value
        for each in statements.bindings
        if path == wiring or not each.place.startswith(f'{wiring}:')
    }
    settings = (f'  {written} = {value!r}' for written, value in values.items())
    return '\n'.join([*lines, 'What they bind (tflearn help NAME describes a setting):', *settings])


def _header(content: str) -> list[str]:
    """Returns the lines of the comment that a gin file begins with."""
    lines = itertools.takewhile(lambda line: line.startswith('#'), content.splitlines())
    return [line.removeprefix('#').removeprefix(' ') for line in lines]


def _names_of(setting: Setting) -> tuple[str, ...]:
    owners = setting.owner.rpartition('.')[2], setting.owner, *_written().get(setting.owner, ())
    return (setting.name, *owners, *(f'{owner}.{setting.name}' for owner in owners))


def shown(value: Any) -> str:
    """Returns a default as source; '' for none."""
    if value is _EMPTY:
        return ''
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [field for field in dataclasses.fields(value) if field.init]
        values = {field.name: (getattr(value, field.name), _default(field)) for field in fields}
        changed = [f'{name}={shown(own)}' for name, (own, default) in values.items() if own != default]
        return f'{type(value).__name__}({", ".join(changed)})'
    if callable(value):
        return f'{value.__module__.rpartition(".")[2]}.{value.__qualname__}'
    return repr(value)


def _default(field: dataclasses.Field[Any]) -> Any:
    factory: Any = field.default_factory
    return field.default if factory is dataclasses.MISSING else factory()


def descriptions(function: Any) -> dict[str, str]:
    """Returns the entries of the docstring's Args or Attributes."""
    text = inspect.getdoc(function) or ''
    section = re.search(r'^(?:Args|Attributes):\n(.*?)(?=^\w|\Z)', text, re.MULTILINE | re.DOTALL)
    entries = re.split(r'^ {2}(?=\w+: )', section[1], flags=re.MULTILINE) if section else []
    parts = (entry.partition(': ') for entry in entries if entry)
    return {name.strip('*'): ' '.join(rest.split()) for name, _, rest in parts}


def first_sentence(text: str) -> str:
    """Returns the first sentence without its full stop."""
    first = re.split(r'(?<=[\w)\]][.])\s+(?=[A-Z])', text)[0]
    return re.sub(r'(?<![.])[.]$', '', first)


def _unit(name: str, text: str) -> str:
    if bracket := re.search(r'\[([a-z ]+|GB)\]', text):
        return _UNITS.get(bracket[1], bracket[1])
    last = name.rpartition('_')[2]
    if last in _UNITS:
        return _UNITS[last]
    if re.search('steps|interval|period', name) and (steps := re.search(r'\b(train|environment) steps\b', text)):
        return f'{steps[1]} steps'
    return 'steps' if last == 'steps' else ''
