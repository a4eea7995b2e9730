"""AWAC: an actor that clones recorded actions by the critics' advantages, from data and then online.

Nair et al. 2020, "AWAC: Accelerating Online Reinforcement Learning with Offline Datasets" (arXiv
2006.09359, algorithm 1). With two critics Q_i and their slow targets Q'_i, sums and means over the
steps of a batch:

  critic loss = mean of sum_i (r + gamma min_j Q'_j(s', a') - Q_i(s, a))^2,   a' drawn from pi(. | s')
  advantage   = min_i Q_i(s, a) - min_i Q_i(s, b),                            b drawn from pi(. | s)
  actor loss  = -sum of w log pi(a | s),   w = softmax of advantage / temperature over the batch        (equation 13)

As in the authors' program the weights of a batch sum to 1, and the policy's normal distribution has
a mean within the bounds and a deviation that does not depend on the observation. For discrete
actions means over pi take the place of what is drawn.
"""

from typing import Any

import tensorflow as tf
from tf_agents.utils import common

from tflearn.agents import actor_critic, parts
from tflearn.agents.algorithm import Example, factory
from tflearn.agents.parts import Problem
from tflearn.core.experience import BatchItems, Experience, Uniform
from tflearn.core.settings import (
    Finite,
    Fraction,
    PositiveFloat,
    PositiveFraction,
    PositiveInt,
    checked,
    checked_dataclass,
)
from tflearn.core.types import Agent
from tflearn.networks import critics as critics_lib
from tflearn.networks import heads, spec_checks
from tflearn.optimization import offline_loss

EXPERIENCE = Experience(
    replay=Uniform(max_size=1_000_000, min_size=1_000, samples_per_insert=1024.0), batch=BatchItems(1024)
)


@checked_dataclass(frozen=True)
class AWACLoss:
    """The losses; see the module.

    Attributes:
      gamma: the discount per environment step, in [0, 1].
      temperature: lambda, in the unit of returns: the smaller, the more the best actions of a batch
        count.
      num_action_samples: actions drawn for the value of an observation, whose mean it is. For
        continuous actions.
      reward_scale: the factor of the rewards.
    """

    gamma: Fraction = 0.99
    temperature: PositiveFloat = 1.0
    num_action_samples: PositiveInt = 1
    reward_scale: Finite = 1.0


EXAMPLE = Example(('discrete', 'continuous'))


@checked
@factory
def make_agent(
    problem: Problem,
    *,
    loss: AWACLoss = AWACLoss(),
    target_update_tau: PositiveFraction = 0.005,
    action_mask: str | None = None,
) -> Agent:
    """Makes an agent for one vector of continuous actions or one discrete action.

    Args:
      experience: the experience, of uniform or prioritized order. All rows of a sequence but the
        last are trained.
      network: the layers of actor and critics; (256, 256) units each; without memory.
      optimizer: the optimizers of `critic` and `actor`; 3e-4, not clipped.

    Raises:
      ValueError: if the action is another one, or the experience is a queue.
    """
    spec_checks.check_one_action(problem.specs.action, 'AWAC')
    networks = actor_critic.make_networks(problem, 'AWAC', action_mask)
    optimizers = problem.optimizers({'critic': 3e-4, 'actor': 3e-4})
    return AWACAgent(problem, networks, optimizers, networks.make_targets(target_update_tau), loss)


class AWACAgent(actor_critic.ActorCriticAgent):
    """See the module.

    The extra metrics are means over the valid steps of the global batch: `critic_loss`; `value` and
    `advantage`, in the unit of returns; and `log_likelihood` of the recorded actions. `actor_loss`
    is the sum of the weighted ones.
    """

    _clips = False  # normal distributions draw actions beyond their bounds, whose densities are learned

    def _reduces(self, part: str) -> bool:
        return part == 'actor'  # whose weights have the mean 1 over the global batch

    def _losses(self, experience: Any, weights: tf.Tensor | None, training: bool) -> parts.Losses:
        """Returns the losses of critics and actor."""
        options = self._options
        batch = actor_critic.of_steps(experience, options.gamma, options.reward_scale)
        (taken,), counts = tf.nest.flatten(batch.action), batch.counts
        seen, _ = self._seen(batch.observation)

        def critic_loss(_: parts.Metrics) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
            bootstraps = self._value(batch.next_observation, self._target_critics, num_samples=1)
            return actor_critic.critic_loss(batch, bootstraps, self._critics.of_actions(seen, taken, training))

        def actor_loss(_: parts.Metrics) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
            distribution = self._distribution(batch.observation, training)
            log_probs = common.log_probability(distribution, batch.action, self.action_spec)
            legal = offline_loss.legal_counts(log_probs, self._mask is not None)
            value = self._value(batch.observation, self._critics, num_samples=options.num_action_samples)
            advantages = tf.reduce_min(self._critics.of_actions(seen, taken), axis=1) - value
            factors = offline_loss.softmax_weights(advantages, options.temperature, counts * legal)
            log_probs *= legal
            losses = -log_probs * offline_loss.with_mean_one(factors, counts)
            metrics = {'value': value, 'advantage': advantages, 'log_likelihood': log_probs}
            return losses, metrics | {'actor_loss': losses}

        return counts, {'critic': critic_loss, 'actor': actor_loss}

    def _value(self, observation: Any, critics: critics_lib.Critics, num_samples: int) -> tf.Tensor:
        """Returns the mean value of the policy's actions, float32 [R], without a gradient."""
        distribution, (observation, _) = self._distribution(observation), self._seen(observation)
        if critics.is_discrete:
            (probabilities,) = (leaf.probs_parameter() for leaf in tf.nest.flatten(distribution))
            values = tf.reduce_min(critics(observation), axis=1)
            return tf.stop_gradient(tf.reduce_sum(probabilities * values, axis=-1))
        drawn = [tf.nest.flatten(heads.sample(distribution, self._draws))[0] for _ in range(num_samples)]
        values = [tf.reduce_min(critics.of_actions(observation, action), axis=1) for action in drawn]
        return tf.stop_gradient(tf.add_n(values) / num_samples)
