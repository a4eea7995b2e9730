"""The table and the verdicts of `offline.py`'s results: rows of its file, a dict for each run."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tflearn.extensions.experiments import verdicts as seed_verdicts

LEVELS = ('random', 'medium', 'expert', 'mixed')


def _groups(rows: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str, str], list[Mapping[str, Any]]]:
    groups: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row['task'], row['level'], row['agent']), []).append(row)
    return groups


def _score(row: Mapping[str, Any], value: float) -> float:
    spread = row['expert_return'] - row['random_return']
    return 100 * (value - row['random_return']) / spread if spread else float('nan')


def table(rows: Sequence[Mapping[str, Any]], seeds: int) -> str:
    """Returns a Markdown table: a line for each task, data set and algorithm."""
    lines = [
        '| task | data | return of the data | algorithm | mean return | median in | score | seeds | training, s |',
        '|---|---|---|---|---|---|---|---|---|',
    ]
    for (task, level, agent), found in sorted(_groups(rows).items()):
        returns = [row['mean_return'] for row in found]
        mean, (low, high, coverage) = float(np.mean(returns)), seed_verdicts.median_interval(np.array(returns))
        number = f'{len(found)}' if len(found) == seeds else f'**{len(found)} of {seeds}**'
        between = 'too few seeds' if np.isnan(low) else f'{low:.1f} to {high:.1f} ({100 * coverage:.4g}%)'
        secs = np.mean([row['train_secs'] for row in found])
        lines.append(
            f'| {task} | {level} | {found[0]["data_return"]:.1f} | {agent} | {mean:.1f} | {between} | '
            f'{_score(found[0], mean):.0f} | {number} | {secs:.0f} |'
        )
    return '\n'.join(lines)


def verdicts(rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns what can be judged: is BC as good as the expert, are others better than BC on medium data?"""
    lines, groups = [], _groups(rows)
    for (task, level, agent), found in sorted(groups.items()):
        returns = [row['mean_return'] for row in found]
        if level == 'expert' and agent == 'BC':
            score = _score(found[0], float(np.mean(returns)))
            lines.append(f'{task}: BC has a score of {score:.1f} on expert data; within 5%: {score >= 95}')
        cloned = groups.get((task, level, 'BC'))
        if level == 'medium' and agent != 'BC' and cloned:
            judged = seed_verdicts.judge(np.array(returns), np.array([row['mean_return'] for row in cloned]))
            words = f'{judged}, p {judged.significance}' if judged else 'too few seeds to tell'
            lines.append(f'{task}: {agent} beside BC on medium data: {words}')
    return '\n'.join(lines)
