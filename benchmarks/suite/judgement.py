"""What a row's runs say: the measures of `tflearn compare` for each side, and how ours compares."""

import dataclasses
import functools
import pathlib
from collections.abc import Mapping, Sequence

import gymnasium
import numpy as np

from benchmarks.suite import results as suite_results
from benchmarks.suite.results import Result
from benchmarks.suite.rows import BAND, MARKS, OURS, ROWS, SEEDS, Row
from tflearn.extensions.experiments import verdicts
from tflearn.extensions.experiments.comparison import Group
from tflearn.extensions.experiments.verdicts import Verdict


@dataclasses.dataclass(frozen=True)
class Judgement:
    """The runs of a row that its table line is about.

    A side's runs are those of fresh seeds, once there are `SEEDS` of them; before that all that it has. A run that
    failed has the lowest return of the row's curves at each mark: it counts as a loss against any that did not.

    Attributes:
      row: the row.
      results: side -> all of its results.
    """

    row: Row
    results: Mapping[str, Sequence[Result]]

    def fresh(self, side: str) -> list[Result]:
        """Returns the side's runs with seeds on which no setting was chosen; also those that failed."""
        return [each for each in self.results.get(side, ()) if each['seed'] >= self.row.fresh_seed]

    @property
    def missing(self) -> dict[str, int]:
        """Side -> how many fresh seeds it needs until the row counts; empty if it does."""
        needed = {side: SEEDS - len(self.fresh(side)) for side in (OURS, *self.row.peers)}
        return {side: number for side, number in needed.items() if number > 0}

    def runs(self, side: str) -> list[Result]:
        """Returns the side's runs; see the class."""
        fresh = self.fresh(side)
        return fresh if len(fresh) >= SEEDS else [*self.results.get(side, ())]

    @functools.cached_property
    def groups(self) -> dict[str, Group]:
        """Side -> its runs, at equal environment steps for all sides, up to the end of the shortest run."""
        runs = {side: self.runs(side) for side in (OURS, *self.row.peers)}
        curves = [np.array(each['curve'], float) for its in runs.values() for each in its if each['error'] is None]
        if not curves:
            return {}
        lowest = min(curve[:, 1].min() for curve in curves)
        marks = np.linspace(0, min(curve[-1, 0] for curve in curves), MARKS + 1)

        def at_marks(run: Result) -> np.ndarray:
            return np.interp(marks, *np.array(run['curve'], float).T) if run['error'] is None else 0 * marks + lowest

        return {
            side: Group(side, tuple(str(run['seed']) for run in its), (), marks, np.array([*map(at_marks, its)]))
            for side, its in runs.items()
            if its
        }

    def same_starts(self, side: str) -> bool:
        """Returns whether the evaluations of our runs and of a peer's all began in the same states."""
        starts = {run.get('starts') for each in (OURS, side) for run in self.runs(each)}
        return len(starts) == 1 and None not in starts

    def verdict(self, side: str) -> Verdict:
        """Returns how our runs are beside those of a peer, of a row that counts."""
        ours, theirs = self.groups[OURS], self.groups[side]
        learned = np.median(theirs.scores) - np.median(theirs.curves[:, 0])
        found = verdicts.judge(ours.scores, theirs.scores, equal_within=BAND * abs(learned))
        assert found is not None, f'{SEEDS} runs a side say something'
        return found

    def solved(self, side: str) -> str:
        """Returns how many of the side's runs solve the task, and after how many steps; '' where no mark is set.

        A task is solved at the first evaluation whose mean return is gymnasium's `reward_threshold`.
        """
        spec = gymnasium.registry.get(self.row.environment)
        if spec is None or spec.reward_threshold is None:
            return ''
        curves = [run['curve'] for run in self.runs(side) if run['error'] is None]
        first = [next((at for at, mean in curve if mean >= spec.reward_threshold), None) for curve in curves]
        steps = [at for at in first if at is not None]
        after = f' after {np.median(steps):,.0f} steps' if steps else ''
        return f', {len(steps)} of {len(self.runs(side))} solve it{after}'


def all_rows(directory: pathlib.Path) -> dict[str, Judgement]:
    """Returns the judgement of each row of the suite."""
    return {
        key: Judgement(row, suite_results.by_side(suite_results.read(directory, key, row))) for key, row in ROWS.items()
    }
