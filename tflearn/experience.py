"""Experience: the data that a learner consumes. Tables, writers, rate limiters and batches are derived from it."""

import dataclasses
import importlib
from collections.abc import Callable
from typing import Any, Literal, get_args

import tensorflow as tf

from tflearn.defaults import DefaultInt
from tflearn.errors import UserTypeError, UserValueError

Order = Literal['uniform', 'prioritized', 'queue']
Sampling = Literal['auto', 'learner', 'server']
Scheduled = float | Callable[[tf.Tensor], tf.Tensor]  # a number, or a function of the train step (agents/schedules)


@dataclasses.dataclass(frozen=True)
class Prioritization:
    """How draws prefer items with large errors, and how weights correct for that (Schaul et al. 2016, 1511.05952).

    An item has the priority p = (min(|error| + epsilon, max_error) / max_error)^alpha. It is drawn with the probability
    P = p / (sum of p over the N items in the table), and trained with the weight (N P)^-beta. Errors are clipped, as in
    the paper, so the maximum priority is 1: collectors give it to new items without asking the learner.

    Attributes:
      alpha: 0 draws uniformly, 1 in proportion to the errors; or a schedule. A new value applies to an item from its
        next draw on.
      beta: 1 corrects for the unequal draws fully, 0 not at all; or a schedule, evaluated for each draw of batches.
      epsilon: added to an error's size, so that items without an error are drawn too; or a schedule.
      max_error: the size at which errors are clipped.
      initial_priority: the priority of new items, in (0, 1].
      normalize_by_max: divide weights by the maximum of the global batch, so that they only make steps smaller.
      error: the agent's extra metric [B] that is an item's error.
    """

    alpha: Scheduled = 0.6
    beta: Scheduled = 0.4
    epsilon: Scheduled = 1e-6
    max_error: float = 1.0
    initial_priority: float = 1.0
    normalize_by_max: bool = True
    error: str = 'td_error'

    def __post_init__(self) -> None:
        for name in ('alpha', 'beta', 'epsilon'):
            value = getattr(self, name)
            if not callable(value) and not value >= 0:
                raise UserValueError(f'got Prioritization.{name}={value!r}; need a number of at least 0, or a schedule')
        if not self.max_error > 0:
            raise UserValueError(f'got Prioritization.max_error={self.max_error!r}; need a number above 0')
        if not 0 < self.initial_priority <= 1:
            raise UserValueError(
                f'got Prioritization.initial_priority={self.initial_priority!r}; need a number above 0, at most 1, '
                'which is the maximum priority'
            )


@dataclasses.dataclass(frozen=True)
class Iteration:
    """How a learner trains in iterations: on a batch of new items for several epochs, then never again on them.

    An iteration takes `per_replica_batch_size` items for each replica. Each epoch shuffles their steps and divides them
    into the fewest minibatches (train steps) of equal size that hold at most `minibatch_steps`; each step is in exactly
    one. (Unused slots of a minibatch have the weight 0, like padding and rows between two episodes.)

    Attributes:
      num_epochs: passes over the iteration's steps.
      minibatch_steps: the maximum number of environment steps in a train step, over all replicas.
    """

    num_epochs: int = 10
    minibatch_steps: int = 64

    def __post_init__(self) -> None:
        _check_integers('Iteration', self, {'num_epochs': 1, 'minibatch_steps': 1})


@dataclasses.dataclass(frozen=True)
class Reuse:
    """How a learner trains more than once on the batches of a queue.

    Attributes:
      times: train steps with each batch.
      recent_batches: batches that are used alternately until each has had its train steps, which are then this far
        apart.
      replay_proportion: additional train steps with earlier batches, drawn at random, per train step with a recent
        batch.
      replay_batches: earlier batches that are kept for this.
    """

    times: int = 1
    recent_batches: int = 1
    replay_proportion: float = 0.0
    replay_batches: int = 0

    def __post_init__(self) -> None:
        if self.times < 1 or self.recent_batches < 1:
            raise UserValueError(
                f'got Reuse.times={self.times}, recent_batches={self.recent_batches}; need at least 1 for both'
            )
        if self.recent_batches > 1 and self.times == 1:
            raise UserValueError(
                f'got Reuse.recent_batches={self.recent_batches} with times=1, so that each batch is used only once; '
                'need times > 1, or recent_batches=1'
            )
        if not self.replay_proportion >= 0 or bool(self.replay_proportion) != (self.replay_batches > 0):
            raise UserValueError(
                f'got Reuse.replay_proportion={self.replay_proportion}, replay_batches={self.replay_batches}; need '
                'both above 0, or neither'
            )


@dataclasses.dataclass(frozen=True)
class Experience:
    """How steps become items, and how items are kept and drawn.

    A row is one environment step with all its columns; an item is `sequence_length` consecutive rows.

    Attributes:
      sequence_length: rows of an item [steps]. 2 is one transition; an n-step method needs n + 1.
      stride: rows between the first rows of two items of one episode [steps].
      pad_episodes: fill up the last item of an episode with copies of its boundary row, however the episode ended. With
        the stride `sequence_length` - 1 each step is in exactly one item, and an episode of fewer steps than that is
        one item. For agents that leave boundary rows out of their losses.
      cross_episodes: let items continue from one episode into the next, so that every `stride` steps of an environment
        end an item, wherever its episodes end. For agents that use step types: between two episodes there is a row
        (LAST -> FIRST) with the last observation, in which no action was taken.
      order: 'uniform' and 'prioritized' draw from all stored items; 'queue' returns each item once, oldest first.
      max_size: the maximum number of stored items; the oldest is removed first. For a queue: items that wait before
        writers are blocked; the learner holds about as many more, so 1 gives the newest data.
      min_size: items needed before the first draw.
      samples_per_insert: how often an item is drawn on average; the side that is ahead waits. None limits neither side.
        1 with one item per step trains one batch per `global batch` environment steps.
      max_times_sampled: an item that was drawn this often is removed; 0 is no limit.
      per_replica_batch_size: items of a train step on each replica.
      per_replica_batch_steps: the same in steps, of which an item has `stride` [steps]; must be a multiple of it. Only
        one of the two can be given; the other one may be None. A new stride gives a new batch size.
      sampling: where uniform draws are made. 'learner': in a mirror of the table in the learner's memory, by far the
        fastest; 'server': by the replay server. 'auto' is the learner if its mirror takes at most `max_mirror_gb`.
      max_mirror_gb: the maximum memory of a mirror that 'auto' chooses [GB].
      chunk_steps: steps of an environment that a collector gathers before it sends them [steps]; large rows make
        smaller chunks. A mirror gets them after two seconds at the latest. Where the server draws, they wait until the
        chunk is full: use 1 for environments that take many seconds for a step.
      prioritization: settings of the order 'prioritized'; None takes the default ones there.
      iteration: how agents that take several steps on the same items (PPO) train on new items; for the order 'queue'.
        None trains on each batch once.
      max_policy_lag: for a queue: items with a row whose policy is more versions (publications) older than this are
        dropped and counted, never trained on; None keeps all.
      versions_ahead: for a queue: publications of the weights that collectors need not wait for. All collectors
        together make the items that the learner takes between two publications, and no more: the learner divides these
        among the collectors that report, as credits (`control.Credits`), and gives the credits of a collector that no
        longer reports to the others. With 1 they make the items that the learner takes next while it trains on the
        ones before; with 0 all items are made with the newest weights. None: no credits, as many items as fit into the
        queue.
      reuse: for a queue: how a learner trains more than once on a batch; None trains once.
      store_policy_state: rows hold the recurrent policy's state before their step, as policy_info['policy_state'].
    """

    sequence_length: int = 2
    stride: int = 1
    pad_episodes: bool = False
    cross_episodes: bool = False
    order: Order = 'uniform'
    max_size: int = 100_000
    min_size: int = 1_000
    samples_per_insert: float | None = None
    max_times_sampled: int = 0
    per_replica_batch_size: int = DefaultInt(64)
    per_replica_batch_steps: int | None = dataclasses.field(default=None, compare=False)
    sampling: Sampling = 'auto'
    max_mirror_gb: float = 4.0
    chunk_steps: int = 16
    prioritization: Prioritization | None = None
    iteration: Iteration | None = None
    max_policy_lag: int | None = None
    versions_ahead: int | None = None
    reuse: Reuse | None = None
    store_policy_state: bool = False

    def __post_init__(self) -> None:
        least = {'sequence_length': 2, 'stride': 1, 'max_size': 1, 'min_size': 1, 'max_times_sampled': 0}
        _check_integers('Experience', self, least | {'chunk_steps': 1})
        self._derive_batch_size()
        _check_integers('Experience', self, {'per_replica_batch_size': 1})
        if self.stride >= self.sequence_length:
            raise UserValueError(
                f'got Experience.stride={self.stride} with sequence_length={self.sequence_length}, so that transitions '
                'would be left out; need stride < sequence_length'
            )
        for name, values in {'order': get_args(Order), 'sampling': get_args(Sampling)}.items():
            if getattr(self, name) not in values:
                raise UserValueError(f'got Experience.{name}={getattr(self, name)!r}; need one of {", ".join(values)}')
        if self.sampling == 'learner' and (self.order != 'uniform' or self.max_times_sampled):
            raise UserValueError(
                f"got Experience.sampling='learner' with order={self.order!r}, max_times_sampled="
                f"{self.max_times_sampled}; the learner's mirror draws uniformly, without a limit; need 'server' or "
                "'auto'"
            )
        if self.order == 'prioritized' and self.prioritization is None:
            object.__setattr__(self, 'prioritization', Prioritization())
        if self.order != 'prioritized' and self.prioritization is not None:
            raise UserValueError(
                f"got Experience.prioritization with order={self.order!r}; need order='prioritized', or "
                'prioritization=None'
            )
        if self.min_size > self.max_size:
            raise UserValueError(
                f'got Experience.min_size={self.min_size} > max_size={self.max_size}, so that nothing would ever be '
                'drawn; need min_size <= max_size'
            )
        if self.samples_per_insert is not None and self.samples_per_insert <= 0:
            raise UserValueError(f'got Experience.samples_per_insert={self.samples_per_insert}; need a number above 0')
        if self.cross_episodes and self.pad_episodes:
            raise UserValueError('got Experience.cross_episodes with pad_episodes; need one of them, or none')
        if self.order == 'queue' and (self.samples_per_insert is not None or self.max_times_sampled):
            raise UserValueError(
                "got Experience.order='queue' with samples_per_insert or max_times_sampled; a queue returns each item "
                'once; remove them'
            )
        self._check_use()

    def _check_use(self) -> None:
        """Checks the settings that only a queue has."""
        given = (self.max_policy_lag, self.versions_ahead, self.reuse, self.iteration)
        if self.order != 'queue' and any(value is not None for value in given):
            raise UserValueError(
                f'got Experience.max_policy_lag, versions_ahead, reuse or iteration with order={self.order!r}; need '
                "order='queue', or None for all of them"
            )
        if self.versions_ahead is not None:
            _check_integers('Experience', self, {'versions_ahead': 0})
        if self.reuse is not None and self.iteration is not None:
            raise UserValueError('got Experience.reuse with iteration; need one of them, or none')
        if self.max_policy_lag is not None and self.max_policy_lag < 0:
            raise UserValueError(f'got Experience.max_policy_lag={self.max_policy_lag}; need at least 0, or None')

    def _derive_batch_size(self) -> None:
        """Sets `per_replica_batch_size` if it is not given."""
        size, steps = self.per_replica_batch_size, self.per_replica_batch_steps
        given = size is not None and not isinstance(size, DefaultInt)
        if steps is None:
            if isinstance(size, DefaultInt):  # `dataclasses.replace` may have copied a derived value
                object.__setattr__(self, 'per_replica_batch_size', Experience.per_replica_batch_size)
            return
        if given:
            raise UserValueError(
                f'got Experience.per_replica_batch_size={size} and per_replica_batch_steps={steps}; need one of them; '
                'set the other one to None'
            )
        _check_integers('Experience', self, {'per_replica_batch_steps': 1})
        if steps % self.stride:
            raise UserValueError(
                f'got Experience.per_replica_batch_steps={steps} with stride={self.stride}; need a multiple of it, '
                'since a batch consists of complete items'
            )
        object.__setattr__(self, 'per_replica_batch_size', DefaultInt(steps // self.stride))


def _check_integers(kind: str, settings: Any, least: dict[str, int]) -> None:
    for name, bound in least.items():
        value = getattr(settings, name)
        if not isinstance(value, int) or isinstance(value, bool):
            raise UserTypeError(f'got {kind}.{name}={value!r}; need an integer')
        if value < bound:
            raise UserValueError(f'got {kind}.{name}={value}; need at least {bound}')


def __getattr__(name: str) -> Any:
    """Returns names that version 0.1 had here and that are now in `tflearn.types`."""
    if name in ('Agent', 'AgentFactory', 'BatchSource', 'WEIGHTS'):
        return getattr(importlib.import_module('tflearn.types'), name)
    raise AttributeError(f'module tflearn.experience has no attribute {name!r}')
