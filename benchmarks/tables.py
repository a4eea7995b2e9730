"""Tables of numbers that were measured interleaved."""

import statistics
from collections.abc import Sequence
from typing import Any

COLUMNS = ('case', 'metric', 'ours', 'peer', 'limit', 'ratio_to_peer', 'ratio_to_limit', 'unit', 'rounds')


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Returns the median of the ratios of each round."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Returns rows as a Markdown table."""
    lines = ['| ' + ' | '.join(column.replace('_', ' ') for column in COLUMNS) + ' |', '|---' * len(COLUMNS) + '|']
    return '\n'.join([*lines, *('| ' + ' | '.join(_cell(row[column]) for column in COLUMNS) + ' |' for row in rows)])


def _cell(value: Any) -> str:
    if value is None:
        return ''
    if isinstance(value, float):
        return f'{value:,.0f}' if value >= 100 else f'{value:.3g}'
    return str(value)
