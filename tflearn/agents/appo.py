"""APPO: asynchronous proximal policy optimization, IMPALA with PPO's clipped objective and a target network.

Luo et al. 2020, "IMPACT: Importance Weighted Asynchronous Architectures with Clipped Target
Networks" (arXiv 1912.00167); the adaptive KL penalty is that of Schulman et al. 2017, "Proximal
Policy Optimization Algorithms" (arXiv 1707.06347), section 4. With the behaviour policy mu, the
trained policy pi, the target policy pi', which is updated from pi at an interval of train steps,
and V-trace's advantages A of pi':

  ratio = min(mu / pi', ratio_bar) pi / mu
  policy loss = - min(ratio A, clip(ratio, 1 - epsilon, 1 + epsilon) A) + kl_coefficient KL(pi', pi)

Differs from the paper: the advantages are V-trace's, whose ratios are pi' / mu, as in RLlib's APPO.
"""

from collections.abc import Mapping
from typing import Annotated, Any

import tensorflow as tf
from tf_agents.agents import tf_agent
from tf_agents.utils import common

from tflearn.agents import impala
from tflearn.agents.actor_value import ActorValueNetwork, complete
from tflearn.agents.algorithm import ANY_ACTION, Example, factory
from tflearn.agents.impala import ImpalaLoss
from tflearn.agents.parts import Problem
from tflearn.core import moments
from tflearn.core.errors import UserValueError
from tflearn.core.settings import (
    NonNegativeFloat,
    PositiveFloat,
    PositiveFraction,
    PositiveInt,
    Range,
    checked,
    checked_dataclass,
)
from tflearn.core.types import Agent
from tflearn.networks import heads
from tflearn.networks.critics import Targets
from tflearn.optimization import vtrace
from tflearn.optimization.optimizers import Optimizer

EXPERIENCE = impala.EXPERIENCE


@checked_dataclass(frozen=True)
class SurrogateOptions:
    """How the policy is kept close to the target policy.

    Attributes:
      clip_epsilon: the distance from 1 at which a ratio is clipped.
      ratio_bar: the bound of mu / pi'; at least 1.
      target_update_interval: train steps between two updates of the target network.
      target_update_tau: the weight of the trained network in an update; 1 copies it.
      kl_coefficient: the initial coefficient of KL(pi', pi); 0 has no penalty.
      kl_target: the divergence [nats] to which the coefficient adapts. An update of the target
        network multiplies it by 1.5 if the divergence is more than twice the target, by 0.5 if it
        is less than half; None keeps it constant.
    """

    clip_epsilon: PositiveFloat = 0.4
    ratio_bar: Annotated[float, Range(least=1)] = 2.0
    target_update_interval: PositiveInt = 1
    target_update_tau: PositiveFraction = 1.0
    kl_coefficient: NonNegativeFloat = 0.0
    kl_target: PositiveFloat | None = 0.01

    def __post_init__(self) -> None:
        if self.kl_coefficient and self.target_update_interval == 1 and self.target_update_tau == 1:
            raise UserValueError(
                f'got kl_coefficient={self.kl_coefficient} with a target network that equals the policy in each loss; '
                'need target_update_interval above 1, or target_update_tau below 1'
            )


EXAMPLE = Example(ANY_ACTION, data=('uniform', 'queue'), sequence_length=5)


@checked
@factory
def make_agent(
    problem: Problem,
    *,
    surrogate: SurrogateOptions = SurrogateOptions(),
    loss: ImpalaLoss = ImpalaLoss(),
    action_mask: str | None = None,
    normalize_values: bool = False,
    initial_deviation: PositiveFloat | None = None,
) -> Agent:
    """Makes an APPO agent.

    Args:
      experience: the experience; see `impala.make_agent` for it, the network and the optimizers.
      surrogate: how the policy is kept close to the target policy.
      network: the layers of policy and value.
      optimizer: the optimizer of `policy`, or those of `policy` and `value`.
      loss: the other terms of the loss.

    Raises:
      ValueError: see `impala.make_agent`.
    """
    network = complete(problem, 'APPO')
    optimizers = impala.make_optimizers(problem)
    noise = heads.noise_of(problem.specs.action, initial_deviation, make_head=network.make_head)
    trained, target = (
        ActorValueNetwork(problem.specs, network, action_mask, name, noise=noise, normalizes_values=normalize_values)
        for name in ('ActorValueNetwork', 'TargetNetwork')
    )
    return AppoAgent(problem, (trained, target), optimizers, loss, surrogate)


class AppoAgent(impala.ImpalaAgent):
    """See the module. Metrics besides IMPALA's: `kl_to_target` [nats], `surrogate_clipped_share`, `kl_coefficient`.

    Here `mean_rho`, `clipped_share` and `mean_abs_log_rho` are of the target policy's ratios, pi' /
    mu.
    """

    def __init__(
        self,
        problem: Problem,
        networks: tuple[ActorValueNetwork, ActorValueNetwork],
        optimizers: Mapping[str, Optimizer],
        loss: ImpalaLoss,
        surrogate: SurrogateOptions,
    ):
        """Makes the agent, within the strategy's scope; see `make_agent`. `networks` are the trained and the target."""
        targets = Targets([networks], surrogate.target_update_tau, surrogate.target_update_interval)
        super().__init__(problem, networks[0], optimizers, loss, targets=targets)
        self._target, self._surrogate = networks[1], surrogate
        self._kl_coefficient = moments.variable(float(surrogate.kl_coefficient), 'kl_coefficient')

    def _objective(self, unroll: impala.Unroll, training: bool) -> impala.PolicyObjective:
        options, experience = self._surrogate, unroll.experience
        (distribution, _), _ = self._target(
            experience.observation,
            step_type=experience.step_type,
            network_state=self._initial_state(experience),
            training=training,
        )
        log_probs = common.log_probability(distribution, experience.action, self.action_spec)[:, :-1]
        # The advantages and the first factor of the ratio have no gradient.
        log_probs = tf.stop_gradient(log_probs)
        factor = vtrace.clipped_ratios(unroll.behaviour_log_probs - log_probs, options.ratio_bar)
        ratios = factor * tf.exp(unroll.log_probs - unroll.behaviour_log_probs)
        clipped = tf.clip_by_value(ratios, 1 - options.clip_epsilon, 1 + options.clip_epsilon)
        divergence = heads.divergence(distribution, unroll.distribution, 2, self._draws)[:, :-1]

        def loss(advantages: tf.Tensor) -> tf.Tensor:
            surrogate = tf.minimum(ratios * advantages, clipped * advantages)
            return self._kl_coefficient * divergence - surrogate

        outside = tf.cast(tf.abs(ratios - 1) > options.clip_epsilon, tf.float32)
        metrics = {'kl_to_target': divergence, 'surrogate_clipped_share': outside}
        metrics['kl_coefficient'] = tf.convert_to_tensor(self._kl_coefficient)
        return log_probs - unroll.behaviour_log_probs, loss, metrics

    def _step(self, experience: Any, weights: tf.Tensor | None) -> tuple[tf_agent.LossInfo, tf.Tensor | None]:
        info, taken = super()._step(experience, weights)
        self._adapt(info.extra['kl_to_target'])
        return info, taken

    def _adapt(self, divergence: tf.Tensor) -> None:
        """Adapts the KL penalty's coefficient when the target network was updated; all replicas do the same."""
        wanted, interval = self._surrogate.kl_target, self._surrogate.target_update_interval
        if wanted is not None and self._surrogate.kl_coefficient:
            factor = tf.where(divergence > 2 * wanted, 1.5, tf.where(divergence < 0.5 * wanted, 0.5, 1.0))
            due = tf.equal(self.train_step_counter % interval, 0)
            adapted = tf.where(due, factor, 1.0) * self._kl_coefficient
            self._kl_coefficient.assign(tf.clip_by_value(adapted, 1e-15, 1e15))  # or it would stay 0 once it is
