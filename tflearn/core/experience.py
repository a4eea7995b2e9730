"""Experience: the data that a learner consumes.
Tables, writers, rate limiters and batches are derived from it.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal

import tensorflow as tf

from tflearn.core.errors import UserTypeError, UserValueError
from tflearn.core.settings import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, Range, checked_dataclass

Sampling = Literal['auto', 'learner', 'server']
Schedule = Callable[[tf.Tensor], tf.Tensor]  # a function of the train step (optimization/schedules)
Scheduled = NonNegativeFloat | Schedule


def _check_table(kind: str, settings: Any) -> None:
    if settings.min_size > settings.max_size:
        raise UserValueError(
            f'got {kind}.min_size={settings.min_size} > max_size={settings.max_size}, so that nothing would ever be '
            'drawn; need min_size <= max_size'
        )
    if settings.max_times_sampled and (settings.samples_per_insert or 0) > settings.max_times_sampled:
        raise UserValueError(
            f'got {kind}.samples_per_insert={settings.samples_per_insert} with max_times_sampled='
            f'{settings.max_times_sampled}, so that collectors and learner would wait for each other forever: items '
            'are removed before they were drawn that often; need max_times_sampled of at least that, or 0'
        )
    if settings.sampling == 'learner' and settings.max_times_sampled:
        text = f"got {kind}.sampling='learner' with max_times_sampled={settings.max_times_sampled}; "
        raise UserValueError(text + "the learner's mirror draws without a limit; need 'server' or 'auto'")


@checked_dataclass(frozen=True)
class Prioritization:
    """How items with large errors are sampled more often,
    and weights correct for it (Schaul et al. 2016, 1511.05952).

    An item has the priority p = (min(|error| + epsilon, max_error) / max_error)^alpha. It is drawn
    with the probability P = p / (sum of p over the N items in the table), and trained with the
    weight (N P)^-beta. Errors are clipped, as in the paper, so the maximum priority is 1:
    collectors give it to new items without asking the learner.

    Attributes:
      alpha: 0 samples uniformly, 1 in proportion to the errors; or a schedule. A new value applies
        to an item when it is next drawn.
      beta: 1 corrects fully for the non-uniform sampling, 0 not at all; or a schedule, evaluated
        for each draw.
      epsilon: added to the absolute error, so that items with zero error are drawn too; or a
        schedule.
      max_error: the absolute value at which errors are clipped, so that larger ones are drawn
        alike. The metric `priorities_clipped` counts them: where most are, order by priority has no
        effect, and it needs to be larger.
      initial_priority: the priority of new items, in (0, 1].
      normalize_by_max: divide weights by the maximum of the global batch, so that they only reduce
        steps.
      error: the name of the agent's extra metric [B] that is used as the items' errors.
    """

    alpha: Scheduled = 0.6
    beta: Scheduled = 0.4
    epsilon: Scheduled = 1e-6
    max_error: PositiveFloat = 1.0
    initial_priority: Annotated[float, Range(above=0, most=1)] = 1.0
    normalize_by_max: bool = True
    error: str = 'td_error'


@checked_dataclass(frozen=True)
class Iteration:
    """How a learner trains in iterations: several epochs on a batch of new items,
    which are never used again.

    An iteration takes a batch of items for each replica. Each epoch shuffles their steps and
    divides them into the fewest minibatches (train steps) of equal size that hold at most
    `minibatch_steps`; each step is in exactly one. (Unused slots of a minibatch have the weight 0,
    like padding and rows between two episodes.)

    Attributes:
      num_epochs: passes over the iteration's steps.
      minibatch_steps: the maximum number of environment steps in a train step, over all replicas.
    """

    num_epochs: PositiveInt = 10
    minibatch_steps: PositiveInt = 64


@checked_dataclass(frozen=True)
class Reuse:
    """How a learner trains more than once on the batches of a queue.

    Attributes:
      times: train steps with each batch.
      recent_batches: batches that are used alternately until each has had its train steps, which
        are then this far apart.
      replay_proportion: additional train steps with earlier batches, drawn at random, per train
        step with a recent batch.
      replay_batches: earlier batches that are kept for this.
    """

    times: PositiveInt = 1
    recent_batches: PositiveInt = 1
    replay_proportion: NonNegativeFloat = 0.0
    replay_batches: NonNegativeInt = 0

    def __post_init__(self) -> None:
        if self.recent_batches > 1 and self.times == 1:
            raise UserValueError(
                f'got Reuse.recent_batches={self.recent_batches} with times=1, so that each batch is used only once; '
                'need times > 1, or recent_batches=1'
            )
        if bool(self.replay_proportion) != bool(self.replay_batches):
            raise UserValueError(
                f'got Reuse.replay_proportion={self.replay_proportion}, replay_batches={self.replay_batches}; need '
                'both above 0, or neither'
            )


@checked_dataclass(frozen=True)
class Slicing:
    """How steps become items: a row is one environment step with all its columns,
    an item is consecutive rows.

    Attributes:
      sequence_length: rows of an item's sequence, which the agent gets [steps]. 2 is one
        transition; an n-step method needs n + 1.
      stride: rows between the first rows of two items of one episode [steps].
      pad_episodes: fill up the last item of an episode with copies of its boundary row, however the
        episode ended. With the stride `sequence_length` - 1 each step is in exactly one item, and
        an episode of fewer steps than that is one item. With the stride 1 each step begins an item.
        For agents that leave boundary rows out of their losses.
      cross_episodes: let items continue from one episode into the next, so that every `stride`
        steps of an environment end an item, wherever its episodes end. For agents that use step
        types: between two episodes there is a row (LAST -> FIRST) with the last observation, in
        which no action was taken.
      store_policy_state: rows hold the recurrent policy's state before their step, as
        policy_info['policy_state'].
      history_steps: rows of an item before its sequence, for transforms that need them, such as
        `stack.FrameStack`. An episode's first row is repeated, so that its first steps are in items
        as often as the others.
      future_steps: rows of an item after its sequence, for transforms that need them, such as
        `hindsight.Hindsight`. An episode's boundary row is repeated, so that its last steps are in
        items as often as the others.
    """

    sequence_length: Annotated[int, Range(least=2)] = 2
    stride: PositiveInt = 1
    pad_episodes: bool = False
    cross_episodes: bool = False
    store_policy_state: bool = False
    history_steps: NonNegativeInt = 0
    future_steps: NonNegativeInt = 0

    def __post_init__(self) -> None:
        if self.stride >= self.sequence_length:
            raise UserValueError(
                f'got Slicing.stride={self.stride} with sequence_length={self.sequence_length}, so that transitions '
                'would be left out; need stride < sequence_length'
            )
        if self.cross_episodes and self.pad_episodes:
            raise UserValueError('got Slicing.cross_episodes with pad_episodes; need one of them, or none')
        if self.cross_episodes and self.future_steps:
            raise UserValueError(
                f'got Slicing.cross_episodes with future_steps={self.future_steps}; need one of them, or none'
            )

    @property
    def num_rows(self) -> int:
        """Rows of an item: a sequence, and what comes with it."""
        return self.history_steps + self.sequence_length + self.future_steps


@dataclasses.dataclass(frozen=True)
class _Table:
    """What the replays have in common whose items are drawn again: they have nothing of a queue."""

    learns_from_old_items: ClassVar[bool] = True
    training: ClassVar[None] = None
    iteration: ClassVar[None] = None
    reuse: ClassVar[None] = None
    max_policy_lag: ClassVar[None] = None
    versions_ahead: ClassVar[None] = None
    episode_steps: ClassVar[None] = None
    read_ahead: ClassVar[int] = 0  # it has what it draws from

    max_size: PositiveInt = 100_000
    min_size: PositiveInt = 1_000
    samples_per_insert: PositiveFloat | None = None
    max_times_sampled: NonNegativeInt = 0

    def __post_init__(self) -> None:
        _check_table(type(self).__name__, self)


@checked_dataclass(frozen=True)
class Uniform(_Table):
    """All stored items are equally likely to be drawn.

    Attributes:
      max_size: the maximum number of stored items; the oldest is removed first.
      min_size: items needed before the first draw.
      samples_per_insert: how often an item is drawn on average; the side that is ahead waits. None:
        no limit. With 1 and one item per step, one batch is trained for each `global batch`
        environment steps.
      max_times_sampled: an item that was drawn this often is removed; 0 is no limit.
      sampling: where items are sampled. 'learner': in a mirror of the table in the learner's
        memory, by far the fastest; 'server': in the replay server. 'auto' is 'learner' if the
        mirror needs at most `max_mirror_gb`.
      max_mirror_gb: the maximum memory of a mirror that 'auto' chooses [GB].
      max_saved_gb: the synchronous job's checkpoints hold the replay if that takes at most so much
        [GB]. Otherwise a resumed run fills it again.
    """

    draws_uniformly: ClassVar[bool] = True
    prioritization: ClassVar[None] = None

    sampling: Sampling = 'auto'
    max_mirror_gb: NonNegativeFloat = 4.0
    max_saved_gb: NonNegativeFloat = 0.5


@checked_dataclass(frozen=True)
class Prioritized(_Table):
    """Stored items are drawn by their priorities, which the learner updates.

    Attributes:
      max_size: the maximum number of stored items; the oldest is removed first.
      min_size: items needed before the first draw.
      samples_per_insert: see `Uniform`.
      max_times_sampled: an item that was drawn this often is removed; 0 is no limit.
      prioritization: how errors become priorities, and priorities weights.
      sampling: see `Uniform`. With 'learner', priorities are at most 16 train steps old, and are in
        no checkpoint but those of the synchronous job. With 'server' they are in the replay
        server's checkpoints.
      max_mirror_gb: see `Uniform`.
      max_saved_gb: see `Uniform`.
    """

    draws_uniformly: ClassVar[bool] = False

    prioritization: Prioritization = Prioritization()
    sampling: Sampling = 'auto'
    max_mirror_gb: NonNegativeFloat = 4.0
    max_saved_gb: NonNegativeFloat = 0.5


@checked_dataclass(frozen=True)
class Queue:
    """The learner gets each item once, oldest first.

    Attributes:
      max_size: the number of waiting items at which writers are blocked, on each replay server.
      max_policy_lag: items with a row of a larger policy lag, the newest version of the weights
        minus the version that acted, are dropped and counted, never trained on; None keeps all.
      versions_ahead: how many publications of the weights collectors may be ahead. All collectors
        together make only the items that the learner takes between two publications: the learner
        divides these among the collectors that report, as credits (`control.Credits`); if a
        collector stops reporting, the others get its credits. With 1, collectors make the next
        items while the learner trains on the previous ones; with 0 all items are made with the
        newest weights. None: no credits; the queue's size is the only limit.
      training: how a learner takes several train steps with the same items: in iterations (PPO), or
        by reusing recent batches; None trains on each batch once.
      episode_steps: items that are not one complete episode of this many steps are dropped and
        counted; None keeps all. For tasks whose episodes have a known length, such as the macros of
        a chip, with `Slicing.pad_episodes`. With `max_policy_lag` = 0 training is exactly
        on-policy: all steps of an item were taken with the newest weights.
      max_in_flight: the number of items that the learner reads ahead of training, from each replay
        server; None: as many as `max_size`. With 1 for both the data are the newest.
    """

    learns_from_old_items: ClassVar[bool] = False
    draws_uniformly: ClassVar[bool] = False
    prioritization: ClassVar[None] = None
    min_size: ClassVar[int] = 1
    samples_per_insert: ClassVar[None] = None
    max_times_sampled: ClassVar[int] = 1
    sampling: ClassVar[Sampling] = 'server'  # the server hands out its items in their order
    max_mirror_gb: ClassVar[float] = 0.0
    max_saved_gb: ClassVar[float] = math.inf  # an item that is lost is never trained on

    max_size: PositiveInt = 100_000
    max_policy_lag: NonNegativeInt | None = None
    versions_ahead: NonNegativeInt | None = None
    training: Iteration | Reuse | None = None
    episode_steps: PositiveInt | None = None
    max_in_flight: PositiveInt | None = None

    @property
    def read_ahead(self) -> int:
        """How many items a learner reads ahead, see `max_in_flight`."""
        return self.max_in_flight or self.max_size

    @property
    def iteration(self) -> Iteration | None:
        """The `Iteration` in which a learner trains; None if it trains in none."""
        return self.training if isinstance(self.training, Iteration) else None

    @property
    def reuse(self) -> Reuse | None:
        """How batches are used again; None if they are not."""
        return self.training if isinstance(self.training, Reuse) else None


# Code asks a replay by these names, and never which kind it is:
#   learns_from_old_items: whether items are drawn again and in any order; otherwise each is used by
# the weights of its     time, and then gone.   draws_uniformly: whether all stored items are
# equally likely to be drawn.   prioritization: how items are drawn by priority; None if they are
# not.   iteration, reuse: how a learner takes several train steps with the same items; None if it
# does not.
Replay = Uniform | Prioritized | Queue


def check_feed(replay: Replay) -> None:
    """Checks that a feed can deliver the items of a replay.

    Raises:
      ValueError: if its priorities, or credits, would need every item to arrive and an answer for
        it.
    """
    if replay.prioritization:
        raise UserValueError(
            'got a feed with Experience.replay=Prioritized(...), whose priorities would have to go back to the '
            'servers; need Uniform, or Queue; or a learner that reads the servers itself (no --feed_address)'
        )
    if replay.versions_ahead is not None:
        raise UserValueError(
            f'got a feed with Queue.versions_ahead={replay.versions_ahead}, whose credits count every item; a feed '
            'delivers items at most once, and loses some with a worker; need Queue.versions_ahead=None'
        )


@checked_dataclass(frozen=True)
class BatchItems:
    """The size of a batch in items.

    Attributes:
      per_replica: items of a train step on each replica.
    """

    per_replica: PositiveInt = 64


@checked_dataclass(frozen=True)
class BatchSteps:
    """The size of a batch in environment steps; an item counts as `Slicing.stride` steps.

    Attributes:
      per_replica: steps of a train step's items on each replica [steps]; a multiple of the stride.
    """

    per_replica: PositiveInt


@checked_dataclass(frozen=True)
class Experience:
    """How steps become items, how items are kept and drawn, and how many of them make a batch.

    Attributes:
      slicing: how steps become items.
      replay: how items are kept and drawn.
      batch: the size of a batch.
      chunk_steps: steps of an environment that a collector gathers before it sends them [steps];
        with large rows chunks are smaller. A mirror gets them after two seconds at the latest. If
        the server samples, they wait until the chunk is full: use 1 for environments with steps of
        many seconds.
    """

    slicing: Slicing = Slicing()
    replay: Uniform | Prioritized | Queue = Uniform()
    batch: BatchItems | BatchSteps = BatchItems()
    chunk_steps: PositiveInt = 16

    def __post_init__(self) -> None:
        parts: dict[str, tuple[type, ...]] = {
            'slicing': (Slicing,),
            'replay': (Uniform, Prioritized, Queue),
            'batch': (BatchItems, BatchSteps),
        }
        for name, kinds in parts.items():
            if not isinstance(value := getattr(self, name), kinds):
                names = ' or '.join(kind.__name__ for kind in kinds)
                raise UserTypeError(f'got Experience.{name}={value!r}; need {names} of tflearn.core.experience')
        steps = self.replay.episode_steps
        if steps is not None and (steps >= self.slicing.sequence_length or self.slicing.cross_episodes):
            raise UserValueError(
                f'got Queue.episode_steps={steps} with {self.slicing}; need items of at least {steps + 1} rows '
                f'that end with their episode; set Slicing.sequence_length = {steps + 1} and cross_episodes = False'
            )
        if isinstance(self.batch, BatchSteps) and self.batch.per_replica % self.slicing.stride:
            raise UserValueError(
                f'got BatchSteps.per_replica={self.batch.per_replica} with Slicing.stride={self.slicing.stride}; need '
                'a multiple of it, since a batch consists of complete items'
            )

    @property
    def per_replica_batch_size(self) -> int:
        """Items of a train step on each replica."""
        if isinstance(self.batch, BatchSteps):
            return self.batch.per_replica // self.slicing.stride
        return self.batch.per_replica

    @property
    def versions_ahead(self) -> int | None:
        """See `Queue`; None for another replay."""
        return self.replay.versions_ahead

    def of_one_replica(self, num_replicas: int) -> 'Experience':
        """Returns the experience with which one replica alone has the batches of each of `num_replicas`.

        Raises:
          ValueError: if minibatches, which all replicas share, cannot be divided among them.
        """
        replay: Any = self.replay
        if replay.iteration is None:
            return self
        steps = replay.iteration.minibatch_steps
        if steps % num_replicas:
            raise UserValueError(
                f'got Iteration.minibatch_steps={steps} for {num_replicas} replicas; need a number that '
                f'{num_replicas} divides, since each replica gets a batch of the same size; set it to '
                f'{-(-steps // num_replicas)} times {num_replicas}'
            )
        training = dataclasses.replace(replay.iteration, minibatch_steps=steps // num_replicas)
        return dataclasses.replace(self, replay=dataclasses.replace(replay, training=training))
