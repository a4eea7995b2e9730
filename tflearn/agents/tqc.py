"""TQC, truncated quantile critics: soft actor-critic with distributions of returns, without their greatest quantiles.

Kuznetsov et al. 2020, "Controlling Overestimation Bias with Truncated Mixture of Continuous
Distributional Quantile Critics" (arXiv 2005.04269, algorithm 1). With the actor pi, N critics of M
quantiles, their targets Z', and the temperature alpha, which is learned as in SAC:

  z_1 <= z_2 <= ... are all N M quantiles Z'_n(s', a')          a' drawn from pi(. | s')
  y_i = r + gamma (z_i - alpha log pi(a' | s'))                 i = 1 ... (M - d) N
  critic loss = sum_n mean over m, i of the quantile Huber loss of y_i - Z_n,m(s, a)
  actor loss = alpha log pi(a | s) - mean over n, m of Z_n,m(s, a)

Differs from the paper: images and nests have one encoder for all critics.
"""

from tflearn.agents import sac
from tflearn.agents.algorithm import Example, factory
from tflearn.agents.parts import Problem
from tflearn.agents.sac import SACLoss
from tflearn.core.settings import PositiveFraction, checked
from tflearn.core.types import Agent
from tflearn.networks.critics import CriticOptions
from tflearn.networks.networks import NetworkOptions
from tflearn.networks.state_dependent import StateDependentNoise
from tflearn.optimization.ensemble import Truncated

EXPERIENCE = sac.EXPERIENCE

EXAMPLE = Example(('continuous',), network=NetworkOptions((8,), (8,)), settings={'truncated': Truncated(3, 1)})


@checked
@factory
def make_agent(
    problem: Problem,
    *,
    loss: SACLoss = SACLoss(),
    num_critics: int = 5,
    truncated: Truncated = Truncated(),
    target_update_tau: PositiveFraction = 0.005,
    state_dependent_noise: StateDependentNoise | None = None,
) -> Agent:
    """Makes an agent for one vector of continuous actions. The defaults are the paper's (table 4).

    Args:
      network: the layers; (256, 256) units of the actor, (512, 512, 512) of each critic; without
        memory.
      optimizer: the optimizers of `critic`, `actor` and `alpha`; 3e-4, not clipped.
      num_critics: N.
      truncated: the numbers of quantiles.

    Raises:
      ValueError: if the action is another one, the experience is a queue, or a number is invalid.
    """
    network = sac.checked_network(problem, 'TQC', critic_fc_layer_params=(512, 512, 512))
    options = CriticOptions(num_critics, truncated.num_quantiles, shared_encoder=True)
    networks = sac.make_networks(problem.specs, network, options, noise=state_dependent_noise)
    targets = networks.make_targets(target_update_tau)
    optimizers = problem.optimizers(sac.RATES)
    return sac.SACAgent(problem, networks, optimizers, targets, loss, rule=truncated)
