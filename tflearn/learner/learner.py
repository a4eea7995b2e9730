"""Learner: an iterator in a strategy, many train steps per call as one compiled program, and triggers."""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from tflearn.experience import Agent
from tflearn.learner.checkpoints import Checkpoints
from tflearn.learner.summaries import Summaries
from tflearn.learner.triggers import IntervalTrigger
from tflearn.run_dir import RunDir

DatasetFn = Callable[[tf.distribute.InputContext], tf.data.Dataset]
Trigger = Callable[[int, int], bool]


@dataclasses.dataclass(frozen=True)
class TrainResult:
    """What a call of `Learner.run` did.

    Attributes:
      num_steps: train steps taken; fewer than asked for only when the data ended.
      loss: mean over the steps of the global batch's loss.
      extra: the agent's further figures, means over steps, replicas and their own axes, by name.
      info: means of the data's own figures (`policy_version`, ...), by name.
      steps_per_sec: train steps per second of the call.
      data_wait_share: the part of the call spent waiting for data, in [0, 1].
    """

    num_steps: int
    loss: float
    extra: dict[str, float]
    info: dict[str, float]
    steps_per_sec: float
    data_wait_share: float


class Learner:
    """Trains an agent from a dataset; restores and saves its checkpoints.

    The agent must return, as TF-Agents' agents do, a loss that each replica divides by the global batch size: it is
    summed over replicas, everything else is averaged.
    """

    def __init__(
        self,
        agent: Agent,
        dataset_fn: DatasetFn,
        run_dir: RunDir,
        *,
        strategy: tf.distribute.Strategy | None = None,
        triggers: Sequence[Trigger] = (),
        checkpoint_interval_steps: int = 10_000,
        summary_interval_steps: int = 1_000,
        state: Mapping[str, Any] | None = None,
    ):
        """Traces the train step, restores the newest whole checkpoint, and makes the iterator.

        Args:
          agent: made within the strategy's scope; its `train_step_counter` is the train step.
          dataset_fn: called once per input pipeline, with its InputContext. Elements are (data, info) or data, batched
            for one replica; data is what `agent.train` takes, info a dict of numbers that only get averaged.
          run_dir: where checkpoints and summaries go.
          strategy: default: the current one.
          triggers: each is called with the train steps (before, after) of every call, after checkpoints are saved.
          checkpoint_interval_steps: train steps between two checkpoints.
          summary_interval_steps: train steps between two summaries.
          state: further trackable objects for the checkpoint, by name ('agent' and 'train_step' are there already).

        Raises:
          ValueError: if the newest readable checkpoint does not fit.
        """
        self.train_step = agent.train_step_counter
        self._agent = agent
        self._strategy = strategy or tf.distribute.get_strategy()
        self._summaries = Summaries(run_dir.summaries('train'))
        self._result: TrainResult | None = None
        with self._strategy.scope():
            self._iterator = iter(self._strategy.distribute_datasets_from_function(dataset_fn))
            agent.initialize()
            self._step = tf.function(self._distributed_step)
            # Traced here, so that the optimizer's slots are there to be restored, and saved with the first checkpoint.
            self._zeros = self._trace()
            self._loop = tf.function(self._many_steps)
            objects = {'agent': agent, 'train_step': self.train_step, **(state or {})}
            self.checkpoints = Checkpoints(run_dir.checkpoints, objects)
            self.restored_from = self.checkpoints.restore_newest()
        self._saved_step = self.step if self.restored_from else -1
        self._triggers: tuple[Trigger, ...] = (
            IntervalTrigger(checkpoint_interval_steps, lambda _: self.save()),
            *triggers,
            IntervalTrigger(summary_interval_steps, self._write_summaries),
        )
        replicas, source = self._strategy.num_replicas_in_sync, self.restored_from or 'from scratch'
        logging.info('learner: %d replica(s), train step %d, %s', replicas, self.step, source)

    @property
    def step(self) -> int:
        """The train step now."""
        return int(self.train_step.numpy())

    def run(self, num_steps: int) -> TrainResult:
        """Takes train steps, then calls the triggers.

        Args:
          num_steps: train steps to take; at least 1. Another number does not compile anew.

        Returns:
          The means over the steps taken.

        Raises:
          ValueError: if `num_steps` is below 1.
        """
        if num_steps < 1:
            raise ValueError(f'got num_steps={num_steps}; need at least 1')
        before, start = self.step, time.perf_counter()
        with self._strategy.scope():
            taken, sums, waited_secs = self._loop(self._iterator, tf.constant(num_steps, tf.int64))
        taken, secs = int(taken.numpy()), time.perf_counter() - start
        loss, extra, info = tf.nest.map_structure(lambda total: float(total.numpy()) / max(taken, 1), sums)
        self._result = TrainResult(taken, loss, extra, info, taken / secs, min(float(waited_secs.numpy()) / secs, 1.0))
        for trigger in self._triggers:
            trigger(before, self.step)
        return self._result

    def save(self) -> None:
        """Saves a checkpoint of this train step, unless there is one."""
        if self._saved_step != self.step:
            self.checkpoints.save(self.step)
            self._saved_step = self.step

    def close(self) -> None:
        """Saves a last checkpoint and writes out the summaries."""
        self.save()
        self._summaries.close()

    def _write_summaries(self, step: int) -> None:
        if self._result:
            self._summaries.write(step, self._result)

    def summarize(self, values: Mapping[str, float]) -> None:
        """Adds the caller's figures to the summaries of this train step."""
        self._summaries.write_values(self.step, values)

    def _trace(self) -> Any:
        outputs = self._step.get_concrete_function(self._iterator.element_spec).structured_outputs
        return tf.nest.map_structure(lambda _: tf.constant(0.0), outputs)

    def _distributed_step(self, element: Any) -> tuple[tf.Tensor, dict[str, tf.Tensor], dict[str, tf.Tensor]]:
        """One train step on all replicas. Returns scalars: loss, extra, info."""
        per_replica = self._strategy.run(self._replica_step, (element,))
        reduce, scope = self._strategy.reduce, tf.distribute.ReduceOp
        loss, extra, info = per_replica
        return (
            reduce(scope.SUM, loss, axis=None),
            {name: reduce(scope.MEAN, value, axis=None) for name, value in extra.items()},
            {name: reduce(scope.MEAN, value, axis=None) for name, value in info.items()},
        )

    def _replica_step(self, element: Any) -> tuple[tf.Tensor, dict[str, tf.Tensor], dict[str, tf.Tensor]]:
        data, info = _split(element)
        loss_info = self._agent.train(data)
        loss = tf.cast(tf.reduce_sum(loss_info.loss), tf.float32)
        return loss, _means(loss_info.extra), _means(info)

    def _many_steps(self, iterator: Any, num_steps: tf.Tensor) -> tuple[tf.Tensor, Any, tf.Tensor]:
        taken = tf.constant(0, tf.int64)
        sums, waited_secs = self._zeros, tf.constant(0.0, tf.float64)
        element, secs = _next(iterator, taken)
        waited_secs += secs
        while taken < num_steps and element.has_value():
            means = self._step(element.get_value())
            sums = tf.nest.map_structure(tf.add, sums, means)
            taken += 1
            if taken < num_steps:
                element, secs = _next(iterator, means[0])
                waited_secs += secs
        return taken, sums, waited_secs


def _next(iterator: Any, after: tf.Tensor) -> tuple[Any, tf.Tensor]:
    """Returns the next element, and the seconds that it took to come once `after` was known."""
    with tf.control_dependencies([after]):
        start = tf.timestamp()
    with tf.control_dependencies([start]):
        element = iterator.get_next_as_optional()
    with tf.control_dependencies([element.has_value()]):
        return element, tf.timestamp() - start


def _split(element: Any) -> tuple[Any, Any]:
    """Splits an element into data and info; a Trajectory is a tuple too, but not of two."""
    if type(element) is tuple and len(element) == 2:
        return element
    return element, ()


def _means(values: Any) -> dict[str, tf.Tensor]:
    """Returns the mean of every numeric tensor in a nest, named by its path."""
    means = {}
    for path, value in _flatten_with_names(values):
        tensor = tf.convert_to_tensor(value)
        if tensor.dtype.is_floating or tensor.dtype.is_integer or tensor.dtype.is_bool:
            means[path] = tf.reduce_mean(tf.cast(tensor, tf.float32))
    return means


def _flatten_with_names(values: Any, prefix: str = '') -> list[tuple[str, Any]]:
    if hasattr(values, '_asdict'):
        values = values._asdict()
    if isinstance(values, list | tuple):
        values = dict(enumerate(values))
    if not isinstance(values, Mapping):
        return [] if values is None else [(prefix, values)]
    return [
        leaf
        for key, value in values.items()
        for leaf in _flatten_with_names(value, f'{prefix}/{key}' if prefix else str(key))
    ]
