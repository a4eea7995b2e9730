"""V-MPO: the policy learns the better half of its own actions, within a bound of how far it moves from the one before.

Song et al. 2019, "V-MPO: On-Policy Maximum a Posteriori Policy Optimization for Discrete and
Continuous Control" (arXiv 1909.12238), section 4. With the advantages A of the steps D of a batch,
of which D' is the half with the largest ones, the policy pi' that acted, the temperature eta and
the multipliers alpha:

  psi = exp(A / eta) / sum_D' exp(A / eta) in D', and 0 elsewhere
  policy loss = - sum_D' psi log pi(a | x)                                              (equation 3)
  temperature loss = eta epsilon_eta + eta log mean_D' exp(A / eta)                     (equation 4)
  KL loss = mean_D alpha (epsilon_alpha - [KL(pi', pi)]) + [alpha] KL(pi', pi)          (equation 5)

Brackets mark what has no gradient. For continuous actions the KL loss has two such terms, of which
the first compares only the means, the second only the covariances.

The paper's target network is the policy that acted, whose distributions are in the data. T_target,
the train steps from one target to the next, are those of an iteration (`Queue.training`), or,
without iterations, `train.Intervals.publish_interval_steps`.

Differs from the paper: the better half is that of a minibatch over all replicas, not of each
device; with iterations, steps are used several times, and advantages are those at an iteration's
start; rewards and observations are normalized by running statistics instead of PopArt, unless
`normalize_values` is set; temperature and multipliers have an optimizer of their own.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_probability as tfp
from tf_agents.agents import tf_agent

from tflearn.agents import parts, ppo
from tflearn.agents.algorithm import ANY_ACTION, Example, factory
from tflearn.agents.parts import Problem
from tflearn.core.settings import Fraction, PositiveFloat, checked, checked_dataclass
from tflearn.core.types import Agent
from tflearn.networks import heads

EXPERIENCE = ppo.EXPERIENCE

LEAST = 1e-8  # of the temperature and the multipliers, as in the paper

EXAMPLE = Example(ANY_ACTION, data=('queue',), sequence_length=5)


@checked_dataclass(frozen=True)
class VMPOLoss:
    """The loss: policy + temperature + KL + value_coefficient * value.

    Attributes:
      gamma: the discount per environment step, in [0, 1].
      lambda_: the lambda of advantages and values' targets; 1 is the n-step return to the end of
        the sequence, as in the paper.
      value_coefficient: the coefficient of the value's squared error; 0.5 in the paper.
      epsilon_eta: the bound of the KL divergence [nats] of psi from equal weights.
      epsilon_alpha: the bound of KL(pi', pi) [nats] of integers in the action.
      epsilon_mean: the same of the means of floats in the action.
      epsilon_covariance: the same of their covariances.
      initial_eta: the initial temperature, in the unit of the advantages.
      initial_alpha: the initial value of each multiplier.
    """

    gamma: Fraction = 0.99
    lambda_: Fraction = 1.0
    value_coefficient: PositiveFloat = 0.5
    epsilon_eta: PositiveFloat = 0.1
    epsilon_alpha: PositiveFloat = 0.01
    epsilon_mean: PositiveFloat = 0.01
    epsilon_covariance: PositiveFloat = 1e-4
    initial_eta: PositiveFloat = 1.0
    initial_alpha: PositiveFloat = 5.0


class BetterHalf(NamedTuple):
    """The half D' of the global batch.

    Attributes:
      threshold: float32 scalar, its least advantage.
      peak: float32 scalar, its largest advantage.
      log_total: float32 scalar, log sum_D' exp((A - peak) / eta).
      log_mean: float32 scalar, log mean_D' exp((A - peak) / eta).
      count: float32 scalar, the sum of the weights of all steps D.
    """

    threshold: tf.Tensor
    peak: tf.Tensor
    log_total: tf.Tensor
    log_mean: tf.Tensor
    count: tf.Tensor


def of_global_batch(*columns: tf.Tensor) -> Sequence[tf.Tensor]:
    """Returns the numbers [N] of all replicas' steps, of columns [...]; in replica context, outside of XLA."""
    context = tf.distribute.get_replica_context()
    flat = [tf.reshape(column, [-1]) for column in columns]
    return flat if context.num_replicas_in_sync == 1 else context.all_gather(flat, axis=0)


def better_half(advantages: tf.Tensor, counts: tf.Tensor, eta: tf.Tensor) -> BetterHalf:
    """Returns the half of the global batch's steps with the largest advantages.

    It is rounded up, and includes all steps whose advantage equals the least of it.

    Args:
      advantages: float32 [N], those of the global batch.
      counts: float32 [N], the weight of each step; 0 for an invalid one.
      eta: float32 scalar, the temperature.
    """
    valid = counts > 0
    ordered = tf.sort(tf.where(valid, advantages, -float('inf')), direction='DESCENDING')
    size = (tf.reduce_sum(tf.cast(valid, tf.int32)) + 1) // 2
    threshold = ordered[tf.maximum(size - 1, 0)]
    weights = tf.where(valid & (advantages >= threshold), counts, 0.0)
    is_any = size > 0
    peak = tf.where(is_any, ordered[0], 0.0)
    total = tf.reduce_sum(weights * tf.exp(tf.where(weights > 0, advantages - peak, 0.0) / eta))
    log_total = tf.math.log(tf.where(is_any, total, 1.0))
    log_number = tf.math.log(tf.where(is_any, tf.reduce_sum(weights), 1.0))
    return BetterHalf(threshold, peak, log_total, log_total - log_number, tf.reduce_sum(counts))


def psi_weights(advantages: tf.Tensor, eta: tf.Tensor, half: BetterHalf) -> tf.Tensor:
    """Returns the weights of log pi [...], without gradients; over the global batch their sum is 1."""
    inside = advantages >= half.threshold
    exponents = tf.where(inside, advantages - half.peak, 0.0) / eta - half.log_total
    return tf.stop_gradient(tf.where(inside, tf.exp(exponents), 0.0))


def eta_loss(eta: tf.Tensor, half: BetterHalf, epsilon: float) -> tf.Tensor:
    """Returns the loss of the temperature, a scalar."""
    return half.peak + eta * (epsilon + half.log_mean)


def policy_divergences(before: Any, now: Any, outer_rank: int) -> dict[str, tf.Tensor]:
    """Returns KL(before, now) of a nest of distributions, each summed over its kind of tensors of the action.

    Of normal distributions with independent dimensions, with `before`'s mean m' and deviation s',
    `now`'s m and s:

      kl_mean = 1/2 sum ((m - m') / s')^2
      kl_covariance = 1/2 sum (s' / s)^2 - 1 - log (s' / s)^2

    Args:
      before: a nest of distributions, of categories or normal, of outer dimensions [...].
      now: the same.
      outer_rank: the number of outer dimensions.

    Returns:
      float32 [...] by name: 'kl' of categories, 'kl_mean' and 'kl_covariance' of numbers; only
      those that there are.
    """
    found: dict[str, list[tf.Tensor]] = {}
    total = lambda values: tf.reduce_sum(values, axis=list(range(outer_rank, values.shape.rank)))  # noqa: E731
    for old, new in zip(tf.nest.flatten(before), tf.nest.flatten(now), strict=True):
        if new.dtype.is_floating:
            mean, deviation = old.mean(), old.stddev()
            ratio = tf.square(deviation / new.stddev())
            found.setdefault('kl_mean', []).append(total(0.5 * tf.square((new.mean() - mean) / deviation)))
            found.setdefault('kl_covariance', []).append(total(0.5 * (ratio - 1 - tf.math.log(ratio))))
        else:
            found.setdefault('kl', []).append(total(tfp.distributions.kl_divergence(old, new)))
    return {name: tf.add_n(values) for name, values in found.items()}


def divergence_losses(
    divergences: Mapping[str, tf.Tensor], alphas: Mapping[str, tf.Tensor], options: Any
) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
    """Returns the sum of alpha (epsilon - [KL]) + [alpha] KL, float32 [...], and the metrics of all KL and alpha.

    Args:
      divergences: of `policy_divergences`.
      alphas: their multipliers, by the same names.
      options: the loss's, of this module or of `mpo`, which have the bounds.
    """
    bounds = {'kl': options.epsilon_alpha, 'kl_mean': options.epsilon_mean, 'kl_covariance': options.epsilon_covariance}
    losses, metrics = [], dict(divergences)
    for kind, divergence in divergences.items():
        metrics[f'{kind}_alpha'] = alpha = tf.identity(alphas[kind])
        losses.append(alpha * (bounds[kind] - tf.stop_gradient(divergence)) + tf.stop_gradient(alpha) * divergence)
    return tf.add_n(losses), metrics


@checked
@factory
def make_agent(
    problem: Problem,
    *,
    loss: VMPOLoss = VMPOLoss(),
    normalize_observations: bool = True,
    normalize_rewards: bool = True,
    normalize_values: bool = False,
    action_mask: str | None = None,
    initial_deviation: PositiveFloat | None = None,
) -> Agent:
    """Makes a V-MPO agent, for discrete, several discrete, or continuous actions.

    Args:
      experience: the experience, a queue; see `ppo.make_agent` for it and the network.
      network: the layers of policy and value.
      optimizer: the optimizers of `v_mpo`, the network, 3e-4, clipped at 0.5; and of `v_mpo_dual`,
        the temperature and the multipliers, 1e-2, never clipped.
      loss: the loss's coefficients and bounds.

    Raises:
      ValueError: if the experience is not a queue of new items; see `ppo.make_agent`.
    """
    normalized = (normalize_observations, normalize_rewards, normalize_values)
    noise = heads.noise_of(problem.specs.action, initial_deviation)
    actor_value, normalizers = ppo.make_networks(problem, action_mask, normalized, 'V-MPO', noise, ('make_head',))
    rates = {'v_mpo': 3e-4, 'v_mpo_dual': 1e-2}
    optimizers = problem.optimizers(rates, 0.5, unclipped=('v_mpo_dual',))
    return VMPOAgent(problem, actor_value, optimizers, loss, normalizers)


class VMPOAgent(ppo.PPOAgent):
    """See the module. It prepares samples as PPO's agent does.

    The extra metrics of the loss: `policy_loss` and `temperature_loss`, sums over the better half,
    and means over the valid steps of the global batch: `value_loss`, `entropy` [nats], and of
    `policy_divergences` those are [nats], with the multiplier of each (`kl`, `kl_alpha`);
    `kl_to_behaviour`, their sum; `eta`, the temperature; `explained_variance` of the values, and
    `valid_share`.
    """

    def __init__(self, problem: Problem, network: Any, optimizers: Any, loss: VMPOLoss, normalizers: Any):
        """Takes the arguments of PPO's agent, with another loss; see `make_agent`."""
        samples = ppo.PPOLoss(gamma=loss.gamma, lambda_=loss.lambda_, normalize_advantages=False)
        super().__init__(problem, network, optimizers, samples, normalizers)
        self._v_mpo = loss
        is_floating = [leaf.dtype.is_floating for leaf in tf.nest.flatten(problem.specs.action)]
        kinds = (['kl_mean', 'kl_covariance'] if any(is_floating) else []) + ([] if all(is_floating) else ['kl'])
        self._eta = tf.Variable(loss.initial_eta, name='eta', dtype=tf.float32)
        self._alphas = {kind: tf.Variable(loss.initial_alpha, name=f'{kind}_alpha') for kind in kinds}

    def _optimized(self, part: str) -> tuple[str, ...]:
        return ('v_mpo', 'v_mpo_dual')

    def _trained(self, part: str) -> list[Any]:
        return [self._network] if part == 'v_mpo' else [self._eta, *self._alphas.values()]

    def _step(self, experience: Any, weights: tf.Tensor | None) -> tuple[tf_agent.LossInfo, tf.Tensor | None]:
        info, taken = super()._step(experience, weights)
        for variable in self._trained('v_mpo_dual'):
            variable.assign(tf.maximum(variable, LEAST))
        return info, taken

    def _losses(self, experience: Any, weights: tf.Tensor | None, training: bool) -> parts.Losses:
        samples, counts = experience
        advantages = self._network.scaled(samples.advantage)
        batch = of_global_batch(advantages, counts)
        return counts, {'v_mpo': lambda _: self._losses_by(samples, advantages, batch, training)}

    def _losses_by(
        self, samples: ppo.Samples, advantages: tf.Tensor, batch: Sequence[tf.Tensor], training: bool
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        options, rank = self._v_mpo, advantages.shape.rank
        distribution, values = self._outputs(samples, training)
        half = better_half(batch[0], batch[1], self._eta)
        psi = psi_weights(advantages, self._eta, half)
        # A mean over the global batch follows, so this is a sum over it.
        policy_losses = -half.count * psi * self._log_prob(distribution, samples.action)
        behaviour = self._network.distribution(samples.behaviour)
        divergences = policy_divergences(behaviour, distribution, rank)
        bounded, of_divergences = divergence_losses(divergences, self._alphas, options)
        temperature_loss = eta_loss(self._eta, half, options.epsilon_eta)
        metrics = {
            'policy_loss': policy_losses,
            'value_loss': self._value_loss(values, samples),
            'entropy': heads.entropy(distribution, rank, self._draws),
            'kl_to_behaviour': tf.add_n(list(divergences.values())),
            'temperature_loss': temperature_loss,
            'eta': tf.identity(self._eta),
            **of_divergences,
        }
        losses = policy_losses + options.value_coefficient * metrics['value_loss'] + bounded + temperature_loss
        if self._network.pop_art:  # before its statistics have begun, eta and the multipliers learn nothing either
            losses = tf.where(tf.math.is_finite(self._network.value_scale), losses, 0.0)
        return losses, metrics | self._value_metrics(values, samples.target)
