"""Slurm: a batch script for each kind of job, and their submission.

Each Slurm job supervises one job of the run (`supervise`), which restarts it in place; jobs of a
kind are a job array; the workers of a learner are the tasks of one step, a machine each. Slurm
requeues a job whose machine was lost. A job that reaches its time limit gets SIGTERM in time to
save, and requeues itself.
"""

import dataclasses
import re
import shlex
import sys
from collections.abc import Sequence
from typing import NotRequired, TypedDict

from tflearn.core.errors import UserRuntimeError, UserValueError
from tflearn.extensions.clusters import places
from tflearn.files.run_dir import RunDir, read_json, write_json
from tflearn.launch.reports import write_commands
from tflearn.launch.topology import Job, Resources, Topology, load

# The job of a kind begins when that of another one has begun, so that none holds a place without
# what it needs.
_AFTER = {
    'replay_server': 'coordinator',
    'train': 'replay_server',
    'evaluate': 'train',
    'collect': 'replay_server',
    'relay': 'replay_server',
}
_STOP_MARGIN_SECS = 20.0  # what the supervisor needs besides the job
_MAX_REQUEUES = 50

# `wait` returns when a signal has come; the job goes on.
_SCRIPT = """\
set -u
{setup}{command} &
job=$!
trap 'kill -TERM "$job"' TERM
while :; do
  wait "$job"
  code=$?
  kill -0 "$job" 2>/dev/null || break
done
# At the time limit it was stopped in time, and goes on in another allocation; so does one whose supervisor was killed.
read -r state end < <(squeue --noheader --job="$SLURM_JOB_ID" --format='%T %e')
left=$(($(date --date="$end" +%s 2>/dev/null || echo 9999999999) - $(date +%s)))
if [[ $state == RUNNING && ! -e {done} && ${{SLURM_RESTART_COUNT:-0}} -lt {max_requeues} ]] &&
  ((code == 137 || (code == 143 && left < {grace} + 60))); then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
"""

# srun kills its tasks when it gets SIGTERM itself; scancel lets them save. What a killed srun left
# behind is killed.
_GROUP = """\
for step in $(squeue --noheader --steps --job="$SLURM_JOB_ID" --format=%i); do
  [[ $step == *.batch || $step == *.extern ]] || scancel --signal=KILL "$step"
done
stopped=
trap 'stopped=1; scancel --signal=TERM "$SLURM_JOB_ID"' TERM
srun --kill-on-bad-exit=1 "$@" &
step=$!
while :; do
  wait "$step"
  code=$?
  kill -0 "$step" 2>/dev/null || break
done
# A worker that died takes the others with it: all are started again.
[[ -n $stopped || $code -le 128 ]] || exit 75
exit "$code"
"""


@dataclasses.dataclass(frozen=True)
class SlurmOptions:
    """What Slurm is told besides the jobs' resources.

    Attributes:
      partition: where the jobs run; '' is the cluster's default.
      account: who pays for them.
      qos: their quality of service.
      time: the time limit of a job, such as 04:00:00; it is requeued when it has reached that.
      sbatch: further options of sbatch for every job, such as '--constraint=rome'.
      setup: shell commands that come first in each job, such as 'module load python/3.11'.
    """

    partition: str = ''
    account: str = ''
    qos: str = ''
    time: str = ''
    sbatch: str = ''
    setup: str = ''


def scripts(topology: Topology, run_dir: RunDir, package: str, options: SlurmOptions) -> dict[str, str]:
    """Returns a batch script for each kind of job, in the order in which they are submitted.

    Args:
      topology: the run's jobs.
      run_dir: the run's directory, on a file system that all machines share.
      package: the Python package of the programs.
      options: the options of Slurm.
    """
    kinds = list(dict.fromkeys(job.kind for job in topology.jobs))
    return {kind: _script(topology, kind, run_dir, package, options) for kind in kinds}


def with_steps(topology: Topology, run_dir: RunDir, package: str) -> Topology:
    """Returns the topology that the jobs' supervisors run:
    workers of a learner are the tasks of a step of Slurm.
    """
    worker = (sys.executable, '-m', f'{package}.worker', str(run_dir.root), str(topology.connect_timeout_secs))

    def its_command(job: Job) -> tuple[str, ...]:
        if job.workers == 1:
            return job.command
        cores = (f'--cpus-per-task={job.resources.cores}',) if job.resources.cores else ()
        tasks = (f'--nodes={job.workers}', f'--ntasks={job.workers}', '--ntasks-per-node=1', *cores)
        return ('bash', '-c', _GROUP, 'srun', *tasks, *worker, *job.command)

    return dataclasses.replace(topology.with_commands(its_command), warm_parent=None)


def read_options(texts: Sequence[str]) -> SlurmOptions:
    """Returns the options of 'name=value' texts; see `places.read_options`."""
    return places.read_options(SlurmOptions, texts)


def render(topology: Topology, run_dir: RunDir, package: str, options: SlurmOptions) -> str:
    """Returns what `submit` submits: each batch script below a comment with its command."""
    texts, made = [], scripts(topology, run_dir, package, options)
    for kind, script in made.items():
        after = f' --dependency=after:<the number of {_AFTER[kind]}>' if _AFTER.get(kind) in made else ''
        texts.append(f'# {kind}: sbatch{after} < the following\n{script}')
    return '\n'.join(texts)


def _script(topology: Topology, kind: str, run_dir: RunDir, package: str, options: SlurmOptions) -> str:
    jobs = topology.group(kind)
    first, grace = jobs[0], _grace_secs(topology)
    name = re.sub(r'[^\w.-]', '_', run_dir.root.name)
    lines = [f'--job-name=tflearn-{name}-{kind}', '--requeue', '--open-mode=append', f'--signal=B:TERM@{grace}']
    array = len(jobs) > 1 or first.name == f'{kind}_0'
    lines += [f'--array=0-{len(jobs) - 1}'] if array else []
    log = run_dir.log('slurm_' + kind + ('_%a' if array else ''))
    # Alone it begins a pattern, such as the task's number.
    folder = str(log.parent).replace('%', '%%')
    lines += [f'--output={folder}/{log.name}']
    lines += [f'--nodes={first.workers}', f'--ntasks={first.workers}', '--ntasks-per-node=1']
    lines += _resource_options(first.resources)
    named = {'partition': options.partition, 'account': options.account, 'qos': options.qos, 'time': options.time}
    lines += [f'--{option}={value}' for option, value in named.items() if value]
    lines += shlex.split(options.sbatch)
    job_name = f'{kind}_"$SLURM_ARRAY_TASK_ID"' if array else first.name
    setup = [options.setup] if options.setup else []
    if array and first.name == kind:  # The first one has no number in its name.
        setup, job_name = [*setup, f'name={kind}_$SLURM_ARRAY_TASK_ID'], '"${name%_0}"'
    supervise = shlex.join([sys.executable, '-m', f'{package}.supervise', f'--root_dir={run_dir.root}'])
    body = _SCRIPT.format(
        setup=''.join(f'{line}\n' for line in setup),
        command=f'{supervise} --job={job_name}',
        done=shlex.quote(str(run_dir.done)),
        max_requeues=_MAX_REQUEUES,
        grace=grace,
    )
    return '\n'.join(['#!/bin/bash', *map(_directive, lines), body])


def _directive(option: str) -> str:
    """Returns the line of a batch script for an option of sbatch,
    which reads such lines like a shell.
    """
    if not option.isprintable():
        raise UserValueError(
            f'got {option!a} for sbatch; need printable characters: a line break would end the comment; choose '
            'another root_dir, or another value'
        )
    name, _, value = option.partition('=')
    return f'#SBATCH {name}={shlex.quote(value)}' if value else f'#SBATCH {name}'


def _grace_secs(topology: Topology) -> int:
    return round(topology.stop_timeout_secs + _STOP_MARGIN_SECS)


def _resource_options(resources: Resources) -> list[str]:
    lines = [f'--cpus-per-task={resources.cores}'] if resources.cores else []
    if resources.memory_gb:
        lines.append(f'--mem={round(resources.memory_gb * 1e9 / 2**20)}M')
    if resources.accelerators:
        kind = f'{resources.accelerator}:' if resources.accelerator else ''
        lines.append(f'--gpus-per-node={kind}{resources.accelerators}')
    if resources.custom:
        lines.append(f'--gres={",".join(f"{name}:{count}" for name, count in resources.custom.items())}')
    return lines


def submit(topology: Topology, run_dir: RunDir, package: str, options: SlurmOptions) -> str:
    """Submits the jobs of a run; of one that was submitted before those that neither wait nor run.

    Returns:
      What was submitted, and how to watch and to stop it; one sentence each line.

    Raises:
      ValueError: if there is nothing to submit, what is there was submitted with other settings, or
        the run directory cannot be written to.
      RuntimeError: if Slurm refuses a job; those that were submitted before it are cancelled.
    """
    run_dir.make()
    if done := run_dir.done_line():
        return done
    write_commands(run_dir, topology)
    topology = with_steps(topology, run_dir, package)
    ids = _still_there(topology, run_dir)
    if not ids:
        places.save(topology, run_dir)
    run_dir.logs.mkdir(parents=True, exist_ok=True)
    new: dict[str, str] = {}
    try:
        for kind, script in scripts(topology, run_dir, package, options).items():
            if kind not in ids:
                after = [f'--dependency=after:{ids[_AFTER[kind]]}'] if _AFTER.get(kind) in ids else []
                # Jobs get this environment, as local ones do: PYTHONPATH, and what a user's own
                # modules need.
                sbatch = ['sbatch', '--parsable', '--export=ALL', *after]
                ids[kind] = new[kind] = places.output(sbatch, script).strip().split(';')[0]
                write_json(run_dir.submitted, {'slurm': ids})
    except UserRuntimeError:
        if new:
            places.output(['scancel', *new.values()])
        raise
    numbers = ' '.join(ids.values())
    lines = [
        f'Submitted: {", ".join(f"{kind} {number}" for kind, number in new.items())}.',
        f'  see them      squeue --job={",".join(ids.values())}',
        f'  their logs    {run_dir.logs}',
        f'  stop the run  scancel --signal=TERM --batch {numbers}  (each job saves; the same command continues)',
    ]
    return '\n'.join([*lines, *_kill_wait_warning(topology)])


class _Submitted(TypedDict):
    """`RunDir.submitted`."""

    slurm: NotRequired[dict[str, str]]


def _still_there(topology: Topology, run_dir: RunDir) -> dict[str, str]:
    """Returns the jobs of an earlier submission that wait or run, by kind."""
    before = (read_json(run_dir.submitted, _Submitted) or {}).get('slurm', {})
    known_ids = places.output(['squeue', '--noheader', '--me', '--format=%A %F']).split() if before else []
    there = {kind: number for kind, number in before.items() if number in known_ids}
    if there and load(run_dir) != topology:
        raise UserValueError(
            f'got other settings than those of the jobs {", ".join(there.values())} of {run_dir.root}, which wait or '
            f'run; need the same command as theirs; stop them first: scancel --signal=TERM --batch '
            f'{" ".join(there.values())}'
        )
    if len(there) == len({job.kind for job in topology.jobs}):
        raise UserValueError(
            f'got root_dir={str(run_dir.root)!r}, whose jobs all wait or run; need a directory for each run; choose '
            f'another --root_dir, or stop them: scancel --signal=TERM --batch {" ".join(there.values())}'
        )
    return there


def _kill_wait_warning(topology: Topology) -> list[str]:
    """Returns a line if the cluster gives jobs less time to end than they may take."""
    found = re.search(r'^KillWait\s*=\s*(\d+)', places.output(['scontrol', 'show', 'config']), re.M)
    if found and int(found[1]) < topology.stop_timeout_secs:
        return [
            f'  note          a plain scancel kills after {found[1]} s (KillWait), the jobs may take '
            f'{topology.stop_timeout_secs:g} s to save'
        ]
    return []
