"""REINFORCE: the policy's gradient by the returns of whole episodes, with or without a baseline.

Williams 1992, "Simple statistical gradient-following algorithms for connectionist reinforcement learning" (Machine
Learning 8). The agent is TF-Agents' but for its train step; here it gets networks and an optimizer.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tf_agents.agents import tf_agent
from tf_agents.agents.reinforce import reinforce_agent
from tf_agents.utils import value_ops

from tflearn.agents import networks, optimizers, schedules
from tflearn.experience import Agent, Experience
from tflearn.specs import EnvironmentSpecs

# Episodes of up to 200 steps, with the row that says that they ended.
EXPERIENCE = Experience(
    sequence_length=201, stride=200, pad_episodes=True, order='queue', max_size=16, min_size=1, per_replica_batch_size=8
)


def make_agent(
    specs: EnvironmentSpecs,
    train_step: tf.Variable,
    experience: Experience,
    *,
    actor_fc_layer_params: Sequence[int] = (64, 64),
    value_fc_layer_params: Sequence[int] | None = (64, 64),
    learning_rate: float | schedules.Schedule = 1e-3,
    gamma: float = 0.99,
    entropy_coefficient: float | None = None,
    value_coefficient: float = 0.5,
    normalize_returns: bool = True,
    gradient_clipping: float | None = 0.5,
    make_optimizer: optimizers.OptimizerFactory = optimizers.make,
) -> Agent:
    """Makes a REINFORCE agent.

    Args:
      specs: of the environment.
      train_step: int64 scalar, counts gradient steps.
      experience: of the run: a queue of padded items, each long enough for a whole episode and the row after it; those
        that go on longer count for nothing.
      actor_fc_layer_params: units of the policy's fully connected layers, with tanh.
      value_fc_layer_params: units of the baseline's; None has no baseline.
      learning_rate: a number, or a schedule of the train step.
      gamma: discount per environment step, in [0, 1].
      entropy_coefficient: weight of the policy's entropy; None is none.
      value_coefficient: weight of the baseline's squared error.
      normalize_returns: returns, less the baseline, to mean 0 and variance 1 over the batch.
      gradient_clipping: greatest norm of the gradient; None does not clip.
      make_optimizer: makes the optimizer; Adam by default.

    Raises:
      ValueError: if the experience is no queue of padded items, or there are several replicas, of which each would
        divide by its own number of episodes.
    """
    if experience.order != 'queue' or not experience.pad_episodes or experience.iteration is not None:
        raise ValueError(
            f'got Experience.order={experience.order!r}, pad_episodes={experience.pad_episodes}, iteration='
            f"{experience.iteration}; need 'queue', True and None: REINFORCE learns from whole episodes, once"
        )
    if (replicas := tf.distribute.get_strategy().num_replicas_in_sync) > 1:
        raise ValueError(f'got {replicas} replicas; need one for REINFORCE, or IMPALA, PPO')
    optimizer = make_optimizer(
        train_step,
        learning_rate,
        gradient_clipping=gradient_clipping,
        per_replica_batch_size=experience.per_replica_batch_size,
        name='reinforce',
    )
    return ReinforceAgent(
        specs.time_step,
        specs.action,
        actor_network=networks.actor(
            specs.observation, specs.action, actor_fc_layer_params, activation=tf.keras.activations.tanh
        ),
        optimizer=optimizer,
        value_network=None
        if value_fc_layer_params is None
        else networks.ValueNetwork(specs.observation, value_fc_layer_params),
        value_estimation_loss_coef=value_coefficient,
        gamma=gamma,
        normalize_returns=normalize_returns,
        entropy_regularization=entropy_coefficient,
        train_step_counter=train_step,
    )


class ReinforceAgent(reinforce_agent.ReinforceAgent):
    """TF-Agents' agent with a loss of its own to be asked for, and all its variables from the beginning."""

    def _initialize(self) -> None:
        self._actor_network.create_variables()
        if self._value_network is not None:
            self._value_network.create_variables()

    def _train(self, experience: Any, weights: tf.Tensor | None = None) -> tf_agent.LossInfo:
        variables = list(self._actor_network.trainable_weights)
        if self._value_network is not None:
            variables += self._value_network.trainable_weights
        with tf.GradientTape() as tape:
            info = self._loss(experience, weights, training=True)
        gradients = tape.gradient(info.loss, variables)
        self._optimizer.apply_gradients(zip(gradients, variables, strict=True), info.loss)
        self.train_step_counter.assign_add(1)
        return tf.nest.map_structure(tf.identity, info)

    def _loss(self, experience: Any, weights: tf.Tensor | None = None, training: bool = False) -> tf_agent.LossInfo:
        experience = self._as_trajectory(experience)
        # Sums begin anew after an episode's last step, whatever ended it.
        discounts = tf.where(experience.is_last(), 0.0, self._gamma * experience.discount)
        returns = value_ops.discounted_return(experience.reward, discounts, time_major=False)
        return self.total_loss(experience, tf.stop_gradient(returns), weights=weights, training=training)
