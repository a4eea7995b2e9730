"""Placement: which cores and devices of this machine each job gets, from the resources that its topology asks for."""

import dataclasses
import itertools
import os
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence

from tflearn.core.errors import UserValueError
from tflearn.launch.topology import Job, Topology

_DEVICES = pathlib.Path('/dev')
_CGROUP_LIMITS = ('/sys/fs/cgroup/memory.max', '/sys/fs/cgroup/memory/memory.limit_in_bytes')
_TF_DEVICES = 'CUDA_VISIBLE_DEVICES'


@dataclasses.dataclass(frozen=True)
class Machine:
    """What a machine has.

    Attributes:
      cores: the numbers of the cores that this process may use.
      memory_gb: its memory, or the limit of its container [GB].
      gpus: the numbers of its GPUs.
    """

    cores: Sequence[int]
    memory_gb: float
    gpus: Sequence[str]


@dataclasses.dataclass(frozen=True)
class Placement:
    """Where a job runs.

    Attributes:
      cores: the cores that it may use; None: all.
      environment: variables of its process besides those of the launcher.
    """

    cores: frozenset[int] | None = None
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)


def this_machine() -> Machine:
    """Returns what this machine has. GPUs are NVIDIA's, those of `CUDA_VISIBLE_DEVICES` if it is set."""
    memory = os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')
    for path in map(pathlib.Path, _CGROUP_LIMITS):
        text = path.read_text(encoding='utf-8').strip() if path.exists() else ''
        memory = min(memory, int(text)) if text.isdigit() else memory
    gpus = sorted(path.name.removeprefix('nvidia') for path in _DEVICES.glob('nvidia[0-9]*'))
    visible = os.environ.get(_TF_DEVICES)
    gpus = gpus if visible is None else [name for name in visible.split(',') if name]
    return Machine(sorted(os.sched_getaffinity(0)), memory / 1e9, gpus)


def place(topology: Topology, machine: Machine) -> dict[str, Placement]:
    """Divides a machine among the jobs. Jobs that ask for cores share them with no other job that asks for some.

    Memory is added up and compared, and nothing more: no process is held below a limit. The workers of a job share its
    cores, and divide its devices among themselves (see `learner_workers`).

    Returns:
      The placement of each job by its name.

    Raises:
      ValueError: if the jobs ask for more than the machine has.
    """
    cores, gpus = iter(machine.cores), iter(machine.gpus)
    for what, have, wanted in (
        ('cores', len(machine.cores), lambda job: _all(job, job.resources.cores)),
        ('memory_gb', round(machine.memory_gb, 1), lambda job: _all(job, job.resources.memory_gb)),
        ('accelerators', len(machine.gpus), lambda job: _all(job, job.resources.accelerators)),
    ):
        _check(topology.jobs, what, have, wanted)
    for job in topology.jobs:
        if job.resources.custom:
            raise UserValueError(
                f'got the resources {", ".join(job.resources.custom)} for {job.name} on one machine; need '
                '--backend=slurm or --backend=kubernetes for that'
            )
    return {job.name: _placement(job, cores, gpus) for job in topology.jobs}


def _check(jobs: Iterable[Job], what: str, have: float, wanted: Callable[[Job], float | None]) -> None:
    asked = {job.name: value for job in jobs if (value := wanted(job))}
    if sum(asked.values()) > have:
        each = ', '.join(f'{name} {value:g}' for name, value in asked.items())
        raise UserValueError(
            f'got --resources with {what} of {sum(asked.values()):g} ({each}); need at most the {have:g} of this '
            'machine; ask for less, or start fewer collectors'
        )


def _all(job: Job, value: float | None) -> float | None:
    """Returns what all workers of a job get together."""
    return None if value is None else value * job.workers


def _placement(job: Job, cores: Iterable[int], gpus: Iterable[str]) -> Placement:
    resources = job.resources
    own = frozenset(itertools.islice(cores, job.workers * (resources.cores or 0)))
    environment = {}
    if resources.accelerators is not None:
        environment[_TF_DEVICES] = ','.join(itertools.islice(gpus, job.workers * resources.accelerators))
    return Placement(own or None, environment)
