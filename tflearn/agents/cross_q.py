"""CrossQ: soft actor-critic of high sample efficiency, by batch normalization in wide critics, without target networks.

Bhatt et al. 2024, "CrossQ: Batch Normalization in Deep Reinforcement Learning for Greater Sample
Efficiency and Simplicity" (arXiv 1902.05605). With the agent of `sac`, critics Q_i pass the actions
that were taken, and those that the policy draws at the next observations, through their layers as
one batch, so that both have its statistics:

  [Q_i(s, a), Q_i(s', a')] = Q_i([s, s'], [a, a'])              a' drawn from pi(. | s')
  y = r + gamma (min_i Q_i(s', a') - alpha log pi(a' | s'))     without a gradient
  critic loss = sum_i (y - Q_i(s, a))^2
  actor loss = alpha log pi(a | s) - min_i Q_i(s, a)            each `policy_delay` train steps, as is the temperature

The actor's loss and exported values have the critics' moving averages instead of the batch's
statistics. These are corrected for their difference from the moving averages after
`BatchNorm.warmup_steps` (batch renormalization).

Differs from the paper: the actor has no batch normalization; images and nests have one encoder for
all critics.
"""

from typing import Any

import tensorflow as tf

from tflearn.agents import parts, sac
from tflearn.agents.actor_critic import Networks
from tflearn.agents.algorithm import Example, factory
from tflearn.agents.parts import Problem
from tflearn.agents.sac import SACLoss
from tflearn.core.settings import PositiveInt, checked
from tflearn.core.types import Agent
from tflearn.networks import heads, networks
from tflearn.networks.critics import BatchNorm, CriticOptions, Critics
from tflearn.networks.networks import NetworkOptions
from tflearn.optimization.ensemble import Least
from tflearn.optimization.optimizers import OptimizerOptions

EXPERIENCE = sac.EXPERIENCE
# A bias before a normalization has a gradient of rounding errors alone, which Adam's `epsilon`
# keeps small here.
EXAMPLE = Example(
    ('continuous',),
    network=NetworkOptions((8,), (8,)),
    settings={'optimizer': OptimizerOptions(arguments={'beta_1': 0.5, 'epsilon': 1e-3})},
)
_RATES = {'critic': 1e-3, 'actor': 1e-3, 'alpha': 1e-3}


@checked
@factory
def make_agent(
    problem: Problem,
    *,
    optimizer: OptimizerOptions = OptimizerOptions(arguments={'beta_1': 0.5}),
    loss: SACLoss = SACLoss(),
    batch_norm: BatchNorm = BatchNorm(),
    num_critics: PositiveInt = 2,
    policy_delay: PositiveInt = 3,
) -> Agent:
    """Makes an agent for one vector of continuous actions. The defaults are the paper's (table 1).

    Args:
      network: the layers; (256, 256) units of the actor, (2048, 2048) of each critic; without
        memory.
      optimizer: the optimizers of `critic`, `actor` and `alpha`; 1e-3, not clipped; Adam's `beta_1`
        is 0.5.
      batch_norm: the critics' normalization.
      num_critics: how many critics.
      policy_delay: the actor and the temperature are trained each so many train steps.

    Raises:
      ValueError: if the action is another one, the experience is a queue, or a number is invalid.
    """
    specs = problem.specs
    network = sac.checked_network(problem, 'CrossQ', critic_fc_layer_params=(2048, 2048))
    actor = networks.actor(specs.observation, specs.action, network, continuous=heads.tanh_normal)
    actor.create_variables()
    (action,) = tf.nest.flatten(specs.action)
    options = CriticOptions(num_critics, batch_norm=batch_norm, shared_encoder=True)
    critics = Critics(specs.observation, action, network, options)
    rule, optimizers = Least(num_critics, for_actor=True), problem._replace(optimizer=optimizer).optimizers(_RATES)
    made = Networks(actor, critics, None)
    return CrossQAgent(problem, made, optimizers, None, loss, rule=rule, policy_delay=policy_delay)


class CrossQAgent(sac.SACAgent):
    """See the module. The extra metrics are SAC's."""

    def __init__(self, *args: Any, policy_delay: int, **more: Any):
        """Takes SAC's arguments, and the delay of the policy."""
        super().__init__(*args, **more)
        self._policy_delay = policy_delay

    def _optimized(self, part: str) -> tuple[str, ...]:
        return ('critic',) if part == 'critic' else ('actor', 'alpha')

    def _reduces(self, part: str) -> bool:
        return part == 'critic'  # whose layers normalize by the global batch

    def _losses(self, experience: Any, weights: tf.Tensor | None, training: bool) -> parts.Losses:
        """Returns the loss of the critics, and the one of actor and temperature, which use the same draws."""
        counts, made = super()._losses(experience, weights, training)

        def policy_loss(earlier: parts.Metrics) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
            actor_losses, metrics = made['actor'](earlier)
            alpha_losses, of_alpha = made['alpha'](metrics)
            return actor_losses + alpha_losses, metrics | of_alpha

        return counts, {'critic': made['critic'], 'actor': policy_loss}

    def _both_values(self, batch: Any, action: tf.Tensor, training: bool) -> tuple[tf.Tensor, tf.Tensor]:
        join = lambda *each: tf.concat(each, axis=0)  # noqa: E731
        observation = tf.nest.map_structure(join, batch.observation, batch.next_observation)
        (taken,) = tf.nest.flatten(batch.action)
        values, following = tf.split(self._critics(observation, join(taken, action), training), 2)
        return values, following
