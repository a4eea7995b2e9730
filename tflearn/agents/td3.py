"""TD3, twin delayed deep deterministic policy gradients, for continuous actions; and TD3+BC, for recorded data.

Fujimoto et al. 2018, "Addressing Function Approximation Error in Actor-Critic Methods" (arXiv 1802.09477, algorithm 1).
With the actor mu, the critics Q_1 and Q_2, their slowly updated targets mu', Q'_1 and Q'_2, and the half range h of the
actions:

  a' = clip(mu'(s') + h clip(e, -c, c), lowest, highest)       e ~ N(0, sigma^2)
  y = r + gamma min_i Q'_i(s', a')                             after n steps, the sum of their n rewards
  critic loss = sum_i (y - Q_i(s, a))^2
  actor loss = - Q_1(s, mu(s))                                 each `policy_delay` train steps, as are the targets

Fujimoto and Gu 2021, "A Minimalist Approach to Offline Reinforcement Learning" (arXiv 2106.06860, equations 5 and 6),
adds the distance from the data's action, with alpha:

  actor loss = - lambda Q_1(s, mu(s)) + mean(((mu(s) - a) / h)^2)          lambda = alpha / mean |Q_1(s, a)|

Differs from the papers: layers, learning rates and batch size are those of the authors' later code, 256-256, 3e-4 and
256. The mean of equation 6 is over the data's actions as there; the authors' code takes the actor's. The mean of the
distance is over the batch and the action's numbers, as in that code.

TF-Agents' Td3Agent is not used: it neither scales the target's noise to the bounds nor clips its sum with the action,
takes means over a replica's own batch, and applies gradients in a branch, which several replicas cannot do.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.agents import tf_agent
from tf_agents.agents.td3 import td3_agent
from tf_agents.policies import actor_policy
from tf_agents.utils import common

from tflearn.agents.rescaled_actions import ActionRescaling
from tflearn.core.errors import UserValueError
from tflearn.core.experience import BatchItems, Experience, Uniform
from tflearn.core.train_step import Draws
from tflearn.core.types import Agent, EnvironmentSpecs
from tflearn.networks import deterministic, encoder, spec_checks
from tflearn.optimization import optimizers, schedules, td3_loss
from tflearn.optimization.td3_loss import LossOptions

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
    gamma: float = 0.99,
    target_update_tau: float = 0.005,
    policy_delay: int = 2,
    exploration_noise: float | schedules.Schedule = 0.1,
    target_policy_noise: float = 0.2,
    target_policy_noise_clip: float = 0.5,
    behavior_cloning_alpha: float | None = None,
    reward_scale: float = 1.0,
    gradient_clipping: float | None = None,
    make_optimizer: optimizers.OptimizerFactory = optimizers.make,
) -> Agent:
    """Makes a TD3 agent for continuous actions, with n-step returns, n = `experience.slicing.sequence_length` - 1.

    Args:
      specs: the environment's specs; see `encoder` for observations. The action is one tensor of floats with finite
        bounds, or a nest of these.
      train_step: int64 scalar, counts gradient steps of the critics.
      experience: the experience, of uniform order.
      actor_fc_layer_params: units of the actor's fully connected layers.
      critic_fc_layer_params: units of each critic's fully connected layers, after the concatenation of observation and
        action.
      conv_layer_params: (filters, kernel size, stride) of convolutions, for images [height, width, channels]; None has
        none for a single image, and `encoder.CONVOLUTIONS` for images in a nest.
      preprocessing_layers: Keras layers of one's own for leaves of the observation, by path, such as 'arm.position'.
      make_network: makes a network of one's own from observations to features, in place of all layers before the last;
        see `encoder.own_network`. None makes the layers above.
      actor_learning_rate: the actor's learning rate, a number or a schedule of the train step.
      critic_learning_rate: the critics' learning rate, a number or a schedule of the train step.
      gamma: the discount per environment step, in [0, 1].
      target_update_tau: the weight of the networks in an update of their targets; 1 copies them.
      policy_delay: train steps between two updates of the actor and of all targets, the paper's d.
      exploration_noise: the deviation of the collect policy's normal noise, as a share of half the range of each
        action; a number or a schedule of the train step.
      target_policy_noise: the deviation of the noise in the targets' actions, the paper's sigma, as such a share.
      target_policy_noise_clip: the largest absolute value of that noise, the paper's c, as such a share.
      behavior_cloning_alpha: TD3+BC's alpha, the weight of the values beside the distance from the data's actions; the
        paper's is 2.5. For training from files; None has no such distance.
      reward_scale: the factor of the rewards.
      gradient_clipping: the bound of the global batch's gradient of the actor and of the critics each, by default of
        its norm (see `optimizers.make`); None does not clip.
      make_optimizer: makes the two optimizers; Adam by default.

    Raises:
      ValueError: if the action is not of floats with bounds, the experience is not uniform, or a number is invalid.
    """
    options = LossOptions(
        gamma,
        reward_scale,
        target_update_tau,
        policy_delay,
        target_policy_noise,
        target_policy_noise_clip,
        behavior_cloning_alpha,
    )
    rescaling = ActionRescaling(specs)
    specs = rescaling.specs
    check(specs, experience, 'TD3', conv_layer_params, preprocessing_layers)
    encoding = {
        'conv_layer_params': conv_layer_params,
        'preprocessing_layers': preprocessing_layers,
        'make_network': make_network,
    }
    networks = deterministic.make_networks(specs, actor_fc_layer_params, critic_fc_layer_params, 2, encoding)
    rates = {'critic': critic_learning_rate, 'actor': actor_learning_rate}
    made = make_optimizers(make_optimizer, train_step, experience, gradient_clipping, rates)
    agent = DeterministicAgent(specs, train_step, experience, networks, made, options, exploration_noise)
    return rescaling.wrapped(agent)


def check(
    specs: EnvironmentSpecs,
    experience: Experience,
    algorithm: str,
    conv_layer_params: encoder.ConvLayerParams | None,
    preprocessing_layers: encoder.Layers | None,
) -> None:
    """Checks what the algorithm can learn from; `algorithm` is its name, for the messages.

    Raises:
      ValueError: see `make_agent`.
    """
    leaves = tf.nest.flatten(specs.action)
    if not leaves or not all(leaf.dtype.is_floating for leaf in leaves):
        raise UserValueError(
            f'got the action {specs.action}; {algorithm} needs continuous actions, one tensor of floats or a nest of '
            'these; choose another algorithm, or wrap the environment so that it has them'
        )
    for leaf in leaves:
        spec_checks.check_bounded(leaf, algorithm)
    spec_checks.check_observation(specs.observation, algorithm, conv_layer_params, preprocessing_layers)
    if not isinstance(experience.replay, Uniform):
        raise UserValueError(
            f'got Experience.replay of the type {type(experience.replay).__name__}; {algorithm} needs Uniform: it '
            'learns from old items, and returns no errors of items'
        )


def make_optimizers(
    make_optimizer: optimizers.OptimizerFactory,
    train_step: tf.Variable,
    experience: Experience,
    gradient_clipping: float | None,
    rates: Mapping[str, float | schedules.Schedule],
) -> list[optimizers.Optimizer]:
    """Returns an optimizer for each learning rate, by its name."""

    def of_train_step(rate: Any) -> Any:
        # Not of the optimizer's own count, which leaves out the steps in which the actor is not updated.
        return (lambda _: rate(train_step)) if callable(rate) else rate

    return [
        make_optimizer(
            train_step,
            of_train_step(rate),
            gradient_clipping=gradient_clipping,
            per_replica_batch_size=experience.per_replica_batch_size,
            name=name,
        )
        for name, rate in rates.items()
    ]


class DeterministicAgent(tf_agent.TFAgent):
    """See the module. The extra metrics are the two losses. With one critic and without delay and noise it is DDPG."""

    def __init__(
        self,
        specs: EnvironmentSpecs,
        train_step: tf.Variable,
        experience: Experience,
        networks: deterministic.Networks,
        made: Sequence[optimizers.Optimizer],
        options: LossOptions,
        exploration_noise: float | schedules.Schedule,
    ):
        """Makes the agent, within the strategy's scope; see `make_agent`.

        Args:
          specs: the environment's specs.
          train_step: see `make_agent`.
          experience: see `make_agent`.
          networks: the agent's networks.
          made: the optimizers of critics and actor.
          options: the losses' settings.
          exploration_noise: see `make_agent`.
        """
        if not callable(exploration_noise) and not exploration_noise >= 0:
            raise UserValueError(f'got exploration_noise={exploration_noise!r}; need a number of at least 0')
        schedule: Any = exploration_noise
        noise: Any = (lambda: schedule(train_step)) if callable(schedule) else schedule
        super().__init__(
            specs.time_step,
            specs.action,
            policy=actor_policy.ActorPolicy(specs.time_step, specs.action, networks.actor, training=False),
            collect_policy=deterministic.NoisyPolicy(specs, networks.actor, noise),
            train_sequence_length=experience.slicing.sequence_length,
            train_step_counter=train_step,
        )
        self._actor, self._critics, self._target_actor, self._target_critics = networks
        (self._critic_optimizer, self._actor_optimizer), self._options = made, options
        self._draws = Draws(train_step)
        leaves = tf.nest.flatten(specs.action)
        bounds = [[np.broadcast_to(bound, leaf.shape) for bound in (leaf.minimum, leaf.maximum)] for leaf in leaves]
        low, high = (np.concatenate([pair[i].ravel() for pair in bounds]).astype(np.float32) for i in range(2))
        self._bounds = lambda: (low, high)

    def _initialize(self) -> None:
        for target, trained in self._target_pairs():
            target.assign(trained)

    def _target_pairs(self) -> list[tuple[tf.Variable, tf.Variable]]:
        targets: list[tf.Module] = [self._target_actor, *self._target_critics]
        trained: list[tf.Module] = [self._actor, *self._critics]
        pairs = zip(targets, trained, strict=True)
        return [pair for target, own in pairs for pair in zip(target.variables, own.variables, strict=True)]

    def _train(self, experience: Any, weights: tf.Tensor | None) -> tf_agent.LossInfo:
        batch, delay = self._batch(experience), self._options.policy_delay
        critics = [variable for critic in self._critics for variable in critic.trainable_variables]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(critics)
            critic_loss, values = self._critic_loss(batch, weights, training=True)
        gradients = tape.gradient(critic_loss, critics)
        scale = self._value_scale(batch, values)
        self._critic_optimizer.apply_gradients(zip(gradients, critics, strict=True), critic_loss)
        due = None if delay == 1 else tf.equal((self.train_step_counter + 1) % delay, 0)
        update = functools.partial(self._actor_gradients, batch, scale, weights)
        # In replica context a branch may compute gradients, but not apply them.
        actor_loss, gradients = update() if due is None else tf.cond(due, update, lambda: update(training=False))
        pairs = zip(gradients, self._actor.trainable_variables, strict=True)
        # The sum of the losses: if the critics' step is skipped, so is the actor's on the same batch.
        self._actor_optimizer.apply_gradients(pairs, critic_loss + actor_loss, due)
        self.train_step_counter.assign_add(1)
        self._update_targets(due)
        return _loss_info(actor_loss, critic_loss)

    def _loss(self, experience: Any, weights: tf.Tensor | None = None, training: bool = False) -> tf_agent.LossInfo:
        batch = self._batch(experience)
        critic_loss, values = self._critic_loss(batch, weights, training)
        scale = self._value_scale(batch, values)
        return _loss_info(self._actor_loss(batch, scale, weights, training), critic_loss)

    def _update_targets(self, due: tf.Tensor | None) -> None:
        tau = self._options.target_update_tau

        def assign() -> None:
            for target, trained in self._target_pairs():
                target.assign((1 - tau) * target + tau * trained)

        # Only in cross-replica context may a branch assign variables; see `optimizers`.
        def update(strategy: tf.distribute.Strategy, *due: tf.Tensor) -> None:
            if due:
                tf.cond(strategy.experimental_local_results(due[0])[0], assign, lambda: None)
            else:
                assign()

        tf.distribute.get_replica_context().merge_call(update, () if due is None else (due,))

    def _batch(self, experience: Any) -> td3_loss.Transitions:
        """Returns the transitions of sequences [B, n + 1, ...], with actions as `_join` returns them."""
        self._draws.restart()
        batch = td3_loss.transitions(experience, self._options.gamma, self._options.reward_scale)
        return batch._replace(action=self._join(batch.action))

    def _join(self, action: Any) -> tf.Tensor:
        """Returns a nest of actions [B, ...] as float32 [B, numbers of the action]."""
        leaves = zip(tf.nest.flatten(action), tf.nest.flatten(self.action_spec), strict=True)
        flat = [tf.cast(tf.reshape(leaf, [-1, spec.shape.num_elements()]), tf.float32) for leaf, spec in leaves]
        return flat[0] if len(flat) == 1 else tf.concat(flat, axis=1)

    def _noise(self, actions: tf.Tensor) -> tf.Tensor:
        """Returns standard normal noise for the targets' actions."""
        return self._draws.normal(tf.shape(actions))

    def _targets(self, batch: td3_loss.Transitions) -> tf.Tensor:
        """Returns the critics' targets y, float32 [B]."""
        action = self._join(self._target_actor(batch.next_observation)[0])
        if self._options.target_policy_noise:
            action = td3_loss.smoothed_actions(action, self._noise(action), self._bounds(), self._options)
        values = [critic((batch.next_observation, action), step_type=())[0] for critic in self._target_critics]
        return tf.stop_gradient(batch.reward + batch.discount * functools.reduce(tf.minimum, values))

    def _critic_loss(
        self, batch: td3_loss.Transitions, weights: tf.Tensor | None, training: bool
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the critics' loss, and the first one's values of the data's actions, float32 [B]."""
        targets, inputs = self._targets(batch), (batch.observation, batch.action)
        values = [critic(inputs, step_type=(), training=training)[0] for critic in self._critics]
        losses = tf.add_n([tf.square(targets - value) for value in values])
        return _mean(batch, losses, weights), values[0]

    def _value_scale(self, batch: td3_loss.Transitions, values: tf.Tensor) -> tf.Tensor | None:
        """Returns TD3+BC's lambda; None without it."""
        alpha = self._options.behavior_cloning_alpha
        return None if alpha is None else td3_loss.value_scale(alpha, values, batch.counts)

    def _actor_gradients(
        self, batch: td3_loss.Transitions, scale: tf.Tensor | None, weights: tf.Tensor | None, training: bool = True
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Returns the actor's loss and its gradients, which are zeros if it is not training."""
        variables = self._actor.trainable_variables
        if not training:
            return self._actor_loss(batch, scale, weights, training), [tf.zeros_like(value) for value in variables]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(variables)
            loss = self._actor_loss(batch, scale, weights, training)
        gradients = tape.gradient(loss, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        return loss, [tf.convert_to_tensor(gradient) for gradient in gradients]

    def _actor_loss(
        self, batch: td3_loss.Transitions, scale: tf.Tensor | None, weights: tf.Tensor | None, training: bool
    ) -> tf.Tensor:
        action = self._join(self._actor(batch.observation, training=training)[0])
        values, _ = self._critics[0]((batch.observation, action), step_type=())
        if scale is None:
            return _mean(batch, -values, weights)
        distances = td3_loss.distances(action, batch.action, self._bounds())
        return _mean(batch, distances - scale * values, weights)


def _mean(batch: td3_loss.Transitions, losses: tf.Tensor, weights: tf.Tensor | None) -> tf.Tensor:
    """Returns this replica's share of the mean of losses [B] over the global batch."""
    losses = tf.where(batch.counts > 0, losses, 0.0)
    return common.aggregate_losses(per_example_loss=losses, sample_weight=weights).total_loss


def _loss_info(actor_loss: tf.Tensor, critic_loss: tf.Tensor) -> tf_agent.LossInfo:
    return tf_agent.LossInfo(actor_loss + critic_loss, td3_agent.Td3Info(actor_loss, critic_loss))
