"""REINFORCE: the policy gradient with the returns of complete episodes, with or without a baseline.

Williams 1992, "Simple statistical gradient-following algorithms for connectionist reinforcement learning" (Machine
Learning 8). Unlike TF-Agents' agent, it trains on unclipped actions, and the result does not depend on the number of
replicas. TF-Agents' loss fails without a complete episode, and includes padding when it normalizes returns.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf
from tf_agents.agents import tf_agent
from tf_agents.policies import greedy_policy
from tf_agents.utils import common, value_ops

from tflearn.agents.actor_value import ActorValueNetwork, NetworkOptions
from tflearn.agents.normalizer import Normalizers, NormalizingPolicy, make_normalizers
from tflearn.agents.rescaled_actions import ActionRescaling
from tflearn.core.action_mask import make_mask
from tflearn.core.errors import UserValueError
from tflearn.core.experience import BatchItems, Experience, Iteration, Queue, Slicing
from tflearn.core.types import Agent, EnvironmentSpecs
from tflearn.networks import encoder
from tflearn.optimization import optimizers, ppo_loss, schedules

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
    lstm_size: Sequence[int] | None = None,
    normalize_observations: bool = False,
    normalize_rewards: bool = False,
    action_mask: str | None = None,
    learning_rate: float | schedules.Schedule = 1e-3,
    gamma: float = 0.99,
    entropy_coefficient: float | schedules.Schedule = 0.0,
    value_coefficient: float = 0.5,
    normalize_returns: bool = True,
    gradient_clipping: float | None = 0.5,
    make_optimizer: optimizers.OptimizerFactory = optimizers.make,
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
        it is called for policy and baseline; see `encoder.own_network`. None makes those of the other arguments.
      lstm_size: units of the LSTM layers after the fully connected ones, in the policy and in the baseline; None is
        without memory. An item starts with its episode, so no states are stored (`Slicing.store_policy_state`).
      normalize_observations: whether to normalize observations by the mean and variance of all that it trained on,
        within +-5; see `ppo.make_agent`.
      normalize_rewards: whether to divide rewards by the root mean square of all so far, or by a tenth of the
        largest so far if that is more, so that the order of returns stays.
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

    Raises:
      ValueError: if the action is not supported (see `networks`), observations to normalize are not floats, or the
        experience is not a queue of padded items without stored states.
    """
    _check(experience)
    network = NetworkOptions(
        conv_layer_params=conv_layer_params,
        fc_layer_params=actor_fc_layer_params,
        lstm_size=lstm_size,
        preprocessing_layers=preprocessing_layers,
        make_network=make_network,
        value_fc_layer_params=value_fc_layer_params,
    )
    rescaling = ActionRescaling(specs)
    specs = rescaling.specs
    network.check(specs, 'REINFORCE')
    skipped = {*(preprocessing_layers or ()), action_mask}
    normalizers = make_normalizers(specs, skipped, normalize_observations, normalize_rewards)
    optimizer = make_optimizer(
        train_step,
        learning_rate,
        gradient_clipping=gradient_clipping,
        per_replica_batch_size=experience.per_replica_batch_size,
        name='reinforce',
    )
    loss = Loss(gamma, entropy_coefficient, value_coefficient, normalize_returns, value_fc_layer_params is not None)
    actor_value = ActorValueNetwork(specs, network, make_mask(specs, action_mask)[0])
    agent = ReinforceAgent(specs, train_step, experience, actor_value, loss, optimizer, normalizers)
    return rescaling.wrapped(agent)


def _check(experience: Experience) -> None:
    replay, slicing = experience.replay, experience.slicing
    if not isinstance(replay, Queue) or not slicing.pad_episodes or isinstance(replay.training, Iteration):
        raise UserValueError(
            f'got Experience.replay={replay!r}, pad_episodes={slicing.pad_episodes}; need a Queue without Iteration, '
            'and True: REINFORCE learns once from complete episodes'
        )
    if slicing.store_policy_state:
        raise UserValueError(
            'got Slicing.store_policy_state=True; REINFORCE needs False: its sequences start with their episodes'
        )


class Loss(NamedTuple):
    """What the loss consists of; see `make_agent`. `baseline` is whether there is one."""

    gamma: float
    entropy_coefficient: float | schedules.Schedule
    value_coefficient: float
    normalize_returns: bool
    baseline: bool


class ReinforceAgent(tf_agent.TFAgent):
    """See the module.

    The extra metrics of the loss are sums over an episode, averaged over the episodes of the global batch:
    `policy_loss`, `value_loss`, `entropy` [nats]; and `num_episodes`, and `ignored_share`, the share of the steps that
    are of longer episodes than an item, on which it does not train.
    """

    def __init__(
        self,
        specs: EnvironmentSpecs,
        train_step: tf.Variable,
        experience: Experience,
        network: ActorValueNetwork,
        loss: Loss,
        optimizer: optimizers.Optimizer,
        normalizers: Normalizers,
    ):
        """Makes the agent, within the strategy's scope; see `make_agent`."""
        policy, collect_policy = (
            NormalizingPolicy(specs, network, normalizers.observation, False, name)
            for name in ('policy', 'collect_policy')
        )
        super().__init__(
            specs.time_step,
            specs.action,
            policy=greedy_policy.GreedyPolicy(policy),
            collect_policy=collect_policy,
            train_sequence_length=None,
            train_step_counter=train_step,
        )
        self._network, self._options, self._optimizer = network, loss, optimizer
        self._observation_normalizer, self._reward_normalizer = normalizers

    def _train(self, experience: Any, weights: tf.Tensor | None = None) -> tf_agent.LossInfo:
        without = set() if self._options.baseline else {variable.ref() for variable in self._network.value_variables}
        variables = [variable for variable in self._network.trainable_variables if variable.ref() not in without]
        if self._reward_normalizer:
            self._reward_normalizer.update(experience.reward, _counts(experience))
        with tf.GradientTape() as tape:
            info = self._loss(experience, weights, training=True)
        gradients = tape.gradient(info.loss, variables)
        taken = self._optimizer.apply_gradients(zip(gradients, variables, strict=True), info.loss)
        counts = _counts(experience) * (1.0 if taken is None else tf.cast(taken, tf.float32))
        if self._observation_normalizer:
            self._observation_normalizer.update(experience.observation, counts)
        self.train_step_counter.assign_add(1)
        return tf.nest.map_structure(tf.identity, info)

    def _loss(self, experience: Any, weights: tf.Tensor | None = None, training: bool = False) -> tf_agent.LossInfo:
        """Returns this replica's share of sums over complete episodes, divided by their number in the global batch.

        It is 0 if there is none.
        """
        options, counts = self._options, _counts(experience)
        observation, reward = experience.observation, experience.reward
        if self._observation_normalizer:
            observation = self._observation_normalizer(observation)
        if self._reward_normalizer:
            reward = self._reward_normalizer(reward)
        # Sums restart after an episode's last step, whatever ended it.
        discounts = tf.where(_ends(experience), 0.0, options.gamma * experience.discount)
        returns = tf.stop_gradient(value_ops.discounted_return(reward, discounts, time_major=False))
        (distribution, values), _ = self._network(observation, step_type=experience.step_type, training=training)
        advantages, errors = returns, tf.zeros_like(returns)
        if options.baseline:
            advantages, errors = returns - tf.stop_gradient(values), tf.math.squared_difference(returns, values)
        if options.normalize_returns:
            advantages = ppo_loss.normalized(advantages, counts)
        counts *= 1.0 if weights is None else weights
        losses = {
            'policy_loss': -common.log_probability(distribution, experience.action, self.action_spec) * advantages,
            'value_loss': errors,
            'entropy': common.entropy(distribution, self.action_spec, outer_rank=2),
        }
        sums = [tf.reduce_sum(tf.where(counts > 0, counts * each, 0.0)) for each in losses.values()]
        steps = tf.cast(~experience.is_boundary()[:, :-1], tf.float32)  # a last row is also the next item's first
        used = tf.reduce_sum(_counts(experience)[:, :-1])
        own = tf.stack([*sums, used, tf.reduce_sum(steps), tf.reduce_sum(tf.cast(_ends(experience), tf.float32))])
        total = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tf.stop_gradient(own))
        num_episodes, coefficient = total[-1], options.entropy_coefficient
        if callable(coefficient):
            coefficient = coefficient(self.train_step_counter)
        loss = sums[0] + options.value_coefficient * sums[1] - coefficient * sums[2]
        means = tf.unstack(tf.math.divide_no_nan(total[:-3], num_episodes))
        ignored = tf.math.divide_no_nan(total[-2] - total[-3], total[-2])
        extra = dict(zip(losses, means, strict=True)) | {'num_episodes': num_episodes, 'ignored_share': ignored}
        return tf_agent.LossInfo(tf.math.divide_no_nan(loss, num_episodes), extra)


def _ends(experience: Any) -> tf.Tensor:
    """Returns bool [B, T], whether a row is the last of a complete episode.

    A sequence has rows of one episode. If its first row is not the episode's first, it is the end of a longer one.
    """
    return experience.is_last() & experience.is_first()[:, :1]


def _counts(experience: Any) -> tf.Tensor:
    """Returns float32 [B, T]: 1 for the steps of complete episodes, 0 for other rows, such as padding."""
    until_end = tf.cumsum(tf.cast(_ends(experience), tf.int32), axis=1, reverse=True) > 0
    return tf.cast(until_end & ~experience.is_boundary(), tf.float32)
