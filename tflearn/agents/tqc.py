"""TQC, truncated quantile critics: soft actor-critic with distributions of returns, without their greatest quantiles.

Kuznetsov et al. 2020, "Controlling Overestimation Bias with Truncated Mixture of Continuous Distributional Quantile
Critics" (arXiv 2005.04269, algorithm 1). With the actor pi, N critics of M quantiles, their targets Z', and the
temperature alpha, which is learned as in SAC:

  z_1 <= z_2 <= ... are all N M quantiles Z'_n(s', a')          a' drawn from pi(. | s')
  y_i = r + gamma (z_i - alpha log pi(a' | s'))                 i = 1 ... (M - d) N
  critic loss = sum_n mean over m, i of the quantile Huber loss of y_i - Z_n,m(s, a)
  actor loss = alpha log pi(a | s) - mean over n, m of Z_n,m(s, a)

Differs from the paper: images and nests have one encoder for all critics.
"""

import tensorflow as tf

from tflearn.agents import sac
from tflearn.agents.example import Example
from tflearn.agents.rescaled_actions import rescaled
from tflearn.agents.sac import SACLoss
from tflearn.core.experience import Experience
from tflearn.core.types import Agent, EnvironmentSpecs
from tflearn.networks.critics import CriticOptions
from tflearn.networks.networks import NetworkOptions
from tflearn.networks.targets import Targets
from tflearn.optimization.ensemble import Truncated
from tflearn.optimization.optimizers import OptimizerOptions

EXPERIENCE = sac.EXPERIENCE

EXAMPLE = Example(('continuous',), network=NetworkOptions((8,), (8,)), settings={'truncated': Truncated(3, 1)})


@rescaled
def make_agent(
    specs: EnvironmentSpecs,
    train_step: tf.Variable,
    experience: Experience,
    *,
    network: NetworkOptions = NetworkOptions(),
    optimizer: OptimizerOptions = OptimizerOptions(),
    loss: SACLoss = SACLoss(),
    num_critics: int = 5,
    truncated: Truncated = Truncated(),
    target_update_tau: float = 0.005,
) -> Agent:
    """Makes an agent for one vector of continuous actions. The defaults are the paper's (table 4).

    Args:
      specs: the environment's specs; see `sac.make_agent` for all that is not explained here.
      train_step: int64 scalar, counts gradient steps.
      experience: the experience, of uniform or prioritized order.
      network: the layers; (256, 256) units of the actor, (512, 512, 512) of each critic; without memory.
      optimizer: the optimizers of `critic`, `actor` and `alpha`; 3e-4, not clipped.
      loss: the losses' settings.
      num_critics: N.
      truncated: the numbers of quantiles.
      target_update_tau: the weight of the critics in an update of their targets, which follows each train step.

    Raises:
      ValueError: if the action is another one, the experience is a queue, or a number is invalid.
    """
    network = sac.checked(specs, experience, network, 'TQC', critic_fc_layer_params=(512, 512, 512))
    options = CriticOptions(num_critics, truncated.num_quantiles, shared_encoder=True)
    actor, critics = sac.make_networks(specs, network, options)
    made = optimizer.make(train_step, experience.per_replica_batch_size, sac.RATES)
    targets, objective = Targets([critics], target_update_tau), sac.Objective(loss, truncated)
    return sac.SACAgent(specs, train_step, experience, sac.Networks(actor, *critics), targets, made, objective)
