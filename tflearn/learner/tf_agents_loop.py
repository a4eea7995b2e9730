"""Train steps as TF-Agents' Learner takes them: with an iterator for each call, returning the last step's LossInfo.

Replicas are reduced by `TrainLoop`'s step.
"""

import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.utils import nest_utils

from tflearn.core.errors import UserValueError
from tflearn.learner.batch_structure import is_complete
from tflearn.learner.metrics import LOSS, Metrics
from tflearn.learner.train_loop import LoopOptions, TrainLoop


@dataclasses.dataclass(frozen=True)
class SampleFormat:
    """The format of a dataset's elements.

    Attributes:
      direct: they are experience only, not (experience, sample_info).
      named: they are named tuples with the fields `data` and `info`.
      keywords: experience is a dict of keyword arguments of `agent.train`.
    """

    direct: bool = False
    named: bool = False
    keywords: bool = False

    def split(self, sample: Any) -> tuple[Any, Any]:
        """Returns (experience, sample_info) of an element; also of an element spec."""
        if self.direct:
            return sample, None
        if self.named:
            return sample.data, sample.info
        if not isinstance(sample, list | tuple) or len(sample) != 2:
            raise UserValueError(
                f'got {type(sample).__name__} as an element of the dataset; need (experience, sample_info), or '
                'direct_sampling=True for a dataset of experience only'
            )
        return sample[0], sample[1]


class _CalledAgent:
    """The agent as `TrainLoop` calls it; `like` is a LossInfo of zeros, structured as the last traced method's."""

    def __init__(self, agent: Any, keywords: bool):
        self.train_step_counter = agent.train_step_counter
        self.like: Any = None
        self._agent, self._keywords = agent, keywords

    def train(self, experience: Any) -> Any:
        return self._call(self._agent.train, experience)

    def loss(self, experience: Any) -> Any:
        return self._call(self._agent.loss, experience)

    def _call(self, method: Any, experience: Any) -> Any:
        loss_info = method(**experience) if self._keywords else method(experience)
        self.like = loss_info._replace(loss=0, extra=tf.nest.map_structure(lambda _: 0, loss_info.extra))
        return loss_info


@dataclasses.dataclass(frozen=True)
class Steps:
    """What a call of `TFAgentsLoop.run` did.

    Attributes:
      num_steps: train steps taken; fewer than requested only if the data ended.
      loss: the global batch's loss, summed over the steps.
      last: the last step's LossInfo, in scalar float32 tensors; None if there was no step.
    """

    num_steps: int
    loss: float
    last: Any


class TFAgentsLoop:
    """Takes train steps with the batches of the iterator that each call gets."""

    def __init__(self, agent: Any, strategy: tf.distribute.Strategy, samples: SampleFormat, options: LoopOptions):
        """Compiles nothing yet, and ignores losses that are not finite. For use within the strategy's scope."""
        self._agent: Any = _CalledAgent(agent, samples.keywords)
        self._strategy, self._samples = strategy, samples
        loop = TrainLoop(self._agent, strategy, options)
        self._layout = loop.layout()
        self._steps = {summarized: loop.step(self._layout) for summarized in (False, True)}
        self._run = tf.function(self._over_iterator)
        self._loss = loop.loss()
        self._prepared = False
        self._train_like: Any = None
        self._loss_like: Any = None

    def prepare_for(self, iterator: Any) -> None:
        """Traces the train step for the elements of an iterator; takes none of them."""
        found = []

        def find(iterator: Any) -> None:
            # Not `iterator.element_spec`: where replicas may run out of data one by one, batch sizes are unknown.
            element = iterator.get_next_as_optional().get_value()
            found.append(tf.nest.map_structure(tf.type_spec_from_value, self._samples.split(element)))

        tf.function(find, autograph=False).get_concrete_function(iterator)
        self.prepare(*found[0])

    def prepare(self, experience_spec: Any, sample_info_spec: Any = None) -> None:
        """Traces the train step, which makes the optimizer's slots. Calls `agent.train` once, twice if it makes some.

        Args:
          experience_spec: spec of the experience, with batch and time dimensions.
        """
        with tf.summary.record_if(False):
            self._steps[False].get_concrete_function((experience_spec, sample_info_spec))
        self._prepared = True
        self._train_like = self._agent.like

    def run(self, iterator: Any, num_steps: int, writer: tf.summary.SummaryWriter | None = None) -> Steps:
        """Takes train steps.

        Args:
          iterator: an iterator of a dataset, or of the strategy.
          num_steps: train steps to take; another number does not compile again.
          writer: records the summaries of these steps; None records none.
        """
        if not self._prepared:
            self.prepare_for(iterator)
        count = tf.constant(num_steps, tf.int64)
        # Summarized or not, the caller's own default writer receives nothing.
        if writer:
            with writer.as_default(), tf.summary.record_if(True):
                values = self._run(self._steps[True], iterator, count)
        else:
            with tf.summary.record_if(False):
                values = self._run(self._steps[False], iterator, count)
        taken, total, *last = values.numpy()
        metrics = self._layout.read(np.array(last))
        return Steps(int(taken), float(total), _loss_info(self._train_like, metrics) if taken else None)

    def loss(self, experience: Any, sample_info: Any) -> Any:
        """Returns the LossInfo of a batch, without any update, callback or summary."""
        with tf.summary.record_if(False):
            metrics = self._loss((experience, sample_info))
        if self._loss_like is None:
            self._loss_like = self._agent.like
        return _loss_info(self._loss_like, metrics)

    def _over_iterator(self, step: Any, iterator: Any, num_steps: tf.Tensor) -> tf.Tensor:
        taken, total = tf.constant(0, tf.int64), tf.constant(0.0)
        last = tf.zeros([self._layout.size])
        element = iterator.get_next_as_optional()
        while taken < num_steps and is_complete(self._strategy, element):
            last = step(self._samples.split(element.get_value()))
            total += last[LOSS]
            taken += 1
            if taken < num_steps:
                element = iterator.get_next_as_optional()
        # One tensor: fetching many small ones costs more than a small train step.
        counts = tf.stack([tf.cast(taken, tf.float64), tf.cast(total, tf.float64)])
        return tf.concat([counts, tf.cast(last, tf.float64)], axis=0)


def _loss_info(like: Any, metrics: Metrics) -> Any:
    """Returns a LossInfo like `like`; metrics that are not numbers are None."""
    names = (f'extra/{name}' for name, _ in nest_utils.flatten_with_joined_paths(like.extra))
    values = [tf.constant(metrics.sums[name], tf.float32) if name in metrics.sums else None for name in names]
    loss = metrics.sums['loss']
    return like._replace(loss=tf.constant(loss, tf.float32), extra=tf.nest.pack_sequence_as(like.extra, values))
