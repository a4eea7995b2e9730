"""Soft actor-critic for one discrete action, with a learned temperature.

Christodoulou 2019, "Soft Actor-Critic for Discrete Action Settings" (arXiv 1910.07207). With the
policy pi, the critics Q_1 and Q_2, their slowly updated targets Q'_1 and Q'_2, the temperature
alpha and the target entropy H:

  V(s) = sum_a pi(a | s) (min_i Q'_i(s, a) - alpha log pi(a | s))                  equation 10
  critic loss = sum_i (r + gamma V(s') - Q_i(s, a))^2
  actor loss = sum_a pi(a | s) (alpha log pi(a | s) - min_i Q_i(s, a))             equation 12
  temperature's loss = sum_a pi(a | s) (- alpha (log pi(a | s) + H))               equation 11

Differs from the paper: the target entropy is a share of the greatest one, 0.5 by default instead of
0.98, with which policies of few actions stay nearly uniform; with a mask, the greatest entropy is
that of the legal actions.
"""

import math
from typing import Annotated, Any

import tensorflow as tf

from tflearn.agents import actor_critic, parts, sac
from tflearn.agents.algorithm import Example, factory
from tflearn.agents.parts import Problem
from tflearn.core.experience import BatchItems, Experience, Uniform
from tflearn.core.settings import Finite, Fraction, PositiveFraction, Range, checked, checked_dataclass
from tflearn.core.types import Agent
from tflearn.networks import critics as critics_lib
from tflearn.networks import spec_checks

EXPERIENCE = Experience(replay=Uniform(max_size=100_000, min_size=1_000, samples_per_insert=64.0), batch=BatchItems(64))


@checked_dataclass(frozen=True)
class DiscreteSACLoss:
    """The losses; see the module.

    Attributes:
      gamma: the discount per environment step, in [0, 1].
      reward_scale: the factor of the rewards.
      target_entropy_share: the entropy to which the temperature adapts, as a share of the uniform
        policy's, in (0, 1); the paper's is 0.98.
      initial_log_alpha: the initial log of the temperature.
    """

    gamma: Fraction = 0.99
    reward_scale: Finite = 1.0
    target_entropy_share: Annotated[float, Range(above=0, below=1)] = 0.5
    initial_log_alpha: Finite = 0.0


EXAMPLE = Example(('discrete',))


@checked
@factory
def make_agent(
    problem: Problem,
    *,
    loss: DiscreteSACLoss = DiscreteSACLoss(),
    target_update_tau: PositiveFraction = 0.005,
    action_mask: str | None = None,
) -> Agent:
    """Makes an agent for one discrete action. Layers and rates are the paper's.

    Args:
      experience: the experience, of uniform or prioritized order. All rows of a sequence but the
        last are trained.
      network: the layers of actor and critics; (256, 256) units each; without memory.
      optimizer: the optimizers of `critic`, `actor` and `alpha`; 3e-4, not clipped.

    Raises:
      ValueError: if the action is another one, or the experience is a queue.
    """
    spec_checks.check_one_discrete_action(problem.specs.action, 'discrete SAC')
    networks = actor_critic.make_networks(problem, 'discrete SAC', action_mask)
    optimizers = problem.optimizers(sac.RATES)
    return DiscreteSACAgent(problem, networks, optimizers, networks.make_targets(target_update_tau), loss)


class DiscreteSACAgent(actor_critic.ActorCriticAgent):
    """See the module.

    The extra metrics are means over the valid steps of the global batch: `critic_loss`,
    `actor_loss`, `alpha_loss`; `value` in the unit of returns, `entropy` [nats], and `alpha`.
    """

    def __init__(self, *args: Any):
        """Takes the arguments of `ActorCriticAgent`."""
        super().__init__(*args)
        self._log_alpha = tf.Variable(self._options.initial_log_alpha, dtype=tf.float32, name='log_alpha')
        self._num_choices = float(self.action_spec.maximum) + 1

    def _trained(self, part: str) -> list[Any]:
        return [self._log_alpha] if part == 'alpha' else super()._trained(part)

    def _losses(self, experience: Any, weights: tf.Tensor | None, training: bool) -> parts.Losses:
        """Returns the losses of critics, actor and temperature."""
        batch = actor_critic.of_steps(experience, self._options.gamma, self._options.reward_scale)

        def critic_loss(_: parts.Metrics) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
            bootstraps, _ = self._value_and_entropy(batch.next_observation, self._target_critics)
            values = self._critics.of_actions(self._seen(batch.observation)[0], batch.action, training)
            return actor_critic.critic_loss(batch, bootstraps, values)

        def actor_loss(_: parts.Metrics) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
            value, entropy = self._value_and_entropy(batch.observation, self._critics, training)
            return -value, {'actor_loss': -value, 'value': value, 'entropy': entropy}

        def alpha_loss(_: parts.Metrics) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
            _, entropy = self._value_and_entropy(batch.observation, self._critics)
            wanted = self._options.target_entropy_share * self._greatest_entropy(batch.observation)
            losses = tf.exp(self._log_alpha) * tf.stop_gradient(entropy - wanted)
            return losses, {'alpha_loss': losses, 'alpha': tf.exp(self._log_alpha)}

        return batch.counts, {'critic': critic_loss, 'actor': actor_loss, 'alpha': alpha_loss}

    def _greatest_entropy(self, observation: Any) -> tf.Tensor | float:
        """Returns the uniform policy's entropy [nats], float32 [R] with a mask."""
        _, mask = self._seen(observation)
        if mask is None:
            return math.log(self._num_choices)
        return tf.math.log(tf.reduce_sum(tf.cast(mask, tf.float32), axis=-1))

    def _value_and_entropy(
        self, observation: Any, critics: critics_lib.Critics, training: bool = False
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns V by the critics, and the policy's entropy [nats], float32 [R]. Only the policy has a gradient."""
        log_probabilities = tf.nn.log_softmax(self._distribution(observation, training).logits)
        probabilities = tf.exp(log_probabilities)  # 0 for illegal actions, whose logarithm is finite
        values = tf.stop_gradient(tf.reduce_min(critics(self._seen(observation)[0]), axis=1))
        entropy = -tf.reduce_sum(probabilities * log_probabilities, axis=-1)
        alpha = tf.stop_gradient(tf.exp(self._log_alpha))
        return tf.reduce_sum(probabilities * values, axis=-1) + alpha * entropy, entropy
