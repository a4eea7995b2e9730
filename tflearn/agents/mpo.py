"""MPO: the policy learns its own actions by the values that critics have for them, within a bound of how far it moves.

Abdolmaleki et al. 2018, "Maximum a Posteriori Policy Optimisation" (arXiv 1806.06920). Mean and
covariance of the policy move apart, as in Abdolmaleki et al. 2018, "Relative Entropy Regularized
Policy Iteration" (arXiv 1812.02256), and in Hoffman et al. 2020, "Acme" (arXiv 2006.00979). With
the policy pi, two critics Q_i, the targets pi' and Q'_i of both, N actions a_j drawn from
pi'(. | s), the temperature eta and the multipliers alpha:

  y = r + gamma mean_j min_i Q'_i(s', a'_j)                a'_j drawn from pi'(. | s')
  critic loss = sum_i (y - Q_i(s, a))^2
  q_j = exp(min_i Q'_i(s, a_j) / eta) / sum_k exp(min_i Q'_i(s, a_k) / eta)
  policy loss = - sum_j q_j (log pi_m(a_j | s) + log pi_c(a_j | s))
  temperature loss = eta epsilon_eta + eta log mean_j exp(min_i Q'_i(s, a_j) / eta)
  KL loss = sum of alpha (epsilon - [KL]) + [alpha] KL     over KL(pi', pi_m) and KL(pi', pi_c)

Brackets mark what has no gradient. pi_m has the mean of pi and the covariance of pi', and pi_c the
mean of pi' and the covariance of pi. For a discrete action, sums over all choices by pi' take the
place of what is drawn, pi that of pi_m and pi_c, and there is one KL.

Differs from the papers: returns are of n steps, not Retrace's; there are two critics; the
covariance is diagonal and does not depend on the observation; temperature and multipliers are
learned as their logs, so that they stay above 0.
"""

import math
from collections.abc import Mapping
from typing import Annotated, Any

import tensorflow as tf
import tensorflow_probability as tfp
from tf_agents.agents import tf_agent
from tf_agents.networks import network as network_lib

from tflearn.agents import actor_critic, parts, v_mpo
from tflearn.agents.algorithm import Example, factory
from tflearn.agents.parts import Problem
from tflearn.core.experience import BatchItems, Experience, Uniform
from tflearn.core.settings import (
    Finite,
    Fraction,
    PositiveFloat,
    PositiveFraction,
    PositiveInt,
    Range,
    checked,
    checked_dataclass,
)
from tflearn.core.types import Agent
from tflearn.networks import heads, spec_checks
from tflearn.networks.critics import Targets
from tflearn.optimization.optimizers import Optimizer

EXPERIENCE = Experience(
    replay=Uniform(max_size=1_000_000, min_size=10_000, samples_per_insert=256.0), batch=BatchItems(256)
)

EXAMPLE = Example(('discrete', 'continuous'))


@checked_dataclass(frozen=True)
class MPOLoss:
    """The losses; see the module.

    Attributes:
      gamma: the discount per environment step, in [0, 1].
      reward_scale: the factor of the rewards.
      num_action_samples: N, how many continuous actions are drawn for each observation; of a
        discrete one all count.
      epsilon_eta: the bound of the KL divergence [nats] of the actions' weights from equal ones.
      epsilon_alpha: the bound of KL(pi', pi) [nats] of a discrete action.
      epsilon_mean: the bound of KL(pi', pi_m) [nats] of a continuous action, of all its numbers
        together.
      epsilon_covariance: the bound of KL(pi', pi_c) [nats], of all its numbers too.
      initial_eta: the initial temperature, in the unit of the values.
      initial_alpha: the initial value of each multiplier.
    """

    gamma: Fraction = 0.99
    reward_scale: Finite = 1.0
    num_action_samples: Annotated[int, Range(least=2)] = 20
    epsilon_eta: PositiveFloat = 0.1
    epsilon_alpha: PositiveFloat = 0.01
    epsilon_mean: PositiveFloat = 0.01
    epsilon_covariance: PositiveFloat = 1e-4
    initial_eta: PositiveFloat = 1.0
    initial_alpha: PositiveFloat = 10.0


@checked
@factory
def make_agent(
    problem: Problem,
    *,
    loss: MPOLoss = MPOLoss(),
    target_update_tau: PositiveFraction = 1.0,
    target_update_period: PositiveInt = 100,
    action_mask: str | None = None,
) -> Agent:
    """Makes an agent for one vector of continuous actions or one discrete action.

    Args:
      experience: the experience, of uniform or prioritized order; returns are of n steps,
        n = sequence_length - 1.
      network: the layers of actor and critics; (256, 256) units each; without memory.
      optimizer: the optimizers of `critic` and `actor`, 3e-4, clipped at 40; and of `dual`, the
        temperature and the multipliers, 1e-2, never clipped.

    Raises:
      ValueError: if the action is another one, the experience is a queue, or a number is invalid.
    """
    spec_checks.check_one_action(problem.specs.action, 'MPO')
    unused = ('lstm_size', 'shared', 'make_head')
    made, target = (actor_critic.make_networks(problem, 'MPO', action_mask, unused) for _ in range(2))
    optimizers = problem.optimizers({'critic': 3e-4, 'actor': 3e-4, 'dual': 1e-2}, 40.0, unclipped=('dual',))
    pairs = [(made.actor, target.actor), (made.critics, made.targets)]
    targets = Targets(pairs, target_update_tau, target_update_period)
    return MPOAgent(problem, made, target.actor, optimizers, targets, loss)


def weights_and_loss(
    values: tf.Tensor, log_shares: tf.Tensor, eta: tf.Tensor, epsilon: float
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the weights q of actions, float32 [N, R], without gradients, and the temperature's loss, float32 [R].

    Args:
      values: float32 [N, R], of N actions each.
      log_shares: float32 [N, R], the logs of what each action counts without its value, 1 in all;
        or one for all.
      eta: float32 scalar, the temperature.
      epsilon: the bound of the KL divergence of the weights [nats].
    """
    exponents = log_shares + values / eta
    losses = eta * (epsilon + tf.reduce_logsumexp(exponents, axis=0))
    return tf.stop_gradient(tf.nn.softmax(exponents, axis=0)), losses


class MPOAgent(actor_critic.ActorCriticAgent):
    """See the module.

    The extra metrics are means over the items of the global batch: `critic_loss`, `policy_loss`,
    `temperature_loss`; `value` of the policy's actions, in the unit of returns; and of
    `v_mpo.policy_divergences` those are [nats], with the multiplier of each (`kl_mean`,
    `kl_mean_alpha`). `eta` is the temperature.
    """

    def __init__(
        self,
        problem: Problem,
        made: actor_critic.Networks,
        target_actor: network_lib.Network,
        optimizers: Mapping[str, Optimizer],
        targets: Targets,
        loss: MPOLoss,
    ):
        """Makes the agent, within the strategy's scope; see `ActorCriticAgent`."""
        super().__init__(problem, made, optimizers, targets, loss)
        self._target_actor = target_actor
        kinds = ('kl',) if self._critics.is_discrete else ('kl_mean', 'kl_covariance')
        self._log_eta = tf.Variable(math.log(loss.initial_eta), name='log_eta')
        self._log_alphas = {kind: tf.Variable(math.log(loss.initial_alpha), name=f'log_{kind}_alpha') for kind in kinds}

    def _step(self, experience: Any, weights: tf.Tensor | None) -> tuple[tf_agent.LossInfo, tf.Tensor | None]:
        info, taken = super()._step(experience, weights)
        for variable in self._trained('dual'):
            variable.assign(tf.maximum(variable, math.log(v_mpo.LEAST)))
        return info, taken

    def _optimized(self, part: str) -> tuple[str, ...]:
        return ('critic',) if part == 'critic' else ('actor', 'dual')

    def _trained(self, part: str) -> list[Any]:
        return [self._log_eta, *self._log_alphas.values()] if part == 'dual' else super()._trained(part)

    def _losses(self, experience: Any, weights: tf.Tensor | None, training: bool) -> parts.Losses:
        options = self._options
        batch = actor_critic.of_n_steps(experience, options.gamma, options.reward_scale)
        (taken,), (seen, _) = tf.nest.flatten(batch.action), self._seen(batch.observation)

        def critic_loss(_: parts.Metrics) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
            before = self._distribution(batch.next_observation, actor=self._target_actor)
            log_shares, values = self._valued(batch.next_observation, before)[1:]
            bootstraps = tf.reduce_sum(tf.exp(log_shares) * values, axis=0)
            return actor_critic.critic_loss(batch, bootstraps, self._critics.of_actions(seen, taken, training))

        def actor_loss(_: parts.Metrics) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
            now = self._distribution(batch.observation, training)
            before = self._distribution(batch.observation, actor=self._target_actor)
            actions, log_shares, values = self._valued(batch.observation, before)
            eta = tf.exp(self._log_eta)
            shares, temperature_losses = weights_and_loss(values, log_shares, eta, options.epsilon_eta)
            policy_losses = -tf.reduce_sum(shares * self._log_probs(before, now, actions), axis=0)
            metrics = {
                'policy_loss': policy_losses,
                'temperature_loss': temperature_losses,
                'value': tf.reduce_sum(tf.exp(log_shares) * values, axis=0),
                'eta': eta,
            }
            alphas = {kind: tf.exp(log_alpha) for kind, log_alpha in self._log_alphas.items()}
            divergences = v_mpo.policy_divergences(before, now, outer_rank=1)
            bounded, of_divergences = v_mpo.divergence_losses(divergences, alphas, options)
            return policy_losses + temperature_losses + bounded, metrics | of_divergences

        return batch.counts, {'critic': critic_loss, 'actor': actor_loss}

    def _valued(self, observation: Any, distribution: Any) -> tuple[tf.Tensor | None, tf.Tensor, tf.Tensor]:
        """Returns actions of the targets' policy [N, R, A], logs of what each counts, and the targets' values, [N, R].

        Of a discrete action these are all choices, as None.
        """
        (seen, _), (each,) = self._seen(observation), tf.nest.flatten(distribution)
        critics = self._target_critics
        if critics.is_discrete:
            log_shares = tf.transpose(tf.nn.log_softmax(each.logits_parameter()))
            return None, log_shares, tf.transpose(tf.reduce_min(critics(seen), axis=1))
        count = self._options.num_action_samples
        drawn = heads.sample(each, self._draws, (count,))
        bounded = tf.clip_by_value(tf.reshape(drawn, [-1, drawn.shape[2]]), *self._bounds())
        features = [tf.tile(features, [count, 1]) for features in critics.features(seen)]
        values = tf.reduce_min(critics.of_features(features, bounded), axis=[1, 2])
        return drawn, tf.constant(-math.log(count)), tf.reshape(values, [count, -1])

    def _log_probs(self, before: Any, now: Any, actions: tf.Tensor | None) -> tf.Tensor:
        """Returns log pi_m + log pi_c of drawn actions, or log pi of all choices, float32 [N, R]."""
        (before,), (now,) = tf.nest.flatten(before), tf.nest.flatten(now)
        if actions is None:
            return tf.transpose(tf.nn.log_softmax(now.logits_parameter()))
        normal = tfp.distributions.MultivariateNormalDiag
        apart = normal(now.mean(), before.stddev()), normal(before.mean(), now.stddev())
        return tf.add_n([each.log_prob(actions) for each in apart])
