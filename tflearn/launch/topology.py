"""The topology of a run: its jobs, their roles and resources. Data only; `local` and the schedulers run it."""

import dataclasses
import json
import re
import sys
import types
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from tflearn.core.errors import UserValueError
from tflearn.core.settings import Range, checked
from tflearn.files.run_dir import RunDir, read_json, write_atomically
from tflearn.launch.restarts import RULES, RestartRule

# Stands for the replay server's address in commands, where it is known only when the server runs; see `address_of`.
REPLAY_ADDRESS = '{replay_address}'
OWN_PORT = '{own_port}'  # in the command of a job that has an address
WITH_ADDRESS = ('replay_server', 'weights', 'relay')  # kinds of jobs that others connect to
KINDS = tuple(RULES)
MAX_JOBS = 10_000  # of a kind; more are a slip of the pen
_Count = Annotated[int, Range(least=1, most=MAX_JOBS)]
_RESOURCES_EXAMPLE = 'train:cores=4,memory_gb=8,accelerators=1,accelerator=a100'


@dataclasses.dataclass(frozen=True)
class Resources:
    """What each process of a job gets. None: what it gets without being asked for.

    Attributes:
      cores: CPU cores.
      memory_gb: memory [GB, 10^9 bytes].
      accelerators: GPUs, or chips of a TPU; 0 hides those that are there.
      accelerator: their kind, as the cluster names it.
      custom: countable resources of the cluster by name, like RLlib's `custom_resources_per_env_runner`.
    """

    cores: int | None = None
    memory_gb: float | None = None
    accelerators: int | None = None
    accelerator: str | None = None
    custom: Mapping[str, int] = dataclasses.field(default_factory=dict)


def read_resources(texts: Sequence[str]) -> dict[str, Resources]:
    """Returns the resources by kind of job.

    Args:
      texts: 'KIND:name=value,...' each: cores, memory_gb, accelerators, accelerator, and custom resources.

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
      serves: the job it works for; it is stopped after that has ended. None: the run lasts until this one has ended.
      may_finish: whether it may end by itself, with exit code 0, before the job it serves.
      restart: what follows its death.
      stop_stage: jobs of a lower stage are stopped first.
      resources: what each of its processes gets.
      workers: processes that train as one, each with a TF_CONFIG; they are started and restarted together.
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
      warm_parent: the program that loads their libraries and forks them, see `WarmParent`; None: each loads its own.
      stop_timeout_secs: how long a job may take to end after SIGTERM, before it is killed [s].
      silent_timeout_secs: a running job that has not reported for so long is killed and started again [s]; 0: never.
      connect_timeout_secs: how long a job waits for another one [s].
      gin_files: the texts of the run's own gin files, by their path in a folder of theirs, where machines lack them.
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

    def addresses_in(self, job: Job) -> tuple[str, ...]:
        """Returns the names of the jobs whose addresses a job's command needs, besides its own."""
        names = (other.name for other in self.jobs if other.kind in WITH_ADDRESS and other is not job)
        return tuple(name for name in names if any(address_of(name) in word for word in job.command))

    def save(self, run_dir: RunDir) -> None:
        """Writes it to the run directory, from which the jobs of a scheduler read it."""
        write_atomically(run_dir.topology, json.dumps(dataclasses.asdict(self), indent=2) + '\n')


def on_one_machine(topology: Topology) -> Topology:
    """Returns the topology as one machine runs it: the workers of a job are the processes of one program."""
    program = (sys.executable, '-m', f'{__package__}.worker_group')
    jobs = [
        dataclasses.replace(job, command=(*program, str(job.workers), *job.command)) if job.workers > 1 else job
        for job in topology.jobs
    ]
    return dataclasses.replace(topology, jobs=tuple(jobs))


def address_of(job: str) -> str:
    """Returns what stands for the address of the job with that name in commands, until it runs."""
    return REPLAY_ADDRESS if job == 'replay_server' else f'{{address_of_{job}}}'


def replay_servers(count: int) -> list[str]:
    """Returns the names of the replay servers that share a run's replay."""
    return ['replay_server', *(f'replay_server_{shard}' for shard in range(1, count))]


@dataclasses.dataclass(frozen=True)
class Weights:
    """A run's weights server and its relays.

    Attributes:
      address: the server's, to which train publishes; 'host:port', or what stands for it.
      relays: those of the relays, which all other jobs ask; if there are none, they ask the server.
      flags: of the server and the relays.
    """

    address: str
    relays: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()

    def flag(self, kind: str) -> str:
        """Returns the flag with which jobs of a kind find their weights."""
        asked = (self.address,) if kind == 'train' or not self.relays else self.relays
        return f'--weights_address={",".join(asked)}'


def load(run_dir: RunDir) -> Topology:
    """Returns the topology that was saved in a run directory.

    Raises:
      ValueError: if there is none, or a damaged one.
    """
    values = read_json(run_dir.topology)
    if values is None:
        raise UserValueError(f'got {run_dir.root} without {run_dir.topology.name}; need a run that was submitted there')
    try:
        jobs = [
            Job(**{**job, 'restart': RestartRule(**job['restart']), 'resources': Resources(**job['resources'])})
            for job in ({**job, 'command': tuple(job['command'])} for job in values.pop('jobs'))
        ]
        warm_parent = values.pop('warm_parent')
        return Topology(tuple(jobs), warm_parent and tuple(warm_parent), **values)
    except (KeyError, TypeError) as error:
        raise UserValueError(
            f'got a damaged {run_dir.topology} ({type(error).__name__}: {error}); need the one of a submission; submit '
            'the run again'
        ) from error


@checked
def run_topology(
    *,
    package: str,
    flags: Sequence[str],
    num_collectors: _Count,
    num_replay_servers: _Count = 1,
    warm_start: bool = True,
    resources: Mapping[str, Resources] = types.MappingProxyType({}),
    num_workers: _Count = 1,
    weights: Weights | None = None,
    feed_address: str = '',
    num_feed_workers: Annotated[int, Range(least=0, most=MAX_JOBS)] = 0,
) -> Topology:
    """Returns the topology of a run: replay_server, train, evaluate and collect_0, collect_1, ...

    Train stops first, so that its last checkpoint is the newest there is; the replay server last, so that it saves
    all that the collectors sent. Several replay servers are replay_server, replay_server_1, ...; a weights server is
    weights, and its relays relay_0, relay_1, ...

    Args:
      package: the Python package of the jobs' programs.
      flags: those that all jobs have.
      num_collectors: collect jobs.
      num_replay_servers: replay servers that share the replay; `flags` list the addresses of all.
      warm_start: load the jobs' libraries once instead of in each of them.
      resources: what the jobs of each kind get.
      num_workers: processes of the train job, which train as one.
      weights: the weights server; None: there is none, the replay server has the weights.
      feed_address: where the feed's dispatcher listens, 'host:port', if there are workers of it.
      num_feed_workers: the workers of a feed, from which the train job gets its batches; 0: there is no feed.

    Raises:
      ValueError: if there is no collector, replay server or worker, or more than `MAX_JOBS`.
    """

    def command(program: str, *more: str) -> tuple[str, ...]:
        asked = [weights.flag(program)] if weights else []
        return (sys.executable, '-m', f'{package}.{program}', *flags, *asked, *more)

    def job(name: str, kind: str, *more: str, **role: Any) -> Job:
        its_resources = resources.get(kind, Resources())
        return Job(name, command(kind, *more), kind, restart=RULES[kind], resources=its_resources, **role)

    strategy = ('--strategy=multi_worker',) if num_workers > 1 else ()
    feed = (f'--feed_address={feed_address}',) if num_feed_workers else ()
    server: dict[str, Any] = {'serves': 'train', 'may_finish': False, 'stop_stage': 3}
    first, *others = replay_servers(num_replay_servers)
    jobs = [
        *(_weights_jobs(weights, package, resources, server) if weights else ()),
        job(first, 'replay_server', **server),
        *(job(name, 'replay_server', f'--shard={i}', **server) for i, name in enumerate(others, 1)),
        job('train', 'train', *strategy, *feed, workers=num_workers),
        job('evaluate', 'evaluate', stop_stage=1),
    ]
    if feed:
        jobs.append(job('feed', 'feed', *feed, **server))
    for i in range(num_feed_workers):
        worker = job(f'feed_worker_{i}', 'feed_worker', **server)
        jobs.append(dataclasses.replace(worker, command=command('feed', *feed, f'--worker={i}')))
    for i in range(num_collectors):
        jobs.append(job(f'collect_{i}', 'collect', f'--collector_name=collect_{i}', serves='train', stop_stage=2))
    warm_parent = (sys.executable, '-m', f'{package}.warm_parent') if warm_start else None
    return Topology(tuple(jobs), warm_parent)


def _weights_jobs(
    weights: Weights, package: str, resources: Mapping[str, Resources], role: Mapping[str, Any]
) -> list[Job]:
    """Returns the weights server and its relays."""

    def job(name: str, kind: str, address: str, *more: str) -> Job:
        # An address that is not known yet is that of a machine in a network.
        listen = f'0.0.0.0:{OWN_PORT}' if address == address_of(name) else address
        command = (sys.executable, '-m', f'{package}.weights', f'--listen={listen}', *weights.flags, *more)
        return Job(name, command, kind, restart=RULES[kind], resources=resources.get(kind, Resources()), **role)

    upstream = f'--upstream={weights.address}'
    relays = (
        job(f'relay_{i}', 'relay', address, upstream, f'--name=relay_{i}') for i, address in enumerate(weights.relays)
    )
    return [job('weights', 'weights', weights.address), *relays]
