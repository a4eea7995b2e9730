"""REINFORCE: the policy gradient with the returns of complete episodes, with or without a baseline.

Williams 1992, "Simple statistical gradient-following algorithms for connectionist reinforcement learning" (Machine
Learning 8). Unlike TF-Agents' agent, it trains on unclipped actions. TF-Agents' loss fails without a complete episode,
and includes padding when it normalizes returns.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tf_agents.agents import tf_agent
from tf_agents.agents.reinforce import reinforce_agent
from tf_agents.policies import actor_policy, greedy_policy
from tf_agents.trajectories import time_step as ts
from tf_agents.utils import common, value_ops

from tflearn.action_mask import ActionMask, make_mask
from tflearn.errors import UserValueError
from tflearn.experience import BatchItems, Experience, Iteration, Queue, Slicing
from tflearn.networks import encoder, networks, spec_checks
from tflearn.optimization import optimizers, schedules
from tflearn.types import Agent, EnvironmentSpecs

# Episodes of up to 200 steps, and the row at their end.
EXPERIENCE = Experience(
    slicing=Slicing(sequence_length=201, stride=200, pad_episodes=True), replay=Queue(max_size=16), batch=BatchItems(8)
)


def make_agent(
    specs: EnvironmentSpecs,
    train_step: tf.Variable,
    experience: Experience,
    *,
    actor_fc_layer_params: Sequence[int] = (64, 64),
    value_fc_layer_params: Sequence[int] | None = (64, 64),
    conv_layer_params: encoder.ConvLayerParams | None = None,
    preprocessing_layers: encoder.Layers | None = None,
    make_network: encoder.MakeNetwork | None = None,
    action_mask: str | None = None,
    learning_rate: float | schedules.Schedule = 1e-3,
    gamma: float = 0.99,
    entropy_coefficient: float | schedules.Schedule = 0.0,
    value_coefficient: float = 0.5,
    normalize_returns: bool = True,
    gradient_clipping: float | None = 0.5,
    make_optimizer: optimizers.OptimizerFactory = optimizers.make,
    debug_summaries: bool = False,
) -> Agent:
    """Makes a REINFORCE agent.

    Args:
      specs: the environment's specs.
      train_step: int64 scalar, counts gradient steps.
      experience: the experience, a queue of padded items, each long enough for a complete episode and the row after it;
        longer episodes are ignored.
      actor_fc_layer_params: units of the policy's fully connected layers, with tanh.
      value_fc_layer_params: units of the baseline's fully connected layers; None has no baseline.
      conv_layer_params: (filters, kernel size, stride) of convolutions, for images [height, width, channels]; None has
        none for a single image, and `encoder.CONVOLUTIONS` for images in a nest.
      preprocessing_layers: Keras layers of one's own for leaves of the observation, by path, such as 'arm.position'.
      make_network: makes a network of one's own from observations to features, in place of all layers before the last;
        see `encoder.own_network`. None makes the layers above.
      action_mask: the path of the observation's part that marks legal actions, such as 'action_mask'; see `ActionMask`.
        None has none.
      learning_rate: a number, or a schedule of the train step.
      gamma: the discount per environment step, in [0, 1].
      entropy_coefficient: the coefficient of the policy's entropy, or a schedule of the train step.
      value_coefficient: the coefficient of the baseline's squared error.
      normalize_returns: whether to normalize returns, minus the baseline, to mean 0 and variance 1 over the batch's
        complete episodes.
      gradient_clipping: the bound of the gradient's norm; None does not clip.
      make_optimizer: makes the optimizer; Adam by default.
      debug_summaries: whether the steps that are summarized include what TF-Agents' agent writes for debugging.

    Raises:
      ValueError: if the action is not supported (see `networks`), the experience is not a
        queue of padded items, or there are several replicas, each of which would divide by its own number of episodes.
    """
    spec_checks.check_observation(specs.observation, 'REINFORCE', conv_layer_params, preprocessing_layers)
    _check(specs, experience)
    encoding: Any = {
        'conv_layer_params': conv_layer_params,
        'preprocessing_layers': preprocessing_layers,
        'make_network': make_network,
    }
    mask, observation_spec = make_mask(specs, action_mask)
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
            observation_spec,
            specs.action,
            actor_fc_layer_params,
            activation=tf.keras.activations.tanh,
            masked=mask is not None,
            **encoding,
        ),
        optimizer=optimizer,
        value_network=None
        if value_fc_layer_params is None
        else networks.ValueNetwork(observation_spec, value_fc_layer_params, **encoding),
        value_coefficient=value_coefficient,
        entropy_coefficient=entropy_coefficient,
        gamma=gamma,
        normalize_returns=normalize_returns,
        action_mask=mask,
        debug_summaries=debug_summaries,
        train_step_counter=train_step,
    )


def _check(specs: EnvironmentSpecs, experience: Experience) -> None:
    spec_checks.check_policy_gradient_action(specs.action, 'REINFORCE')
    replay, padded = experience.replay, experience.slicing.pad_episodes
    if not isinstance(replay, Queue) or not padded or isinstance(replay.training, Iteration):
        raise UserValueError(
            f'got Experience.replay={replay!r}, pad_episodes={padded}; need a Queue without Iteration, and True: '
            'REINFORCE learns once from complete episodes'
        )
    if (replicas := tf.distribute.get_strategy().num_replicas_in_sync) > 1:
        raise UserValueError(f'got {replicas} replicas; need one for REINFORCE; choose IMPALA or PPO for several')


class ReinforceAgent(reinforce_agent.ReinforceAgent):
    """TF-Agents' agent with another loss, which makes all variables at construction.

    The extra metrics of the loss are sums over an episode, averaged over episodes: `policy_loss`, `value_loss`,
    `entropy` [nats]; and `num_episodes`.
    """

    def __init__(
        self,
        *args: Any,
        value_coefficient: float,
        entropy_coefficient: float | schedules.Schedule,
        action_mask: ActionMask | None = None,
        **kwargs: Any,
    ):
        """Takes the coefficients of the loss, the mask of legal actions, and the arguments of TF-Agents' agent."""
        super().__init__(*args, **kwargs)
        # TF-Agents' collect policy clips actions, which would change their log-probabilities.
        unclipped = actor_policy.ActorPolicy(
            self.time_step_spec,
            self.action_spec,
            self._actor_network,
            clip=False,
            observation_and_action_constraint_splitter=action_mask,
        )
        self._action_mask = action_mask
        self._collect_policy, self._policy = unclipped, greedy_policy.GreedyPolicy(unclipped)
        self._value_coefficient, self._entropy_coefficient = value_coefficient, entropy_coefficient

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
        """Returns sums over complete episodes, divided by their number; 0 if there is none."""
        experience = self._as_trajectory(experience)
        # A sequence has rows of one episode. If its first row is not the episode's first, it is the end of a longer
        # one.
        ends = experience.is_last() & experience.is_first()[:, :1]
        # Rows up to the episode's end, without padding.
        counts = tf.cast(tf.cumsum(tf.cast(ends, tf.int32), axis=1, reverse=True) > 0, tf.float32)
        counts *= tf.cast(~experience.is_boundary(), tf.float32)
        # Sums restart after an episode's last step, whatever ended it.
        discounts = tf.where(ends, 0.0, self._gamma * experience.discount)
        returns = tf.stop_gradient(value_ops.discounted_return(experience.reward, discounts, time_major=False))
        step = ts.TimeStep(experience.step_type, experience.reward, experience.discount, experience.observation)
        distribution = self.collect_policy.distribution(step).action
        advantages, errors = returns, tf.zeros_like(returns)
        if self._value_network is not None:
            observation = self._action_mask(step.observation)[0] if self._action_mask else step.observation
            values, _ = self._value_network(observation, step.step_type, training=training)
            advantages, errors = returns - tf.stop_gradient(values), tf.math.squared_difference(returns, values)
        if self._normalize_returns:
            advantages = _normalized(advantages, counts)
        counts *= 1.0 if weights is None else weights
        log_probs = common.log_probability(distribution, experience.action, self.action_spec)
        num_episodes = tf.reduce_sum(tf.cast(ends, tf.float32))
        per_episode = lambda values: tf.math.divide_no_nan(  # noqa: E731
            tf.reduce_sum(tf.where(counts > 0, counts * values, 0.0)), num_episodes
        )
        metrics = {
            'policy_loss': per_episode(-log_probs * advantages),
            'value_loss': per_episode(errors),
            'entropy': per_episode(common.entropy(distribution, self.action_spec, outer_rank=2)),
        }
        loss = metrics['policy_loss'] + self._value_coefficient * metrics['value_loss']
        coefficient = self._entropy_coefficient
        loss -= (coefficient(self.train_step_counter) if callable(coefficient) else coefficient) * metrics['entropy']
        return tf_agent.LossInfo(loss, metrics | {'num_episodes': num_episodes})


def _normalized(values: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
    """Returns values normalized to mean 0 and variance 1 over those with `counts` above 0."""
    count = tf.reduce_sum(counts)
    mean = tf.math.divide_no_nan(tf.reduce_sum(counts * values), count)
    variance = tf.math.divide_no_nan(tf.reduce_sum(counts * tf.square(values - mean)), count)
    return (values - mean) * tf.math.rsqrt(variance + 1e-8)
