"""The site's page of settings: every setting that gin can bind, by `tflearn.config.reference`."""

import importlib
from collections.abc import Iterator

from tflearn.config import reference
from tflearn.config.reference import Owner

PAGE = 'settings.md'
HEADER = """# Settings

All settings that a gin file or `--gin_bindings` can bind, as `name = value`; import the module as shown. Bind what has
no default. Other values than the declared ones are refused, with the line that binds them, before a job begins.
Several names of one setting, such as `train.Dataset` and `reader.Dataset`, are equal: bind any of them.
`tflearn help NAME` shows the same at the terminal, and `--help` the flags of a program.
"""


def link(owner: Owner) -> str:
    """Returns the address of a section of the page."""
    return f'{PAGE}#{owner.configurable.name.lower().replace(".", "")}'


def cell(text: str) -> str:
    """Returns the text as a cell of a table."""
    return text.replace('|', r'\|')


def _names_in_jobs(owner: Owner) -> list[str]:
    """Returns the names by which gin files bind what train jobs import, such as `train.Dataset`."""
    jobs = [importlib.import_module(f'tflearn.jobs.{job}') for job in ('train', 'train_offline')]
    return [
        f'{job.__name__.rpartition(".")[2]}.{name}'
        for job in jobs
        for name, value in vars(job).items()
        if value is owner.configurable.function and owner.configurable.module != job.__name__
    ]


def section(owner: Owner, level: int = 3) -> Iterator[str]:
    """Yields the section of a function or dataclass; `level` is its heading's."""
    package, _, module = owner.configurable.module.rpartition('.')
    others = _names_in_jobs(owner)
    named = f', or {", ".join(f"`{each}`" for each in others)}' if others else ''
    end = '' if owner.about.endswith(')') else '.'
    yield from ('', f'{"#" * level} {owner.configurable.name}', '')
    yield from (f'`from {package} import {module}`{named}. {owner.about}{end}', '')
    yield from ('| setting | default | values | what it is |', '|---|---|---|---|')
    for each in owner.settings():
        default = f'`{cell(each.default)}`' if each.default else ''
        unit = f' [{each.unit}]' if each.unit else ''
        yield f'| `{each.name}` | {default} | {cell(each.values)}{unit} | {cell(each.text)} |'


def page() -> str:
    """Returns the page."""
    lines = [HEADER.rstrip()]
    for title, owners in reference.sections().items():
        lines += ['', f'## {title}']
        for owner in owners:
            lines += section(owner)
    return '\n'.join([*lines, ''])
