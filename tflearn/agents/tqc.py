"""TQC, truncated quantile critics: soft actor-critic with distributions of returns, without their greatest quantiles.

Kuznetsov et al. 2020, "Controlling Overestimation Bias with Truncated Mixture of Continuous Distributional Quantile
Critics" (arXiv 2005.04269, algorithm 1). With the actor pi, N critics of M quantiles, their targets Z', and the
temperature alpha, which is learned as in SAC:

  z_1 <= z_2 <= ... are all N M quantiles Z'_n(s', a')          a' drawn from pi(. | s')
  y_i = r + gamma (z_i - alpha log pi(a' | s'))                 i = 1 ... (M - d) N
  critic loss = sum_n mean over m, i of the quantile Huber loss of y_i - Z_n,m(s, a)
  actor loss = alpha log pi(a | s) - mean over n, m of Z_n,m(s, a)

Differs from the paper: images and nests have one encoder for all critics.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tf_agents.networks import network
from tf_agents.policies import actor_policy
from tf_agents.utils import common

from tflearn.agents import td3
from tflearn.agents.critics_agent import EntropyAgent
from tflearn.agents.rescaled_actions import ActionRescaling
from tflearn.core.errors import UserValueError
from tflearn.core.experience import BatchItems, Experience, Uniform
from tflearn.core.train_step import Draws
from tflearn.core.types import Agent, EnvironmentSpecs
from tflearn.networks import encoder, heads, networks
from tflearn.networks.critic_ensemble import CriticEnsemble, Critics
from tflearn.optimization import ensemble, offline_loss, optimizers, schedules, td3_loss

EXPERIENCE = Experience(
    replay=Uniform(max_size=1_000_000, min_size=10_000, samples_per_insert=256.0), batch=BatchItems(256)
)


@dataclasses.dataclass(frozen=True)
class LossOptions:
    """The losses; see the module.

    Attributes:
      gamma: the discount per environment step, in [0, 1].
      reward_scale: the factor of the rewards.
      target_entropy: the entropy [nats] of actions rescaled to [-1, 1] to which the temperature adapts; None is minus
        the number of action dimensions.
      initial_log_alpha: the initial log of the temperature.
    """

    gamma: float = 0.99
    reward_scale: float = 1.0
    target_entropy: float | None = None
    initial_log_alpha: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.gamma <= 1:
            raise UserValueError(f'got gamma={self.gamma!r}; need a number in [0, 1]')


def make_agent(
    specs: EnvironmentSpecs,
    train_step: tf.Variable,
    experience: Experience,
    *,
    actor_fc_layer_params: Sequence[int] = (256, 256),
    critic_fc_layer_params: Sequence[int] = (512, 512, 512),
    num_critics: int = 5,
    truncated: ensemble.Truncated = ensemble.Truncated(),  # noqa: B008 - it is frozen
    conv_layer_params: encoder.ConvLayerParams | None = None,
    preprocessing_layers: encoder.Layers | None = None,
    make_network: encoder.MakeNetwork | None = None,
    loss: LossOptions = LossOptions(),
    actor_learning_rate: float | schedules.Schedule = 3e-4,
    critic_learning_rate: float | schedules.Schedule = 3e-4,
    alpha_learning_rate: float | schedules.Schedule = 3e-4,
    target_update_tau: float = 0.005,
    gradient_clipping: float | None = None,
    make_optimizer: optimizers.OptimizerFactory = optimizers.make,
) -> Agent:
    """Makes an agent for one vector of continuous actions. The defaults are the paper's (table 4).

    Args:
      specs: the environment's specs; see `encoder` for observations. Actions need finite bounds.
      train_step: int64 scalar, counts gradient steps.
      experience: the experience, of uniform order; returns are of n steps, n = sequence_length - 1, without the
        entropies of the steps between.
      actor_fc_layer_params: units of the actor's fully connected layers.
      critic_fc_layer_params: units of each critic's fully connected layers, after the concatenation of observation and
        action.
      num_critics: N.
      truncated: the numbers of quantiles.
      conv_layer_params: (filters, kernel size, stride) of convolutions, for images [height, width, channels]; None has
        none for a single image, and `encoder.CONVOLUTIONS` for images in a nest.
      preprocessing_layers: Keras layers of one's own for leaves of the observation, by path, such as 'arm.position'.
      make_network: makes a network of one's own from observations to features, in place of all layers before the last;
        see `encoder.own_network`. None makes the layers above.
      loss: the losses' settings.
      actor_learning_rate: the actor's learning rate, a number or a schedule of the train step.
      critic_learning_rate: the critics' learning rate, a number or a schedule of the train step.
      alpha_learning_rate: the temperature's learning rate, a number or a schedule of the train step.
      target_update_tau: the weight of the critics in an update of their targets, which follows each train step.
      gradient_clipping: the bound of the global batch's gradient of the actor, the critics and the temperature each, by
        default of its norm (see `optimizers.make`); None does not clip.
      make_optimizer: makes the three optimizers; Adam by default.

    Raises:
      ValueError: if the action is another one, the experience has another order, or a number is invalid.
    """
    rescaling = ActionRescaling(specs)
    specs = rescaling.specs
    check(specs, experience, 'TQC', conv_layer_params, preprocessing_layers)
    encoding: Any = {
        'conv_layer_params': conv_layer_params,
        'preprocessing_layers': preprocessing_layers,
        'make_network': make_network,
    }
    critics = Critics(num_critics, critic_fc_layer_params, truncated.num_quantiles)
    made = make_networks(specs, actor_fc_layer_params, critics, target_update_tau, encoding)
    rates = {'critic': critic_learning_rate, 'actor': actor_learning_rate, 'alpha': alpha_learning_rate}
    optimizer_of = td3.make_optimizers(make_optimizer, train_step, experience, gradient_clipping, rates)
    agent = EnsembleSacAgent(
        specs, train_step, experience, made, truncated, loss, dict(zip(rates, optimizer_of, strict=True))
    )
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
    td3.check(specs, experience, algorithm, conv_layer_params, preprocessing_layers)
    leaves = tf.nest.flatten(specs.action)
    if len(leaves) != 1 or leaves[0].shape.rank != 1:
        raise UserValueError(
            f'got the action {specs.action}; {algorithm} needs one vector of continuous actions; choose another '
            'algorithm, or wrap the environment so that it has one'
        )


class Networks(NamedTuple):
    """The agent's networks."""

    actor: network.Network
    critics: CriticEnsemble


def make_networks(
    specs: EnvironmentSpecs, actor_units: Sequence[int], critics: Critics, tau: float, encoding: Mapping[str, Any]
) -> Networks:
    """Makes a tanh-squashed normal policy, and critics; see `make_agent` and `Critics` for the arguments."""
    actor = networks.actor(specs.observation, specs.action, actor_units, continuous=heads.tanh_normal, **encoding)
    actor.create_variables()
    return Networks(actor, CriticEnsemble(specs, critics, encoding, tau))


class EnsembleSacAgent(EntropyAgent):
    """SAC's agent with an ensemble of critics; see the module.

    The extra metrics are means over the items of the global batch: `critic_loss`, `actor_loss`, `alpha_loss`; `value`
    in the unit of returns; `entropy` [nats], estimated by the drawn actions; and `alpha`.
    """

    def __init__(
        self,
        specs: EnvironmentSpecs,
        train_step: tf.Variable,
        experience: Experience,
        networks: Networks,
        rule: ensemble.Rule,
        loss: LossOptions,
        made: Mapping[str, optimizers.Optimizer],
    ):
        """Makes the agent, within the strategy's scope; see `make_agent`.

        Args:
          specs: the environment's specs.
          train_step: see `make_agent`.
          experience: see `make_agent`.
          networks: the agent's networks.
          rule: the critics' targets and losses.
          loss: the losses' settings.
          made: the optimizers by their names: 'critic', 'actor', 'alpha'.
        """
        policy = actor_policy.ActorPolicy(specs.time_step, specs.action, networks.actor, training=False)
        super().__init__(specs, train_step, experience, policy, networks, loss.initial_log_alpha, made)
        self._rule, self._options = rule, loss
        numbers = np.prod(tf.nest.flatten(specs.action)[0].shape)
        self._target_entropy = -float(numbers) if loss.target_entropy is None else loss.target_entropy
        self._draws = Draws(train_step)

    def _parts(self, experience: Any, weights: tf.Tensor | None, training: bool) -> list[optimizers.PartialLoss]:
        """Returns the losses of critics, actor and temperature: each replica's share, and metrics."""
        self._draws.restart()
        batch = td3_loss.transitions(experience, self._options.gamma, self._options.reward_scale)
        counts = batch.counts[:, tf.newaxis]
        item_weights = counts if weights is None else counts * weights[:, tf.newaxis]
        actors_log_probs: list[tf.Tensor] = []

        def share(name: str, losses: tf.Tensor, **more: tf.Tensor) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
            rows = {key: value[:, tf.newaxis] for key, value in {f'{name}_loss': losses, **more}.items()}
            return (
                offline_loss.share_of_mean(losses[:, tf.newaxis], item_weights),
                offline_loss.means(rows, counts),
            )

        def critic_loss() -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
            action, log_probs = self._draw(batch.next_observation)
            bootstraps = self._rule.bootstraps(
                self._critics.target_values(batch.next_observation, action, self._draws), self._draws
            )
            alpha = tf.exp(self._log_alpha)
            targets = batch.reward[:, tf.newaxis] + batch.discount[:, tf.newaxis] * (
                bootstraps - alpha * log_probs[:, tf.newaxis]
            )
            (taken,) = tf.nest.flatten(batch.action)
            values = self._critics.values(batch.observation, taken, training, self._draws)
            return share('critic', self._rule.losses(values, tf.stop_gradient(targets)))

        def actor_loss() -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
            action, log_probs = self._draw(batch.observation, training)
            value = tf.reduce_mean(self._critics.values(batch.observation, action, training, self._draws), axis=[1, 2])
            alpha = tf.stop_gradient(tf.exp(self._log_alpha))
            actors_log_probs.append(tf.stop_gradient(log_probs))
            return share('actor', alpha * log_probs - value, value=value)

        def alpha_loss() -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
            (log_probs,), alpha = actors_log_probs, tf.exp(self._log_alpha)
            losses = alpha * (-log_probs - self._target_entropy)
            return share('alpha', losses, entropy=-log_probs, alpha=tf.fill(tf.shape(log_probs), alpha))

        return [critic_loss, actor_loss, alpha_loss]

    def _draw(self, observation: Any, training: bool = False) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns actions of the policy, float32 [B, A], and their log-probabilities [B]."""
        distribution, _ = self._actor(observation, step_type=(), network_state=(), training=training)
        drawn = heads.sample(distribution, self._draws)
        return tf.nest.flatten(drawn)[0], common.log_probability(distribution, drawn, self.action_spec)
