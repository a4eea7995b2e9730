"""Statistics of a data set, as text and as a picture;
and copies of the episodes that pass its filters.
"""

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib import figure
from tf_agents.trajectories import time_step as ts

from tflearn.core.errors import UserValueError
from tflearn.data import columns, metadata
from tflearn.data.action_table import ActionTable
from tflearn.data.metadata import COPIED, RECORDINGS, SAMPLE
from tflearn.data.reader import Dataset, EpisodeReader
from tflearn.data.writer import Numbers


class Statistics:
    """What a data set holds.

    Attributes:
      returns: the sum of rewards of each episode, [N]; of several rewards their sum.
      lengths: the environment steps of each episode, [N].
      terminated: the share of episodes that ended by termination rather than by a time limit.
    """

    def __init__(self, dataset: Dataset):
        """Reads all episodes, those with missing numbers too; raises as `EpisodeReader` does."""
        self._reader = EpisodeReader(dataset, need_finite=False)
        self._ranges = {column.name: Numbers() for column in self._reader.columns}
        words = metadata.vocabularies(self._reader.directories).get('action', [])
        self._actions = ActionTable(dict(enumerate(words)))
        discrete = any(
            (each.name, each.dtype[:3], each.shape) == ('action', 'int', ()) for each in self._reader.columns
        )
        returns, lengths, terminated = [], [], 0
        for episode in self._reader.episodes():
            taken = episode['step_type'] != ts.StepType.LAST
            for name, found in self._ranges.items():
                # Boundary rows have the last observation of an episode, and nothing else.
                found.add(episode[name] if name.startswith(('observation', 'step_type')) else episode[name][taken])
            rewards = sum(episode[name][taken].astype(np.float64) for name in episode if name.startswith('reward'))
            returns.append(np.sum(rewards))
            if discrete:
                given = episode.get('policy_info.log_probability')
                self._actions.add(episode['action'][taken], rewards, np.nan if given is None else np.exp(given[taken]))
            lengths.append(int(np.count_nonzero(taken)))
            terminated += bool((episode['discount'][taken][-1:] == 0).any())
        self.returns, self.lengths = np.array(returns), np.array(lengths)
        self.terminated = terminated / max(1, len(returns))

    def text(self) -> str:
        """Returns the statistics, a line each."""
        reader = self._reader
        lines = [line for directory in reader.directories for line in origin(directory)]
        lines.append(f'{len(self.lengths)} episodes of {reader.num_episodes}, {self.lengths.sum()} environment steps')
        if reader.num_damaged:
            lines.append(f'{reader.num_damaged} damaged records skipped')
        if len(self.lengths):
            lines += [_quartiles('return', self.returns), _quartiles('length', self.lengths)]
            if unknown := int(np.count_nonzero(~np.isfinite(self.returns))):
                lines.append(f'{unknown} episodes have no return, since rewards are missing or infinite')
            lines.append(f'{self.terminated:.0%} terminated, the others ended by a time limit')
        lines += self._actions.lines()
        width = max(len(str(column)) for column in reader.columns)
        for column in reader.columns:
            lines.append(f'{column!s:{width}}  {self._ranges[column.name]}')
        return '\n'.join(lines)

    def draw(self, path: pathlib.Path) -> None:
        """Writes histograms of returns and lengths to a PNG file."""
        drawn = figure.Figure(figsize=(9, 3.2), layout='constrained')
        for axes, values, name in zip(
            drawn.subplots(1, 2), (self.returns, self.lengths), ('return', 'length [environment steps]'), strict=True
        ):
            axes.hist(values[np.isfinite(values)], bins=40)
            axes.set_xlabel(f'{name} of an episode')
            axes.set_ylabel('episodes')
        try:
            drawn.savefig(path)
        except (OSError, ValueError) as error:  # ValueError: the format
            raise UserValueError(f'got the picture {path} ({error}); need the path of a PNG file') from error


def origin(directory: pathlib.Path) -> list[str]:
    """Returns where a data set comes from, as its description has it, in lines."""
    found = columns.read_metadata(directory)
    lines = [f'{directory}: {_facts(found)}']
    for recording in found.get(RECORDINGS, []):
        facts = ', '.join(f'{name} {recording.get(name)}' for name in ('policy', 'train_step', 'epsilon', 'seed'))
        mean = recording['returns']['mean']
        lines.append(f'recorded {recording["episodes"]} episodes, mean return {mean:.4g}: {facts}')
    return lines


def _facts(facts: Mapping[str, Any]) -> str:
    shown = {
        name: value for name, value in facts.items() if value is not None and name not in (RECORDINGS, COPIED, SAMPLE)
    }
    if split := shown.pop('split', None):
        shown['split'] = f'{split["part"]}, by {split["by"]}, share {split["share"]:g}'
    if made_of := facts.get(COPIED) or (split or {}).get('from'):
        shown['from'] = ' '.join(each['path'] for each in made_of)
    return ', '.join(f'{name} {value}' for name, value in shown.items()) or 'no metadata'


def _quartiles(name: str, values: np.ndarray) -> str:
    values = values[np.isfinite(values)]
    if not values.size:
        return f'{name}: no numbers'
    least, low, median, high, greatest = np.percentile(values, [0, 25, 50, 75, 100])
    return (
        f'{name}: mean {values.mean():.4g}, least {least:g}, quartiles {low:g}, {median:g}, {high:g}, '
        f'greatest {greatest:g}'
    )
