"""Population-based training: runs whose worst copy the best between two generations,
and go on with other settings.

Jaderberg et al. 2017, "Population Based Training of Neural Networks", arXiv:1711.09846: truncation
selection; settings are perturbed or drawn again. Deviations: generations are synchronous, since
members may run one after another; what is not logarithmic moves by a part of its range, not of its
value; networks stay those of the copied run. Loads no TensorFlow.

Each member of each generation is a trial of Optuna's study and a run, which begins as a copy of its
parent's whole directory: weights, optimizer, replay, counters and episodes. Who copies whom, and
what is drawn, depends on the study and the seed only, so a search that was killed decides the same
again.
"""

import dataclasses
import math
import pathlib
import shutil
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

import numpy as np

from tflearn.core import extras
from tflearn.core.errors import UserValueError
from tflearn.extensions.experiments import comparison, runs
from tflearn.extensions.experiments.tuning import BUDGETS, LAST, Space, Tuning
from tflearn.files.run_dir import RunDir, write_atomically

with extras.needed_by('tflearn population'):
    import optuna
    from optuna.trial import FrozenTrial, TrialState

_CONDITIONS = {axis: name for name, axis in BUDGETS.items()}
_NETWORKS = 'networks.'  # of bindings; other ones than its own do not fit a checkpoint


@dataclasses.dataclass(frozen=True)
class Population:
    """A population in a folder, whose trial 7 is the run `trial_7`.

    Attributes:
      search: its folder, gin file, space and metric; the budget of a run is divided among the
        generations.
      size: members.
      generations: generations.
      quantile: the part of the members that copies one of as many best ones; 0: none.
      factor: by what a setting with a logarithmic range is multiplied or divided; others move by
        (factor - 1) / 2 of their range, at least by 1.
      resample: the probability that a setting is drawn from its whole range instead.
      seed: of all draws, and of the runs.
    """

    search: Tuning
    size: int
    generations: int
    quantile: float = 0.25
    factor: float = 1.2
    resample: float = 0.25
    seed: int = 0

    def run(self, out: TextIO) -> list[FrozenTrial] | None:
        """Runs what is missing of the generations. Call it from the main thread:
        it handles signals, see `runs.Runs`.

        Args:
          out: gets the lines of `runs.Runs`, and the results of each generation.

        Returns:
          The trials of the last generation, the best one first; None if a signal stopped runs.

        Raises:
          ValueError: if a setting is wrong or another one than before, or all runs of a generation
            failed.
        """
        space = self.search.read()
        if not self.generations <= space.budget < math.inf:
            raise UserValueError(
                f'got {self.generations} generations of runs with a budget of {space.budget:g}; need max_env_steps or '
                'num_train_steps, and at least one for each generation; set train.StopConditions'
            )
        if space.limits:
            raise UserValueError(
                f'got EvaluateOptions.limits={space.limits}; need none, since members are ranked by one metric; '
                'choose --metric, or search with tflearn tune'
            )
        settings = {'budget': space.budget} | {name: value for name, value in vars(self).items() if name != 'search'}
        with runs.Runs(self.search.root_dir, self.search.mode, out) as its:
            study = self.search.open_study(its.root, space, **settings)
            for generation in range(self.generations):
                _Generation(self, its, study, space, generation).run()
                if its.stopping:
                    return None
                found = self._ended(study, generation)
                if not found[0].values:
                    text = found[0].user_attrs['failed']
                    raise UserValueError(f'got only runs that failed, like this: {text}; need settings that run')
                write_atomically(its.root / 'population.md', self.report(study, generation))
                row = self._row(found, generation).items()
                print(', '.join(f'{name} {_text(value)}' for name, value in row if value != ''), file=out, flush=True)
                if any(comparison.reached_target(_run_dir(its, trial.number)) for trial in found):
                    break
        return found

    def _ended(self, study: optuna.Study, generation: int) -> list[FrozenTrial]:
        """Returns the trials of a generation, the best one first, failed ones last."""
        sign = 1 if self.search.lower_is_better else -1
        trials = study.get_trials()[generation * self.size : (generation + 1) * self.size]
        return sorted(trials, key=lambda trial: sign * trial.values[0] if trial.values else math.inf)

    def parents_of(self, study: optuna.Study, generation: int) -> list[tuple[FrozenTrial, bool]]:
        """Returns the parent of each member, and whether that is another one's run."""
        before = self._ended(study, generation - 1)
        num_copies = min(math.ceil(self.quantile * self.size), self.size // 2)
        best = [trial for trial in before[:num_copies] if trial.values]
        rng, found = np.random.default_rng([self.seed, generation]), {}
        for i, trial in enumerate(before):
            copies = bool(best) and (i >= self.size - num_copies or not trial.values)
            found[trial.number % self.size] = best[rng.integers(len(best))] if copies else trial, copies
        return [found[member] for member in range(self.size)]

    def _row(self, trials: Sequence[FrozenTrial], generation: int) -> dict[str, Any]:
        scores = [trial.values[0] for trial in trials if trial.values]
        copies = [f'{each.number} of {each.user_attrs["parent"]}' for each in trials if each.user_attrs.get('copies')]
        return {
            'generation': generation,
            f'best {self.search.metric}': scores[0],
            'mean': float(np.mean(scores)),
            'worst': scores[-1],
            'failed': self.size - len(scores),
            'copies': ', '.join(sorted(copies)),
        }

    def report(self, study: optuna.Study, last: int) -> str:
        """Returns the table of generations, and the lineage of the best run of the last one
        with its settings.
        """
        trial = self._ended(study, last)[0]
        lineage = [trial]
        while (parent := lineage[0].user_attrs.get('parent')) is not None:
            lineage.insert(0, study.trials[parent])
        generations = [self._row(self._ended(study, each), each) for each in range(last + 1)]
        settings = [
            {'trial': each.number, 'score': each.values[0] if each.values else 'failed', **each.params}
            for each in lineage
        ]
        return f'{_table(generations)}\n\nThe lineage of trial {trial.number}:\n\n{_table(settings)}\n'


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    lines = [[*rows[0]], ['---'] * len(rows[0]), *([_text(value) for value in row.values()] for row in rows)]
    return '\n'.join(f'| {" | ".join(line)} |' for line in lines)


def _text(value: Any) -> str:
    return f'{value:.4g}' if isinstance(value, float) else f'{value}'


def _run_dir(its: runs.Runs, number: int) -> RunDir:
    return RunDir(its.root / f'trial_{number}')


class _Generation:
    """The runs of a generation."""

    def __init__(self, population: Population, its: runs.Runs, study: optuna.Study, space: Space, generation: int):
        self._search, self._runs, self._study, self._space = population.search, its, study, space
        self._population, self._generation = population, generation

    def run(self) -> None:
        """Runs what has not ended, until all have, or a signal stops them."""
        its, waiting, running = self._runs, self._begin(), dict[str, optuna.Trial]()
        end = f'{self._space.budget * (self._generation + 1) // self._population.generations:.0f}'
        condition = _CONDITIONS[self._space.axis]
        while its.running or (waiting and not its.stopping):
            while waiting and not its.stopping and len(its.running) < self._search.parallel:
                trial, chosen = waiting.pop(0)
                name = f'trial_{trial.number}'
                running[name] = trial
                its.say(name, ', '.join(chosen))
                seed = self._population.seed * self._population.size + trial.number % self._population.size
                chosen = [*self._search.gin_bindings, *chosen, f'train.StopConditions.{condition} = {end}']
                its.start(name, self._search.gin_file, [*runs.seed_bindings(seed), *chosen])
            for name, code in its.ended(f'{len(waiting)} of generation {self._generation} to come' if waiting else ''):
                self._tell(running[name], name, code)

    def _begin(self) -> list[tuple[optuna.Trial, list[str]]]:
        """Makes the trials and their directories; returns those that have not ended."""
        its, first = self._runs, self._generation * self._population.size
        parents = self._population.parents_of(self._study, self._generation) if first else []
        waiting = []
        for number in range(first, first + self._population.size):
            known = self._study.trials[number:]
            if known and known[0].state.is_finished():
                continue
            parent, copies = parents[number - first] if parents else (None, False)
            self._study.sampler = _Sampler(self._population, parent, copies)
            trial = optuna.Trial(self._study, known[0]._trial_id) if known else self._study.ask()
            if parent:
                trial.set_user_attr('parent', parent.number)
                trial.set_user_attr('copies', copies)
                _copy(_run_dir(its, parent.number).root, _run_dir(its, number).root)
            waiting.append((trial, self._space.suggest(trial)))
        # All copies are there: what a run goes on with is not needed twice.
        for number in range(max(first - self._population.size, 0), first):
            run_dir = _run_dir(its, number)
            for folder in (run_dir.checkpoints, *run_dir.saved_shards()):
                shutil.rmtree(folder, ignore_errors=True)
        return waiting

    def _tell(self, trial: optuna.Trial, name: str, code: int) -> None:
        """Tells the study the score of a run that has ended; one that a signal stopped stays as it is."""
        text = self._runs.ending(name, code)
        curve, parent = self._curve(trial.number), trial.user_attrs.get('parent')
        if code == 0 and len(curve):
            # Of this generation; a run that had ended before, by its target, has no new ones.
            before = len(self._curve(parent)) if parent is not None else 0
            score = float(curve[min(before, len(curve) - 1) :, 1][-LAST:].mean())
            self._study.tell(trial, score)
            text += f'; score {score:.4g}'
        elif not self._runs.stopping:
            trial.set_user_attr('failed', text)
            self._study.tell(trial, state=TrialState.PRUNED)
        self._runs.say(name, text)

    def _curve(self, number: int) -> np.ndarray:
        return comparison.curve(_run_dir(self._runs, number), self._space.axis, self._search.metric)


def _copy(source: pathlib.Path, target: pathlib.Path) -> None:
    """Copies a run's directory; the copy is atomic."""
    if source.exists() and not target.exists():
        unfinished = target.with_name('unfinished')
        shutil.rmtree(unfinished, ignore_errors=True)
        shutil.copytree(source, unfinished, symlinks=True)
        unfinished.rename(target)


class _Sampler(optuna.samplers.BaseSampler):
    """Chooses each setting by its parent's value, and draws the same for a trial that was begun before."""

    def __init__(self, population: Population, parent: FrozenTrial | None, copies: bool):
        self._population, self._copies = population, copies
        self._values: Mapping[str, Any] = parent.params if parent else {}

    def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, Any]:
        return {}

    def sample_relative(self, study: Any, trial: Any, search_space: Any) -> dict[str, Any]:
        return {}

    def sample_independent(self, study: Any, trial: FrozenTrial, param_name: str, param_distribution: Any) -> Any:
        value = self._values.get(param_name)
        if value is not None and (not self._copies or param_name.startswith(_NETWORKS)):
            return value
        entropy = [self._population.seed, trial.number, zlib.crc32(param_name.encode())]
        rng = np.random.default_rng(entropy)
        if value is None or rng.random() < self._population.resample:
            drawn = optuna.samplers.RandomSampler(int(rng.integers(2**31)))
            return drawn.sample_independent(study, trial, param_name, param_distribution)
        return _perturbed(value, param_distribution, self._population.factor, rng.choice([-1, 1]))


def _perturbed(value: Any, distribution: Any, factor: float, sign: int) -> Any:
    """Returns a neighbour of a value, within its range."""
    if isinstance(distribution, optuna.distributions.CategoricalDistribution):
        choices = distribution.choices
        return choices[min(max(choices.index(value) + sign, 0), len(choices) - 1)]
    low, high, step = distribution.low, distribution.high, distribution.step
    moved = value * factor**sign if distribution.log else value + sign * (factor - 1) / 2 * (high - low)
    if step:  # of integers always
        moved = low + step * round((moved - low) / step)
        moved = value + sign * step if moved == value else moved
    moved = min(max(moved, low), high)
    return int(moved) if isinstance(value, int) else float(moved)
