"""Ray: the jobs of a run as actors of a cluster, each in a place of one placement group.

An actor is a process of Ray's Python that runs the supervisor of one job (`supervise`), which
restarts it in place by the rules of a local run. Ray starts the actor again on another node when
its own was lost. The launcher becomes `ray_driver`, which watches the actors until the run has
ended. Neither needs TensorFlow and Ray in one environment.
"""

import dataclasses
import json
import os
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NoReturn

from tflearn.core.errors import UserRuntimeError, UserValueError
from tflearn.core.settings import checked_dataclass
from tflearn.extensions.clusters import places
from tflearn.files.lock import try_lock
from tflearn.files.run_dir import RunDir
from tflearn.launch import orphan_reaper
from tflearn.launch.reports import write_commands
from tflearn.launch.topology import Job, Resources, Topology

_DRIVER = pathlib.Path(__file__).with_name('ray_driver.py')
_SUPERVISOR_SECS = 10.0  # what the supervisor needs besides the job
_Strategy = Literal['PACK', 'SPREAD', 'STRICT_PACK', 'STRICT_SPREAD']


@checked_dataclass(frozen=True)
class RayOptions:
    """What Ray is told besides the jobs' resources.

    Attributes:
      address: the cluster, 'host:port' of its head node; 'auto' is the one that this machine
        belongs to.
      python: the interpreter of the jobs, on all nodes; '' is this one.
      ray_python: the interpreter that has Ray, of the same version as the cluster's; '' is this
        one.
      strategy: how the jobs are divided among the nodes: PACK on few of them, SPREAD over many,
        STRICT_PACK on one, STRICT_SPREAD on one each.
    """

    address: str = 'auto'
    python: str = ''
    ray_python: str = ''
    strategy: _Strategy = 'PACK'


def plan(topology: Topology, run_dir: RunDir, package: str, options: RayOptions) -> dict[str, Any]:
    """Returns what the driver does, as JSON holds it: where the cluster is, and each job's actor.

    Args:
      topology: the run's jobs.
      run_dir: the run's directory, on a file system that all nodes share.
      package: the Python package of the programs.
      options: the options of Ray.
    """
    actors = []
    for job in topology.jobs:
        words = [options.python or sys.executable, '-m', f'{package}.supervise', f'--root_dir={run_dir.root}']
        for rank in range(job.workers):
            name = f'{job.name}_{rank}' if rank else job.name
            environment = {'TFLEARN_WORKER': f'{rank}/{job.workers}'} if job.workers > 1 else {}
            if job.resources.accelerators == 0:
                environment['CUDA_VISIBLE_DEVICES'] = ''
            actors.append(
                {
                    'name': name,
                    'command': [*words, f'--job={job.name}'],
                    'environment': environment,
                    'resources': _bundle(job.resources),
                    'log': str(run_dir.log(f'ray_{name}')),
                    'reaper': orphan_reaper.__file__,
                    'stop_timeout_secs': topology.stop_timeout_secs + _SUPERVISOR_SECS,
                    'stop_stage': job.stop_stage,
                    'can_be_missed': job.restart.spent == 'drop',
                }
            )
    paths = {'done': run_dir.done, 'failure': run_dir.failure, 'logs': run_dir.logs, 'root': run_dir.root}
    return {
        'watch': [sys.executable, '-m', package, 'watch', str(run_dir.root)],
        'status': str(run_dir.status('train').parent),
        'address': options.address,
        'strategy': options.strategy,
        **{name: str(path) for name, path in paths.items()},
        'jobs': actors,
    }


def _bundle(resources: Resources) -> Mapping[str, float]:
    """Returns a job's place in the placement group, by Ray's names of resources."""
    bundle: dict[str, float] = {'CPU': resources.cores or 1}
    if resources.memory_gb:
        bundle['memory'] = round(resources.memory_gb * 1e9)
    if resources.accelerators:
        bundle['GPU'] = resources.accelerators
    if resources.accelerator:
        # Which Ray counts so for each of its nodes.
        bundle[f'accelerator_type:{resources.accelerator}'] = 0.001
    return {**bundle, **resources.custom}


def with_python(topology: Topology, run_dir: RunDir, package: str, options: RayOptions) -> Topology:
    """Returns the topology that the jobs' supervisors run:
    by that interpreter, workers of a learner by `worker`.
    """
    python = options.python or sys.executable
    group = (python, '-m', f'{package}.worker', str(run_dir.root), str(topology.connect_timeout_secs))

    def its_command(job: Job) -> tuple[str, ...]:
        own = (python, *job.command[1:])
        return (*group, *own) if job.workers > 1 else own

    return dataclasses.replace(topology.with_commands(its_command), warm_parent=None)


def read_options(texts: Sequence[str]) -> RayOptions:
    """Returns the options of 'name=value' texts; see `places.read_options`."""
    return places.read_options(RayOptions, texts)


def render(topology: Topology, run_dir: RunDir, package: str, options: RayOptions) -> str:
    """Returns the driver's command and, below it, its plan and the jobs' own commands."""
    lines = [f'# {" ".join([*_driver(options), "< PLAN"])}, of which the plan is:']
    lines.append(json.dumps(plan(topology, run_dir, package, options), indent=2))
    lines.append('# The supervisors run:')
    lines += [f'# {job.name}: {" ".join(job.command)}' for job in with_python(topology, run_dir, package, options).jobs]
    return '\n'.join(lines)


def submit(topology: Topology, run_dir: RunDir, package: str, options: RayOptions) -> str:
    """Becomes the driver, which runs the jobs until the run has ended.
    SIGINT and SIGTERM stop them cleanly.

    Returns:
      Why there is nothing to do.

    Raises:
      ValueError: if there is no Ray, or the run directory cannot be written to.
    """
    run_dir.make()
    if done := run_dir.done_line():
        return done
    driver = _driver(options)
    _lock(run_dir)
    try:
        places.output([driver[0], '-I', '-c', 'import ray'])
    except UserRuntimeError as error:
        raise UserValueError(
            f'got no Ray in {driver[0]}; need a Python with the same Ray as the cluster; install ray there, or name '
            f'another one: --backend_option=ray_python=/path/to/python ({str(error)[-200:]})'
        ) from error
    write_commands(run_dir, topology)
    places.save(with_python(topology, run_dir, package, options), run_dir)
    # The driver reads the plan from a file that no other program can change: it could not check one
    # as we do.
    with open(os.memfd_create('plan'), 'w+', encoding='utf-8') as file:
        json.dump(plan(topology, run_dir, package, options), file)
        file.seek(0)
        os.dup2(file.fileno(), 0)
    sys.stdout.flush()
    return _become(driver)


def _become(driver: list[str]) -> NoReturn:
    os.execv(driver[0], driver)  # Signals are the driver's from here on.


def _lock(run_dir: RunDir) -> None:
    """Locks launch's log as long as this process lives, which the driver will be.

    Raises:
      ValueError: if another launch has locked it.
    """
    run_dir.logs.mkdir(exist_ok=True)
    log = os.open(run_dir.log('launch'), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    os.set_inheritable(log, True)
    if not try_lock(log):
        raise UserValueError(
            f'got root_dir={str(run_dir.root)!r}, which another launch uses; need a directory for each run; wait for '
            'it, stop it or choose another --root_dir'
        )


def _driver(options: RayOptions) -> list[str]:
    # -I: neither PYTHONPATH nor the folder of this file is for Ray.
    return [options.ray_python or sys.executable, '-I', str(_DRIVER)]
