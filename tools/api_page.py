"""The site's page of the public names of `tflearn`."""

import inspect
from collections.abc import Iterator
from typing import Any

import tflearn
from tflearn.config import reference
from tools import settings_page

PAGE = 'api.md'
HEADER = """# API

The public names: `from tflearn import Learner`. All else is importable too, and may move between versions.
"""


def _signature(name: str, function: Any, skip: int = 0) -> str:
    """Returns the call with the names and defaults of its arguments."""
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())[skip:]
    texts = []
    for i, each in enumerate(parameters):
        is_first_keyword = each.kind is each.KEYWORD_ONLY and not any(
            before.kind in (each.VAR_POSITIONAL, each.KEYWORD_ONLY) for before in parameters[:i]
        )
        texts += ['*'] if is_first_keyword else []
        stars = {each.VAR_POSITIONAL: '*', each.VAR_KEYWORD: '**'}.get(each.kind, '')
        default = reference.shown(each.default)
        texts.append(f'{stars}{each.name}={default}' if default else f'{stars}{each.name}')
    return f'{name}({", ".join(texts)})'


def _paragraph(value: Any) -> str:
    return (inspect.getdoc(value) or '').split('\n\n')[0].replace('\n', ' ')


def _members(value: type) -> Iterator[tuple[str, str]]:
    """Yields the public methods and properties of a class, each with what it does."""
    for name, member in vars(value).items():
        if name.startswith('_'):
            continue
        about = settings_page.cell(reference.first_sentence(_paragraph(member)))
        if isinstance(member, property):
            yield name, about
        elif inspect.isfunction(member):
            yield _signature(name, member, 1), about


def _lines(name: str, value: Any, fields: str | None) -> Iterator[str]:
    own_constructor = isinstance(value, type) and '__init__' in vars(value)
    is_call = inspect.isfunction(value) or (own_constructor and not hasattr(value, '__dataclass_fields__'))
    yield from ('', f'## {name}', '', f'`{value.__module__}.{value.__qualname__}`')
    if is_call:
        yield from ('', '```text', _signature(name, value), '```')
    yield from ('', _paragraph(value))
    entries = reference.descriptions(value)
    if is_call and isinstance(value, type):
        entries |= reference.descriptions(value.__init__)
    if fields:
        yield from ('', f'Its fields are in [Settings]({fields}).')
    elif entries:
        yield from ('', '| name | what it is |', '|---|---|')
        for item, text in entries.items():
            yield f'| `{item}` | {settings_page.cell(reference.first_sentence(text))} |'
    if isinstance(value, type) and (members := list(_members(value))):
        yield from ('', '| method or property | what it does |', '|---|---|')
        yield from (f'| `{settings_page.cell(call)}` | {about} |' for call, about in members)


def page() -> str:
    """Returns the page."""
    owners = [owner for found in reference.sections().values() for owner in found]
    links = {owner.configurable.full_name: settings_page.link(owner) for owner in owners}
    lines = [HEADER.rstrip()]
    for name in sorted(tflearn.__all__):
        value = getattr(tflearn, name)
        lines += _lines(name, value, links.get(f'{value.__module__}.{value.__qualname__}'))
    return '\n'.join([*lines, ''])
