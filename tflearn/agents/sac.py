"""Soft actor-critic with a learned temperature, for continuous actions; and conservative Q-learning, for recorded data.

Haarnoja et al. 2018, "Soft Actor-Critic Algorithms and Applications" (arXiv 1812.05905). The agent is TF-Agents'; here
it gets its networks and optimizers. Differs from the paper: the log of the standard deviation is clipped to [-20, 2].

CQL (Kumar et al. 2020, arXiv 2006.04779) adds to the critics' loss, with the `gap` of `optimization/conservative.py`:

  weight sum_i gap(Q_i)                                        with a fixed weight
  weight sum_i (gap(Q_i) - target gap)                         with one that is adapted: it grows above the target gap

The integral over actions is estimated from N uniform actions and N of the policy, each divided by its density
(appendix F). The squared errors of the critics have the factor 1, as in the authors' code, not 1/2. That
code also draws from the policy at the next observation, and leaves the entropy out of the targets; here they are SAC's.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.agents import tf_agent
from tf_agents.agents.sac import sac_agent
from tf_agents.networks import network
from tf_agents.policies import greedy_policy, tf_policy
from tf_agents.typing import types
from tf_agents.utils import common

from tflearn.agents import recurrent_sac
from tflearn.agents.rescaled_actions import ActionRescaling
from tflearn.core.errors import UserValueError
from tflearn.core.experience import BatchItems, Experience, Uniform
from tflearn.core.train_step import Draws
from tflearn.core.types import Agent, EnvironmentSpecs
from tflearn.networks import encoder, heads, networks, spec_checks
from tflearn.optimization import conservative, optimizers, schedules

_MAX_CONSERVATIVE_WEIGHT = 1e6

EXPERIENCE = Experience(
    replay=Uniform(max_size=1_000_000, min_size=10_000, samples_per_insert=256.0), batch=BatchItems(256)
)


def make_agent(
    specs: EnvironmentSpecs,
    train_step: tf.Variable,
    experience: Experience,
    *,
    actor_fc_layer_params: Sequence[int] = (256, 256),
    critic_fc_layer_params: Sequence[int] = (256, 256),
    conv_layer_params: encoder.ConvLayerParams | None = None,
    preprocessing_layers: encoder.Layers | None = None,
    make_network: encoder.MakeNetwork | None = None,
    actor_learning_rate: float | schedules.Schedule = 3e-4,
    critic_learning_rate: float | schedules.Schedule = 3e-4,
    alpha_learning_rate: float | schedules.Schedule = 3e-4,
    gamma: float = 0.99,
    target_update_tau: float = 0.005,
    target_update_period: int = 1,
    reward_scale: float = 1.0,
    target_entropy: float | None = None,
    initial_log_alpha: float = 0.0,
    gradient_clipping: float | None = None,
    make_optimizer: optimizers.OptimizerFactory = optimizers.make,
    debug_summaries: bool = False,
    actor_network: network.Network | None = None,
    lstm_size: Sequence[int] | None = None,
    burn_in_steps: int = 10,
    conservative_weight: float = 0.0,
    conservative_target_gap: float | None = None,
    conservative_actions: int = 10,
) -> Agent:
    """Makes a SAC agent for one vector of continuous actions. The defaults are the paper's (table 1).

    Args:
      specs: the environment's specs; see `encoder` for observations. Actions need finite bounds, into which tanh
        squashes them.
      train_step: int64 scalar, counts gradient steps.
      experience: the experience, of uniform order, with items of 2 steps; with `lstm_size`, of more than
        `burn_in_steps` + 1, of which the last one is only used for its observation.
      actor_fc_layer_params: units of the actor's fully connected layers; with `lstm_size`, the first are before the
        memory, the others after it.
      critic_fc_layer_params: units of each critic's fully connected layers, after the concatenation of observation and
        action.
      conv_layer_params: (filters, kernel size, stride) of convolutions, for images [height, width, channels]; None has
        none for a single image, and `encoder.CONVOLUTIONS` for images in a nest.
      preprocessing_layers: Keras layers of one's own for leaves of the observation, by path, such as 'arm.position'.
      make_network: makes a network of one's own from observations to features, in place of all layers before the last;
        see `encoder.own_network`. None makes the layers above.
      actor_learning_rate: the actor's learning rate, a number or a schedule of the train step.
      critic_learning_rate: the critics' learning rate, a number or a schedule of the train step.
      alpha_learning_rate: the temperature's learning rate, a number or a schedule of the train step.
      gamma: the discount per environment step, in [0, 1].
      target_update_tau: the weight of the critics in an update of their targets; 1 copies them.
      target_update_period: train steps between two updates of the targets.
      reward_scale: the factor of the rewards.
      target_entropy: the entropy [nats] of actions rescaled to [-1, 1] to which the temperature adapts; None is minus
        the number of action dimensions.
      initial_log_alpha: the initial log of the temperature.
      gradient_clipping: the bound of the global batch's gradient of the actor, the critics and the temperature each, by
        default of its norm (see `optimizers.make`); None does not clip.
      make_optimizer: makes the three optimizers; Adam by default.
      debug_summaries: whether the steps that are summarized include what TF-Agents' agent writes for debugging.
      actor_network: observation -> distribution of the environment's action, with which the agent works on actions in
        their own unit; None makes a tanh-squashed normal one, of actions in [-1, 1].
      lstm_size: units of the LSTM layers of the actor and of each critic, after a layer of as many units as the first
        of `actor_fc_layer_params`; None is without memory. See `recurrent_sac`.
      burn_in_steps: with `lstm_size`, the first steps of a sequence, which only change the networks' states.
      conservative_weight: CQL's weight of the values of actions that the data do not have; the paper's is 5 for most
        robots. For training from files, without memory; 0 has none.
      conservative_target_gap: the gap to which the weight is adapted, the paper's tau, which has 5 and 10; it begins at
        `conservative_weight`. None keeps the weight.
      conservative_actions: the number N of uniform actions, and of those of the policy, for each item.

    Raises:
      ValueError: if the action is not one vector of floats with bounds, or the experience has another order or
        sequence length.
    """
    specs = (rescaling := ActionRescaling(specs, rescales=actor_network is None)).specs
    action = _checked_action(specs, experience, lstm_size is not None)
    encoding = _encoding(specs, conv_layer_params, preprocessing_layers, make_network)
    rates = {'critic': critic_learning_rate, 'actor': actor_learning_rate, 'alpha': alpha_learning_rate}
    rates |= {} if conservative_target_gap is None else {'conservative': critic_learning_rate}
    made = _make_optimizers(make_optimizer, train_step, experience, gradient_clipping, rates)
    entropy = _papers_entropy(action) if target_entropy is None else target_entropy
    if lstm_size is not None:
        recurrent_sac.check(experience, burn_in_steps, actor_network, conservative_weight)
        units = recurrent_sac.Units(tuple(lstm_size), actor_fc_layer_params, critic_fc_layer_params)
        loss = recurrent_sac.LossOptions(gamma, reward_scale, entropy, initial_log_alpha, burn_in_steps)
        update = recurrent_sac.TargetUpdate(target_update_period, target_update_tau)
        memory, optimizer_of = recurrent_sac.make_networks(specs, units, encoding), [*made.values()]
        agent = recurrent_sac.RecurrentSacAgent(specs, train_step, experience, memory, optimizer_of, loss, update)
        return rescaling.wrapped(agent)
    made_agent = _SacAgent(
        specs,
        critic_network=networks.CriticNetwork((specs.observation, specs.action), critic_fc_layer_params, **encoding),
        actor_network=actor_network or _make_actor(specs, actor_fc_layer_params, **encoding),
        **made,
        conservative_options=conservative.Options(conservative_weight, conservative_target_gap, conservative_actions),
        target_update_tau=target_update_tau,
        target_update_period=target_update_period,
        gamma=gamma,
        reward_scale_factor=reward_scale,
        initial_log_alpha=initial_log_alpha,
        target_entropy=entropy,
        debug_summaries=debug_summaries,
        train_step_counter=train_step,
    )
    return rescaling.wrapped(made_agent)


def _encoding(specs: EnvironmentSpecs, *layers: Any) -> dict[str, Any]:
    """Checks the observation. Returns how it enters the networks, as their arguments."""
    spec_checks.check_observation(specs.observation, 'SAC', *layers[:2])
    return dict(zip(('conv_layer_params', 'preprocessing_layers', 'make_network'), layers, strict=True))


def _papers_entropy(action: types.BoundedTensorSpec) -> float:
    """Returns the target entropy, in the unit of `action`; TF-Agents' own default is half of the paper's."""
    half = np.broadcast_to((np.asarray(action.maximum, float) - action.minimum) / 2, action.shape)
    return float((np.log(half) - 1.0).sum())


def _make_actor(specs: EnvironmentSpecs, units: Sequence[int], **encoding: Any) -> network.Network:
    return networks.actor(specs.observation, specs.action, units, continuous=heads.tanh_normal, **encoding)


def _make_optimizers(
    make_optimizer: optimizers.OptimizerFactory,
    train_step: tf.Variable,
    experience: Experience,
    gradient_clipping: float | None,
    rates: Mapping[str, float | schedules.Schedule],
) -> dict[str, Any]:
    """Returns an optimizer for each learning rate, as SacAgent's arguments."""
    size = experience.per_replica_batch_size
    return {
        f'{name}_optimizer': make_optimizer(
            train_step, rate, gradient_clipping=gradient_clipping, per_replica_batch_size=size, name=name
        )
        for name, rate in rates.items()
    }


def _checked_action(specs: EnvironmentSpecs, experience: Experience, with_memory: bool) -> types.BoundedTensorSpec:
    """Checks what SAC can learn from. Returns the spec of the one tensor of actions."""
    actions = tf.nest.flatten(specs.action)
    if len(actions) != 1 or not actions[0].dtype.is_floating or actions[0].shape.rank != 1:
        raise UserValueError(
            f'got the action {specs.action}; SAC needs one vector of continuous actions; choose another algorithm, or '
            'wrap the environment so that it has one'
        )
    action = actions[0]
    spec_checks.check_bounded(action, 'SAC')
    replay, length = experience.replay, experience.slicing.sequence_length
    if not isinstance(replay, Uniform) or (length != 2 and not with_memory):
        raise UserValueError(
            f'got Experience.replay of the type {type(replay).__name__}, sequence_length={length}; SAC needs Uniform '
            'and 2: it learns from single transitions, and returns no errors of items; lstm_size needs more than 2'
        )
    return action


class _SacAgent(sac_agent.SacAgent):
    """TF-Agents' agent with another train step and a deterministic policy.

    TF-Agents' train step takes the critics' variables from a set, whose order differs from process to process, and
    raises an error if a loss is not finite, which the learner checks.
    """

    def __init__(
        self,
        specs: EnvironmentSpecs,
        conservative_options: conservative.Options,
        conservative_optimizer: Any = None,
        **kwargs: Any,
    ):
        """Takes the specs, CQL's settings with the optimizer of an adapted weight, and SacAgent's other arguments."""
        super().__init__(specs.time_step, specs.action, **kwargs)
        self._mean_policy = greedy_policy.GreedyPolicy(self._policy)
        self._draws = Draws(self.train_step_counter)
        self._conservative = conservative_options
        if conservative_optimizer is not None:
            self._conservative_optimizer = conservative_optimizer
            self._log_conservative_weight = tf.Variable(math.log(conservative_options.weight), name='conservative')

    @property
    def policy(self) -> tf_policy.TFPolicy:
        """The policy that takes the distribution's mean, as in the paper's evaluations; `collect_policy` draws."""
        return self._mean_policy

    def _train(self, experience: Any, weights: tf.Tensor | None) -> tf_agent.LossInfo:
        critics = [*self._critic_network_1.trainable_weights, *self._critic_network_2.trainable_weights]
        trained = [
            (critics, self._critic_optimizer),
            (self._actor_network.trainable_weights, self._actor_optimizer),
            ([self._log_alpha], self._alpha_optimizer),
        ]
        if self._conservative.target_gap is not None:
            trained.append(([self._log_conservative_weight], self._conservative_optimizer))
        losses: list[tf.Tensor] = []
        for loss, (variables, optimizer) in zip(self._parts(experience, weights, True), trained, strict=True):
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(variables)
                losses.append(loss())
            gradients = tape.gradient(losses[-1], variables)
            # The sum of the losses so far: if the critics' step is skipped, so is the actor's on the same batch.
            optimizer.apply_gradients(zip(gradients, variables, strict=True), tf.add_n(losses))
        info = self._loss_info(losses)
        self.train_step_counter.assign_add(1)
        self._update_target()
        return info

    def _loss(self, experience: Any, weights: tf.Tensor | None = None, training: bool = False) -> tf_agent.LossInfo:
        return self._loss_info([loss() for loss in self._parts(experience, weights, training)])

    def _parts(self, experience: Any, weights: tf.Tensor | None, training: bool) -> list[Callable[[], tf.Tensor]]:
        """Returns the losses of the critics, the actor, the temperature and CQL's weight, in the order of training."""
        self._draws.restart()
        steps, policy_steps, next_steps = self._as_transition(experience)
        gaps: list[tf.Tensor] = []
        actors_log_probs: list[tf.Tensor] = []

        def critic_loss() -> tf.Tensor:
            loss = self._critic_loss_weight * self.critic_loss(
                steps,
                policy_steps.action,
                next_steps,
                td_errors_loss_fn=self._td_errors_loss_fn,
                gamma=self._gamma,
                reward_scale_factor=self._reward_scale_factor,
                weights=weights,
                training=training,
            )
            if not self._conservative.weight:
                return loss
            gaps.append(self._excess_gap(steps, policy_steps.action, weights))
            return loss + self._conservative_weight() * gaps[0]

        def actor_loss() -> tf.Tensor:
            loss, log_probs = self._actor_loss_and_log_probs(steps, weights, training)
            actors_log_probs.append(tf.stop_gradient(log_probs))
            return self._actor_loss_weight * loss

        adapted = [lambda: -self._conservative_weight() * tf.stop_gradient(gaps[0]) / 2]
        return [
            critic_loss,
            actor_loss,
            lambda: self._alpha_loss_weight * self._temperature_loss(actors_log_probs[0], weights),
            *([] if self._conservative.target_gap is None else adapted),
        ]

    def _actor_loss_and_log_probs(
        self, steps: Any, weights: tf.Tensor | None, training: bool
    ) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.name_scope('actor_loss'):
            actions, log_probs = self._actions_and_log_probs(steps, training)
            inputs, critics = (steps.observation, actions), (self._critic_network_1, self._critic_network_2)
            value = tf.minimum(*(critic(inputs, step_type=steps.step_type, training=False)[0] for critic in critics))
            loss = common.aggregate_losses(
                per_example_loss=tf.exp(self._log_alpha) * log_probs - value,
                sample_weight=weights,
                regularization_loss=self._actor_network.losses,
            ).total_loss
            self._actor_loss_debug_summaries(loss, actions, log_probs, value, steps)
            return loss, log_probs

    def _temperature_loss(self, log_probs: tf.Tensor, weights: tf.Tensor | None) -> tf.Tensor:
        # The actor's own draws: others would cost another pass through its network.
        with tf.name_scope('alpha_loss'):
            differences = -log_probs - self._target_entropy
            factor = self._log_alpha if self._use_log_alpha_in_alpha_loss else tf.exp(self._log_alpha)
            losses = factor * differences
            loss = common.aggregate_losses(per_example_loss=losses, sample_weight=weights).total_loss
            self._alpha_loss_debug_summaries(loss, differences)
            return loss

    def _actions_and_log_probs(self, time_steps: Any, training: bool = False) -> tuple[Any, tf.Tensor]:
        policy = self._train_policy if training else self._policy
        distribution = policy.distribution(time_steps, ()).action
        actions = heads.sample(distribution, self._draws)
        return actions, common.log_probability(distribution, actions, self.action_spec)

    def _conservative_weight(self) -> float | tf.Tensor:
        if self._conservative.target_gap is None:
            return self._conservative.weight
        return tf.minimum(tf.exp(self._log_conservative_weight), _MAX_CONSERVATIVE_WEIGHT)

    def _excess_gap(self, steps: Any, action: Any, weights: tf.Tensor | None) -> tf.Tensor:
        """Returns this replica's share of the mean of the critics' gaps, less the target gap, summed over critics."""
        drawn, log_densities = self._draw(steps)
        count = drawn.shape[1]
        repeat = lambda leaf: tf.repeat(leaf, count, axis=0)  # noqa: E731
        flat = tf.nest.pack_sequence_as(self.action_spec, [tf.reshape(drawn, [-1, drawn.shape[2]])])
        repeated = (tf.nest.map_structure(repeat, steps.observation), flat)
        gaps = []
        for critic in (self._critic_network_1, self._critic_network_2):
            values, _ = critic(repeated, step_type=())
            own, _ = critic((steps.observation, action), step_type=())
            gaps.append(conservative.gap(tf.reshape(values, [-1, count]), own, log_densities))
        excess = tf.add_n(gaps) - 2 * (self._conservative.target_gap or 0.0)
        return common.aggregate_losses(per_example_loss=excess, sample_weight=weights).total_loss

    def _draw(self, steps: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns uniform actions and the policy's, float32 [B, 2 N, A], and the logs of their densities [B, 2 N]."""
        spec, count = tf.nest.flatten(self.action_spec)[0], self._conservative.num_actions
        distribution = tf.nest.flatten(self._train_policy.distribution(steps, ()).action)[0]
        own = heads.sample(distribution, self._draws, (count,))
        own_densities = common.log_probability(distribution, own, spec)
        low, high = (np.broadcast_to(bound, spec.shape) for bound in (spec.minimum, spec.maximum))
        uniform = low + (high - low) * tf.cast(self._draws.uniform(tf.shape(own)), own.dtype)
        density = -np.log((high - low)[high > low]).sum()
        log_densities = tf.concat([tf.fill(tf.shape(own_densities), np.float32(density)), own_densities], axis=0)
        return tf.transpose(tf.concat([uniform, own], axis=0), [1, 0, 2]), tf.transpose(log_densities)

    def _loss_info(self, losses: Sequence[tf.Tensor]) -> tf_agent.LossInfo:
        critic, actor, alpha, *_ = losses  # that of CQL's weight is a part of the critics'
        with tf.name_scope('Losses'):
            for name, loss in (('critic_loss', critic), ('actor_loss', actor), ('alpha_loss', alpha)):
                tf.summary.scalar(name, loss, self.train_step_counter)
        return tf_agent.LossInfo(critic + actor + alpha, sac_agent.SacLossInfo(critic, actor, alpha))
