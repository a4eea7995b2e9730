"""Proximal policy optimization with clipped probability ratios, for discrete or continuous actions.

Schulman et al. 2017, "Proximal Policy Optimization Algorithms" (arXiv 1707.06347), with generalized advantage
estimation, Schulman et al. 2016 (arXiv 1506.02438). Networks, policies and losses are TF-Agents'; the train step and
the advantages are ours, see `PPOAgent`.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tf_agents.agents import tf_agent
from tf_agents.agents.ppo import ppo_clip_agent, ppo_utils
from tf_agents.networks import network
from tf_agents.trajectories import time_step as ts
from tf_agents.utils import common, tensor_normalizer, value_ops

from tflearn.agents import networks, optimizers, schedules
from tflearn.experience import Agent, Experience
from tflearn.specs import EnvironmentSpecs

# Sequences of 128 transitions and the observation after them, where the next sequence begins.
EXPERIENCE = Experience(
    sequence_length=129, stride=128, order='queue', max_size=32, min_size=1, per_replica_batch_size=16
)


def make_agent(
    specs: EnvironmentSpecs,
    train_step: tf.Variable,
    experience: Experience,
    *,
    actor_fc_layer_params: Sequence[int] = (64, 64),
    value_fc_layer_params: Sequence[int] = (64, 64),
    learning_rate: float | schedules.Schedule = 3e-4,
    num_epochs: int = 1,
    clip_epsilon: float = 0.2,
    gamma: float = 0.99,
    gae_lambda: float = 0.95,
    entropy_coefficient: float = 0.0,
    value_coefficient: float = 0.5,
    normalize_observations: bool = True,
    normalize_rewards: bool = True,
    gradient_clipping: float | None = 0.5,
    make_optimizer: optimizers.OptimizerFactory = optimizers.make,
) -> Agent:
    """Makes a PPO agent.

    Args:
      specs: of the environment.
      train_step: int64 scalar, counts gradient steps: `num_epochs` for each call of `train`.
      experience: of the run; a queue.
      actor_fc_layer_params: units of the actor's fully connected layers, with tanh.
      value_fc_layer_params: units of the value network's.
      learning_rate: Adam's, or a schedule of the train step.
      num_epochs: gradient steps on each batch.
      clip_epsilon: how far a probability ratio counts from 1 (equation 7).
      gamma: discount per environment step, in [0, 1].
      gae_lambda: lambda of the advantages, in [0, 1].
      entropy_coefficient: weight of the policy's entropy (c2 in equation 9).
      value_coefficient: weight of the value network's squared error (c1 in equation 9).
      normalize_observations: by the mean and variance of all observations so far.
      normalize_rewards: by the deviation of all rewards so far, within +-10.
      gradient_clipping: greatest norm of the global batch's gradient, or what `make_optimizer` takes the bound for;
        None does not clip.
      make_optimizer: makes the optimizer; Adam by default.

    Raises:
      ValueError: if the experience is no queue, or observations are to be normalized and are no floats.
    """
    if experience.order != 'queue':
        raise ValueError(f"got Experience.order={experience.order!r}; PPO needs 'queue': it learns from new items once")
    if num_epochs < 1 or clip_epsilon <= 0:
        raise ValueError(f'got num_epochs={num_epochs}, clip_epsilon={clip_epsilon}; need 1 or more, and above 0')
    if normalize_observations and not all(spec.dtype.is_floating for spec in tf.nest.flatten(specs.observation)):
        raise ValueError(f'got observations {specs.observation}; need floats, or normalize_observations=False')
    optimizer = make_optimizer(
        train_step,
        learning_rate,
        gradient_clipping=gradient_clipping,
        per_replica_batch_size=experience.per_replica_batch_size,
        name='ppo',
    )
    return PPOAgent(
        specs.time_step,
        specs.action,
        optimizer=optimizer.keras,
        actor_net=networks.actor(
            specs.observation, specs.action, actor_fc_layer_params, activation=tf.keras.activations.tanh
        ),
        value_net=networks.ValueNetwork(specs.observation, value_fc_layer_params),
        replica_optimizer=optimizer,
        importance_ratio_clipping=clip_epsilon,
        lambda_value=gae_lambda,
        discount_factor=gamma,
        entropy_regularization=entropy_coefficient,
        value_pred_loss_coef=value_coefficient,
        num_epochs=num_epochs,
        use_gae=True,
        use_td_lambda_return=True,
        normalize_observations=normalize_observations,
        normalize_rewards=normalize_rewards,
        train_step_counter=train_step,
    )


class PPOAgent(ppo_clip_agent.PPOClipAgent):
    """TF-Agents' PPO agent, with another train step and other advantages.

    Its own normalizes advantages over each replica's batch and the padding, updates its normalizers on one replica
    only, takes the value before the last observation for the value after it, and takes a time limit for a termination.
    Here a batch has one result on any number of replicas, and a truncated episode is bootstrapped from its end.
    """

    def __init__(self, *args: Any, replica_optimizer: optimizers.Optimizer, **kwargs: Any):
        """Takes PPOClipAgent's arguments, and the optimizer that all replicas share.

        Args:
          *args: PPOClipAgent's.
          replica_optimizer: takes the steps; its Keras optimizer is PPOClipAgent's `optimizer`.
          **kwargs: PPOClipAgent's.
        """
        super().__init__(*args, **kwargs)
        self._optimizer = replica_optimizer

    def compute_return_and_advantage(
        self, next_time_steps: ts.TimeStep, value_preds: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Generalized advantage estimation (arXiv 1506.02438, equation 16) and the returns that go with it.

        delta_t = r_t + gamma d_t V(s_t+1) - V(s_t)
        A_t = delta_t + gamma lambda d_t (1 - last_t) A_t+1
        R_t = A_t + V(s_t)

        Args:
          next_time_steps: [B, T], the time steps after the actions: r_t, d_t, and whether the episode ended.
          value_preds: float32 [B, T + 1], V of all observations.

        Returns:
          R and A, float32 [B, T].
        """
        rewards = next_time_steps.reward
        if self._reward_normalizer:
            rewards = self._reward_normalizer.normalize(
                rewards, center_mean=False, clip_value=self._reward_norm_clipping
            )
        discounts = self._discount_factor * next_time_steps.discount
        last = tf.cast(next_time_steps.is_last(), tf.float32)
        # The value at an episode's end (0 at a termination) goes into the last reward; there the sums begin anew.
        advantages = value_ops.generalized_advantage_estimation(
            values=value_preds[:, :-1],
            final_value=value_preds[:, -1],
            rewards=rewards + last * discounts * value_preds[:, 1:],
            discounts=(1 - last) * discounts,
            td_lambda=self._lambda,
            time_major=False,
        )
        return advantages + value_preds[:, :-1], advantages

    def update_observation_normalizer(self, batched_observations: Any, taken: tf.Tensor | None = None) -> None:
        """Takes the global batch's observations [B, T, ...] into their mean and variance, unless `taken` is false."""
        if self._observation_normalizer:
            _update(self._observation_normalizer, batched_observations, taken)

    def update_reward_normalizer(self, batched_rewards: tf.Tensor, taken: tf.Tensor | None = None) -> None:
        """Takes the global batch's rewards [B, T] into their variance, unless `taken` is false."""
        if self._reward_normalizer:
            _update(self._reward_normalizer, batched_rewards, taken)

    def _train(self, experience: Any, weights: tf.Tensor | None) -> tf_agent.LossInfo:
        """Takes `num_epochs` steps on a batch of sequences [B, T + 1]. Returns the last one's LossInfo."""
        experience = self._as_trajectory(experience)
        objective = self._objective(experience, weights)
        variables = [*self._actor_net.trainable_weights, *self._value_net.trainable_weights]
        for _ in range(self._num_epochs):
            with tf.GradientTape() as tape:
                loss_info = objective(True)
            gradients = tape.gradient(loss_info.loss, variables)
            taken = self._optimizer.apply_gradients(zip(gradients, variables, strict=True), loss_info.loss)
            self.train_step_counter.assign_add(1)
        if self.update_normalizers_in_train:
            self.update_observation_normalizer(experience.observation, taken)
            self.update_reward_normalizer(experience.reward, taken)
        return _with_means(loss_info)

    def _loss(self, experience: Any, weights: tf.Tensor | None = None, training: bool = False) -> tf_agent.LossInfo:
        return _with_means(self._objective(self._as_trajectory(experience), weights)(training))

    def _objective(self, experience: Any, weights: tf.Tensor | None) -> Callable[[bool], tf_agent.LossInfo]:
        """Returns the loss of sequences [B, T + 1] as a function of the networks alone; it takes `training`."""
        if self._compute_value_and_advantage_in_train:
            experience = self._preprocess(experience)
        info = experience.policy_info
        mask = ppo_utils.make_trajectory_mask(experience)
        old_distribution = ppo_utils.distribution_from_spec(
            self._action_distribution_spec,
            info['dist_params'],
            legacy_distribution_network=isinstance(self._actor_net, network.DistributionNetwork),
        )
        old_log_probs = common.log_probability(old_distribution, experience.action, self._action_spec)
        advantages = _normalized(info['advantage'], mask)
        return lambda training: self.get_loss(
            ts.TimeStep(experience.step_type, experience.reward, experience.discount, experience.observation),
            experience.action,
            old_log_probs,
            info['return'],
            advantages,
            info['dist_params'],
            mask if weights is None else weights * mask,
            self.train_step_counter,
            debug_summaries=False,
            old_value_predictions=info['value_prediction'],
            training=training,
        )


def _normalized(advantages: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """Returns advantages of mean 0 and variance 1 over those of the global batch that `mask` lets count, [B, T]."""
    reduce = tf.distribute.get_replica_context().all_reduce
    count, total = reduce(tf.distribute.ReduceOp.SUM, [tf.reduce_sum(mask), tf.reduce_sum(mask * advantages)])
    mean = tf.math.divide_no_nan(total, count)
    squares = reduce(tf.distribute.ReduceOp.SUM, tf.reduce_sum(mask * tf.square(advantages - mean)))
    return (advantages - mean) * tf.math.rsqrt(tf.math.divide_no_nan(squares, count) + 1e-8)


def _update(normalizer: tensor_normalizer.TensorNormalizer, values: Any, taken: tf.Tensor | None) -> None:
    """Takes the global batch [B, T, ...] into a normalizer, whose variables replicas cannot assign by themselves."""
    context = tf.distribute.get_replica_context()
    gathered = tf.nest.map_structure(lambda value: context.all_gather(value, axis=0), values)

    def meet(strategy: tf.distribute.Strategy, values: Any, taken: tf.Tensor | None) -> None:
        first = tf.nest.map_structure(lambda value: strategy.experimental_local_results(value)[0], (values, taken))
        if taken is None:
            normalizer.update(first[0], outer_dims=[0, 1])
        else:
            tf.cond(first[1], lambda: tf.group(normalizer.update(first[0], outer_dims=[0, 1])), tf.no_op)

    context.merge_call(meet, (gathered, taken))


def _with_means(info: tf_agent.LossInfo) -> tf_agent.LossInfo:
    """Returns the losses that make up the loss as means over the global batch, not as a replica's share of them."""
    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    whole = tf.nest.map_structure(lambda share: share * replicas, info.extra)
    return info._replace(extra=whole._replace(clip_fraction=info.extra.clip_fraction))
