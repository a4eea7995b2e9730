"""The page of a loop: its rounds, the values with their intervals, what serves now; as a table, and as HTML."""

import pathlib
import time
from collections.abc import Sequence
from typing import Any

from tflearn.core import extras
from tflearn.extensions.product.steps import Round
from tflearn.files.run_dir import write_atomically

with extras.needed_by('tflearn loop'):
    import jinja2

_COLUMNS = ('round', 'began (UTC)', 'decisions', 'candidate', 'what served', 'difference', 'verdict', 'serves')
_TEMPLATE = pathlib.Path(__file__).with_name('rounds.html')


def table(rounds: Sequence[Round]) -> str:
    """Returns the finished rounds as text."""
    rows = [_COLUMNS, *map(_row, rounds)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return '\n'.join('  '.join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def write_page(root: pathlib.Path, rounds: Sequence[Round]) -> None:
    """Writes `index.html` of the loop's directory."""
    template = jinja2.Template(_TEMPLATE.read_text('utf-8'), autoescape=True, trim_blocks=True)
    rows = [_row(each) for each in reversed(rounds)]
    write_atomically(root / 'index.html', template.render(root=root, head=_COLUMNS, rows=rows))


def _row(of: Round) -> tuple[str, ...]:
    result = of.result or {}
    gate = result.get('gate') or {}
    verdict = 'serves' if result.get('promoted') else gate.get('outcome', 'refused')
    if (candidate := result.get('candidate', of.number)) != of.number:
        verdict = f'round {candidate}: {verdict}'
    return (
        str(of.number),
        time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(of.inputs['began'])),
        f'{result.get("import", {}).get("steps", 0):,}',
        *(_value(gate.get(name)) for name in ('candidate', 'incumbent', 'difference')),
        verdict,
        str(result.get('serves')),
    )


def _value(found: dict[str, Any] | None) -> str:
    if not found or None in map(found.get, ('value', 'low', 'high')):
        return '-'
    return '{value:.4g} [{low:.4g}, {high:.4g}]'.format_map(found)
