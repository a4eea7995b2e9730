"""The site's pages of algorithms: what is written in docs/, and what modules, examples,
runs and results add to it.

A page is about a family of algorithms, and each has a section there, of which the title, the advice when to take it and
the example from Python are written by hand, as is what stands above the overview's table; all else is added when the
site is built.
"""

import ast
import dataclasses
import functools
import pathlib
import re
from collections.abc import Iterator, Mapping

from benchmarks.suite import judgement
from benchmarks.suite import page as results_page
from benchmarks.suite.rows import RESULTS
from tests.testing.algorithms import ALGORITHMS, Algorithm
from tflearn.config import reference
from tools import settings_page

ROOT = pathlib.Path(__file__).resolve().parents[1]
FOLDER = ROOT / 'docs/algorithms'
# Whose policies record the episodes that an example for recorded data trains on.
EXPERTS = {'cartpole': 'dqn_cartpole', 'pendulum': 'sac_pendulum'}
GENERAL = ('tflearn.networks.networks.NetworkOptions', 'tflearn.optimization.optimizers.OptimizerOptions')


@functools.cache
def _syntax(name: str) -> ast.Module:
    return ast.parse((ROOT / f'tflearn/agents/{name}.py').read_text(encoding='utf-8'))


def modules() -> dict[str, Algorithm]:
    """Returns the algorithms that have a section: one for each module, whose variants are in it."""
    return {name: each for name, each in ALGORITHMS.items() if each.module.__name__.endswith(f'.{name}')}


@dataclasses.dataclass(frozen=True)
class Section:
    """What a page has of an algorithm, written by hand.

    Attributes:
      name: of the algorithm's module.
      page: the page's file, in docs/algorithms/.
      title: of the section.
      when: when to take it, Markdown.
      python: the section with the example from Python, Markdown.
    """

    name: str
    page: str
    title: str
    when: str
    python: str

    @property
    def link(self) -> str:
        """The section's address, from the overview."""
        anchor = re.sub(r'[^\w\s-]', '', self.title).lower().replace(' ', '-')
        return f'algorithms/{self.page}#{anchor}'


def written_sections(page: str, written: str) -> Iterator[Section]:
    """Yields the sections of a page; the function that the example takes as `make_agent` names the algorithm."""
    for text in re.split(r'^## ', written, flags=re.MULTILINE)[1:]:
        title, _, body = text.partition('\n')
        when, python = re.split(r'^(?=### )', body.strip(), flags=re.MULTILINE)
        (name,) = set(re.findall(r'(\w+)\.make_agent\b', python))
        yield Section(name, page, title, when.rstrip(), python.rstrip())


def sections() -> list[Section]:
    """Returns the sections of all pages."""
    pages = sorted(FOLDER.glob('*.md'))
    return [each for page in pages for each in written_sections(page.name, page.read_text(encoding='utf-8'))]


@functools.cache
def _runs() -> dict[str, dict[str, str]]:
    """Returns algorithm -> name of a packaged run -> the text of its gin file."""
    found: dict[str, dict[str, str]] = {}
    for path in sorted((ROOT / 'gin').glob('*.gin')):
        makers = [
            name for text in _included(path) for name in re.findall(r'^make_agent = @(\w+)\.', text, re.MULTILINE)
        ]
        makers += re.findall(r'make_agent\.make_agent = @(\w+)\.', '\n'.join(_included(path)))
        for name in dict.fromkeys(makers):
            found.setdefault(name, {})[path.stem] = path.read_text(encoding='utf-8')
    return found


def _included(path: pathlib.Path) -> Iterator[str]:
    text = path.read_text(encoding='utf-8')
    yield text
    for name in re.findall(r"^include '(.*)'", text, re.MULTILINE):
        yield from _included(ROOT / 'gin' / name)


@functools.cache
def _has_memory(name: str) -> bool:
    """Returns whether its networks can have a memory; what else that needs is in the messages."""
    algorithm = ALGORITHMS[name]
    if algorithm.example.network is None:
        return False
    try:
        algorithm.make(layers={'lstm_size': (4,)})
    except ValueError as error:
        return 'no use for it' not in str(error)
    return True


def _has_any_memory(name: str) -> bool:
    return any(_has_memory(each) for each in (name, *ALGORITHMS[name].example.variants))


def _can(section: Section, algorithm: Algorithm) -> Iterator[str]:
    name = section.name
    example, memory = algorithm.example, _has_any_memory(name)
    yield from (f'### What {section.title} can do', '', '| | |', '|---|---|')
    yield f'| actions | {", ".join(example.actions)} |'
    images = 'numbers, categories, images (`NetworkOptions.conv_layer_params`), and nests of them'
    observations = f'[{images}](../your-network.md)' if example.network else 'one vector of numbers'
    yield f'| observations | {observations} |'
    masks = '`action_mask`: the path of the part of the observation that marks them'
    yield f'| legal actions | {masks if algorithm.takes("action_mask") else "no mask"} |'
    yield f'| data | {", ".join(example.data)} |'
    yield f'| memory | {"[`NetworkOptions.lstm_size`](../your-network.md#memory)" if memory else "none"} |'
    if example.variants:
        yield f'| variants, by arguments | {", ".join(f"`{each}`" for each in example.variants)} |'
    yield ''


def _shown(name: str, runs: Mapping[str, str]) -> str:
    """Returns the packaged run that the section shows."""
    return next((run for end in EXPERTS if (run := f'{name}_{end}') in runs), next(iter(runs)))


def _gin(section: Section, runs: Mapping[str, str]) -> Iterator[str]:
    shown = _shown(section.name, runs)
    yield from (f'### {section.title} with gin', '')
    if 'tflearn train-offline' in ''.join(_included(ROOT / 'gin' / f'{shown}.gin')):
        expert = EXPERTS[shown.rpartition('_')[2]]
        yield from (
            'Episodes of a trained policy are recorded, and then trained on without an environment:',
            '',
            '```bash',
        )
        yield f'tflearn-launch --gin_file={expert} --root_dir=runs/{expert}'
        yield f'tflearn data record --gin_file={expert} --root_dir=runs/{expert} --output=data/{expert} --episodes=100'
        yield f'tflearn train-offline --gin_file={shown} --root_dir=runs/{shown} --data=data/{expert}'
        yield f'tflearn-evaluate --gin_file={shown} --root_dir=runs/{shown}'
    else:
        yield from ('```bash', f'tflearn-launch --gin_file={shown} --root_dir=runs/{shown}')
    yield from ('```', '', f'`gin/{shown}.gin` is what to copy for an environment of your own:', '', '```gin')
    yield from (runs[shown].rstrip(), '```', '')
    if others := [f'`{run}`' for run in runs if run != shown]:
        yield from (f'More packaged runs: {", ".join(others)}.', '')


def _arguments(section: Section) -> Iterator[str]:
    name = section.name
    elsewhere = GENERAL if _has_any_memory(name) else (*GENERAL, 'tflearn.networks.gtrxl.GTrXLOptions')
    owners = {each.configurable.full_name: each for each in reference.sections()['Algorithms']}
    owner = owners[f'tflearn.agents.{name}.make_agent']
    parts = {each.configurable.full_name: each for each in owner.dataclasses()}
    yield from (f'### Arguments of {section.title}', '')
    yield 'Beside these: [`NetworkOptions`](../settings.md#networksnetworkoptions),'
    yield '[`OptimizerOptions`](../settings.md#optimizersoptimizeroptions), and the data,'
    yield f'[`Experience`](../settings.md#experienceexperience), whose default is `{name}.EXPERIENCE`:'
    (value,) = (
        node.value
        for node in _syntax(name).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == 'EXPERIENCE'
    )
    yield f'`{ast.unparse(value)}`.'
    for each in (owner, *(part for full_name, part in parts.items() if full_name not in elsewhere)):
        yield from settings_page.section(each, level=4)
    yield ''


@functools.cache
def _judged() -> tuple[dict[str, judgement.Judgement], dict[str, str]]:
    """Returns each row of the results, and its line of the table."""
    judged = judgement.all_rows(RESULTS)
    return judged, results_page.lines(judged)


def _results(section: Section, runs: Mapping[str, str]) -> Iterator[str]:
    judged, lines = _judged()
    rows = {key: each.row for key, each in judged.items() if each.row.gin_file in runs and each.groups}
    yield from (f'### Results of {section.title}', '')
    if not rows:
        yield 'It has no row in [Results](../results.md).'
        return
    yield 'Runs of several seeds: the median of their scores and its interval, beside other'
    yield from ('libraries. How it was measured is in [Results](../results.md).', '', *results_page.TABLE)
    yield from (lines[key] for key in rows)
    shown = rows.get(_shown(section.name, runs)) or next(iter(rows.values()))
    others = dict.fromkeys(row.environment for row in rows.values() if row.environment != shown.environment)
    image = f'../images/{results_page.picture(shown.environment)}'
    yield from ('', f'![{shown.environment}: mean return against environment steps]({image})')
    if others:
        links = [f'[{each}](../images/{results_page.picture(each)})' for each in others]
        yield from ('', f'More curves: {", ".join(links)}.')


def _completed(section: Section) -> Iterator[str]:
    algorithm, runs = ALGORITHMS[section.name], _runs()[section.name]
    about = (ast.get_docstring(_syntax(section.name)) or '').split('\n\n')[0]
    yield from (f'## {section.title}', '', about, '', section.when, '')
    yield from _can(section, algorithm)
    yield from _gin(section, runs)
    yield from (section.python, '')
    yield from _arguments(section)
    yield from (*_results(section, runs), '')


def page(name: str, written: str) -> str:
    """Returns a page of algorithms, of which `written` is what docs/algorithms/ has in the file `name`."""
    lines = [written.partition('\n## ')[0]]
    for section in written_sections(name, written):
        lines += ['', *_completed(section)]
    return re.sub(r'\n{3,}', '\n\n', '\n'.join(lines)).rstrip() + '\n'


def overview(written: str) -> str:
    """Returns the page with the table of all, of which `written` is what docs/ has."""
    lines = [
        written.rstrip(),
        '',
        '| algorithm | variants | actions | data | memory |',
        '|---|---|---|---|---|',
    ]
    algorithms = modules()
    for section in sorted(sections(), key=lambda each: each.title.lower()):
        example = algorithms[section.name].example
        cells = (', '.join(example.variants), ', '.join(example.actions), ', '.join(example.data))
        memory = 'LSTM, GRU, GTrXL' if _has_any_memory(section.name) else ''
        row = [f'[{section.title}]({section.link})', *cells, memory]
        lines.append(f'| {" | ".join(row)} |')
    return '\n'.join(lines) + '\n'
