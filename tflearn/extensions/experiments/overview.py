"""The runs of a folder: their states, and their best returns. Loads no TensorFlow."""

import os
import pathlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

from tflearn.actors import evaluation_record
from tflearn.config import reader
from tflearn.core.errors import UserValueError
from tflearn.files import messages
from tflearn.files.run_dir import RunDir, local_path, read_json
from tflearn.launch.reports import count, duration, plain

_FRESH_SECS = 60.0  # a job on another machine that reported so lately runs
_DEPTH = 4


HEAD = 'state', 'train steps', 'env steps', 'newest return', 'best return', 'last report'


def cells(run_dir: RunDir) -> tuple[str, ...]:
    """Returns how a run is, the row of a table below `HEAD`.

    Its state is 'done: ' and why, 'failed: ' and why, 'running', 'running, but ' and which jobs
    have failed or are silent, 'stopped', or 'ended without a result'.
    """
    status = run_dir.statuses()
    done, train = read_json(run_dir.done, messages.Done) or {}, status.get('train', {})
    returns = [each['mean_return'] for each in evaluation_record.read(run_dir.evaluations)]
    reported = reported_at(run_dir)
    secs = None if reported is None else max(0.0, time.time() - reported)
    steps = [count(done.get(name, train.get(name))) for name in ('train_step', 'env_steps')]
    newest_and_best = [plain(returns[-1]), plain(max(returns))] if returns else ['', '']
    age = '' if secs is None else f'{duration(secs)} ago'
    return _state(run_dir, done, status, secs), *steps, *newest_and_best, age


def reported_at(run_dir: RunDir) -> float | None:
    """Returns when a job of a run reported last [s since 1970]; None if none did."""
    return max((float(each['time']) for each in run_dir.statuses().values() if 'time' in each), default=None)


def _state(run_dir: RunDir, done: Mapping[str, Any], status: Mapping[str, Any], secs: float | None) -> str:
    if done:
        return f'done: {done.get("reason", "no reason given")}'
    states = {name: str(each.get('state', '')) for name, each in status.items()}
    alive = [name for name, state in states.items() if state.startswith(('running', 'waiting', 'starting'))]
    # A call of tflearn.train that failed in a notebook has ended, though its process lives.
    ended = ('failed', 'stopped', 'finished')
    living = [name for name in run_dir.living_jobs() if not states[name].startswith(ended)]
    if living or (alive and secs is not None and secs < _FRESH_SECS):
        others = [name for name in alive if name not in living and 'time' in status[name]]
        silent = [name for name in others if time.time() - float(status[name]['time']) >= _FRESH_SECS]
        failed = [name for name, state in states.items() if state.startswith('failed') and name != 'launch']
        wrong = [*(f'{name} is silent' for name in silent), *(f'{name} failed' for name in failed)]
        return f'running, but {", ".join(wrong)}' if wrong else 'running'
    if failure := read_json(run_dir.failure, messages.Failure):
        return f'failed: {failure.get("message", "")}'
    for name, state in states.items():
        if state.startswith('failed: '):
            return f'failed: {name}{state[7:]}'.partition('\n')[0]  # gin adds lines
    return {'failed': f'failed: see {run_dir.logs}', 'stopped': 'stopped'}.get(
        states.get('launch') or states.get('train', ''), 'ended without a result'
    )


def is_run(root: pathlib.Path) -> bool:
    """Returns whether a folder is a run's."""
    try:
        run_dir = RunDir(root)
    except UserValueError:  # TensorFlow could have saved none there
        return False
    return any(
        each.exists() for each in (run_dir.evaluations, run_dir.config, run_dir.failure, run_dir.status('train'))
    )


def settings(run_dir: RunDir) -> dict[str, Any]:
    """Returns a run's recorded settings by name; none before there are any.

    Macros, which stand for values in others, are not among them.

    Raises:
      ValueError: if the file is damaged.
    """
    bindings = reader.read(run_dir.config).bindings if run_dir.config.exists() else ()
    defined = reader.macros(bindings)
    return {each.written: reader.resolved(each.value, defined) for each in bindings if each.parameter}


def runs_in(root: pathlib.Path, depth: int = _DEPTH) -> Iterator[pathlib.Path]:
    """Yields the run directories in a folder and its sub-folders, by name;
    a run has no others in it.
    """
    if is_run(root):
        yield root
    elif depth and root.is_dir():
        for path in sorted(root.iterdir()):
            yield from runs_in(path, depth - 1)


def table(folder: str | os.PathLike[str]) -> str:
    """Returns the runs in a folder as a table.

    Raises:
      ValueError: if there is none.
    """
    root = local_path(folder, 'the folder')
    rows = [(str(path.relative_to(root)), *cells(RunDir(path))) for path in runs_in(root)]
    if not rows:
        raise UserValueError(f'got {root} without a run; need a folder of runs, such as --root_dir of tflearn seeds')
    rows.insert(0, ('run', *HEAD))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return '\n'.join('  '.join(map(str.ljust, row, widths)).rstrip() for row in rows)
