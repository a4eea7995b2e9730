"""Supervised training: any Keras loss between a network's output and a target,
as an agent that a `Learner` trains.

For data that are no steps of an environment: labels, values to predict, models of an environment.
(To learn recorded actions, see `agents/bc.py`.)
"""

import copy
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import tensorflow as tf
from tf_agents.policies import tf_policy
from tf_agents.trajectories import policy_step
from tf_agents.trajectories import time_step as ts
from tf_agents.typing import types

from tflearn.core.errors import UserValueError
from tflearn.core.types import zeros

# (targets [B, ...], outputs [B, ...]) -> numbers [B, ...]
ItemFunction = Callable[[Any, Any], tf.Tensor]


class Examples(NamedTuple):
    """An element of the data.

    Attributes:
      observation: nest of tensors [B, ...], what the network gets.
      target: nest of tensors [B, ...], what its output is compared with.
    """

    observation: Any
    target: Any


class LossInfo(NamedTuple):
    """See TF-Agents' `LossInfo`."""

    loss: tf.Tensor
    extra: dict[str, tf.Tensor]


class SupervisedAgent(tf.Module):
    """An agent, as a `Learner` trains it, without an environment.
    Its policy's action is the network's output.

    Attributes:
      network: the network.
      policy: takes time steps whose observation is the network's input.
      collect_policy: the same.
      collect_data_spec: the spec of `Examples`, without the batch.
      training_data_spec: the same.
      train_step_counter: the train step.
    """

    def __init__(
        self,
        observation_spec: types.NestedTensorSpec,
        target_spec: types.NestedTensorSpec,
        network: Callable[..., Any],
        loss: str | tf.keras.losses.Loss | ItemFunction,
        train_step: tf.Variable,
        optimizer: Any,
        metrics: Mapping[str, ItemFunction] | None = None,
    ):
        """Makes the network's variables, within the strategy's scope.

        Args:
          observation_spec: the spec of an observation.
          target_spec: the spec of a target.
          network: a Keras model or layer, called with (observations, training=...). Losses of its
            regularizers are added.
          loss: a Keras loss, its name, or a function (targets, outputs) -> the loss of each item,
            [B, ...]; means are taken over further axes. A Keras loss's own reduction has no
            meaning.
          train_step: the train step.
          optimizer: a Keras optimizer, or one of `optimizers.make`.
          metrics: functions such as `tf.keras.metrics.sparse_categorical_accuracy`, by the name of
            the metric.

        Raises:
          ValueError: if the loss gives one number for the whole batch, or there is no such loss.
        """
        super().__init__('supervised')
        self.network, self._optimizer, self._metrics = network, optimizer, dict(metrics or {})
        self._loss_function = _of_items(loss)
        self.train_step_counter = train_step
        self.collect_data_spec = self.training_data_spec = Examples(observation_spec, target_spec)
        examples = zeros(self.training_data_spec, (1,))
        output = network(examples.observation, training=False)
        rank = tf.convert_to_tensor(self._loss_function(examples.target, output)).shape.rank
        if not rank:
            raise UserValueError(
                f'got loss={loss!r}, which returns one number for the batch; need one for each item; leave the mean out'
            )
        output_spec = tf.nest.map_structure(lambda leaf: tf.TensorSpec(leaf.shape[1:], leaf.dtype), output)
        self.policy = self.collect_policy = _Prediction(network, observation_spec, output_spec)

    def initialize(self) -> None:
        """Nothing: there are no target networks."""

    def train(self, experience: Examples, weights: tf.Tensor | None = None) -> LossInfo:
        """Takes one gradient step on a batch; `weights` float32 [B] are those of its items."""
        with tf.GradientTape() as tape:
            info = self._loss(experience, weights, training=True)
        variables: Any = getattr(self.network, 'trainable_variables', ())
        self._optimizer.apply_gradients(zip(tape.gradient(info.loss, variables), variables, strict=True))
        self.train_step_counter.assign_add(1)
        return info

    def loss(self, experience: Examples, weights: tf.Tensor | None = None) -> LossInfo:
        """Returns the loss of a batch without an update;
        layers such as dropout behave as in predictions.
        """
        return self._loss(experience, weights, training=False)

    def _loss(self, experience: Examples, weights: tf.Tensor | None, training: bool) -> LossInfo:
        """Returns this replica's share of the mean loss over the global batch,
        and metrics' means.
        """
        output = self.network(experience.observation, training=training)
        losses = _item_means(self._loss_function(experience.target, output))
        loss = tf.nn.compute_average_loss(losses, sample_weight=weights)
        if regularizers := getattr(self.network, 'losses', ()):
            loss += tf.nn.scale_regularization_loss(tf.add_n(regularizers))
        means = {name: _item_means(metric(experience.target, output)) for name, metric in self._metrics.items()}
        return LossInfo(loss, {name: tf.reduce_mean(values) for name, values in means.items()})


def _of_items(loss: str | tf.keras.losses.Loss | ItemFunction) -> ItemFunction:
    """Returns a loss that is not reduced over items."""
    if isinstance(loss, str):
        found: ItemFunction = tf.keras.losses.get(loss)
        return found
    if isinstance(loss, tf.keras.losses.Loss):
        loss = copy.copy(loss)
        loss.reduction = tf.keras.losses.Reduction.NONE
    return loss


def _item_means(values: tf.Tensor) -> tf.Tensor:
    """Returns the mean of each item's numbers [B, ...]: float32 [B]."""
    return tf.reduce_mean(tf.reshape(tf.cast(values, tf.float32), [tf.shape(values)[0], -1]), axis=1)


class _Prediction(tf_policy.TFPolicy):
    """A policy whose action is the network's output."""

    def __init__(
        self,
        network: Callable[..., Any],
        observation_spec: types.NestedTensorSpec,
        output_spec: types.NestedTensorSpec,
    ):
        super().__init__(ts.time_step_spec(observation_spec), output_spec, clip=False, validate_args=False)
        self._network = network

    def _variables(self) -> Any:
        return getattr(self._network, 'variables', ())

    def _action(self, time_step: ts.TimeStep, policy_state: Any, seed: Any) -> policy_step.PolicyStep:
        return policy_step.PolicyStep(self._network(time_step.observation, training=False), policy_state)
