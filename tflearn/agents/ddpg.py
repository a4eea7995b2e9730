"""DDPG, deep deterministic policy gradients, for continuous actions.

Lillicrap et al. 2016, "Continuous control with deep reinforcement learning" (arXiv 1509.02971, algorithm 1): the agent
of `td3.py` with one critic, whose targets have no noise, and whose actor and targets are updated in every train step:

  y = r + gamma Q'(s', mu'(s'))                                after n steps, the sum of their n rewards
  critic loss = (y - Q(s, a))^2
  actor loss = - Q(s, mu(s))

Differs from the paper (section 7): exploration noise is normal and independent in each step, which Fujimoto et al. 2018
(arXiv 1802.09477) found as good as an Ornstein-Uhlenbeck process; the critic takes the action in its first layer; there
is no batch normalization and no weight decay.
"""

import tensorflow as tf

from tflearn.agents import td3
from tflearn.agents.example import Example
from tflearn.agents.rescaled_actions import rescaled
from tflearn.core.experience import BatchItems, Experience, Uniform
from tflearn.core.types import Agent, EnvironmentSpecs
from tflearn.networks import deterministic
from tflearn.networks.critics import CriticOptions
from tflearn.networks.networks import NetworkOptions
from tflearn.networks.targets import Targets
from tflearn.optimization import schedules
from tflearn.optimization.optimizers import OptimizerOptions
from tflearn.optimization.td3_loss import TD3Loss

EXPERIENCE = Experience(
    replay=Uniform(max_size=1_000_000, min_size=10_000, samples_per_insert=64.0), batch=BatchItems(64)
)

EXAMPLE = Example(('continuous',))


@rescaled
def make_agent(
    specs: EnvironmentSpecs,
    train_step: tf.Variable,
    experience: Experience,
    *,
    network: NetworkOptions = NetworkOptions(),
    optimizer: OptimizerOptions = OptimizerOptions(),
    gamma: float = 0.99,
    reward_scale: float = 1.0,
    target_update_tau: float = 0.001,
    exploration_noise: float | schedules.Schedule = 0.2,
) -> Agent:
    """Makes a DDPG agent for continuous actions, with n-step returns, n = `experience.slicing.sequence_length` - 1.

    Args:
      specs: the environment's specs; see `td3.make_agent` for all that is not explained here.
      train_step: int64 scalar, counts gradient steps.
      experience: the experience, of uniform or prioritized order.
      network: the layers of actor and critic; (400, 300) units each; without memory.
      optimizer: the optimizers of `critic`, 1e-3, and `actor`, 1e-4; not clipped.
      gamma: the discount per environment step, in [0, 1].
      reward_scale: the factor of the rewards.
      target_update_tau: the weight of the networks in an update of their targets; 1 copies them.
      exploration_noise: the deviation of the collect policy's normal noise, as a share of half the range of each
        action; a number or a schedule of the train step.

    Raises:
      ValueError: if the action is not of floats with bounds, the experience is a queue, or a number is invalid.
    """
    loss = TD3Loss(gamma, reward_scale, policy_delay=1, target_policy_noise=0.0)
    network = td3.checked(specs, experience, network, 'DDPG', (400, 300))
    made = optimizer.make(train_step, experience.per_replica_batch_size, {'critic': 1e-3, 'actor': 1e-4})
    networks = deterministic.make_networks(specs, network, CriticOptions(1))
    targets = Targets(list(networks.pairs), target_update_tau)
    return td3.DeterministicAgent(specs, train_step, experience, networks, targets, made, (loss, exploration_noise))
