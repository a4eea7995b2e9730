"""Compares runs: groups of seeds, their scores with intervals,
and their learning curves on one picture.
"""

import csv
import dataclasses
import io
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np

from tflearn.actors import evaluation_record, learning_curve
from tflearn.core.errors import UserValueError
from tflearn.extensions.experiments import overview, verdicts
from tflearn.extensions.experiments.verdicts import Verdict
from tflearn.files import messages
from tflearn.files.run_dir import RunDir, local_path, read_json, write_atomically

TOO_FEW = 'too few seeds to tell'
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
        """The mean of all marks of each run [runs]:
        the area under its curve, divided by the axis' length.
        """
        return (self.curves[:, 1:] + self.curves[:, :-1]).mean(axis=1) / 2

    def __str__(self) -> str:
        """The median of `scores`, its interval if there are enough runs for one, and the mean."""
        low, high, coverage = verdicts.median_interval(self.scores)
        interval = '' if np.isnan(low) else f' [{low:.4g}, {high:.4g}] ({100 * coverage:.4g}%)'
        return f'{np.median(self.scores):.4g}{interval}, mean {self.scores.mean():.4g}'


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Groups of runs on one axis. `print` shows it as a table.

    Attributes:
      groups: in the order in which they were given; the others are compared with the first one.
      axis: 'env_steps', 'secs' (since the run's first exported policy) or 'train_step'.
      metric: 'return', or another metric of the evaluations.
      lower_is_better: whether a smaller value of the metric is better.
      paired: whether runs of one name had the same starts.
      equal_within: the difference of scores up to which groups are equal; None: they never are.
    """

    groups: tuple[Group, ...]
    axis: Axis
    metric: str
    lower_is_better: bool
    paired: bool = False
    equal_within: float | None = None

    def verdicts(self) -> dict[str, Verdict | None]:
        """Returns what is known of each group but the first, by its label;
        None for too few runs.
        """
        found = {group.label: self._judged(group) for group in self.groups[1:]}
        adjusted = iter(verdicts.adjusted([each for each in found.values() if each]))
        return {label: next(adjusted) if each else None for label, each in found.items()}

    def _judged(self, group: Group) -> Verdict | None:
        first, sign = self.groups[0], -1.0 if self.lower_is_better else 1.0
        scores = first.scores
        if self.paired:
            if {*group.names} != {*first.names}:
                raise UserValueError(
                    f'got paired runs {", ".join(group.names)} of {group.label} and {", ".join(first.names)} of '
                    f'{first.label}; need runs of the same names in each group; or leave out paired'
                )
            scores = scores[[first.names.index(name) for name in group.names]]
        return verdicts.judge(sign * group.scores, sign * scores, self.paired, self.equal_within)

    @property
    def about(self) -> str:
        """What a score is."""
        where = f'{self.groups[0].marks[-1]:,.0f} {_AXES[self.axis]}'
        return (
            f'{self.metric.replace("_", " ")} at {where}: mean of the last {_LAST} of {MARKS} marks; of the runs the '
            'median, its interval by order statistics (and their coverage), and the mean'
        )

    @property
    def head(self) -> tuple[str, ...]:
        """The first row of the table."""
        better = f'probability of being better than {self.groups[0].label}'
        return 'group', 'runs', 'score', 'median of the curves', better, 'p', "Holm's p", ''

    def cells(self) -> list[tuple[str, ...]]:
        """Returns the rows of the table."""
        found, rows = self.verdicts(), []
        for group in self.groups:
            missing = f' (no evaluation: {", ".join(group.missing)})' if group.missing else ''
            about = group.label, f'{len(group.names)}{missing}', str(group), f'{np.median(group.areas):.4g}'
            numbers: tuple[str, ...] = ('', '', '', TOO_FEW if group.label in found else '')
            if each := found.get(group.label):
                numbers = f'{each.probability:.2g}', each.significance, f'{each.holm:.2g}', str(each)
            rows.append((*about, *numbers))
        return rows

    @property
    def note(self) -> str:
        """What stands below the table: how many verdicts are to be expected false;
        '' without any.
        """
        found = [each for each in self.verdicts().values() if each]
        return verdicts.false_verdicts(found) if found else ''

    def __str__(self) -> str:
        lines = [f'| {" | ".join(cells)} |' for cells in (self.head, *self.cells())]
        lines = [self.about, '', lines[0], '|---' * len(self.head) + '|', *lines[1:], '', self.note]
        return '\n'.join(lines).rstrip()

    def csv(self) -> str:
        """Returns the curves as a CSV file: group, run, the axis, the metric;
        a row for each mark of each run.
        """
        text = io.StringIO()
        writer = csv.writer(text, lineterminator='\n')
        writer.writerow(['group', 'run', self.axis, self.metric])
        for group in self.groups:
            for name, curve in zip(group.names, group.curves, strict=True):
                points = zip(group.marks, curve, strict=True)
                writer.writerows([group.label, name, f'{at:g}', f'{each:.6g}'] for at, each in points)
        return text.getvalue()

    def draw(self, path: str | os.PathLike[str]) -> None:
        """Draws the median of each group, its interval as a band, and each run as a thin line."""
        with learning_curve.image(pathlib.Path(path)) as axes:
            for group in self.groups:
                color = draw_band(axes, group, f'{group.label} ({len(group.names)} runs)')
                axes.plot(group.marks, group.curves.T, linewidth=0.5, alpha=0.5, color=color)
            axes.set_xlabel(_AXES[self.axis])
            axes.set_ylabel(self.metric.replace('_', ' '))


def draw_band(axes: Any, group: Group, label: str, **line: Any) -> Any:
    """Draws the median of a group's curves with its interval as a band; returns the color."""
    (drawn,) = axes.plot(group.marks, np.median(group.curves, axis=0), linewidth=2, label=label, **line)
    low, high, _ = verdicts.median_interval(group.curves)
    axes.fill_between(group.marks, low, high, alpha=0.2, linewidth=0, color=drawn.get_color())
    return drawn.get_color()


def compare(
    *runs: Any,
    axis: Axis = 'env_steps',
    metric: str = 'return',
    lower_is_better: bool = False,
    paired: bool = False,
    equal_within: float | None = None,
) -> Comparison:
    """Compares runs by their evaluations.

    The axis ends where the shortest run ends. A run that ended by reaching its target keeps its
    last value from there on, so it does not shorten the axis, unless all runs ended so.

    Args:
      *runs: each is a group: a folder whose sub-folders are runs (as `tflearn seeds` makes it), a
        run directory, or a `TrainedRun`. Single runs whose recorded configuration differs in seeds
        only are one group.
      axis: what the curves are compared against.
      metric: 'return', 'length', or another metric of the evaluations (evaluations.jsonl).
      lower_is_better: whether a smaller value is better.
      paired: whether runs of one name (`seed_1`) had the same starts in all groups, so that pairs
        are compared; it needs six.
      equal_within: groups are equal if the interval of their scores' difference lies within it;
        None: they never are.

    Raises:
      ValueError: if there is no run, or no evaluation with the metric, or runs of a name without a
        pair.
    """
    if axis not in _AXES:
        raise UserValueError(f'got axis={axis!r}; need one of {", ".join(get_args(Axis))}')
    found = of_groups(groups_of(runs), axis, metric, lower_is_better)
    return dataclasses.replace(found, paired=paired, equal_within=equal_within)


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
        if its_runs == [root] and (settings := configuration(RunDir(root))):
            label = by_settings.setdefault(settings, label)
        groups.setdefault(label, []).extend(map(RunDir, its_runs))
    return groups


def _runs(root: pathlib.Path) -> list[pathlib.Path]:
    """Returns a run directory, or those in a folder."""
    if found := [*overview.runs_in(root, 1)]:
        return found
    raise UserValueError(f'got {root}, which is no run; need the --root_dir of a run, or a folder of such')


def configuration(run_dir: RunDir) -> str:
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
