"""DroQ and REDQ: soft actor-critic of high sample efficiency, by many train steps for each environment step.

Hiraoka et al. 2022, "Dropout Q-Functions for Doubly Efficient Reinforcement Learning" (arXiv 2110.02034, algorithm 2):
two critics with dropout and layer normalization. Chen et al. 2021, "Randomized Ensembled Double Q-Learning" (arXiv
2101.05982, algorithm 1): ten critics, the least of two drawn ones. With the agent of `tqc`, n critics Q_i and their
targets Q'_i:

  y = r + gamma (min over the drawn i of Q'_i(s', a') - alpha log pi(a' | s'))        a' drawn from pi(. | s')
  critic loss = sum_i (y - Q_i(s, a))^2
  actor loss = alpha log pi(a | s) - mean_i Q_i(s, a)

Differs from the papers: the actor and the temperature are trained in each train step, not in each twentieth.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tflearn.agents import td3, tqc
from tflearn.agents.rescaled_actions import ActionRescaling
from tflearn.agents.tqc import LossOptions
from tflearn.core.experience import BatchItems, Experience, Uniform
from tflearn.core.types import Agent, EnvironmentSpecs
from tflearn.networks import encoder
from tflearn.networks.critic_ensemble import Critics
from tflearn.optimization import ensemble, optimizers, schedules

# 20 train steps for each environment step.
EXPERIENCE = Experience(
    replay=Uniform(max_size=1_000_000, min_size=5_000, samples_per_insert=20 * 256.0), batch=BatchItems(256)
)


def make_agent(
    specs: EnvironmentSpecs,
    train_step: tf.Variable,
    experience: Experience,
    *,
    actor_fc_layer_params: Sequence[int] = (256, 256),
    critic_fc_layer_params: Sequence[int] = (256, 256),
    num_critics: int = 2,
    least: ensemble.Least = ensemble.Least(),  # noqa: B008 - it is frozen
    critic_dropout: float = 0.01,
    critic_layer_norm: bool = True,
    conv_layer_params: encoder.ConvLayerParams | None = None,
    preprocessing_layers: encoder.Layers | None = None,
    make_network: encoder.MakeNetwork | None = None,
    loss: LossOptions = LossOptions(),  # noqa: B008 - it is frozen
    actor_learning_rate: float | schedules.Schedule = 3e-4,
    critic_learning_rate: float | schedules.Schedule = 3e-4,
    alpha_learning_rate: float | schedules.Schedule = 3e-4,
    target_update_tau: float = 0.005,
    gradient_clipping: float | None = None,
    make_optimizer: optimizers.OptimizerFactory = optimizers.make,
) -> Agent:
    """Makes an agent for one vector of continuous actions. The defaults are DroQ's.

    Args:
      specs: the environment's specs; see `encoder` for observations. Actions need finite bounds.
      train_step: int64 scalar, counts gradient steps.
      experience: the experience, of uniform order; returns are of n steps, n = sequence_length - 1, without the
        entropies of the steps between. `samples_per_insert` is the train steps for each environment step, times the
        batch size.
      actor_fc_layer_params: units of the actor's fully connected layers.
      critic_fc_layer_params: units of each critic's fully connected layers, after the concatenation of observation and
        action.
      num_critics: the number of critics; REDQ has 10.
      least: of how many critics the least value is the target.
      critic_dropout: the share of a critic's features that are dropped; REDQ has 0.
      critic_layer_norm: whether a critic's features are normalized; REDQ has False.
      conv_layer_params: (filters, kernel size, stride) of convolutions, for images [height, width, channels]; None has
        none for a single image, and `encoder.CONVOLUTIONS` for images in a nest.
      preprocessing_layers: Keras layers of one's own for leaves of the observation, by path, such as 'arm.position'.
      make_network: makes a network of one's own from observations to features, in place of all layers before the last;
        see `encoder.own_network`. None makes the layers above.
      loss: the losses' settings.
      actor_learning_rate: the actor's learning rate, a number or a schedule of the train step.
      critic_learning_rate: the critics' learning rate, a number or a schedule of the train step.
      alpha_learning_rate: the temperature's learning rate, a number or a schedule of the train step.
      target_update_tau: the weight of the critics in an update of their targets, which follows each train step.
      gradient_clipping: the bound of the global batch's gradient of the actor, the critics and the temperature each, by
        default of its norm (see `optimizers.make`); None does not clip.
      make_optimizer: makes the three optimizers; Adam by default.

    Raises:
      ValueError: if the action is another one, the experience has another order, or a number is invalid.
    """
    rescaling = ActionRescaling(specs)
    specs = rescaling.specs
    tqc.check(specs, experience, 'DroQ', conv_layer_params, preprocessing_layers)
    encoding: Any = {
        'conv_layer_params': conv_layer_params,
        'preprocessing_layers': preprocessing_layers,
        'make_network': make_network,
    }
    critics = Critics(num_critics, critic_fc_layer_params, 1, critic_dropout, critic_layer_norm)
    networks = tqc.make_networks(specs, actor_fc_layer_params, critics, target_update_tau, encoding)
    rates = {'critic': critic_learning_rate, 'actor': actor_learning_rate, 'alpha': alpha_learning_rate}
    made = td3.make_optimizers(make_optimizer, train_step, experience, gradient_clipping, rates)
    agent = tqc.EnsembleSacAgent(
        specs, train_step, experience, networks, least, loss, dict(zip(rates, made, strict=True))
    )
    return rescaling.wrapped(agent)
