"""Implicit Q-learning: from recorded data alone, without ever asking for the value of an action that they do not have.

Kostrikov et al. 2021, "Offline Reinforcement Learning with Implicit Q-Learning" (arXiv 2110.06169).
With two critics Q_i, their slow targets Q'_i and Q' = min_i Q'_i, means over the steps of a batch:

  value loss  = |expectile - 1(u < 0)| u^2,  u = Q'(s, a) - V(s)                                        (equation 5)
  critic loss = sum_i (r + gamma V(s') - Q_i(s, a))^2                                                   (equation 6)
  actor loss  = -min(exp(inverse_temperature (Q'(s, a) - V(s))), max_weight) log pi(a | s)              (equation 7)

A large expectile makes V(s) the value of the best recorded action. As in the authors' program, the
value takes its step first, then the actor, then the critics, each with the networks that the one
before has changed. Unlike there, the actor's learning rate is constant unless a schedule is given.

Policy and value are one `ActorValueNetwork`, whose normal distribution has a mean within the bounds
and a deviation that does not depend on the observation, as in the paper. Discrete actions have the
same losses.
"""

import dataclasses
from typing import Annotated, Any

import tensorflow as tf
from tf_agents.utils import common

from tflearn.agents import actor_critic, parts
from tflearn.agents.actor_value import ActorValueAgent, ActorValueNetwork
from tflearn.agents.algorithm import Example, factory
from tflearn.agents.parts import Problem
from tflearn.core.action_mask import make_mask
from tflearn.core.experience import BatchItems, Experience, Uniform
from tflearn.core.settings import (
    Finite,
    Fraction,
    NonNegativeFloat,
    PositiveFloat,
    PositiveFraction,
    Range,
    checked,
    checked_dataclass,
)
from tflearn.core.types import Agent
from tflearn.networks import critics as critics_lib
from tflearn.networks import spec_checks
from tflearn.networks.critics import Targets
from tflearn.optimization import offline_loss

EXPERIENCE = Experience(
    replay=Uniform(max_size=1_000_000, min_size=1_000, samples_per_insert=256.0), batch=BatchItems(256)
)


@checked_dataclass(frozen=True)
class IQLLoss:
    """The losses; see the module.

    Attributes:
      gamma: the discount per environment step, in [0, 1].
      expectile: in (0, 1): 0.5 learns the value of the policy that was recorded, numbers near 1
        that of its best actions. The paper has 0.7 for locomotion and 0.9 for mazes.
      inverse_temperature: what an action's advantage, in the unit of returns, is multiplied by: 0
        clones all recorded actions alike. The paper has 3 for locomotion and 10 for mazes.
      max_weight: the greatest weight of an action.
      reward_scale: the factor of the rewards. The paper scales rewards such that the returns of a
        data set span 1,000.
    """

    gamma: Fraction = 0.99
    expectile: Annotated[float, Range(above=0, below=1)] = 0.7
    inverse_temperature: NonNegativeFloat = 3.0
    max_weight: PositiveFloat = 100.0
    reward_scale: Finite = 1.0


EXAMPLE = Example(('discrete', 'continuous'))


@checked
@factory
def make_agent(
    problem: Problem,
    *,
    loss: IQLLoss = IQLLoss(),
    target_update_tau: PositiveFraction = 0.005,
    action_mask: str | None = None,
) -> Agent:
    """Makes an agent for one vector of continuous actions or one discrete action. The defaults are the paper's.

    Args:
      experience: the experience, of uniform or prioritized order. All rows of a sequence but the
        last are trained.
      network: the layers of policy, value and critics, which share none; (256, 256) units each;
        without memory. The value has as many as the policy.
      optimizer: the optimizers of `value`, `actor` and `critic`; 3e-4, not clipped. The paper's
        schedule of the actor is a cosine from this number to 0 at the run's end.

    Raises:
      ValueError: if the action is another one, the experience is a queue, or the network has memory
        or shared layers.
    """
    specs = problem.specs
    spec_checks.check_one_action(specs.action, 'IQL')
    parts.check_experience(problem.experience, 'IQL')
    network = problem.network.completed(specs, 'IQL', ('lstm_size', 'shared'), fc_layer_params=(256, 256))
    _, observation_spec = make_mask(specs, action_mask)
    critics = critics_lib.make(observation_spec, specs.action, network)
    actor_value = ActorValueNetwork(specs, dataclasses.replace(network, critic_fc_layer_params=None), action_mask)
    optimizers = problem.optimizers(dict.fromkeys(('value', 'actor', 'critic'), 3e-4))
    given = problem, actor_value, optimizers, loss
    return IQLAgent(*given, critics=critics, target_update_tau=target_update_tau)


class IQLAgent(ActorValueAgent):
    """See the module.

    The extra metrics are means over the valid steps of the global batch: `value_loss`,
    `critic_loss`, `actor_loss`; `value` and `advantage`, in the unit of returns; `advantage_weight`
    of the actor's loss, and `log_likelihood` of the recorded actions.
    """

    def __init__(self, *args: Any, critics: tuple[critics_lib.Critics, critics_lib.Critics], target_update_tau: float):
        """Takes the arguments of `ActorValueAgent`, and the critics, trained and of the targets; see `make_agent`."""
        super().__init__(*args, targets=Targets([critics], target_update_tau))
        self._critics, self._target_critics = critics

    def _trained(self, part: str) -> list[Any]:
        if part == 'critic':
            return [self._critics]
        return self._network.value_variables if part == 'value' else self._network.policy_variables

    def _losses(self, experience: Any, weights: tf.Tensor | None, training: bool) -> parts.Losses:
        """Returns the losses of value, actor and critics."""
        options, mask = self._options, self._network.action_mask
        batch = actor_critic.of_steps(experience, options.gamma, options.reward_scale)
        seen = batch.observation if mask is None else mask(batch.observation)[0]
        (taken,) = tf.nest.flatten(batch.action)
        recorded = tf.stop_gradient(tf.reduce_min(self._target_critics.of_actions(seen, taken), axis=1))

        def value_loss(_: parts.Metrics) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
            (_, value), _ = self._network(batch.observation, training=training)
            losses = offline_loss.expectile_losses(recorded - value, options.expectile)
            return losses, {'value_loss': losses, 'value': value}

        def actor_loss(_: parts.Metrics) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
            (distribution, value), _ = self._network(batch.observation, training=training)
            advantages = recorded - value
            factors = offline_loss.advantage_weights(advantages, options.inverse_temperature, options.max_weight)
            log_probs = common.log_probability(distribution, batch.action, self.action_spec)
            log_probs *= offline_loss.legal_counts(log_probs, mask is not None)
            losses = -factors * log_probs
            metrics = {'actor_loss': losses, 'advantage': advantages, 'advantage_weight': factors}
            return losses, metrics | {'log_likelihood': log_probs}

        def critic_loss(_: parts.Metrics) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
            (_, values), _ = self._network(batch.next_observation)
            return actor_critic.critic_loss(batch, values, self._critics.of_actions(seen, taken, training))

        return batch.counts, {'value': value_loss, 'actor': actor_loss, 'critic': critic_loss}
