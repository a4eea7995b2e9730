"""The topology of a run: its jobs and their roles. Data only; local.py runs it."""

import dataclasses
import sys
from collections.abc import Sequence

from tflearn.errors import UserValueError, check_at_least
from tflearn.launch.restarts import RULES, RestartRule


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
    """

    name: str
    command: tuple[str, ...]
    kind: str
    serves: str | None = None
    may_finish: bool = True
    restart: RestartRule = RULES['train']
    stop_stage: int = 0


@dataclasses.dataclass(frozen=True)
class Topology:
    """The jobs of a run.

    Attributes:
      jobs: in the order in which they are started.
      warm_parent: the program that loads their libraries and forks them, see `WarmParent`; None: each loads its own.
    """

    jobs: tuple[Job, ...]
    warm_parent: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        names = [job.name for job in self.jobs]
        if len(set(names)) < len(names):
            raise UserValueError(f'got jobs named {", ".join(names)}; need names that differ')
        for job in self.jobs:
            if job.serves is not None and job.serves not in names:
                raise UserValueError(f'got job {job.name} that serves {job.serves!r}; need one of {", ".join(names)}')


def local_topology(*, package: str, flags: Sequence[str], num_collectors: int, warm_start: bool = True) -> Topology:
    """Returns the topology of a run on one machine: replay_server, train, evaluate and collect_0, collect_1, ...

    Train stops first, so that its last checkpoint is the newest there is; the replay server last, so that it saves
    all that the collectors sent.

    Args:
      warm_start: load the jobs' libraries once instead of in each of them.

    Raises:
      ValueError: if there is no collector.
    """
    check_at_least(1, num_collectors=num_collectors)

    def command(program: str, *more: str) -> tuple[str, ...]:
        return (sys.executable, '-m', f'{package}.{program}', *flags, *more)

    replay_server = Job(
        'replay_server',
        command('replay_server'),
        'replay_server',
        serves='train',
        may_finish=False,
        restart=RULES['replay_server'],
        stop_stage=3,
    )
    train = Job('train', command('train'), 'train', restart=RULES['train'], stop_stage=0)
    evaluate = Job('evaluate', command('evaluate'), 'evaluate', restart=RULES['evaluate'], stop_stage=1)
    collectors = [
        Job(
            name,
            command('collect', f'--collector_name={name}'),
            'collect',
            serves='train',
            restart=RULES['collect'],
            stop_stage=2,
        )
        for name in (f'collect_{i}' for i in range(num_collectors))
    ]
    warm_parent = (sys.executable, '-m', f'{package}.warm_parent') if warm_start else None
    return Topology((replay_server, train, evaluate, *collectors), warm_parent)
