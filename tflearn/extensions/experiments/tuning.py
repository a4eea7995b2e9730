"""Searches hyperparameters: Optuna chooses, each trial is a run,
and its evaluations decide whether it is pruned.

The study is a journal in a file, so a search that was stopped or killed goes on: trials that were
running continue under their numbers. Loads no TensorFlow.

A space says what the search may choose, and which gin statements that choice is. It is a TOML file
with a line for each name of a gin binding: {low = 1e-5, high = 1e-2, log = true} is a range, of
integers if its ends are, and a list has the values themselves. Or it is a Python file with
`suggest(trial)`, which asks Optuna's trial and returns gin statements.
"""

import ast
import dataclasses
import math
import pathlib
import runpy
import tomllib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, NotRequired, TextIO, TypedDict

import numpy as np

from tflearn.config import files, reader
from tflearn.core import extras, forms
from tflearn.core.errors import UserValueError
from tflearn.core.settings import Finite, PositiveFloat
from tflearn.extensions.experiments import comparison, runs, trial_report
from tflearn.extensions.experiments.comparison import Comparison
from tflearn.files import messages
from tflearn.files.run_dir import RunDir, local_path, read_json

# Gets Optuna's trial, returns gin statements.
Suggest = Callable[[Any], list[str]]


class _Range(TypedDict):
    low: Finite
    high: Finite
    log: NotRequired[bool]
    step: NotRequired[PositiveFloat]


def folder() -> pathlib.Path:
    """Returns the folder of the packaged spaces,
    each of which is named as the gin file of its algorithm.
    """
    return files.folder() / 'spaces'


def resolve_space(space: str | None, gin_file: str) -> pathlib.Path:
    """Finds a space: by path, or by name among the packaged ones;
    by default that of the gin file's algorithm.

    Raises:
      ValueError: if there is none.
    """
    names = sorted(path.stem for path in folder().glob('*.toml'))
    if space is None:
        algorithms = [
            path.stem for path in reader.read(files.resolve(gin_file)).files if path.parent.name == 'algorithms'
        ]
        if not (found := [name for name in algorithms if name in names]):
            raise UserValueError(f'got no --space, and {gin_file} is of no packaged algorithm; need a space; write one')
        return folder() / f'{found[0]}.toml'
    path = pathlib.Path(space).expanduser()
    if path.is_file() and path.suffix in ('.toml', '.py'):
        return path.absolute()
    if space in names:
        return folder() / f'{space}.toml'
    raise UserValueError(f'got --space={space}; need a file that ends in .toml or .py, or one of {", ".join(names)}')


def read_space(path: pathlib.Path) -> Suggest:
    """Reads a space.

    Raises:
      ValueError: if it is none.
    """
    if path.suffix == '.py':
        suggest = runpy.run_path(str(path)).get('suggest')
        if not callable(suggest):
            raise UserValueError(f'got {path} without a function suggest(trial); need one that returns gin statements')
        return lambda trial: list(suggest(trial))
    try:
        space = tomllib.loads(path.read_text(encoding='utf-8'))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UserValueError(
            f'got {path}, which cannot be read ({error}); need TOML, a name and its range on each line'
        ) from error
    for name, values in space.items():
        _check(path, name, values)
    return lambda trial: [f'{name} = {_suggest(trial, name, values)}' for name, values in space.items()]


def _suggest(trial: Any, name: str, values: Any) -> Any:
    """Returns what a trial chooses, as gin reads it."""
    if isinstance(values, list):  # as texts: Optuna stores no lists
        return trial.suggest_categorical(name, [_literal(value) for value in values])
    is_integer = isinstance(values['low'], int) and isinstance(values['high'], int)
    return (trial.suggest_int if is_integer else trial.suggest_float)(name, **values)


def _literal(value: Any) -> str:
    if isinstance(value, str) and value[:1] in ('@', '%'):  # a reference, a macro
        return value
    return repr(tuple(value) if isinstance(value, list) else value)


def _check(path: pathlib.Path, name: str, values: Any) -> None:
    if isinstance(values, list) and values:
        return
    is_range = not forms.fault(values, _Range) and values.keys() <= _Range.__annotations__.keys()
    if is_range and (0 if values.get('log') else -math.inf) < values['low'] < values['high']:
        return
    raise UserValueError(
        f'got {name} = {values!r:.200} in {path}; need {{low = 1e-5, high = 1e-2, log = true}} with low < high, and '
        '0 < low with log, or a list of values'
    )


with extras.needed_by('tflearn tune'):
    import optuna
    from optuna.storages import JournalStorage, journal
    from optuna.trial import TrialState

Sampler = Literal['tpe', 'random', 'grid']
Pruner = Literal['median', 'hyperband', 'none']

MARKS = 20  # equal parts of a trial's budget, at whose ends trials are compared
LAST = 3  # evaluations whose mean is the score
_MOST_FAILURES = 3  # at the beginning, without a trial that has a score
_SAMPLERS: Mapping[Sampler, Callable[['Space'], Any]] = {
    'tpe': lambda _: optuna.samplers.TPESampler(constant_liar=True),
    'random': lambda _: optuna.samplers.RandomSampler(),
    'grid': lambda space: _Grid(space.grid(), seed=0),  # of one order, also after a kill
}
# Not before a quarter of the budget.
_PRUNERS: Mapping[Pruner, Callable[[], Any]] = {
    'median': lambda: optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=MARKS // 4),
    'hyperband': lambda: optuna.pruners.HyperbandPruner(min_resource=MARKS // 4, max_resource=MARKS),
    'none': optuna.pruners.NopPruner,
}
# Of the finals; trials have their numbers as seeds.
_CHOOSING, _SCORING = 100_000, 200_000
# The first one that the run has.
BUDGETS: Mapping[str, comparison.Axis] = {'max_env_steps': 'env_steps', 'num_train_steps': 'train_step'}


class Space(NamedTuple):
    """What a search may choose, and the budget of a run.

    Attributes:
      path: its file.
      suggest: chooses.
      axis: the unit of the budget.
      budget: infinite if the gin file has no such stop condition.
      limits: those of the evaluations, by metric.
      distributions: Optuna's, of each name that one choice had.
    """

    path: pathlib.Path
    suggest: Suggest
    axis: comparison.Axis
    budget: float
    limits: dict[str, float]
    distributions: Mapping[str, Any]

    def grid(self) -> dict[str, list[Any]]:
        """Returns all values of each setting.

        Raises:
          ValueError: if a range has no end of them, or a Python file may suggest others.
        """
        found: dict[str, list[Any]] = {}
        for name, each in self.distributions.items():
            if self.path.suffix == '.toml' and isinstance(each, optuna.distributions.CategoricalDistribution):
                found[name] = [*each.choices]
            elif self.path.suffix == '.toml' and each.step and not each.log:
                count = math.floor((each.high - each.low) / each.step + 1e-9) + 1
                found[name] = [each.low + i * each.step for i in range(count)]
            else:
                raise UserValueError(
                    f'got {name} in {self.path} for --sampler=grid; need TOML with lists, and ranges that are of '
                    'integers or have a step, and are not logarithmic'
                )
        return found


@dataclasses.dataclass(frozen=True)
class Tuning:
    """A search in a folder: its study in `study.journal`, and the run of trial 3 in `trial_3`.

    Attributes:
      root_dir: the folder.
      gin_file: a path, or the name of a packaged gin file, which has all that the space does not
        bind.
      space: see `spaces.resolve`.
      num_trials: trials in all, with those of earlier calls.
      parallel: how many at the same time.
      gin_bindings: gin statements between the gin file and those of a trial.
      mode: 'processes' or 'synchronous'; see `tflearn.train`.
      metric: the metric of the evaluations that is to become better.
      lower_is_better: whether a smaller value of it is better.
      methods: Optuna's sampler and pruner.
    """

    root_dir: pathlib.Path
    gin_file: str
    space: str | None
    num_trials: int
    parallel: int = 1
    gin_bindings: Sequence[str] = ()
    mode: runs.Mode = 'processes'
    metric: str = 'return'
    lower_is_better: bool = False
    methods: tuple[Sampler, Pruner] = ('tpe', 'median')

    def run(self, out: TextIO) -> optuna.Study | None:
        """Runs what is missing of the trials. Call it from the main thread:
        it handles signals, see `runs.Runs`.

        Args:
          out: gets the lines of `runs.Runs`, and what each trial chose and reached.

        Returns:
          The study; None if a signal stopped trials. What they found is in the folder, see
          `trial_report.write`.

        Raises:
          ValueError: if a setting is wrong or another one than before, or the first trials, or all,
            failed.
        """
        space = self.read()
        others: dict[str, Any] = {}
        if self.methods[0] == 'grid':
            size = math.prod(map(len, space.grid().values()))
            if self.num_trials != size:
                raise UserValueError(f'got --trials={self.num_trials} of a grid of {size}; need --trials={size}')
            others['sampler'] = 'grid'  # trials of another one have settings that the grid lacks
        with runs.Runs(self.root_dir, self.mode, out) as its:
            study = self.open_study(its.root, space, **others)
            study.set_user_attr('limits', space.limits)
            search = _Search(self, its, study, space)
            try:
                search.run()
            finally:
                trial_report.write(study, its.root, self.metric)
            if search.left or study.get_trials(states=[TrialState.RUNNING]):
                return None
            if not trial_report.ranked(study):
                within = f' within the limits {space.limits}' if space.limits else ''
                raise UserValueError(
                    f'got no trial that has a score{within} in {its.root}; need one; see the logs there'
                )
            return study

    def read(self) -> Space:
        """Reads the space, and checks the gin file with one choice of it."""
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        path = resolve_space(self.space, self.gin_file)
        suggest = read_space(path)
        trial = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0)).ask()
        try:
            bindings = suggest(trial)
        except (ValueError, TypeError) as error:
            raise UserValueError(f'got {path}, of which Optuna says: {error}; need a space of its kinds') from error
        effective = runs.check(self.gin_file, [*runs.seed_bindings(0), *self.gin_bindings, *bindings])
        bound = (value for name, value in effective.values.items() if name.endswith('EvaluateOptions.limits'))
        limits = ast.literal_eval(next(bound, '{}'))
        for name, axis in BUDGETS.items():
            if isinstance(budget := effective.conditions.get(name), int):
                return Space(path, suggest, axis, budget, limits, trial.distributions)
        return Space(path, suggest, 'train_step', np.inf, limits, trial.distributions)

    def open_study(self, root: pathlib.Path, space: Space, **others: Any) -> optuna.Study:
        """Opens the study in a folder, or begins it.

        Args:
          others: more settings that stay the same.

        Raises:
          ValueError: if it was begun with other settings.
        """
        file = root / 'study.journal'
        # Its writer was killed.
        if file.exists() and not (text := file.read_bytes()).endswith(b'\n'):
            file.write_bytes(text[: text.rfind(b'\n') + 1])
        lock: Any = _Unlocked()  # its base class has no public name
        study = optuna.create_study(
            storage=JournalStorage(journal.JournalFileBackend(str(file), lock)),
            sampler=_SAMPLERS[self.methods[0]](space),
            pruner=_PRUNERS[self.methods[1]](),
            study_name='study',
            direction='minimize' if self.lower_is_better else 'maximize',
            load_if_exists=True,
        )
        settings = {
            'gin_file': self.gin_file,
            'gin_bindings': [*self.gin_bindings],
            'space': space.path.read_text(encoding='utf-8'),
            'metric': self.metric,
            'lower_is_better': self.lower_is_better,
            **others,
        }
        before = study.user_attrs.get('settings', settings)
        if changed := [name for name in {**settings, **before} if before.get(name) != settings.get(name)]:
            raise UserValueError(
                f'got another {changed[0]} than the search in {root} was begun with; need the same; choose another '
                '--root_dir'
            )
        study.set_user_attr('settings', settings)
        return study


class _Grid(optuna.samplers.GridSampler):
    def after_trial(self, study: Any, trial: Any, state: Any, values: Any) -> None:
        """Does not stop Optuna's own loop, which is not used, at the grid's end."""


class _Unlocked:
    """The folder is locked already; a lock of Optuna's would outlive a killed process."""

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        pass


class _Search:
    """The trials that run now."""

    def __init__(self, tuning: Tuning, its: runs.Runs, study: optuna.Study, space: Space):
        self._tuning, self._runs, self._study, self._suggest = tuning, its, study, space.suggest
        self._axis, self._mark = space.axis, space.budget / MARKS
        self._trials: dict[str, optuna.Trial] = {}
        self._reported: dict[str, int] = {}
        self._pruned: set[str] = set()
        self._waiting = study.get_trials(states=[TrialState.RUNNING])

    @property
    def left(self) -> int:
        """Trials that have not begun."""
        return max(0, self._tuning.num_trials - len(self._study.get_trials(deepcopy=False)))

    def run(self) -> None:
        """Runs trials until all have ended, or a signal stops them."""
        its = self._runs
        while its.running or (not its.stopping and (self._waiting or self.left)):
            while not its.stopping and len(its.running) < self._tuning.parallel and (self._waiting or self.left):
                self._start()
            for name in its.running.keys() - self._pruned:
                self._report(name)
            for name, code in its.ended(f'{self.left} trials to come' if self.left else ''):
                self._tell(name, code)

    def _start(self) -> None:
        """Starts a new trial, or continues one that an earlier process has begun."""
        before = self._waiting.pop(0) if self._waiting else None
        trial = optuna.Trial(self._study, before._trial_id) if before else self._study.ask()
        name, chosen = f'trial_{trial.number}', self._suggest(trial)
        self._trials[name] = trial
        self._reported[name] = max(before.intermediate_values, default=0) if before else 0
        self._runs.say(name, ', '.join(chosen))
        self._runs.start(
            name, self._tuning.gin_file, [*runs.seed_bindings(trial.number), *self._tuning.gin_bindings, *chosen]
        )

    def _report(self, name: str, ended: bool = False) -> None:
        """Reports each mark that the trial has passed to the pruner,
        and prunes the trial if that says so.
        """
        run_dir, trial = self._run_dir(name), self._trials[name]
        curve = comparison.curve(run_dir, self._axis, self._tuning.metric)
        if not len(curve) or np.isinf(self._mark):
            return
        passed = MARKS if comparison.reached_target(run_dir) else min(MARKS, int(curve[-1, 0] / self._mark))
        for mark in range(self._reported[name] + 1, passed + 1):
            value = float(np.interp(mark * self._mark, *curve.T))
            trial.report(value, mark)
            self._reported[name] = mark
            if not ended and trial.should_prune():
                self._study.tell(trial, state=TrialState.PRUNED)
                self._runs.say(name, f'pruned after {mark} of {MARKS} parts, {self._tuning.metric} {value:.4g}')
                self._runs.stop(name)
                self._pruned.add(name)
                return

    def _tell(self, name: str, code: int) -> None:
        """Tells the study the score of a trial whose run has ended;
        one that a signal stopped stays as it is.
        """
        trial, text, run_dir = self._trials[name], self._runs.ending(name, code), self._run_dir(name)
        if name in self._pruned:
            self._pruned.remove(name)
            return
        if code and self._runs.stopping:
            self._runs.say(name, text)
            return
        self._report(name, ended=True)
        score = self._score(run_dir, self._tuning.metric)
        if code == 0 and score is not None:
            trial.set_user_attr('env_steps', (read_json(run_dir.done, messages.Done) or {}).get('env_steps'))
            trial.set_user_attr('reached_target', comparison.reached_target(run_dir))
            above = []
            for metric, most in self._study.user_attrs['limits'].items():
                cost = self._score(run_dir, metric)
                cost = np.inf if cost is None else cost  # no episode has this number
                trial.set_constraint(metric, cost - most)
                above += [f'{metric} {cost:.4g} is above {most:g}'] if cost > most else []
            # The pruner compares others with complete trials, the report ranks them: only those within limits.
            state = TrialState.PRUNED if above else TrialState.COMPLETE
            ended = self._study.tell(trial, None if above else score, state)
            text += ''.join(f'; {each}' for each in above) or f'; {trial_report.result(ended)}'
            for best in trial_report.ranked(self._study)[:1]:
                text += f'; the best is trial {best.number}'
                text += f' ({trial_report.result(best)})' if best.number != ended.number else ''
        else:
            trial.set_user_attr('failed', text)
            self._study.tell(
                trial, state=TrialState.PRUNED
            )  # as the worst; the sampler would forget it as a failed one
        self._runs.say(name, text)
        trials = self._study.get_trials(deepcopy=False)
        failures = sum('failed' in each.user_attrs for each in trials)
        if failures >= _MOST_FAILURES and not any(each.values or each.intermediate_values for each in trials):
            raise UserValueError(
                f'got only trials that failed, {name} like this: {text}; need a gin file and a space that run'
            )

    def _score(self, run_dir: RunDir, metric: str) -> float | None:
        last = 1 if comparison.reached_target(run_dir) else LAST
        values = comparison.curve(run_dir, self._axis, metric)[-last:, 1]
        return float(values.mean()) if len(values) else None

    def _run_dir(self, name: str) -> RunDir:
        return RunDir(self._runs.root / name)


def run_finals(
    tuning: Tuning, study: optuna.Study, num_finalists: int, num_seeds: int, out: TextIO
) -> Comparison | None:
    """Chooses among the best trials by runs with fresh seeds, writes best.gin,
    and scores it with other seeds.

    A trial has one seed, and the best of many trials was often lucky.

    Returns:
      The runs of best.gin; None if a run was stopped or failed. The same call continues what was
      stopped.
    """
    root = local_path(tuning.root_dir, '--root_dir')
    finalists = trial_report.ranked(study)[:num_finalists]
    if len(finalists) > 1:
        folders = [root / 'finalists' / f'trial_{trial.number}' for trial in finalists]
        for trial, folder in zip(finalists, folders, strict=True):
            trial_report.write_gin_file(study, trial, root, folder.with_suffix('.gin'), tuning.metric)
            if not _all_ended(tuning, folder, folder.with_suffix('.gin'), range(_CHOOSING, _CHOOSING + num_seeds), out):
                return None
        found = _compared(tuning, folders, root / 'finalists')
        print(f'\nfinalists: {found}\n', file=out, flush=True)
        sign = -1 if tuning.lower_is_better else 1
        costs = [
            [max(np.median(each.scores) - most, 0.0) for each in comparison.compare(*folders, metric=metric).groups]
            for metric, most in study.user_attrs['limits'].items()
        ]
        above = np.sum(costs, axis=0) if costs else np.zeros(len(folders))
        keys = [
            (-least, sign * np.median(each.scores), sign * np.median(each.areas))
            for least, each in zip(above, found.groups, strict=True)
        ]
        trial_report.write_gin_file(study, finalists[keys.index(max(keys))], root, root / 'best.gin', tuning.metric)
    else:
        print(f'\nfinalists: trial {finalists[0].number} alone; no fresh seeds choose', file=out, flush=True)
    if not _all_ended(tuning, root / 'best', root / 'best.gin', range(_SCORING, _SCORING + num_seeds), out):
        return None
    return _compared(tuning, [root / 'best'], root / 'best')


def _all_ended(
    tuning: Tuning, folder: pathlib.Path, gin_file: pathlib.Path, numbers: Sequence[int], out: TextIO
) -> bool:
    print(f'{len(numbers)} seeds of {gin_file}:', file=out, flush=True)
    codes = runs.run_seeds(folder, str(gin_file), numbers, out, tuning.parallel, (), tuning.mode)
    return not any(codes.values())


def _compared(tuning: Tuning, folders: Sequence[pathlib.Path], output: pathlib.Path) -> Comparison:
    found = comparison.compare(*folders, metric=tuning.metric, lower_is_better=tuning.lower_is_better)
    comparison.write(found, output)
    return found
