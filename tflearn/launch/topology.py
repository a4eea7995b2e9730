"""The topology of a run: its jobs, their roles, resources, restarts. Data only;
`local` and the schedulers run it.

And its placement: which cores and devices of this machine each job gets, from the resources that it
asks for.
"""

import dataclasses
import itertools
import json
import os
import pathlib
import re
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

from tflearn.core import forms
from tflearn.core.errors import TRY_AGAIN_EXIT_STATUS, UserValueError
from tflearn.core.settings import Range, checked
from tflearn.files.run_dir import RunDir, read_json, write_atomically

Spent = Literal['fail', 'drop', 'later']
MAX_RESTARTS = 20  # of a job, within ten minutes


@dataclasses.dataclass(frozen=True)
class RestartRule:
    """What follows the death of a job.

    A job that a signal killed, or that asks for another try with `TRY_AGAIN_EXIT_STATUS`, is
    started again. So is one that ended with an error if `after_error`.

    Attributes:
      after_error: whether to start it again after an error of its own, too; else the run fails.
      spent: what follows when it may not be started again: the run fails; or it goes on without the
        job until no other of its kind is left ('drop'); or the job is started again when the job
        that the run lasts for has ended ('later').
    """

    after_error: bool = False
    spent: Spent = 'fail'

    def restarts(self, exit_code: int) -> bool:
        """Whether a job that ended with `exit_code` is started again;
        negative: the signal that killed it.
        """
        if exit_code < 0 or exit_code == TRY_AGAIN_EXIT_STATUS:
            return True
        return self.after_error and exit_code != 0


# By kind of job. An error of the two first ones would come again; each of the others can be done
# without for a while.
RULES = {
    'replay_server': RestartRule(),
    'train': RestartRule(),
    'collect': RestartRule(after_error=True, spent='drop'),
    'evaluate': RestartRule(after_error=True, spent='later'),
    'coordinator': RestartRule(after_error=True),
    'relay': RestartRule(after_error=True, spent='drop'),
    'feed': RestartRule(after_error=True),
    'feed_worker': RestartRule(after_error=True, spent='drop'),
}

# Stand for addresses in commands, where they are known only when a job runs: the coordinator's, and
# the job's own one.
COORDINATOR_ADDRESS, OWN_ADDRESS = '{coordinator_address}', '{own_address}'
WITH_ADDRESS = ('replay_server', 'coordinator', 'relay')  # kinds of jobs that others connect to
KINDS = tuple(RULES)
MAX_JOBS = 10_000  # of a kind; more are a typo
_Count = Annotated[int, Range(least=1, most=MAX_JOBS)]
_RESOURCES_EXAMPLE = 'train:cores=4,memory_gb=8,accelerators=1,accelerator=a100'


@dataclasses.dataclass(frozen=True)
class Resources:
    """What each process of a job gets. None: what it gets without being asked for.

    Attributes:
      cores: CPU cores.
      memory_gb: memory [GB, 10^9 bytes].
      accelerators: GPUs, or chips of a TPU; 0 hides those that are there. On one machine None is
        what no other job asks for in the learner, and 0 in all others.
      accelerator: their kind, as the cluster names it.
      custom: countable resources of the cluster by name, like RLlib's
        `custom_resources_per_env_runner`.
    """

    cores: int | None = None
    memory_gb: float | None = None
    accelerators: int | None = None
    accelerator: str | None = None
    custom: Mapping[str, int] = dataclasses.field(default_factory=dict)


def read_resources(texts: Sequence[str]) -> dict[str, Resources]:
    """Returns the resources by kind of job.

    Args:
      texts: 'KIND:name=value,...' each: cores, memory_gb, accelerators, accelerator, and custom
        resources.

    Raises:
      ValueError: that names what is wrong in a text.
    """
    found: dict[str, Resources] = {}
    for text in texts:
        kind, _, rest = text.partition(':')
        pairs = [pair.partition('=') for pair in rest.split(',')]
        if kind not in KINDS or kind in found or not all(re.fullmatch(r'[\w./-]+', name) for name, _, _ in pairs):
            raise UserValueError(
                f'got --resources={text}; need one for each kind of job ({", ".join(KINDS)}), such as '
                f'--resources={_RESOURCES_EXAMPLE}'
            )
        values = {name: _resource(text, name, value) for name, _, value in pairs}
        own = {field.name: values.pop(field.name) for field in dataclasses.fields(Resources) if field.name in values}
        found[kind] = Resources(**own, custom=values)
        if found[kind].accelerator and not found[kind].accelerators:
            raise UserValueError(
                f'got --resources={text}, an accelerator without a number; need accelerators=1 or more'
            )
    return found


def _resource(text: str, name: str, value: str) -> Any:
    if name == 'accelerator' and value:
        return value
    if name == 'memory_gb' and re.fullmatch(r'\d+(\.\d+)?', value) and float(value) > 0:
        return float(value)
    if re.fullmatch(r'\d+', value) and name not in ('memory_gb', 'custom') and (int(value) or name == 'accelerators'):
        return int(value)
    raise UserValueError(
        f'got {name}={value} in --resources={text}; need a number above 0, such as {_RESOURCES_EXAMPLE}'
    )


@dataclasses.dataclass(frozen=True)
class Job:
    """One job of a run.

    Attributes:
      name: unique; its log and its status file are named after it.
      kind: jobs of one kind stand in for each other; the run fails with the last of them.
      serves: the job it works for; it is stopped after that has ended. None: the run lasts until
        this one has ended.
      may_finish: whether it may end by itself, with exit code 0, before the job it serves.
      restart: what follows its death.
      stop_stage: jobs of a lower stage are stopped first.
      resources: what each of its processes gets.
      workers: processes that train as one, each with a TF_CONFIG; they are started and restarted
        together.
    """

    name: str
    command: tuple[str, ...]
    kind: str
    serves: str | None = None
    may_finish: bool = True
    restart: RestartRule = RULES['train']
    stop_stage: int = 0
    resources: Resources = Resources()
    workers: int = 1


@dataclasses.dataclass(frozen=True)
class Topology:
    """The jobs of a run.

    Attributes:
      jobs: in the order in which they are started.
      warm_parent: the program that loads their libraries and forks them, see `WarmParent`; None:
        each loads its own.
      stop_timeout_secs: how long a job may take to end after SIGTERM, before it is killed [s].
      silent_timeout_secs: a running job that has not reported for so long writes the stacks of its
        threads and is killed, as if it had died [s]; 0: never.
      connect_timeout_secs: how long a job waits for another one [s].
      gin_files: the texts of the run's own gin files, by their path in a folder of theirs, where
        machines lack them.
    """

    jobs: tuple[Job, ...]
    warm_parent: tuple[str, ...] | None = None
    stop_timeout_secs: float = 60.0
    silent_timeout_secs: float = 0.0
    connect_timeout_secs: float = 300.0
    gin_files: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        names = [job.name for job in self.jobs]
        if len(set(names)) < len(names):
            raise UserValueError(f'got jobs named {", ".join(names)}; need names that differ')
        for job in self.jobs:
            if job.serves is not None and job.serves not in names:
                raise UserValueError(f'got job {job.name} that serves {job.serves!r}; need one of {", ".join(names)}')

    def group(self, kind: str) -> tuple[Job, ...]:
        """Returns the jobs of a kind, which have the same resources and differ in their names only."""
        return tuple(job for job in self.jobs if job.kind == kind)

    def with_commands(self, command: Callable[[Job], tuple[str, ...]]) -> 'Topology':
        """Returns the topology with another command for each job."""
        return dataclasses.replace(
            self, jobs=tuple(dataclasses.replace(job, command=command(job)) for job in self.jobs)
        )

    @property
    def host(self) -> str:
        """The name of the job that is the coordinator."""
        return next((job.name for job in self.jobs if job.kind == 'coordinator'), 'replay_server')

    def save(self, run_dir: RunDir) -> None:
        """Writes it to the run directory, from which the jobs of a scheduler read it."""
        write_atomically(run_dir.topology, json.dumps(dataclasses.asdict(self), indent=2) + '\n')


def on_one_machine(topology: Topology) -> Topology:
    """Returns the topology as one machine runs it:
    the workers of a job are the processes of one program.
    """
    program = (sys.executable, '-m', f'{__package__}.learner_workers')
    return topology.with_commands(
        lambda job: (*program, str(job.workers), *job.command) if job.workers > 1 else job.command
    )


def replay_servers(count: int) -> list[str]:
    """Returns the names of the replay servers that share a run's replay."""
    return ['replay_server', *(f'replay_server_{shard}' for shard in range(1, count))]


@dataclasses.dataclass(frozen=True)
class Addresses:
    """The addresses of a run's servers: 'host:port', or what stands for one.

    Attributes:
      coordinator: the coordinator's.
      replay: those of the replay servers.
      relays: those of the relays of weights.
      alone: whether the coordinator is a program of its own, and not a part of the first replay
        server.
      flags: of the coordinator alone and of the relays.
      replay_flags: of the replay servers.
    """

    coordinator: str = COORDINATOR_ADDRESS
    replay: tuple[str, ...] = (OWN_ADDRESS,)
    relays: tuple[str, ...] = ()
    alone: bool = False
    flags: tuple[str, ...] = ()
    replay_flags: tuple[str, ...] = ()


def load(run_dir: RunDir) -> Topology:
    """Returns the topology that was saved in a run directory.

    Raises:
      ValueError: if there is none, or a damaged one.
    """
    values = read_json(run_dir.topology)
    if values is None:
        raise UserValueError(f'got {run_dir.root} without {run_dir.topology.name}; need a run that was submitted there')
    if fault := forms.fault(values, Topology, '', f'a damaged {run_dir.topology}, with '):
        raise UserValueError(f'{fault}; submit the run again')
    try:
        jobs = [
            Job(**{**job, 'restart': RestartRule(**job['restart']), 'resources': Resources(**job['resources'])})
            for job in ({**job, 'command': tuple(job['command'])} for job in values.pop('jobs'))
        ]
        warm_parent = values.pop('warm_parent')
        return Topology(tuple(jobs), warm_parent and tuple(warm_parent), **values)
    except (KeyError, TypeError, ValueError) as error:
        raise UserValueError(
            f'got a damaged {run_dir.topology} ({type(error).__name__}: {error!s:.200}); need the one of a '
            'submission; submit the run again'
        ) from error


@checked
def run_topology(
    *,
    package: str,
    flags: Sequence[str],
    num_collectors: _Count,
    addresses: Addresses = Addresses(),
    warm_start: bool = True,
    resources: Mapping[str, Resources] = types.MappingProxyType({}),
    num_workers: _Count = 1,
    feed_address: str = '',
    num_feed_workers: Annotated[int, Range(least=0, most=MAX_JOBS)] = 0,
) -> Topology:
    """Returns the topology of a run: replay_server, train, evaluate and collect_0, collect_1, ...

    Train stops first, so that its last checkpoint is the newest there is; the replay server last,
    so that it saves all that the collectors sent. Several replay servers are replay_server,
    replay_server_1, ...; relays of weights are relay_0, relay_1, ...

    Args:
      package: the Python package of the jobs' programs.
      flags: those that all jobs have.
      num_collectors: collect jobs.
      addresses: those of the servers, and so their number.
      warm_start: load the jobs' libraries once instead of in each of them.
      resources: what the jobs of each kind get.
      num_workers: processes of the train job, which train as one.
      feed_address: where the feed's dispatcher listens, 'host:port', if there are workers of it.
      num_feed_workers: the workers of a feed, from which the train job gets its batches; 0: there
        is no feed.

    Raises:
      ValueError: if there is no collector, replay server or worker, or more than `MAX_JOBS`.
    """

    where = f'--coordinator_address={addresses.coordinator}'
    # Servers are stopped last, and all others at once: collect and evaluate may move a robot.
    server: dict[str, Any] = {'serves': 'train', 'may_finish': False, 'stop_stage': 1}

    def command(program: str, *more: str) -> tuple[str, ...]:
        return (sys.executable, '-m', f'{package}.{program}', *more)

    def job(name: str, kind: str, *more: str, program: str = '', **role: Any) -> Job:
        its_command, its_resources = command(program or kind, *flags, where, *more), resources.get(kind, Resources())
        return Job(name, its_command, kind, restart=RULES[kind], resources=its_resources, **role)

    def coordinator(name: str, kind: str, *more: str) -> Job:
        its_command = command('coordinator', where, f'--name={name}', *addresses.flags, *more)
        return dataclasses.replace(job(name, kind, **server), command=its_command)

    strategy = ('--strategy=multi_worker',) if num_workers > 1 else ()
    feed = (f'--feed_address={feed_address}',) if num_feed_workers else ()
    shards = [f'--num_shards={count}'] if (count := len(addresses.replay)) > 1 else []
    shards += ['--noserve_coordinator'] if addresses.alone else []
    jobs = [coordinator('coordinator', 'coordinator')] if addresses.alone else []
    for i, (name, address) in enumerate(zip(replay_servers(count), addresses.replay, strict=True)):
        own = (f'--replay_address={address}', *addresses.replay_flags, *shards, *([f'--shard={i}'] if i else []))
        jobs.append(job(name, 'replay_server', *own, **server))
    for i, address in enumerate(addresses.relays):
        jobs.append(coordinator(f'relay_{i}', 'relay', f'--relay_address={address}', f'--index={i}'))
    jobs.append(job('train', 'train', *strategy, *feed, workers=num_workers))
    jobs.append(job('evaluate', 'evaluate'))
    if feed:
        jobs.append(job('feed', 'feed', *feed, **server))
    for i in range(num_feed_workers):
        jobs.append(job(f'feed_worker_{i}', 'feed_worker', *feed, f'--worker={i}', program='feed', **server))
    for i in range(num_collectors):
        jobs.append(job(f'collect_{i}', 'collect', f'--collector_name=collect_{i}', serves='train'))
    return Topology(tuple(jobs), command('warm_parent') if warm_start else None)


_DEVICES = pathlib.Path('/dev')
_CGROUP_LIMITS = ('/sys/fs/cgroup/memory.max', '/sys/fs/cgroup/memory/memory.limit_in_bytes')
_TF_DEVICES = 'CUDA_VISIBLE_DEVICES'
_TF_GROWTH = 'TF_FORCE_GPU_ALLOW_GROWTH'


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
    if visible is not None:  # -1 and what stands behind it are none
        gpus = [*itertools.takewhile(lambda name: name not in ('', '-1'), visible.split(','))]
    return Machine(sorted(os.sched_getaffinity(0)), memory / 1e9, gpus)


def place(topology: Topology, machine: Machine) -> dict[str, Placement]:
    """Divides a machine among the jobs. Jobs that ask for cores share them with no other job that asks for some.

    The learner has the GPUs for which no job asks, and the others none: the first process of
    TensorFlow that sees a GPU takes nearly all of its memory. A job with GPUs takes memory as it
    needs it, unless the launcher's environment says otherwise. Other memory is added up and
    compared, and nothing more: no process is held below a limit. The workers of a job share its
    cores, and divide its devices among themselves (see `learner_workers`).

    Returns:
      The placement of each job by its name.

    Raises:
      ValueError: if the jobs ask for more than the machine has.
    """
    _check_asked(topology, machine)
    cores, gpus = iter(machine.cores), iter(machine.gpus)
    asked_for = sum(job.workers * (job.resources.accelerators or 0) for job in topology.jobs)
    left = machine.gpus[asked_for:]
    placements = {}
    for job in topology.jobs:
        own_cores = frozenset(itertools.islice(cores, job.workers * (job.resources.cores or 0)))
        own_gpus: Sequence[str] | None = None  # all that there may be
        if job.resources.accelerators is not None:
            own_gpus = [*itertools.islice(gpus, job.workers * job.resources.accelerators)]
        elif machine.gpus:
            own_gpus = left if job.kind == 'train' else ()
        placements[job.name] = Placement(own_cores or None, _of_gpus(own_gpus))
    return placements


def _check_asked(topology: Topology, machine: Machine) -> None:
    """Raises ValueError if the jobs ask for more than the machine has, or what no machine has."""
    there_is = {
        'cores': len(machine.cores),
        'memory_gb': round(machine.memory_gb, 1),
        'accelerators': len(machine.gpus),
    }
    for what, have in there_is.items():
        asked = {job.name: job.workers * value for job in topology.jobs if (value := getattr(job.resources, what))}
        if sum(asked.values()) > have:
            each = ', '.join(f'{name} {value:g}' for name, value in asked.items())
            raise UserValueError(
                f'got --resources with {what} of {sum(asked.values()):g} ({each}); need at most the {have:g} of this '
                'machine; ask for less, or start fewer collectors'
            )
    for job in topology.jobs:
        if job.resources.custom:
            raise UserValueError(
                f'got the resources {", ".join(job.resources.custom)} for {job.name} on one machine; need '
                '--backend=slurm or --backend=kubernetes for that'
            )


def commonest_environment(placements: Mapping[str, Placement]) -> Mapping[str, str]:
    """Returns the variables that most jobs have, for the process that forks them."""
    environments = [placement.environment for placement in placements.values()]
    return max(environments, key=environments.count, default={})


def _of_gpus(gpus: Sequence[str] | None) -> dict[str, str]:
    """Returns the variables of a process that has these GPUs; None: without a limit."""
    if gpus is None:
        return {}
    growth = {_TF_GROWTH: os.environ.get(_TF_GROWTH, 'true')} if gpus else {}
    return {_TF_DEVICES: ','.join(gpus), **growth}
