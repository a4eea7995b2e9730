"""Implicit Q-learning: from recorded data alone, without ever asking for the value of an action that they do not have.

Kostrikov et al. 2021, "Offline Reinforcement Learning with Implicit Q-Learning" (arXiv 2110.06169). With two critics
Q_i, their slow targets Q'_i and Q' = min_i Q'_i, means over the steps of a batch:

  value loss  = |expectile - 1(u < 0)| u^2,  u = Q'(s, a) - V(s)                                        (equation 5)
  critic loss = sum_i (r + gamma V(s') - Q_i(s, a))^2                                                   (equation 6)
  actor loss  = -min(exp(inverse_temperature (Q'(s, a) - V(s))), max_weight) log pi(a | s)              (equation 7)

A large expectile makes V(s) the value of the best recorded action. As in the authors' program, the value takes its step
first, then the actor, then the critics, each with the networks that the one before has changed. Unlike there, the
actor's learning rate is constant unless a schedule is given.

Policy and value are one `ActorValueNetwork`, whose normal distribution has a mean within the bounds and a deviation
that does not depend on the observation, as in the paper. Discrete actions have the same losses.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
from tf_agents.trajectories import time_step as ts
from tf_agents.utils import common

from tflearn.agents.actor_value import ActorValueNetwork, ActorValuePolicy, NetworkOptions
from tflearn.agents.critics_agent import CriticsAgent
from tflearn.agents.rescaled_actions import ActionRescaling
from tflearn.core.action_mask import make_mask
from tflearn.core.errors import UserValueError
from tflearn.core.experience import BatchItems, Experience, Uniform
from tflearn.core.types import Agent, EnvironmentSpecs
from tflearn.networks import twin_critics
from tflearn.networks.twin_critics import TwinCritics
from tflearn.optimization import offline_loss, optimizers, schedules

EXPERIENCE = Experience(
    replay=Uniform(max_size=1_000_000, min_size=1_000, samples_per_insert=256.0), batch=BatchItems(256)
)


@dataclasses.dataclass(frozen=True)
class LossOptions:
    """The losses; see the module.

    Attributes:
      gamma: the discount per environment step, in [0, 1].
      expectile: in (0, 1): 0.5 learns the value of the policy that was recorded, numbers near 1 that of its best
        actions. The paper has 0.7 for locomotion and 0.9 for mazes.
      inverse_temperature: what an action's advantage, in the unit of returns, is multiplied by: 0 clones all recorded
        actions alike. The paper has 3 for locomotion and 10 for mazes.
      max_weight: the greatest weight of an action.
      reward_scale: the factor of the rewards. The paper scales rewards such that the returns of a data set span 1,000.
    """

    gamma: float = 0.99
    expectile: float = 0.7
    inverse_temperature: float = 3.0
    max_weight: float = 100.0
    reward_scale: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.gamma <= 1:
            raise UserValueError(f'got gamma={self.gamma!r}; need a number in [0, 1]')
        if not 0 < self.expectile < 1:
            raise UserValueError(f'got expectile={self.expectile!r}; need a number above 0 and below 1')
        if not self.inverse_temperature >= 0:
            raise UserValueError(f'got inverse_temperature={self.inverse_temperature!r}; need a number of at least 0')
        if not self.max_weight > 0:
            raise UserValueError(f'got max_weight={self.max_weight!r}; need a number above 0')


def make_agent(
    specs: EnvironmentSpecs,
    train_step: tf.Variable,
    experience: Experience,
    *,
    network: NetworkOptions = NetworkOptions(fc_layer_params=(256, 256), activation='relu'),  # noqa: B008 - it is frozen
    critic_fc_layer_params: Sequence[int] = (256, 256),
    loss: LossOptions = LossOptions(),
    actor_learning_rate: float | schedules.Schedule = 3e-4,
    value_learning_rate: float | schedules.Schedule = 3e-4,
    critic_learning_rate: float | schedules.Schedule = 3e-4,
    target_update_tau: float = 0.005,
    action_mask: str | None = None,
    gradient_clipping: float | None = None,
    make_optimizer: optimizers.OptimizerFactory = optimizers.make,
) -> Agent:
    """Makes an agent for one vector of continuous actions or one discrete action. The defaults are the paper's.

    Args:
      specs: the environment's specs. Continuous actions need finite bounds.
      train_step: int64 scalar, counts gradient steps.
      experience: the experience, of uniform order. All rows of a sequence but the last are trained.
      network: the layers of policy and value, which share none; without memory. The critics have the same layers before
        the fully connected ones.
      critic_fc_layer_params: units of each critic's fully connected layers.
      loss: the losses' settings.
      actor_learning_rate: the policy's learning rate, a number or a schedule of the train step. The paper's schedule is
        a cosine from this number to 0 at the run's end.
      value_learning_rate: the value's learning rate, a number or a schedule of the train step.
      critic_learning_rate: the critics' learning rate, a number or a schedule of the train step.
      target_update_tau: the weight of the critics in an update of their targets, which follows each train step.
      action_mask: the path of the observation's part that marks legal actions, such as 'action_mask'; see `ActionMask`.
        None has none.
      gradient_clipping: the bound of the global batch's gradient of the actor, the value and the critics each, by
        default of its norm (see `optimizers.make`); None does not clip.
      make_optimizer: makes the three optimizers; Adam by default.

    Raises:
      ValueError: if the action is another one, the experience has another order, or the network has memory or shared
        layers.
    """
    rescaling = ActionRescaling(specs)
    specs = rescaling.specs
    twin_critics.check_action(specs.action, 'IQL')
    network.check(specs, 'IQL')
    check_experience(experience, 'IQL')
    if network.shared or network.lstm_size is not None:
        raise UserValueError(
            f'got NetworkOptions.shared={network.shared}, lstm_size={network.lstm_size}; IQL needs False and None: '
            'policy and value have losses of their own, and transitions are drawn without what was before them'
        )
    mask, observation_spec = make_mask(specs, action_mask)
    rates = {'value': value_learning_rate, 'actor': actor_learning_rate, 'critic': critic_learning_rate}
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
    encoding = {
        'conv_layer_params': network.conv_layer_params,
        'preprocessing_layers': network.preprocessing_layers,
        'make_network': network.make_network,
    }
    critics = TwinCritics(observation_spec, specs.action, critic_fc_layer_params, encoding, target_update_tau)
    actor_value = ActorValueNetwork(specs, network, mask)
    return rescaling.wrapped(IQLAgent(specs, train_step, experience, actor_value, critics, loss, made))


def check_experience(experience: Experience, algorithm: str) -> None:
    """Raises ValueError unless items are drawn uniformly, without the states of the policy that acted."""
    replay = experience.replay
    if not isinstance(replay, Uniform):
        raise UserValueError(
            f'got Experience.replay of the type {type(replay).__name__}; {algorithm} needs Uniform: it learns from '
            'recorded or old transitions, and returns no errors of items'
        )
    if experience.slicing.store_policy_state:
        raise UserValueError(
            f'got Slicing.store_policy_state=True; {algorithm} needs False: it has no memory; set it to False'
        )


class IQLAgent(CriticsAgent):
    """See the module.

    The extra metrics are means over the valid steps of the global batch: `value_loss`, `critic_loss`, `actor_loss`;
    `value` and `advantage`, in the unit of returns; `advantage_weight` of the actor's loss, and `log_likelihood` of the
    recorded actions.
    """

    def __init__(
        self,
        specs: EnvironmentSpecs,
        train_step: tf.Variable,
        experience: Experience,
        network: ActorValueNetwork,
        critics: TwinCritics,
        loss: LossOptions,
        made: Mapping[str, optimizers.Optimizer],
    ):
        """Makes the agent, within the strategy's scope; see `make_agent`. `made` are the optimizers by their names."""
        policy = ActorValuePolicy(specs, network, records_distribution=False)
        super().__init__(specs, train_step, experience, policy, critics)
        self._network, self._options = network, loss  # PPO's name, for a warm start
        self._value_optimizer, self._actor_optimizer, self._critic_optimizer = (
            made[name] for name in ('value', 'actor', 'critic')
        )

    def _trained(self) -> Sequence[tuple[Sequence[tf.Variable], optimizers.Optimizer]]:
        of_value = {variable.ref() for variable in self._network.value_variables}
        return (
            (self._network.value_variables, self._value_optimizer),
            ([v for v in self._network.trainable_variables if v.ref() not in of_value], self._actor_optimizer),
            (self._critics.trainable_variables, self._critic_optimizer),
        )

    def _parts(self, experience: Any, weights: tf.Tensor | None, training: bool) -> list[optimizers.PartialLoss]:
        """Returns the losses of value, actor and critics: functions that return this replica's share, and metrics."""
        options, now = self._options, tf.nest.map_structure(lambda leaf: leaf[:, :-1], experience)
        counts = tf.cast(now.next_step_type != ts.StepType.FIRST, tf.float32)
        item_weights = counts if weights is None else counts * weights[:, tf.newaxis]
        mask = self._network.action_mask
        seen = now.observation if mask is None else mask(now.observation)[0]
        recorded = tf.stop_gradient(tf.minimum(*self._critics.values(seen, now.action, targets=True)))

        def share(name: str, losses: tf.Tensor, **more: tf.Tensor) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
            metrics = offline_loss.means({f'{name}_loss': losses, **more}, counts)
            return offline_loss.share_of_mean(losses, item_weights), metrics

        def value_loss() -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
            (_, value), _ = self._network(now.observation, training=training)
            return share('value', offline_loss.expectile_losses(recorded - value, options.expectile), value=value)

        def actor_loss() -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
            (distribution, value), _ = self._network(now.observation, training=training)
            advantages = recorded - value
            factors = offline_loss.advantage_weights(advantages, options.inverse_temperature, options.max_weight)
            log_probs = common.log_probability(distribution, now.action, self.action_spec)
            log_probs *= offline_loss.legal_counts(log_probs, mask is not None)
            more = {'advantage': advantages, 'advantage_weight': factors, 'log_likelihood': log_probs}
            return share('actor', -factors * log_probs, **more)

        def critic_loss() -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
            (_, values), _ = self._network(experience.observation)
            targets = options.reward_scale * now.reward + options.gamma * now.discount * values[:, 1:]
            targets = tf.stop_gradient(targets)
            found = self._critics.values(seen, now.action, training=training)
            return share('critic', tf.add_n([tf.square(targets - values) for values in found]))

        return [value_loss, actor_loss, critic_loss]
