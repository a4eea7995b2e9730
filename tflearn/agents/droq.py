"""DroQ, REDQ and SAC-N: soft actor-critic with an ensemble of critics, in many train steps for each environment step.

Hiraoka et al. 2022, "Dropout Q-Functions for Doubly Efficient Reinforcement Learning" (arXiv
2110.02034, algorithm 2): two critics with dropout and layer normalization. Chen et al. 2021,
"Randomized Ensembled Double Q-Learning" (arXiv 2101.05982, algorithm 1): ten critics, the least of
two drawn ones. An et al. 2021, "Uncertainty-Based Offline Reinforcement Learning with Diversified
Q-Ensemble" (arXiv 2110.01548): SAC-N, for recorded data, the least of all of many critics, for the
actor too. With the agent of `sac`, n critics Q_i and their targets Q'_i:

  y = r + gamma (min over the drawn i of Q'_i(s', a') - alpha log pi(a' | s'))        a' drawn from pi(. | s')
  critic loss = sum_i (y - Q_i(s, a))^2
  actor loss = alpha log pi(a | s) - mean_i Q_i(s, a)                               min_i for SAC-N

Differs from the papers: the actor and the temperature are trained in each train step, not in each
twentieth; images and nests have one encoder for all critics.
"""

from tflearn.agents import sac
from tflearn.agents.algorithm import Example, factory
from tflearn.agents.parts import Problem
from tflearn.agents.sac import SACLoss
from tflearn.core.experience import BatchItems, Experience, Uniform
from tflearn.core.settings import PositiveFraction, checked
from tflearn.core.types import Agent
from tflearn.networks.critics import CriticOptions
from tflearn.optimization.ensemble import Least

# 20 train steps for each environment step.
EXPERIENCE = Experience(
    replay=Uniform(max_size=1_000_000, min_size=5_000, samples_per_insert=20 * 256.0), batch=BatchItems(256)
)

EXAMPLE = Example(('continuous',))


@checked
@factory
def make_agent(
    problem: Problem,
    *,
    loss: SACLoss = SACLoss(),
    num_critics: int = 2,
    least: Least = Least(),
    critic_dropout: float = 0.01,
    critic_layer_norm: bool = True,
    target_update_tau: PositiveFraction = 0.005,
) -> Agent:
    """Makes an agent for one vector of continuous actions. The defaults are DroQ's.

    Args:
      experience: the experience, of uniform or prioritized order. `samples_per_insert` is the train
        steps for each environment step, times the batch size.
      network: the layers; (256, 256) units each; without memory.
      optimizer: the optimizers of `critic`, `actor` and `alpha`; 3e-4, not clipped.
      num_critics: n; REDQ has 10, SAC-N 10 to 500.
      least: of how many critics, drawn for each batch, targets take the least value; SAC-N:
        `Least(n, for_actor=True)`.
      critic_dropout: the share of a critic's features that are dropped; REDQ and SAC-N have 0.
      critic_layer_norm: whether a critic's features are normalized; REDQ and SAC-N have False.

    Raises:
      ValueError: if the action is another one, the experience is a queue, or a number is invalid.
    """
    network = sac.checked_network(problem, 'DroQ')
    options = CriticOptions(num_critics, 1, critic_dropout, critic_layer_norm, shared_encoder=True)
    networks = sac.make_networks(problem.specs, network, options)
    targets = networks.make_targets(target_update_tau)
    optimizers = problem.optimizers(sac.RATES)
    return sac.SACAgent(problem, networks, optimizers, targets, loss, rule=least)
