"""DDPG, deep deterministic policy gradients, for continuous actions.

Lillicrap et al. 2016, "Continuous control with deep reinforcement learning" (arXiv 1509.02971,
algorithm 1): the agent of `td3.py` with one critic, whose targets have no noise, and whose actor
and targets are updated in every train step:

  y = r + gamma Q'(s', mu'(s'))                                after n steps, the sum of their n rewards
  critic loss = (y - Q(s, a))^2
  actor loss = - Q(s, mu(s))

Differs from the paper (section 7): exploration noise is independent in each step, which Fujimoto et
al. 2018 (arXiv 1802.09477) found as good as the Ornstein-Uhlenbeck process of `exploration_damping`
0.15; the critic takes the action in its first layer; there is no batch normalization and no weight
decay.
"""

from tflearn.agents import td3
from tflearn.agents.algorithm import Example, factory
from tflearn.agents.parts import Problem
from tflearn.agents.td3 import TD3Loss
from tflearn.core.experience import BatchItems, Experience, Uniform
from tflearn.core.settings import Finite, Fraction, NonNegativeFloat, PositiveFraction, checked
from tflearn.core.types import Agent
from tflearn.networks.critics import CriticOptions
from tflearn.optimization import schedules

EXPERIENCE = Experience(
    replay=Uniform(max_size=1_000_000, min_size=10_000, samples_per_insert=64.0), batch=BatchItems(64)
)

EXAMPLE = Example(('continuous',))


@checked
@factory
def make_agent(
    problem: Problem,
    *,
    gamma: Fraction = 0.99,
    reward_scale: Finite = 1.0,
    target_update_tau: PositiveFraction = 0.001,
    exploration_noise: NonNegativeFloat | schedules.Schedule = 0.2,
    exploration_damping: PositiveFraction = 1.0,
) -> Agent:
    """Makes a DDPG agent for continuous actions, with n-step returns, n = `experience.slicing.sequence_length` - 1.

    Args:
      network: the layers of actor and critic; (400, 300) units each; without memory.
      optimizer: the optimizers of `critic`, 1e-3, and `actor`, 1e-4; not clipped.

    Raises:
      ValueError: if the action is not of floats with bounds, the experience is a queue, or a number
        is invalid.
    """
    loss = TD3Loss(gamma, reward_scale, policy_delay=1, target_policy_noise=0.0)
    network = td3.checked_network(problem, 'DDPG', (400, 300))
    optimizers = problem.optimizers({'critic': 1e-3, 'actor': 1e-4})
    networks = td3.make_networks(problem.specs, network, CriticOptions(1))
    noise = (exploration_noise, exploration_damping)
    return td3.DeterministicAgent(problem, *networks, optimizers, loss, target_update_tau, noise)
