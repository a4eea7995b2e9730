"""Soft actor-critic for one discrete action, with a learned temperature.

Christodoulou 2019, "Soft Actor-Critic for Discrete Action Settings" (arXiv 1910.07207). With the policy pi, the critics
Q_1 and Q_2, their slowly updated targets Q'_1 and Q'_2, the temperature alpha and the target entropy H:

  V(s) = sum_a pi(a | s) (min_i Q'_i(s, a) - alpha log pi(a | s))                  equation 10
  critic loss = sum_i (r + gamma V(s') - Q_i(s, a))^2
  actor loss = sum_a pi(a | s) (alpha log pi(a | s) - min_i Q_i(s, a))             equation 12
  temperature's loss = sum_a pi(a | s) (- alpha (log pi(a | s) + H))               equation 11

Differs from the paper: the target entropy is a share of the greatest one, 0.5 by default instead of 0.98, with which
policies of few actions stay nearly uniform; with a mask, the greatest entropy is that of the legal actions.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
from tf_agents.policies import actor_policy
from tf_agents.trajectories import time_step as ts

from tflearn.agents import awac, iql
from tflearn.agents.critics_agent import EntropyAgent
from tflearn.agents.rescaled_actions import ActionRescaling
from tflearn.core.action_mask import make_mask
from tflearn.core.errors import UserValueError
from tflearn.core.experience import BatchItems, Experience, Uniform
from tflearn.core.types import Agent, EnvironmentSpecs
from tflearn.networks import encoder, networks, spec_checks
from tflearn.networks.twin_critics import TwinCritics
from tflearn.optimization import offline_loss, optimizers, schedules

EXPERIENCE = Experience(replay=Uniform(max_size=100_000, min_size=1_000, samples_per_insert=64.0), batch=BatchItems(64))


@dataclasses.dataclass(frozen=True)
class LossOptions:
    """The losses; see the module.

    Attributes:
      gamma: the discount per environment step, in [0, 1].
      reward_scale: the factor of the rewards.
      target_entropy_share: the entropy to which the temperature adapts, as a share of the uniform policy's, in (0, 1);
        the paper's is 0.98.
      initial_log_alpha: the initial log of the temperature.
    """

    gamma: float = 0.99
    reward_scale: float = 1.0
    target_entropy_share: float = 0.5
    initial_log_alpha: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.gamma <= 1:
            raise UserValueError(f'got gamma={self.gamma!r}; need a number in [0, 1]')
        if not 0 < self.target_entropy_share < 1:
            raise UserValueError(
                f'got target_entropy_share={self.target_entropy_share!r}; need a number above 0 and below 1'
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
    loss: LossOptions = LossOptions(),
    target_update_tau: float = 0.005,
    action_mask: str | None = None,
    gradient_clipping: float | None = None,
    make_optimizer: optimizers.OptimizerFactory = optimizers.make,
) -> Agent:
    """Makes an agent for one discrete action. Layers and rates are the paper's.

    Args:
      specs: the environment's specs; see `encoder` for observations.
      train_step: int64 scalar, counts gradient steps.
      experience: the experience, of uniform order. All rows of a sequence but the last are trained.
      actor_fc_layer_params: units of the actor's fully connected layers.
      critic_fc_layer_params: units of each critic's fully connected layers.
      conv_layer_params: (filters, kernel size, stride) of convolutions, for images [height, width, channels]; None has
        none for a single image, and `encoder.CONVOLUTIONS` for images in a nest.
      preprocessing_layers: Keras layers of one's own for leaves of the observation, by path, such as 'arm.position'.
      make_network: makes a network of one's own from observations to features, in place of all layers before the last;
        see `encoder.own_network`. None makes the layers above.
      actor_learning_rate: the actor's learning rate, a number or a schedule of the train step.
      critic_learning_rate: the critics' learning rate, a number or a schedule of the train step.
      alpha_learning_rate: the temperature's learning rate, a number or a schedule of the train step.
      loss: the losses' settings.
      target_update_tau: the weight of the critics in an update of their targets, which follows each train step.
      action_mask: the path of the observation's part that marks legal actions, such as 'action_mask'; see `ActionMask`.
        None has none.
      gradient_clipping: the bound of the global batch's gradient of the actor, the critics and the temperature each, by
        default of its norm (see `optimizers.make`); None does not clip.
      make_optimizer: makes the three optimizers; Adam by default.

    Raises:
      ValueError: if the action is another one, the experience has another order.
    """
    rescaling = ActionRescaling(specs)
    specs = rescaling.specs
    spec_checks.check_one_discrete_action(specs.action, 'discrete SAC')
    spec_checks.check_observation(specs.observation, 'discrete SAC', conv_layer_params, preprocessing_layers)
    iql.check_experience(experience, 'discrete SAC')
    mask, observation_spec = make_mask(specs, action_mask)
    encoding: Any = {
        'conv_layer_params': conv_layer_params,
        'preprocessing_layers': preprocessing_layers,
        'make_network': make_network,
    }
    rates = {'critic': critic_learning_rate, 'actor': actor_learning_rate, 'alpha': alpha_learning_rate}
    made = {
        name: make_optimizer(
            train_step,
            rate,
            gradient_clipping=gradient_clipping,
            per_replica_batch_size=experience.per_replica_batch_size,
            name=name,
        )
        for name, rate in rates.items()
    }
    actor = networks.actor(observation_spec, specs.action, actor_fc_layer_params, masked=mask is not None, **encoding)
    actor.create_variables()
    critics = TwinCritics(observation_spec, specs.action, critic_fc_layer_params, encoding, target_update_tau)
    agent = DiscreteSacAgent(specs, train_step, experience, awac.Networks(actor, critics, mask), loss, made)
    return rescaling.wrapped(agent)


class DiscreteSacAgent(EntropyAgent):
    """See the module.

    The extra metrics are means over the valid steps of the global batch: `critic_loss`, `actor_loss`, `alpha_loss`;
    `value` in the unit of returns, `entropy` [nats], and `alpha`.
    """

    def __init__(
        self,
        specs: EnvironmentSpecs,
        train_step: tf.Variable,
        experience: Experience,
        networks: awac.Networks,
        loss: LossOptions,
        made: Mapping[str, optimizers.Optimizer],
    ):
        """Makes the agent, within the strategy's scope; see `make_agent`. `made` are the optimizers by their names."""
        policy = actor_policy.ActorPolicy(
            specs.time_step,
            specs.action,
            networks.actor,
            observation_and_action_constraint_splitter=networks.action_mask,
        )
        actor_and_critics = (networks.actor, networks.critics)
        super().__init__(specs, train_step, experience, policy, actor_and_critics, loss.initial_log_alpha, made)
        self._mask = networks.action_mask
        self._options, self._num_choices = loss, float(specs.action.maximum) + 1

    def _parts(self, experience: Any, weights: tf.Tensor | None, training: bool) -> list[optimizers.PartialLoss]:
        """Returns the losses of critics, actor and temperature: each replica's share, and metrics."""
        options, now = self._options, tf.nest.map_structure(lambda leaf: leaf[:, :-1], experience)
        counts = tf.cast(now.next_step_type != ts.StepType.FIRST, tf.float32)
        item_weights = counts if weights is None else counts * weights[:, tf.newaxis]
        rows = (slice(None, -1), slice(1, None))
        seen, seen_next = (
            tf.nest.map_structure(lambda leaf, part=part: leaf[:, part], experience.observation) for part in rows
        )

        def share(name: str, losses: tf.Tensor, **more: tf.Tensor) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
            metrics = offline_loss.means({f'{name}_loss': losses, **more}, counts)
            return offline_loss.share_of_mean(losses, item_weights), metrics

        def critic_loss() -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
            bootstraps, _ = self._value_and_entropy(seen_next, targets=True)
            targets = options.reward_scale * now.reward + options.gamma * now.discount * bootstraps
            observation, _ = self._divided(seen)
            found = self._critics.values(observation, now.action, training=training)
            return share('critic', tf.add_n([tf.square(tf.stop_gradient(targets) - values) for values in found]))

        def actor_loss() -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
            value, entropy = self._value_and_entropy(seen, training=training)
            return share('actor', -value, value=value, entropy=entropy)

        def alpha_loss() -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
            _, entropy = self._value_and_entropy(seen)
            excess = tf.stop_gradient(entropy - options.target_entropy_share * self._greatest_entropy(seen))
            alpha = tf.exp(self._log_alpha)
            return share('alpha', alpha * excess, alpha=tf.fill(tf.shape(excess), alpha))

        return [critic_loss, actor_loss, alpha_loss]

    def _divided(self, observation: Any) -> tuple[Any, Any]:
        """Returns what the networks see of an observation, and its mask of legal actions, or None."""
        return (observation, None) if self._mask is None else self._mask(observation)

    def _greatest_entropy(self, observation: Any) -> tf.Tensor | float:
        """Returns the uniform policy's entropy [nats], float32 [B, T] with a mask."""
        _, mask = self._divided(observation)
        if mask is None:
            return math.log(self._num_choices)
        return tf.math.log(tf.reduce_sum(tf.cast(mask, tf.float32), axis=-1))

    def _value_and_entropy(
        self, observation: Any, targets: bool = False, training: bool = False
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns V by the critics or their targets, and the policy's entropy [nats], float32 [B, T] each.

        Only the policy has a gradient.
        """
        observation, mask = self._divided(observation)
        masked = {} if mask is None else {'mask': mask}
        distribution, _ = self._actor(observation, step_type=(), network_state=(), training=training, **masked)
        log_probabilities = tf.nn.log_softmax(distribution.logits)
        probabilities = tf.exp(log_probabilities)  # 0 for illegal actions, whose logarithm is finite
        values = tf.stop_gradient(tf.minimum(*self._critics.all_values(observation, targets)))
        entropy = -tf.reduce_sum(probabilities * log_probabilities, axis=-1)
        alpha = tf.stop_gradient(tf.exp(self._log_alpha))
        return tf.reduce_sum(probabilities * values, axis=-1) + alpha * entropy, entropy
