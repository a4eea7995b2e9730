"""Compares runs: groups of seeds, their scores with intervals, and their learning curves on one picture.

Interquartile means, bootstrap intervals and the probability of improvement are those of Agarwal et al. 2021, "Deep
Reinforcement Learning at the Edge of the Statistical Precipice" (arXiv 2108.13264). The runs of one problem are drawn
again; nothing else is random.
"""

import csv
import dataclasses
import functools
import io
import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from tflearn.actors import evaluation_record, learning_curve
from tflearn.core.errors import UserValueError
from tflearn.extensions.experiments import overview
from tflearn.files import messages
from tflearn.files.run_dir import RunDir, local_path, read_json, write_atomically

_DRAWS = 2_000
_LEVEL = 0.95
_CUT = 0.25  # of the values, at each end

Interval = tuple[Any, Any]  # lower and upper end


def interquartile_mean(values: np.ndarray) -> Any:
    """Returns the mean of the middle half of float `values` [runs, ...] over the runs [...].

    A quarter of the values, rounded down, is left out at each end, so up to three runs it is the mean.
    """
    cut = int(_CUT * len(values))
    return np.sort(values, axis=0)[cut : len(values) - cut].mean(axis=0)


def bootstrap_interval(values: np.ndarray) -> Interval:
    """Returns the ends [...] of the 95% interval of the interquartile mean of `values` [runs, ...], by bootstrap."""
    rng = np.random.default_rng(0)
    return _ends([interquartile_mean(values[rng.integers(len(values), size=len(values))]) for _ in range(_DRAWS)])


def probability_of_improvement(values: np.ndarray, others: np.ndarray) -> tuple[float, float, float]:
    """Returns how often a run of `values` [runs] is better than one of `others` [runs], and that number's 95% interval.

    Each pair of runs counts 1, or 1/2 where they are equal: the Mann-Whitney statistic U divided by the pairs.
    """
    rng = np.random.default_rng(0)

    def drawn(of: np.ndarray) -> np.ndarray:
        return of[rng.integers(len(of), size=len(of))]

    low, high = _ends([_improvement(drawn(values), drawn(others)) for _ in range(_DRAWS)])
    return float(_improvement(values, others)), float(low), float(high)


def _improvement(values: np.ndarray, others: np.ndarray) -> np.ndarray:
    return 0.5 + 0.5 * np.sign(values[:, None] - others).mean()


def _ends(drawn: list[np.ndarray]) -> Interval:
    low, high = np.quantile(np.stack(drawn), [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2], axis=0)
    return low, high


Estimate = tuple[float, float, float]  # a number, and the ends of its 95% interval
Axis = Literal['env_steps', 'secs', 'train_step']
_AXES = {'env_steps': 'environment steps', 'secs': 'seconds', 'train_step': 'train steps'}
MARKS = 20  # equal distances of the axis, at whose ends the curves are compared
_LAST = 3  # marks whose mean is the score


@dataclasses.dataclass(frozen=True)
class Group:
    """Runs that differ in their seed only.

    Attributes:
      label: the group's name.
      names: of the runs that have evaluations.
      missing: of the runs without any evaluation.
      marks: where the curves are read, float64 [MARKS + 1], in units of the axis.
      curves: the metric there, float64 [runs, MARKS + 1].
    """

    label: str
    names: tuple[str, ...]
    missing: tuple[str, ...]
    marks: np.ndarray
    curves: np.ndarray

    @property
    def scores(self) -> np.ndarray:
        """The mean of the last three marks of each run [runs]."""
        return self.curves[:, -_LAST:].mean(axis=1)

    @property
    def areas(self) -> np.ndarray:
        """The mean of all marks of each run [runs]: the area under its curve, divided by the axis' length."""
        return (self.curves[:, 1:] + self.curves[:, :-1]).mean(axis=1) / 2

    @functools.cached_property
    def score(self) -> Estimate:
        """The interquartile mean of `scores`, and its 95% interval; not a number for an interval of one run."""
        low, high = bootstrap_interval(self.scores) if len(self.scores) > 1 else (np.nan, np.nan)
        return float(interquartile_mean(self.scores)), float(low), float(high)


class Row(NamedTuple):
    """What is known of a group.

    Attributes:
      label: the group's name.
      num_runs: its runs that have evaluations.
      missing: the names of those that have none.
      score: interquartile mean of the runs' scores, and the ends of its 95% interval; NaN for the ends of one run.
      area: interquartile mean of the areas under the runs' curves.
      improvement: the probability that a run of the group is better than one of the first group, and the ends of its
        95% interval; NaN for the first group itself, and for the ends if a group has one run only.
    """

    label: str
    num_runs: int
    missing: tuple[str, ...]
    score: Estimate
    area: float
    improvement: Estimate

    @property
    def verdict(self) -> str:
        """'better' or 'worse' than the first group if the interval of `improvement` does not contain 1/2."""
        probability, low, high = self.improvement
        if np.isnan(probability):
            return ''
        return 'better' if low > 0.5 else 'worse' if high < 0.5 else 'not decided'

    @property
    def cells(self) -> tuple[str, ...]:
        """The row of a table, see `Comparison.head`."""
        runs = f'{self.num_runs}' + (f' (no evaluation: {", ".join(self.missing)})' if self.missing else '')
        return self.label, runs, _text(self.score), f'{self.area:.4g}', _text(self.improvement, 2), self.verdict


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Groups of runs on one axis. `print` shows it as a table.

    Attributes:
      groups: in the order in which they were given; the others are compared with the first one.
      axis: 'env_steps', 'secs' (since the run's first exported policy) or 'train_step'.
      metric: 'return', or another metric of the evaluations.
      lower_is_better: whether a smaller value of the metric is better.
    """

    groups: tuple[Group, ...]
    axis: Axis
    metric: str
    lower_is_better: bool

    def rows(self) -> Iterator[Row]:
        """Yields what is known of each group."""
        first, sign = self.groups[0], -1.0 if self.lower_is_better else 1.0
        for group in self.groups:
            better: Estimate = (np.nan, np.nan, np.nan)
            if group is not first:
                better = probability_of_improvement(sign * group.scores, sign * first.scores)
                if min(len(group.scores), len(first.scores)) < 2:
                    better = (better[0], np.nan, np.nan)
            area = float(interquartile_mean(group.areas))
            yield Row(group.label, len(group.names), group.missing, group.score, area, better)

    @property
    def about(self) -> str:
        """What a score is."""
        where = f'{self.groups[0].marks[-1]:,.0f} {_AXES[self.axis]}'
        return (
            f'{self.metric.replace("_", " ")} at {where}: mean of the last {_LAST} of {MARKS} marks; of the runs the '
            'interquartile mean, and its 95% interval by bootstrap'
        )

    @property
    def head(self) -> tuple[str, ...]:
        """The first row of the table."""
        better = f'probability of being better than {self.groups[0].label}'
        return 'group', 'runs', 'score', 'mean of the curve', better, ''

    def __str__(self) -> str:
        lines = [f'| {" | ".join(cells)} |' for cells in (self.head, *(row.cells for row in self.rows()))]
        return '\n'.join([self.about, '', lines[0], '|---' * len(self.head) + '|', *lines[1:]])

    def csv(self) -> str:
        """Returns the curves as a CSV file: group, run, the axis, the metric; a row for each mark of each run."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator='\n')
        writer.writerow(['group', 'run', self.axis, self.metric])
        for group in self.groups:
            for name, curve in zip(group.names, group.curves, strict=True):
                points = zip(group.marks, curve, strict=True)
                writer.writerows([group.label, name, f'{at:g}', f'{each:.6g}'] for at, each in points)
        return text.getvalue()

    def draw(self, path: str | os.PathLike[str]) -> None:
        """Draws the interquartile mean of each group, its 95% interval as a band, and each run as a thin line."""
        with learning_curve.image(pathlib.Path(path)) as axes:
            for group in self.groups:
                mean = interquartile_mean(group.curves)
                (line,) = axes.plot(group.marks, mean, linewidth=2, label=f'{group.label} ({len(group.names)} runs)')
                axes.plot(group.marks, group.curves.T, linewidth=0.5, alpha=0.5, color=line.get_color())
                if len(group.names) > 1:
                    band = bootstrap_interval(group.curves)
                    axes.fill_between(group.marks, *band, alpha=0.2, linewidth=0, color=line.get_color())
            axes.set_xlabel(_AXES[self.axis])
            axes.set_ylabel(self.metric.replace('_', ' '))


def _text(estimate: Estimate, digits: int = 4) -> str:
    """Returns '0.8 [0.6, 0.9]', without what is not known."""
    number, low, high = (f'{each:.{digits}g}' for each in estimate)
    return '-' if number == 'nan' else number if low == 'nan' else f'{number} [{low}, {high}]'


def compare(*runs: Any, axis: Axis = 'env_steps', metric: str = 'return', lower_is_better: bool = False) -> Comparison:
    """Compares runs by their evaluations.

    The axis ends where the shortest run ends. A run that ended by reaching its target keeps its last value from there
    on, so it does not shorten the axis, unless all runs ended so.

    Args:
      *runs: each is a group: a folder whose sub-folders are runs (as `tflearn seeds` makes it), a run directory, or a
        `TrainedRun`. Single runs whose recorded configuration differs in seeds only are one group.
      axis: what the curves are compared against.
      metric: 'return', 'length', or another metric of the evaluations (evaluations.jsonl).
      lower_is_better: whether a smaller value is better.

    Raises:
      ValueError: if there is no run, or no evaluation with the metric.
    """
    if axis not in _AXES:
        raise UserValueError(f'got axis={axis!r}; need one of {", ".join(get_args(Axis))}')
    return of_groups(groups_of(runs), axis, metric, lower_is_better)


def of_groups(runs: Mapping[str, Sequence[RunDir]], axis: Axis, metric: str, lower_is_better: bool) -> Comparison:
    """Compares groups of runs, by their labels; see `compare`."""
    groups = {label: {run: curve(run, axis, metric) for run in its_runs} for label, its_runs in runs.items()}
    if empty := [label for label, curves in groups.items() if not any(map(len, curves.values()))]:
        raise UserValueError(
            f'got {", ".join(empty)} without evaluations that have {metric} and {axis}; need some; leave it out, '
            'choose another metric or axis, or wait for its first evaluation'
        )
    ends = {run: curve[-1, 0] for curves in groups.values() for run, curve in curves.items() if len(curve)}
    unsolved = [end for run, end in ends.items() if not reached_target(run)]
    marks = np.linspace(0.0, min(unsolved) if unsolved else max(ends.values()), MARKS + 1)
    return Comparison(
        tuple(_group(label, curves, marks) for label, curves in groups.items()), axis, metric, lower_is_better
    )


def _group(label: str, curves: Mapping[RunDir, np.ndarray], marks: np.ndarray) -> Group:
    known = {run: np.interp(marks, *curve.T) for run, curve in curves.items() if len(curve)}
    missing = tuple(run.root.name for run in curves if run not in known)
    return Group(label, tuple(run.root.name for run in known), missing, marks, np.array(list(known.values())))


def write(comparison: Comparison, folder: pathlib.Path) -> None:
    """Writes comparison.png, .csv and .md to a folder."""
    comparison.draw(folder / 'comparison.png')
    write_atomically(folder / 'comparison.csv', comparison.csv())
    write_atomically(folder / 'comparison.md', f'{comparison}\n\n![learning curves](comparison.png)\n')


def groups_of(runs: Sequence[Any]) -> Mapping[str, list[RunDir]]:
    """Returns the runs of each group by its label; see `compare`."""
    if not runs:
        raise UserValueError('got no run; need run directories, or folders of them')
    roots = [each.run_dir.root if hasattr(each, 'run_dir') else local_path(each, 'the run') for each in runs]
    names = [root.name for root in roots]
    groups: dict[str, list[RunDir]] = {}
    by_settings: dict[str, str] = {}
    for root in roots:
        label, its_runs = root.name if names.count(root.name) == 1 else str(root), _runs(root)
        if its_runs == [root] and (settings := _settings(RunDir(root))):
            label = by_settings.setdefault(settings, label)
        groups.setdefault(label, []).extend(map(RunDir, its_runs))
    return groups


def _runs(root: pathlib.Path) -> list[pathlib.Path]:
    """Returns a run directory, or those in a folder."""
    if found := [*overview.runs_in(root, 1)]:
        return found
    raise UserValueError(f'got {root}, which is no run; need the --root_dir of a run, or a folder of such')


def _settings(run_dir: RunDir) -> str:
    """Returns a run's configuration without its seeds and comments; '' if it recorded none."""
    if not run_dir.config.exists():
        return ''
    lines = run_dir.config.read_text(encoding='utf-8').splitlines()
    return '\n'.join(line for line in lines if line and line[0] != '#' and '.seed = ' not in line)


def curve(run_dir: RunDir, axis: Axis, metric: str) -> np.ndarray:
    """Returns a run's evaluations as (position on the axis, value), float64 [evaluations, 2]."""
    evaluations = learning_curve.current(evaluation_record.read(run_dir.evaluations))
    start = min((each['exported_at'] for each in evaluations if each.get('exported_at')), default=None)
    found = []
    for each in evaluations:
        if axis == 'secs':
            at = each['exported_at'] - start if start and each.get('exported_at') else None
        else:
            at = each.get(axis)
        number = evaluation_record.value(each, metric)
        if at is not None and number is not None:
            found.append((at, number))
    return np.array(found, np.float64).reshape(-1, 2)


def reached_target(run_dir: RunDir) -> bool:
    """Returns whether a run has ended by reaching its target."""
    done = read_json(run_dir.done, messages.Done)
    return done is not None and done['reason'].startswith('target')
