"""The summary of a run that has ended: its result, where its files are, and how to continue."""

import pathlib
import shlex
import sys
from collections.abc import Mapping
from typing import Any

from tflearn.files import run_dir as run_dirs
from tflearn.files.run_dir import RunDir, write_atomically
from tflearn.launch.placement import Placement
from tflearn.launch.reports import count, duration, plain
from tflearn.launch.topology import Topology


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
    python = quoted(pathlib.Path(sys.executable))
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
