"""V-MPO: the policy learns the better half of its own actions, within a bound of how far it moves from the one before.

Song et al. 2019, "V-MPO: On-Policy Maximum a Posteriori Policy Optimization for Discrete and Continuous Control" (arXiv
1909.12238); `v_mpo_loss.py` has the loss. The paper's target network is the policy that acted, whose distributions are
in the data. T_target, the train steps from one target to the next, are those of an iteration (`Queue.training`), or,
without iterations, `train.Intervals.publish_interval_steps`.

Differs from the paper: the better half is that of a minibatch over all replicas, not of each device; with iterations,
steps are used several times, and advantages are those at an iteration's start; rewards and observations are
normalized by running statistics instead of PopArt; temperature and multipliers have an optimizer of their own.
"""

from typing import Any

import tensorflow as tf
from tf_agents.agents import tf_agent
from tf_agents.utils import common

from tflearn.agents import parts, ppo
from tflearn.agents.algorithm import ANY_ACTION, Example, factory
from tflearn.agents.parts import Problem
from tflearn.core.types import Agent
from tflearn.optimization import ppo_loss, v_mpo_loss
from tflearn.optimization.v_mpo_loss import VMPOLoss

EXPERIENCE = ppo.EXPERIENCE

_LEAST = 1e-8  # of the temperature and the multipliers, as in the paper

EXAMPLE = Example(ANY_ACTION, data=('queue',), sequence_length=5)


@factory
def make_agent(
    problem: Problem,
    *,
    loss: VMPOLoss = VMPOLoss(),
    normalize_observations: bool = True,
    normalize_rewards: bool = True,
    action_mask: str | None = None,
) -> Agent:
    """Makes a V-MPO agent, for discrete, several discrete, or continuous actions.

    Args:
      experience: the experience, a queue; see `ppo.make_agent` for it and the network.
      network: the layers of policy and value.
      optimizer: the optimizers of `v_mpo`, the network, 3e-4, clipped at 0.5; and of `v_mpo_dual`, the temperature and
        the multipliers, 1e-2, never clipped.
      loss: the loss's coefficients and bounds.

    Raises:
      ValueError: if the experience is not a queue of new items; see `ppo.make_agent`.
    """
    normalized = (normalize_observations, normalize_rewards)
    actor_value, normalizers = ppo.make_networks(problem, action_mask, normalized, 'V-MPO')
    rates = {'v_mpo': 3e-4, 'v_mpo_dual': 1e-2}
    optimizers = problem.optimizers(rates, 0.5, unclipped=('v_mpo_dual',))
    return VMPOAgent(problem, actor_value, optimizers, loss, normalizers)


class VMPOAgent(ppo.PPOAgent):
    """See the module. It prepares samples as PPO's agent does.

    The extra metrics of the loss: `policy_loss` and `temperature_loss`, sums over the better half, and means over the
    valid steps of the global batch: `value_loss`, `entropy` [nats], and of `v_mpo_loss.divergences` those that there
    are [nats], with the multiplier of each (`kl`, `kl_alpha`); `kl_to_behaviour`, their sum; `eta`, the temperature;
    `explained_variance` of the values, and `valid_share`.
    """

    def __init__(self, problem: Problem, network: Any, optimizers: Any, loss: VMPOLoss, normalizers: Any):
        """Takes the arguments of PPO's agent, with another loss; see `make_agent`."""
        samples = ppo_loss.PPOLoss(gamma=loss.gamma, lambda_=loss.lambda_, normalize_advantages=False)
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
            variable.assign(tf.maximum(variable, _LEAST))
        return info, taken

    def _losses(self, experience: Any, weights: tf.Tensor | None, training: bool) -> parts.Losses:
        samples, counts = experience
        return counts, {'v_mpo': lambda: self._losses_of(samples, counts, training)}

    def _losses_of(
        self, samples: ppo.Samples, counts: tf.Tensor, training: bool
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        options, rank = self._v_mpo, counts.shape.rank
        distribution, values = self._outputs(samples, training)
        half = v_mpo_loss.best(samples.advantage, counts, self._eta)
        psi = v_mpo_loss.psi(samples.advantage, self._eta, half)
        # A mean over the global batch follows, so this is a sum over it.
        policy_losses = -half.count * psi * self._log_prob(distribution, samples.action)
        behaviour = self._network.distribution(samples.behaviour)
        divergences = v_mpo_loss.divergences(behaviour, distribution, rank)
        metrics = {
            'policy_loss': policy_losses,
            'value_loss': ppo_loss.value_loss(values, samples.target, samples.value, None),
            'entropy': common.entropy(distribution, self.action_spec, outer_rank=rank),
            'kl_to_behaviour': tf.add_n(list(divergences.values())),
            **divergences,
        }
        losses = policy_losses + options.value_coefficient * metrics['value_loss']
        for kind, divergence in divergences.items():
            alpha = self._alphas[kind]
            losses += alpha * (options.epsilon(kind) - tf.stop_gradient(divergence))
            losses += tf.stop_gradient(alpha) * divergence
        temperature_loss = v_mpo_loss.temperature_loss(self._eta, half, options.epsilon_eta)
        multipliers = {f'{kind}_alpha': tf.identity(alpha) for kind, alpha in self._alphas.items()}
        metrics |= multipliers | {'temperature_loss': temperature_loss, 'eta': tf.identity(self._eta)}
        return losses + temperature_loss, metrics | parts.moments(values, samples.target)
