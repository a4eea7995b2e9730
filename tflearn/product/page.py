"""The page of a loop: its rounds, the values with their intervals, what serves now. As a table, and as HTML."""

import html
import pathlib
import time
from collections.abc import Sequence
from typing import Any

from tflearn.files.run_dir import write_atomically
from tflearn.product.round_files import Round

_COLUMNS = ('round', 'began (UTC)', 'decisions', 'candidate', 'what served', 'difference', 'verdict', 'serves')
_STYLE = 'body{font-family:sans-serif}td,th{padding:.2em .8em;text-align:right}tr:nth-child(even){background:#eee}'


def table(rounds: Sequence[Round]) -> str:
    """Returns the finished rounds as text."""
    rows = [_COLUMNS, *map(_row, rounds)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return '\n'.join('  '.join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def write(root: pathlib.Path, rounds: Sequence[Round]) -> None:
    """Writes `index.html` of the loop's directory."""
    rows = [
        '<tr>' + ''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in row) + '</tr>'
        for tag, row in [('th', _COLUMNS), *(('td', _row(each)) for each in reversed(rounds))]
    ]
    serves = _row(rounds[-1])[-1]
    title = html.escape(f'Rounds of {root}')
    text = [
        f'<!doctype html><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style><h1>{title}</h1>',
        f'<p>Version {serves} serves. Values have the intervals of the gate.</p><table>',
        *rows,
        '</table>\n',
    ]
    write_atomically(root / 'index.html', '\n'.join(text))


def _row(of: Round) -> tuple[str, ...]:
    result = of.result or {}
    gate = result.get('gate') or {}
    verdict = 'serves' if result.get('promoted') else 'refused'
    return (
        str(of.number),
        time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(of.inputs['began'])),
        f'{result.get("import", {}).get("steps", 0):,}',
        *(_value(gate.get(name)) for name in ('candidate', 'incumbent', 'difference')),
        verdict,
        str(result.get('serves')),
    )


def _value(found: dict[str, Any] | None) -> str:
    if not found or found.get('value') is None:
        return '-'
    return '{value:.4g} [{low:.4g}, {high:.4g}]'.format_map(found)
