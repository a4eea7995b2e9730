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

from collections.abc import Sequence

import tensorflow as tf

from tflearn.agents import td3
from tflearn.agents.rescaled_actions import ActionRescaling
from tflearn.core.experience import BatchItems, Experience, Uniform
from tflearn.core.types import Agent, EnvironmentSpecs
from tflearn.networks import deterministic, encoder
from tflearn.optimization import optimizers, schedules
from tflearn.optimization.td3_loss import LossOptions

EXPERIENCE = Experience(
    replay=Uniform(max_size=1_000_000, min_size=10_000, samples_per_insert=64.0), batch=BatchItems(64)
)


def make_agent(
    specs: EnvironmentSpecs,
    train_step: tf.Variable,
    experience: Experience,
    *,
    actor_fc_layer_params: Sequence[int] = (400, 300),
    critic_fc_layer_params: Sequence[int] = (400, 300),
    conv_layer_params: encoder.ConvLayerParams | None = None,
    preprocessing_layers: encoder.Layers | None = None,
    make_network: encoder.MakeNetwork | None = None,
    actor_learning_rate: float | schedules.Schedule = 1e-4,
    critic_learning_rate: float | schedules.Schedule = 1e-3,
    gamma: float = 0.99,
    target_update_tau: float = 0.001,
    exploration_noise: float | schedules.Schedule = 0.2,
    reward_scale: float = 1.0,
    gradient_clipping: float | None = None,
    make_optimizer: optimizers.OptimizerFactory = optimizers.make,
) -> Agent:
    """Makes a DDPG agent for continuous actions, with n-step returns, n = `experience.slicing.sequence_length` - 1.

    Args:
      specs: the environment's specs; see `td3.make_agent` for them and for the arguments that are not explained here.
      train_step: int64 scalar, counts gradient steps.
      experience: the experience, of uniform order.
      actor_fc_layer_params: units of the actor's fully connected layers.
      critic_fc_layer_params: units of the critic's fully connected layers.
      conv_layer_params: (filters, kernel size, stride) of convolutions, for images [height, width, channels].
      preprocessing_layers: Keras layers of one's own for leaves of the observation, by path, such as 'arm.position'.
      make_network: makes a network of one's own from observations to features; see `encoder.own_network`.
      actor_learning_rate: the actor's learning rate, a number or a schedule of the train step.
      critic_learning_rate: the critic's learning rate, a number or a schedule of the train step.
      gamma: the discount per environment step, in [0, 1].
      target_update_tau: the weight of the networks in an update of their targets; 1 copies them.
      exploration_noise: the deviation of the collect policy's normal noise, as a share of half the range of each
        action; a number or a schedule of the train step.
      reward_scale: the factor of the rewards.
      gradient_clipping: the bound of the global batch's gradient of the actor and of the critic each; None does not
        clip.
      make_optimizer: makes the two optimizers; Adam by default.

    Raises:
      ValueError: if the action is not of floats with bounds, the experience is not uniform, or a number is invalid.
    """
    options = LossOptions(gamma, reward_scale, target_update_tau, policy_delay=1, target_policy_noise=0.0)
    rescaling = ActionRescaling(specs)
    specs = rescaling.specs
    td3.check(specs, experience, 'DDPG', conv_layer_params, preprocessing_layers)
    encoding = {
        'conv_layer_params': conv_layer_params,
        'preprocessing_layers': preprocessing_layers,
        'make_network': make_network,
    }
    networks = deterministic.make_networks(specs, actor_fc_layer_params, critic_fc_layer_params, 1, encoding)
    rates = {'critic': critic_learning_rate, 'actor': actor_learning_rate}
    made = td3.make_optimizers(make_optimizer, train_step, experience, gradient_clipping, rates)
    agent = td3.DeterministicAgent(specs, train_step, experience, networks, made, options, exploration_noise)
    return rescaling.wrapped(agent)
