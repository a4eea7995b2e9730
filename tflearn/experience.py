"""Experience: what a learner eats. Table, writer, rate limiter and dataset are all derived from it."""

import dataclasses
from typing import Any, Literal, Protocol, get_args

import tensorflow as tf
from tf_agents.typing import types

from tflearn.specs import EnvironmentSpecs

Order = Literal['uniform', 'prioritized', 'queue']


@dataclasses.dataclass(frozen=True)
class Experience:
    """How steps become items, and how items are kept and drawn.

    A row is one environment step with all its columns; an item is `sequence_length` consecutive rows.

    Attributes:
      sequence_length: rows of an item [steps]. 2 is one transition; n + 1 is what an n-step method needs.
      stride: rows between the first rows of two items of one episode [steps].
      order: 'uniform' or 'prioritized' draws from all that is kept; 'queue' hands out each item once, oldest first.
      max_size: items kept; the oldest goes first. For a queue: items that wait before writers are held back.
      min_size: items needed before the first draw.
      samples_per_insert: how often an item is drawn on average; whoever is ahead waits. None lets both sides run free.
        1 with one item per step trains one batch per `global batch` environment steps.
      max_times_sampled: an item drawn so often is dropped; 0 is no limit.
      per_replica_batch_size: items of a train step on each replica.
    """

    sequence_length: int = 2
    stride: int = 1
    order: Order = 'uniform'
    max_size: int = 100_000
    min_size: int = 1_000
    samples_per_insert: float | None = None
    max_times_sampled: int = 0
    per_replica_batch_size: int = 64

    def __post_init__(self) -> None:
        least = {'sequence_length': 2, 'stride': 1, 'max_size': 1, 'min_size': 1, 'max_times_sampled': 0}
        for name, bound in (least | {'per_replica_batch_size': 1}).items():
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool):
                raise TypeError(f'got Experience.{name}={value!r}; need an integer')
            if value < bound:
                raise ValueError(f'got Experience.{name}={value}; need at least {bound}')
        if self.stride >= self.sequence_length:
            raise ValueError(
                f'got Experience.stride={self.stride} with sequence_length={self.sequence_length}, so that transitions '
                'would be left out; need stride < sequence_length'
            )
        if self.order not in get_args(Order):
            raise ValueError(f'got Experience.order={self.order!r}; need one of {", ".join(get_args(Order))}')
        if self.min_size > self.max_size:
            raise ValueError(
                f'got Experience.min_size={self.min_size} > max_size={self.max_size}, so that nothing would ever be '
                'drawn; need min_size <= max_size'
            )
        if self.samples_per_insert is not None and self.samples_per_insert <= 0:
            raise ValueError(f'got Experience.samples_per_insert={self.samples_per_insert}; need a number above 0')
        if self.order == 'queue' and (self.samples_per_insert is not None or self.max_times_sampled):
            raise ValueError(
                "got Experience.order='queue' with samples_per_insert or max_times_sampled; a queue hands out each "
                'item once; remove them'
            )


class Agent(Protocol):
    """What the rest of the system asks of an agent: a part of TF-Agents' `TFAgent`, which fulfils it."""

    policy: Any
    collect_policy: Any
    collect_data_spec: types.NestedTensorSpec
    training_data_spec: types.NestedTensorSpec
    train_step_counter: tf.Variable

    def initialize(self) -> Any:
        """Sets up what a first train step needs (target networks)."""

    def train(self, experience: types.NestedTensor, weights: types.Tensor | None = None) -> Any:
        """Takes one gradient step on a batch [B, T, ...]. Returns a LossInfo (loss, extra)."""

    def loss(self, experience: types.NestedTensor, weights: types.Tensor | None = None) -> Any:
        """Returns the LossInfo without any update."""


class AgentFactory(Protocol):
    """Makes an agent for an environment; hyperparameters are bound beforehand."""

    def __call__(self, specs: EnvironmentSpecs, train_step: tf.Variable, experience: Experience) -> Agent:
        """Makes the agent. What `experience` says (its sequence length, say) is taken from there, not told again."""
