"""Reports: state and metrics of the jobs and of the run at one moment, their text,
and a view without a terminal.

And the summary of a run that has ended: its result, where its files are, and how to go on.
"""

import dataclasses
import math
import pathlib
import shlex
import sys
import time
from collections.abc import Iterable, Mapping
from typing import Any, TextIO

from tflearn.files import run_dir as run_dirs
from tflearn.files.run_dir import RunDir, write_atomically
from tflearn.launch.topology import Placement, Topology

# Of a collector's time; it reports the seconds of each.
COLLECT_PARTS = ('environment', 'policy', 'writing')
# States that a job reports each second. It says once what it waits for before it begins, and how it
# has ended. A learner that saves for seconds is among those that wait for data.
_REPORTED_AGAIN = (
    'running',
    'waiting for data',
    'waiting for newer weights',
    'waiting for simulators',
    'waiting for the rest of max_env_steps',
)
# A running job reports each second; one step of a slow environment may take longer.
SILENT_SECS = 10.0


@dataclasses.dataclass(frozen=True)
class JobReport:
    """The state of one job.

    Attributes:
      kind: 'replay_server', 'train', 'evaluate' or 'collect'.
      state: the state that it reported, or what launch knows: 'starting', 'stopping', 'stopped',
        'finished', 'died'.
      metrics: the newest status of its current process; empty while there is none.
      unchanged_secs: how long that has been the newest one, by a clock that nobody sets; None: by
        its time.
    """

    name: str
    kind: str
    state: str
    alive: bool = True
    restarts: int = 0
    metrics: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    unchanged_secs: float | None = None

    def number(self, key: str) -> float | None:
        """Returns the metric `key`; None if it is missing or not a finite number."""
        value = self.metrics.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            return None
        return value

    @property
    def silent_secs(self) -> float | None:
        """The seconds since a job reported that does so each second, if they are many;
        else None.
        """
        reported_at = self.number('time')
        if not self.alive or not self.state.startswith(_REPORTED_AGAIN) or reported_at is None:
            return None
        silent_secs = time.time() - reported_at if self.unchanged_secs is None else self.unchanged_secs
        return silent_secs if silent_secs > SILENT_SECS else None

    @property
    def fresh(self) -> bool:
        """Whether its rates are those of now."""
        return self.alive and self.silent_secs is None

    def summary(self) -> str:
        """Returns the metrics that only this job has, on one line; '' if there are none."""
        texts = {
            'replay_server': [
                ('inserts', count(self.number('inserts'))),
                ('samples', count(self.number('samples'))),
                ('failed saves', count(self.number('failed_saves') or None)),
            ],
            'train': [
                ('loss', plain(self.number('loss'))),
                ('policy version', count(self.number('policy_version'))),
                ('failed saves', count(self.number('failed_saves') or None)),
                ('failed exports', count(self.number('failed_exports') or None)),
            ],
            'evaluate': [
                ('train step', count(self.number('train_step'))),
                ('episodes', count(self.number('num_episodes'))),
                ('best', plain(self.number('best_mean_return'))),
                ('best target metric', plain(self.number('best_target_value'))),
                ('episodes dropped', count(self.number('dropped_episodes') or None)),
            ],
            'collect': [
                ('', rate(self.number('env_steps_per_sec') if self.fresh else None)),
                ('mean return', plain(self.number('mean_return'))),
                ('episodes', count(self.number('episodes'))),
                ('steps lost', count(self.number('lost_steps') or None)),
                ('never trained on', self._unused_share()),
                ('episodes dropped', count(self.number('dropped_episodes') or None)),
                ('environments rebuilt', count(self.number('rebuilt_environments') or None)),
                ('overruns', count(self.number('overruns'))),
                ('', shares({part: self.number(f'{part}_secs') for part in COLLECT_PARTS})),
            ],
        }
        known = [f'{label} {text}'.strip() for label, text in texts.get(self.kind, []) if text]
        return ', '.join([self.evaluation] * bool(self.evaluation) + known)

    @property
    def evaluation(self) -> str:
        """How far the evaluation is that goes on; '' if none does."""
        ended, wanted, steps = map(self.number, ('episodes_ended', 'episodes_wanted', 'evaluation_steps'))
        if not self.fresh or ended is None or wanted is None or steps is None:
            return ''
        left = self.number('evaluation_secs_left')
        return f'plays episodes: {ended:.0f} of {wanted:.0f}, {steps:,.0f} steps' + (
            '' if left is None else f', {duration(left)} left'
        )

    def _unused_share(self) -> str:
        """'3% of the steps'; '' if none is unused."""
        unused, steps = self.number('unused_steps'), self.number('env_steps')
        return f'{unused / steps:.0%} of the steps' if unused and steps else ''


@dataclasses.dataclass(frozen=True)
class RunReport:
    """The state of the run.

    Attributes:
      jobs: one report per job, in the order in which they were started.
      secs: seconds since launch began.
    """

    jobs: tuple[JobReport, ...]
    secs: float

    def of_kind(self, kind: str) -> list[JobReport]:
        return [job for job in self.jobs if job.kind == kind]

    def by_state(self) -> dict[str, list[str]]:
        """Returns the names of the jobs in each state."""
        names: dict[str, list[str]] = {}
        for job in self.jobs:
            names.setdefault(job.state, []).append(job.name)
        return names

    def newest(self, kind: str, key: str, fresh: bool = False) -> float | None:
        """Returns the metric `key` of the first job of `kind` that has it;
        with `fresh`, of the first that reports.
        """
        numbers = (job.number(key) for job in self.of_kind(kind) if job.fresh or not fresh)
        return next((number for number in numbers if number is not None), None)

    @property
    def progress(self) -> tuple[float, float] | None:
        """How much is done of what ends the run first, and all of it;
        None while they are unknown.
        """
        step, total = self.newest('train', 'train_step'), self.newest('train', 'num_train_steps')
        share = self.newest('train', 'nearest_share')
        if share is not None:
            return share, 1.0
        return (step, total) if step is not None and total else None

    @property
    def secs_left(self) -> float | None:
        return self.newest('train', 'secs_left', fresh=True)

    def metrics(self) -> dict[str, str]:
        """Returns the known metrics of the run by label."""
        collectors = self.of_kind('collect')
        train_rate = self.newest('train', 'train_steps_per_sec', fresh=True)
        env_steps = count(self.newest('train', 'env_steps'))
        env_rate = _sum(job.number('env_steps_per_sec') for job in collectors if job.fresh)
        replay_size, max_size = (
            count(_sum(job.number(key) for job in self.of_kind('replay_server'))) for key in ('replay_size', 'max_size')
        )
        # Who samples knows the ratio: the server, or the learner with its mirror.
        ratio = self.newest('replay_server', 'samples_per_insert') or self.newest('train', 'samples_per_insert')
        ratio_target = self.newest('replay_server', 'samples_per_insert_target')
        greedy, target_return, target = (
            self.newest('evaluate', key) for key in ('mean_return', 'target_return', 'target')
        )
        wait_share = self.newest('train', 'data_wait_share', fresh=True)
        totals = [count(self.newest('train', key)) for key in ('num_train_steps', 'max_env_steps')]
        steps = count(self.newest('train', 'train_step'))
        texts = {
            'train steps': _words(steps, _around('of ', totals[0]), _around('at ', rate(train_rate))),
            'env steps': _words(env_steps, _around('of ', totals[1]), _around('at ', rate(env_rate))),
            'replay': _words(replay_size, _around('of ', max_size)),
            'samples/insert': _with_target(ratio, ratio_target),
            'collect return': plain(_mean(job.number('mean_return') for job in collectors)),
            'episode length': plain(_mean(job.number('mean_length') for job in collectors)),
            'greedy return': _with_target(greedy, target_return),
            'target metric': _with_target(self.newest('evaluate', 'target_value'), target),
            'policy lag': _around('', plain(self.newest('train', 'policy_lag', fresh=True)), ' versions'),
            'failed saves': count(_sum(job.number('failed_saves') for job in self.jobs) or None),
            'failed exports': count(self.newest('train', 'failed_exports') or None),
            'data wait': '' if wait_share is None else f'{wait_share:.0%}',
            'time left': '' if self.secs_left is None else duration(self.secs_left),
        }
        return {label: text for label, text in texts.items() if text}


def count(number: float | None) -> str:
    """'12,400'; '' for None."""
    return '' if number is None else f'{number:,.0f}'


def plain(number: float | None) -> str:
    """Four significant digits, '231.4' or '0.01235'; '' for None."""
    if number is None:
        return ''
    return f'{number:,.0f}' if abs(number) >= 10_000 else f'{number:.4g}'


def rate(number: float | None) -> str:
    """'93.1/s'; '' for None."""
    return '' if number is None else f'{number:,.{0 if number >= 100 else 1}f}/s'


def duration(secs: float) -> str:
    """'45 s', '3 min 05 s', '2 h 04 min'."""
    whole = round(secs)
    if whole < 60:
        return f'{whole} s'
    if whole < 3600:
        return f'{whole // 60} min {whole % 60:02} s'
    return f'{whole // 3600} h {whole % 3600 // 60:02} min'


def shares(parts: Mapping[str, float | None]) -> str:
    """'environment 60%, policy 30%, writing 10%' of their sum;
    '' if one is unknown or all are 0.
    """
    numbers = _known(parts.values())
    if len(numbers) < len(parts) or not sum(numbers):
        return ''
    return ', '.join(f'{name} {number / sum(numbers):.0%}' for name, number in zip(parts, numbers, strict=True))


def _words(*parts: str) -> str:
    return ' '.join(part for part in parts if part)


def _around(before: str, text: str, after: str = '') -> str:
    """`text` with words around it; '' stays ''."""
    return f'{before}{text}{after}' if text else ''


def _with_target(number: float | None, target: float | None) -> str:
    return '' if number is None else _words(plain(number), _around('(target ', plain(target), ')'))


def _known(numbers: Iterable[float | None]) -> list[float]:
    return [number for number in numbers if number is not None]


def _sum(numbers: Iterable[float | None]) -> float | None:
    known = _known(numbers)
    return sum(known) if known else None


def _mean(numbers: Iterable[float | None]) -> float | None:
    known = _known(numbers)
    return sum(known) / len(known) if known else None


_LOGGED_AS_EVENTS = ('stopping', 'stopped', 'died')


class PlainView:
    """Writes plain lines, each with the time of day."""

    def __init__(self, out: TextIO, interval_secs: float = 10.0):
        self._out = out
        self._interval_secs = interval_secs
        self._next_secs = interval_secs
        self._logged: set[tuple[str, int, str]] = set()  # (job name, restarts, state)

    def open(self) -> None:
        """Nothing to set up."""

    def close(self) -> None:
        """Nothing to close."""

    def event(self, text: str) -> None:
        """Writes what happened; further lines of `text` are indented."""
        first, *more = text.splitlines()
        lines = [f'{time.strftime("%T")} {first}', *(f'    {line}' for line in more)]
        print('\n'.join(lines), file=self._out, flush=True)

    def show(self, report: RunReport) -> None:
        """Writes each state that a job has for the first time since its start and,
        when they are due, the metrics.

        A job that returns to a state, as `evaluate` does for each policy, gets no line for it.
        """
        restarts = {job.name: job.restarts for job in report.jobs}
        for state, names in report.by_state().items():
            new = [name for name in names if (name, restarts[name], state) not in self._logged]
            self._logged.update((name, restarts[name], state) for name in new)
            if new and state not in _LOGGED_AS_EVENTS:
                self.event(f'{", ".join(new)}: {state}')
        if report.secs >= self._next_secs:
            self._next_secs = (report.secs // self._interval_secs + 1) * self._interval_secs
            self.event(f'[{duration(report.secs)}] {metrics_line(report)}')


def metrics_line(report: RunReport) -> str:
    """Returns all metrics of the run, and the jobs that do not run, on one line."""
    parts = [f'{label} {text}' for label, text in report.metrics().items()]
    states = report.by_state().items()
    parts += [f'{", ".join(names)}: {state}' for state, names in states if not state.startswith('running')]
    parts += [f'{job.name}: {job.evaluation}' for job in report.jobs if job.evaluation]
    parts += [f'{job.name}: silent for {duration(job.silent_secs)}' for job in report.jobs if job.silent_secs]
    return ' | '.join(parts)


def quoted(path: pathlib.Path) -> str:
    """Returns `path` as a user would type it: relative to the working directory if it is below it."""
    here = pathlib.Path.cwd()
    return shlex.quote(run_dirs.display_text(str(path.relative_to(here) if path.is_relative_to(here) else path)))


def result(done: Mapping[str, Any]) -> str:
    """Returns the content of DONE on one line."""
    evaluation = done.get('evaluation') or {}
    incomplete = f' (incomplete: {evaluation["incomplete"]})' if evaluation.get('incomplete') else ''
    return (
        f'{done.get("reason", "no reason given")}; train step {count(done.get("train_step")) or "?"}, '
        f'{count(done.get("env_steps")) or "?"} env steps, {duration(done.get("seconds") or 0)}; '
        f'greedy mean return {plain(evaluation.get("mean_return")) or "?"} '
        f'over {count(evaluation.get("num_episodes")) or "?"} episodes{incomplete}'
    )


def write_commands(run_dir: RunDir, topology: Topology) -> None:
    """Writes the jobs' commands to a file that can be read and pasted from."""
    lines = ['# The jobs of this run, one terminal each, in any order. For a run from its start: another --root_dir.']
    lines += [shlex.join(job.command) for job in topology.jobs]
    write_atomically(run_dir.commands, '\n'.join(lines) + '\n')


def render(topology: Topology, placements: Mapping[str, Placement]) -> str:
    """Returns the jobs' commands, each with the cores and the variables that it would get."""
    lines = []
    for job in topology.jobs:
        placement = placements[job.name]
        cores = ('taskset', '--cpu-list', ','.join(map(str, sorted(placement.cores)))) if placement.cores else ()
        variables = [f'{name}={value}' for name, value in placement.environment.items()]
        lines.append(' '.join([*variables, shlex.join([*cores, *job.command])]))
    return '\n'.join(lines)


def done_lines(run_dir: RunDir, done: Mapping[str, Any]) -> list[str]:
    """Returns the result, then five lines: where the files are, and how to run each job by hand."""
    python = shlex.quote(sys.executable)  # as a log is read from any directory
    logdir = quoted(run_dir.summaries('train').parent)
    return [
        f'The run is done: {result(done)}.',
        f'  learning curve   {quoted(run_dir.learning_curve)}',
        f'  TensorBoard      {logdir}  (to see it: {python} -m tensorboard.main --logdir={logdir})',
        f'  checkpoints      {quoted(run_dir.checkpoints)}',
        f'  policy           {quoted(run_dir.root / str(done.get("policy", "")))}  (tf.saved_model.load)',
        f'  jobs by hand     one terminal each, in any order; their commands: cat {quoted(run_dir.commands)}',
    ]


def already_done_line(run_dir: RunDir, done: Mapping[str, Any]) -> str:
    """Returns the line for a run that is already finished."""
    policy = quoted(run_dir.root / str(done.get('policy', '')))
    return (
        f'This run is already finished: {result(done)}. Its policy is in {policy}, its learning curve in '
        f'{quoted(run_dir.learning_curve)}; to continue, raise the stop condition that ended it; for a new run choose '
        'another --root_dir.'
    )


def interrupted_line(run_dir: RunDir, signal_name: str) -> str:
    """Returns the line for a run that was stopped before its end."""
    checkpoints = run_dir.checkpoints
    saved = checkpoints.is_dir() and any(checkpoints.iterdir())
    kept = f'what it learned is in {quoted(checkpoints)}' if saved else 'it had not learned anything yet'
    return f'The run was stopped by {signal_name}; {kept}. The same command continues from there.'
