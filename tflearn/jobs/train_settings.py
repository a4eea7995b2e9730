"""The settings that the jobs train and synchronous share, in groups."""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

from tflearn.core.background import Watchdog
from tflearn.core.errors import UserValueError
from tflearn.core.experience import Experience, Replay, check_feed
from tflearn.core.settings import PositiveFloat, PositiveInt, checked_dataclass
from tflearn.core.waiting import PEER_TIMEOUT_SECS
from tflearn.data.demonstrations import Cloning, Demonstrations
from tflearn.jobs.policy_exports import ExportOptions
from tflearn.learner.learner import LearnerOptions
from tflearn.learner.stop_conditions import StopConditions
from tflearn.sampling.source import Source


@checked_dataclass(frozen=True)
class Intervals:
    """How often a job publishes, exports and compares.
    (The intervals of checkpoints are in `LearnerOptions`.)

    Attributes:
      publish_interval_steps: train steps between two publications of the weights; fewer where
        train steps are slow, since a call takes no more. In the synchronous job those between two
        readings of `reward_weights.json` alone, since the newest weights act there.
      export_interval_steps: train steps between two exports of the policies.
      replica_check_interval_steps: train steps between two comparisons of the replicas' variables;
        None: no comparison.
      steps_per_call: train steps in one call of the compiled program; at most
        `publish_interval_steps` are taken. If the experience has an `Iteration`, a call is an
        iteration, after which the weights are published if that is due.
      mean_episodes: the newest episodes of all collectors that the learner's means of their metrics
        are taken over; in the synchronous job `EpisodeMetricsOptions.buffer_size` is that.
      unit: what intervals count: 'train_steps'; or 'iterations' of an `Iteration` (PPO), also those
        of checkpoints and summaries, and `ExportOptions.update_interval_steps`.
    """

    publish_interval_steps: PositiveInt = 200
    export_interval_steps: PositiveInt = 2_000
    replica_check_interval_steps: PositiveInt | None = None
    steps_per_call: PositiveInt = 200
    mean_episodes: PositiveInt = 100
    unit: Literal['train_steps', 'iterations'] = 'train_steps'

    @property
    def most_per_call(self) -> int:
        """The most train steps in one call: weights are published between two calls."""
        return min(self.steps_per_call, self.publish_interval_steps)


@checked_dataclass(frozen=True)
class Device:
    """Where train steps run, and in which precision.

    Attributes:
      strategy: where train steps run, see `strategies.make`; the synchronous job needs 'default',
        the first device.
      precision: 'float32'; or 'bfloat16' or 'float16' for the networks' inner layers, the latter
        with scaled losses.
      inter_op_threads: threads for TensorFlow's operations; None is one per core. Small networks
        are faster with 1.
      intra_op_threads: threads that share one operation; None is one per core. With 1 small
        convolutions are faster in the synchronous job, whose policy acts on small batches.
      dry_run: whether nothing is trained, but the train step of one replica is compiled and a
        report is logged; see docs/distributed.md.
      cluster_shape: for a dry run: '2x4' for 2 hosts with 4 replicas each.
      tpu: for a dry run: the kind of TPU that the step is compiled for; None compiles it for this
        CPU.
      watch_maintenance: whether a notice that Google Cloud will stop this machine ends the job,
        with a checkpoint and exit status 75; None: on TPUs.
    """

    strategy: str = 'default'
    precision: Literal['float32', 'bfloat16', 'float16'] = 'float32'
    inter_op_threads: PositiveInt | None = None
    intra_op_threads: PositiveInt | None = None
    dry_run: bool = False
    cluster_shape: str = '1x1'
    tpu: Literal['v4', 'v5e', 'v5p', 'v6e'] | None = None
    watch_maintenance: bool | None = None

    @property
    def is_tpu(self) -> bool:
        """Whether train steps run on a TPU."""
        return self.tpu is not None or self.strategy.partition(':')[0] == 'tpu'

    def check_no_dry_run(self, job: str) -> None:
        """Raises a ValueError if there is a dry run, or a setting of one,
        in a job that makes none.
        """
        if (given := (self.dry_run, self.cluster_shape, self.tpu)) != (False, '1x1', None):
            raise UserValueError(f'got {given} as dry_run, cluster_shape and tpu in {job}; need a dry run in train')

    @property
    def watches_maintenance(self) -> bool:
        """Whether the job watches for a notice of maintenance."""
        return self.is_tpu if self.watch_maintenance is None else self.watch_maintenance


@dataclasses.dataclass(frozen=True)
class Initial:
    """The initial values of a run.

    Attributes:
      seed: the seed of the networks' first weights and of all draws; None draws one, logs it and
        adds it to the summaries.
      checkpoint: the checkpoint of another run from which this run loads its initial values: the
        run's directory, its checkpoints' directory, or a checkpoint's path prefix. Ignored if this
        run has a checkpoint.
      prefixes: the prefixes of the names of these values, or a mapping from prefixes here to
        prefixes there; see `warm_start.load`. Target networks begin as copies of the loaded
        networks.
      optimizers: the prefixes, as in `prefixes`, below which the values of optimizers (moments,
        steps) are loaded too: ('agent',) for all of them; () for none.
      policy: an exported policy (a SavedModel, also one that TF-Agents' `PolicySaver` wrote) from
        which this run loads its initial variables, instead of a checkpoint: a version, a directory
        of versions (the newest is used), or a run's directory (the best is used); of both the one
        that `tflearn promote` made stable, if there is one. Variables that no policy has, such as
        critics, are initialized as usual.
      demonstrations: recorded episodes that the run trains on first, or all the time; None for
        none.
      cloning: trains the initial policy by behavioural cloning of recorded episodes, instead of
        loading one. Only in the train job, with one worker.
    """

    seed: int | None = None
    checkpoint: str | None = None
    prefixes: Collection[str] | Mapping[str, str] = ('agent',)
    optimizers: Collection[str] | Mapping[str, str] = ()
    policy: str | None = None
    demonstrations: Demonstrations | None = None
    cloning: Cloning | None = None

    def __post_init__(self) -> None:
        if self.checkpoint is not None and self.policy is not None:
            raise UserValueError(
                f'got Initial.checkpoint={self.checkpoint!r} and policy={self.policy!r}; need one of them'
            )
        if self.optimizers and self.checkpoint is None:
            raise UserValueError(
                f'got Initial.optimizers={self.optimizers!r} without Initial.checkpoint, which they are of; need both'
            )
        if self.cloning is not None and (source := self.checkpoint or self.policy):
            raise UserValueError(f'got Initial.cloning and the values of {source!r}; need one of them')

    def check_no_cloning(self, job: str) -> None:
        """Raises a ValueError if there is cloning in a job that does none."""
        if self.cloning is not None:
            raise UserValueError(
                f'got Initial.cloning in {job}; need None; clone in a run of its own (tflearn train-offline) and begin '
                'with its policy (Initial.policy), or start separate jobs (tflearn-launch)'
            )


@checked_dataclass(frozen=True)
class Data:
    """Where the train job's batches come from.

    Attributes:
      timeout_secs: how long to wait for a batch.
      addresses: the addresses of the replay servers that share a queue: items are taken from all of
        them. () uses those that are registered at the coordinator.
      weights: one for each of `addresses`, for uniform replay: each batch has items of all these
        servers' tables, in these proportions, so that tables of different collectors (explorers,
        other tasks) are mixed. Each server keeps `samples_per_insert` for its own items.
      server_timeout_secs: how long the coordinator's machine may not answer before the job saves
        and ends [s]. If only the coordinator is down, the job waits as long as there are data, and
        then for `timeout_secs`.
      feed_address: the address of a feed job (`tflearn-feed`), 'host:port', which sends the
        batches: then this process needs no Reverb. '' reads the replay servers directly.
    """

    timeout_secs: PositiveFloat = 600.0
    addresses: Sequence[str] = ()
    weights: Sequence[float] = ()
    server_timeout_secs: PositiveFloat = PEER_TIMEOUT_SECS
    feed_address: str = ''

    def __post_init__(self) -> None:
        if self.weights and len(self.weights) != len(self.addresses):
            raise UserValueError(
                f'got Data.weights={tuple(self.weights)} for Data.addresses={tuple(self.addresses)}; need one for each'
            )

    def check(self, replay: Replay, initial: Initial) -> None:
        """Raises a ValueError if the servers cannot be read together,
        or something needs them beside a feed.
        """
        if self.weights and not replay.draws_uniformly:
            raise UserValueError(f'got Data.weights with Experience.replay={replay!r}; need Uniform, or no weights')
        if self.addresses and not (self.weights or not replay.learns_from_old_items):
            raise UserValueError(
                f'got Data.addresses with Experience.replay={replay!r}; need a Queue, Uniform with weights, or none'
            )
        if self.weights and initial.demonstrations is not None:
            raise UserValueError(
                f'got Data.weights={tuple(self.weights)} with Initial.demonstrations; need one of them'
            )
        if not self.feed_address:
            return
        check_feed(replay)
        if self.addresses:
            raise UserValueError(f'got Data.addresses={tuple(self.addresses)} with a feed; need one of them')
        if initial.demonstrations is not None:
            raise UserValueError('got Initial.demonstrations with a feed; need a learner that reads the servers itself')


# By the argument of the jobs.
GROUPS: Mapping[str, type[Any]] = {
    'stop_conditions': StopConditions,
    'intervals': Intervals,
    'device': Device,
    'initial': Initial,
    'data': Data,
}


def grouped(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a job's arguments, with single settings put into their groups by name.

    Args:
      settings: arguments of the job, or fields of groups that are not given themselves.

    Raises:
      ValueError: if a group is given with another value of a field of it.
    """
    arguments = dict(settings)
    for argument, group in GROUPS.items():
        own = {field.name: arguments.pop(field.name) for field in dataclasses.fields(group) if field.name in arguments}
        if argument not in arguments:
            arguments |= {argument: group(**own)} if own else {}
        # What says the same, such as seed=None beside a group without a seed, is no contradiction.
        elif others := [name for name, value in own.items() if value != getattr(arguments[argument], name)]:
            raise UserValueError(
                f'got {others[0]} and {argument}; need one of them; put {others[0]} into {group.__name__}'
            )
    return arguments


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings of a session.

    Attributes:
      intervals: how often the session does something.
      learner: the learner's settings.
      exports: which policies are exported.
      stop_conditions: when training ends.
      seed: the run's seed.
      watchdog: ends the process if a part of the session takes too long; None never does.
      initial: the initial values, of which the session loads those of optimizers.
    """

    intervals: Intervals
    learner: LearnerOptions
    exports: ExportOptions
    stop_conditions: StopConditions
    seed: int = 0
    watchdog: Watchdog | None = None
    initial: Initial = Initial()

    def __post_init__(self) -> None:
        if self.learner.summaries and self.learner.summaries.sources.policy_version:
            raise UserValueError(
                'got SummarySources.policy_version; need None: the job itself knows the newest version'
            )

    def check(self, experience: Experience, *other_conditions: object) -> None:
        """Raises a ValueError if nothing ends the run,
        or these settings do not fit its experience.
        """
        self.stop_conditions.check(*other_conditions)
        replay, demonstrations = experience.replay, self.initial.demonstrations
        if self.intervals.unit == 'iterations' and replay.iteration is None:
            raise UserValueError(
                f"got Intervals.unit='iterations' with Experience.replay={replay!r}; need a Queue with "
                "training=Iteration(...), or 'train_steps'"
            )
        if demonstrations is not None:
            demonstrations.check(experience)

    @property
    def num_pretrain_steps(self) -> int:
        """See `Demonstrations`."""
        return 0 if self.initial.demonstrations is None else self.initial.demonstrations.num_pretrain_steps

    def steps_to_next_file(self, step: int) -> int:
        """Returns the train steps from `step` to the next export or checkpoint: a multiple of its interval."""
        intervals = self.intervals.export_interval_steps, self.learner.checkpoint_interval_steps
        return min(each - step % each for each in intervals if each is not None)

    def in_train_steps(self, source: Source) -> 'Settings':
        """Returns these settings with all intervals in train steps;
        `source` is what makes the iterations.
        """
        if self.intervals.unit == 'train_steps':
            return self
        steps = source.steps_of_call(1)

        def scaled(options: Any, *names: str, **more: Any) -> Any:
            given = {name: getattr(options, name) for name in names}
            return dataclasses.replace(options, **{name: each and each * steps for name, each in given.items()}, **more)

        summaries = self.learner.summaries and scaled(self.learner.summaries, 'interval_steps')
        own = 'publish_interval_steps', 'export_interval_steps', 'replica_check_interval_steps'
        return dataclasses.replace(
            self,
            intervals=scaled(self.intervals, *own, unit='train_steps'),
            learner=scaled(self.learner, 'checkpoint_interval_steps', summaries=summaries),
            exports=scaled(self.exports, 'update_interval_steps'),
        )

    @property
    def summary_steps(self) -> int | None:
        """The interval of summaries [train steps]; None if there are none at fixed intervals."""
        return self.learner.summaries.interval_steps if self.learner.summaries else None
