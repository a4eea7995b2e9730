"""AWAC: an actor that clones recorded actions by the critics' advantages, from data and then online.

Nair et al. 2020, "AWAC: Accelerating Online Reinforcement Learning with Offline Datasets" (arXiv 2006.09359, algorithm
1). With two critics Q_i and their slow targets Q'_i, sums and means over the steps of a batch:

  critic loss = mean of sum_i (r + gamma min_j Q'_j(s', a') - Q_i(s, a))^2,   a' drawn from pi(. | s')
  advantage   = min_i Q_i(s, a) - min_i Q_i(s, b),                            b drawn from pi(. | s)
  actor loss  = -sum of w log pi(a | s),   w = softmax of advantage / temperature over the batch        (equation 13)

As in the authors' program the weights of a batch sum to 1, and the policy's normal distribution has a mean within the
bounds and a deviation that does not depend on the observation. For discrete actions means over pi take the place of
what is drawn.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
from tf_agents.networks import network
from tf_agents.policies import actor_policy
from tf_agents.trajectories import time_step as ts
from tf_agents.utils import common

from tflearn.agents import iql
from tflearn.agents.critics_agent import CriticsAgent
from tflearn.agents.rescaled_actions import ActionRescaling
from tflearn.core.action_mask import ActionMask, make_mask
from tflearn.core.errors import UserValueError
from tflearn.core.experience import BatchItems, Experience, Uniform
from tflearn.core.train_step import Draws
from tflearn.core.types import Agent, EnvironmentSpecs
from tflearn.networks import encoder, heads, networks, spec_checks, twin_critics
from tflearn.networks.twin_critics import TwinCritics
from tflearn.optimization import offline_loss, optimizers, schedules

EXPERIENCE = Experience(
    replay=Uniform(max_size=1_000_000, min_size=1_000, samples_per_insert=1024.0), batch=BatchItems(1024)
)


@dataclasses.dataclass(frozen=True)
class LossOptions:
    """The losses; see the module.

    Attributes:
      gamma: the discount per environment step, in [0, 1].
      temperature: lambda, in the unit of returns: the smaller, the more the best actions of a batch count.
      num_action_samples: actions drawn for the value of an observation, whose mean it is. For continuous actions.
      reward_scale: the factor of the rewards.
    """

    gamma: float = 0.99
    temperature: float = 1.0
    num_action_samples: int = 1
    reward_scale: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.gamma <= 1:
            raise UserValueError(f'got gamma={self.gamma!r}; need a number in [0, 1]')
        if not self.temperature > 0:
            raise UserValueError(f'got temperature={self.temperature!r}; need a number above 0')
        if self.num_action_samples < 1:
            raise UserValueError(f'got num_action_samples={self.num_action_samples!r}; need at least 1')


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
    loss: LossOptions = LossOptions(),
    actor_learning_rate: float | schedules.Schedule = 3e-4,
    critic_learning_rate: float | schedules.Schedule = 3e-4,
    target_update_tau: float = 0.005,
    action_mask: str | None = None,
    gradient_clipping: float | None = None,
    make_optimizer: optimizers.OptimizerFactory = optimizers.make,
) -> Agent:
    """Makes an agent for one vector of continuous actions or one discrete action.

    Args:
      specs: the environment's specs; see `encoder` for observations. Continuous actions need finite bounds.
      train_step: int64 scalar, counts gradient steps.
      experience: the experience, of uniform order. All rows of a sequence but the last are trained.
      actor_fc_layer_params: units of the actor's fully connected layers.
      critic_fc_layer_params: units of each critic's fully connected layers.
      conv_layer_params: (filters, kernel size, stride) of convolutions, for images [height, width, channels]; None has
        none for a single image, and `encoder.CONVOLUTIONS` for images in a nest.
      preprocessing_layers: Keras layers of one's own for leaves of the observation, by path, such as 'arm.position'.
      make_network: makes a network of one's own from observations to features, in place of all layers before the last;
        see `encoder.own_network`. None makes the layers above.
      loss: the losses' settings.
      actor_learning_rate: the actor's learning rate, a number or a schedule of the train step.
      critic_learning_rate: the critics' learning rate, a number or a schedule of the train step.
      target_update_tau: the weight of the critics in an update of their targets, which follows each train step.
      action_mask: the path of the observation's part that marks legal actions, such as 'action_mask'; see `ActionMask`.
        None has none.
      gradient_clipping: the bound of the global batch's gradient of the actor and the critics each, by default of its
        norm (see `optimizers.make`); None does not clip.
      make_optimizer: makes the two optimizers; Adam by default.

    Raises:
      ValueError: if the action is another one, or the experience has another order.
    """
    rescaling = ActionRescaling(specs)
    specs = rescaling.specs
    twin_critics.check_action(specs.action, 'AWAC')
    spec_checks.check_observation(specs.observation, 'AWAC', conv_layer_params, preprocessing_layers)
    iql.check_experience(experience, 'AWAC')
    mask, observation_spec = make_mask(specs, action_mask)
    encoding: Any = {
        'conv_layer_params': conv_layer_params,
        'preprocessing_layers': preprocessing_layers,
        'make_network': make_network,
    }
    made = {
        name: make_optimizer(
            train_step,
            rate,
            gradient_clipping=gradient_clipping,
            per_replica_batch_size=experience.per_replica_batch_size,
            name=name,
        )
        for name, rate in (('critic', critic_learning_rate), ('actor', actor_learning_rate))
    }
    actor = networks.actor(observation_spec, specs.action, actor_fc_layer_params, masked=mask is not None, **encoding)
    actor.create_variables()
    critics = TwinCritics(observation_spec, specs.action, critic_fc_layer_params, encoding, target_update_tau)
    agent = AWACAgent(specs, train_step, experience, Networks(actor, critics, mask), loss, made)
    return rescaling.wrapped(agent)


class Networks(NamedTuple):
    """The agent's networks, and the mask of legal actions that observations have; None has none."""

    actor: network.Network
    critics: TwinCritics
    action_mask: ActionMask | None


class AWACAgent(CriticsAgent):
    """See the module.

    The extra metrics are means over the valid steps of the global batch: `critic_loss`; `value` and `advantage`, in the
    unit of returns; and `log_likelihood` of the recorded actions. `actor_loss` is the sum of the weighted ones.
    """

    def __init__(
        self,
        specs: EnvironmentSpecs,
        train_step: tf.Variable,
        experience: Experience,
        networks: Networks,
        loss: LossOptions,
        made: Mapping[str, optimizers.Optimizer],
    ):
        """Makes the agent, within the strategy's scope; see `make_agent`. `made` are the optimizers by their names."""
        actor, critics, mask = networks
        policy = actor_policy.ActorPolicy(
            specs.time_step, specs.action, actor, clip=False, observation_and_action_constraint_splitter=mask
        )
        super().__init__(specs, train_step, experience, policy, critics)
        self._actor, self._mask, self._options = actor, mask, loss
        self._critic_optimizer, self._actor_optimizer = made['critic'], made['actor']
        self._draws = Draws(train_step)

    def _trained(self) -> Sequence[tuple[Sequence[tf.Variable], optimizers.Optimizer]]:
        return (
            (self._critics.trainable_variables, self._critic_optimizer),
            (self._actor.trainable_variables, self._actor_optimizer),
        )

    def _parts(self, experience: Any, weights: tf.Tensor | None, training: bool) -> list[optimizers.PartialLoss]:
        """Returns the losses of critics and actor: functions that return this replica's share, and metrics."""
        self._draws.restart()
        options, now = self._options, tf.nest.map_structure(lambda leaf: leaf[:, :-1], experience)
        counts = tf.cast(now.next_step_type != ts.StepType.FIRST, tf.float32)
        item_weights = counts if weights is None else counts * weights[:, tf.newaxis]
        seen, seen_next = (
            self._seen(tf.nest.map_structure(lambda leaf, rows=rows: leaf[:, rows], experience.observation))
            for rows in (slice(None, -1), slice(1, None))
        )

        def critic_loss() -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
            bootstraps = self._value(*seen_next, num_samples=1, targets=True)
            targets = options.reward_scale * now.reward + options.gamma * now.discount * bootstraps
            found = self._critics.values(seen[0], now.action, training=training)
            losses = tf.add_n([tf.square(tf.stop_gradient(targets) - values) for values in found])
            return offline_loss.share_of_mean(losses, item_weights), offline_loss.means({'critic_loss': losses}, counts)

        def actor_loss() -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
            distribution = self._distribution(*seen, training=training)
            log_probs = common.log_probability(distribution, now.action, self.action_spec)
            legal = offline_loss.legal_counts(log_probs, self._mask is not None)
            value = self._value(*seen, num_samples=options.num_action_samples)
            advantages = tf.minimum(*self._critics.values(seen[0], now.action)) - value
            factors = item_weights * offline_loss.softmax_weights(advantages, options.temperature, counts * legal)
            log_probs *= legal
            share = offline_loss.share_of_mean(-log_probs, factors)
            metrics = {'value': value, 'advantage': advantages, 'log_likelihood': log_probs}
            total = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tf.stop_gradient(share))
            return share, offline_loss.means(metrics, counts) | {'actor_loss': total}

        return [critic_loss, actor_loss]

    def _seen(self, observation: Any) -> tuple[Any, Any]:
        """Returns what the networks see of an observation, and its mask of legal actions, or None."""
        return (observation, None) if self._mask is None else self._mask(observation)

    def _distribution(self, observation: Any, mask: Any, training: bool = False) -> Any:
        masked = {} if mask is None else {'mask': mask}
        return self._actor(observation, step_type=(), network_state=(), training=training, **masked)[0]

    def _value(self, observation: Any, mask: Any, num_samples: int, targets: bool = False) -> tf.Tensor:
        """Returns the mean value of the policy's actions, float32 [B, T], without a gradient."""
        distribution = self._distribution(observation, mask)
        if self._critics.is_discrete:
            (probabilities,) = (leaf.probs_parameter() for leaf in tf.nest.flatten(distribution))
            values = tf.minimum(*self._critics.all_values(observation, targets))
            return tf.stop_gradient(tf.reduce_sum(probabilities * values, axis=-1))
        drawn = [heads.sample(distribution, self._draws) for _ in range(num_samples)]
        values = [tf.minimum(*self._critics.values(observation, action, targets)) for action in drawn]
        return tf.stop_gradient(tf.add_n(values) / num_samples)
