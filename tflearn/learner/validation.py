"""Validator: the loss on data that are not trained on, at intervals,
and when it no longer falls.
"""

import json
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf
from absl import logging

from tflearn.core.errors import UserRuntimeError
from tflearn.core.settings import PositiveInt, checked
from tflearn.core.train_step import crossed
from tflearn.learner.learner import Learner
from tflearn.learner.stop_conditions import DataStopConditions


class Validator(tf.train.experimental.PythonState):
    """Computes the agent's loss and its metrics without an update.
    Its state belongs in the checkpoint.

    They are in the summaries as `validation/loss` and `validation/<name of an extra metric>`, and
    in the log. An agent whose loss is random, such as SAC's, draws for it from the same stream as
    for training.

    Attributes:
      best_loss: the least loss so far; None before the first.
      best_step: the train step of it.
      metrics: those of the newest validation, by name.
      num_batches: batches that the loss was computed on since the beginning.
    """

    @checked
    def __init__(
        self,
        batches: Callable[[], Iterable[tuple[int, Any]]],
        interval_steps: PositiveInt,
        stop_conditions: DataStopConditions = DataStopConditions(),
    ):
        """
        Args:
          batches: gives the data, the same each time: the number of items of each element, by which
            means are weighted, and the element, such as `Learner.loss` takes.
          interval_steps: train steps between two validations.
          stop_conditions: of these `patience` and `min_improvement`.
        """
        self._batches, self._interval_steps, self._stop_conditions = batches, interval_steps, stop_conditions
        self._learner: Learner | None = None
        # The train step of the newest validation; validations since the best one.
        self._step = self._num_worse = 0
        self.best_loss: float | None = None
        self.best_step = self.num_batches = 0
        self.metrics: dict[str, float] = {}

    def serialize(self) -> str:
        """Returns what `patience` depends on as JSON."""
        best = {'best_loss': self.best_loss, 'best_step': self.best_step}
        return json.dumps({'step': self._step, 'num_worse': self._num_worse, **best})

    def deserialize(self, string_value: str) -> None:
        """Restores the state of a checkpoint."""
        saved = json.loads(string_value)
        self._step, self._num_worse = saved['step'], saved['num_worse']
        self.best_loss, self.best_step = saved['best_loss'], saved['best_step']

    def make_trigger(self, learner: Learner) -> Callable[[int, int], bool]:
        """Returns a trigger for this learner, see `LearnerOptions.make_triggers`."""
        self._learner = learner
        return lambda before, after: self.validate_if_due()

    def validate_if_due(self) -> bool:
        """Validates if a multiple of the interval was passed since the newest validation.
        Returns whether it did.

        To be called once when a checkpoint was restored: it was saved before the validation of the
        same train step.
        """
        if self._learner is None:
            raise UserRuntimeError('got a Validator without a learner; need make_trigger among its triggers')
        step = self._learner.step
        if not crossed(self._interval_steps, self._step, step):
            return False
        self._validate(self._learner, step)
        return True

    def end_reason(self) -> str | None:
        """Returns the stop condition that is reached, for the log; None if it is not."""
        patience = self._stop_conditions.patience
        if patience is None or self._num_worse < patience:
            return None
        return f'patience {patience} reached: the least validation loss is that of train step {self.best_step}'

    def _validate(self, learner: Learner, step: int) -> None:
        sums: dict[str, float] = {}
        total = 0
        for count, element in self._batches():
            result = learner.loss(element)
            total += count
            self.num_batches += 1
            for name, value in {'loss': result.loss, **result.extra}.items():
                sums[name] = sums.get(name, 0.0) + count * value
        if not total:
            raise UserRuntimeError('got no data for validation; need at least one batch')
        self._step, self.metrics = step, {name: value / total for name, value in sums.items()}
        loss = self.metrics['loss']
        if self.best_loss is None or loss < self.best_loss - self._stop_conditions.min_improvement:
            self.best_loss, self.best_step, self._num_worse = loss, step, 0
        else:
            self._num_worse += 1
        learner.summarize(self.metrics, group='validation')
        logging.info(
            'validation at train step %d: loss %.4g; the least is %.4g, of train step %d',
            step,
            loss,
            self.best_loss,
            self.best_step,
        )
