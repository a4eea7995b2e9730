"""Soft actor-critic for one discrete action, with a learned temperature.

Christodoulou 2019, "Soft Actor-Critic for Discrete Action Settings" (arXiv 1910.07207). With the policy pi, the critics
Q_1 and Q_2, their slowly updated targets Q'_1 and Q'_2, the temperature alpha and the target entropy H:

  V(s) = sum_a pi(a | s) (min_i Q'_i(s, a) - alpha log pi(a | s))                  equation 10
  critic loss = sum_i (r + gamma V(s') - Q_i(s, a))^2
  actor loss = sum_a pi(a | s) (alpha log pi(a | s) - min_i Q_i(s, a))             equation 12
  temperature's loss = sum_a pi(a | s) (- alpha (log pi(a | s) + H))               equation 11

Differs from the paper: the target entropy is a share of the greatest one, 0.5 by default instead of 0.98, with which
policies of few actions stay nearly uniform; with a mask, the greatest entropy is that of the legal actions.
"""

import math
from typing import Annotated, Any

import tensorflow as tf
from tf_agents.policies import actor_policy

from tflearn.agents import parts, sac
from tflearn.agents.example import Example
from tflearn.agents.rescaled_actions import rescaled
from tflearn.core.action_mask import ActionMask, make_mask
from tflearn.core.experience import BatchItems, Experience, Uniform
from tflearn.core.settings import Fraction, Range, checked_dataclass
from tflearn.core.types import Agent, EnvironmentSpecs
from tflearn.networks import critics as critics_lib
from tflearn.networks import networks, spec_checks
from tflearn.networks.networks import NetworkOptions
from tflearn.networks.targets import Targets
from tflearn.optimization import transitions
from tflearn.optimization.optimizers import OptimizerOptions

EXPERIENCE = Experience(replay=Uniform(max_size=100_000, min_size=1_000, samples_per_insert=64.0), batch=BatchItems(64))


@checked_dataclass(frozen=True)
class DiscreteSACLoss:
    """The losses; see the module.

    Attributes:
      gamma: the discount per environment step, in [0, 1].
      reward_scale: the factor of the rewards.
      target_entropy_share: the entropy to which the temperature adapts, as a share of the uniform policy's, in (0, 1);
        the paper's is 0.98.
      initial_log_alpha: the initial log of the temperature.
    """

    gamma: Fraction = 0.99
    reward_scale: float = 1.0
    target_entropy_share: Annotated[float, Range(above=0, below=1)] = 0.5
    initial_log_alpha: float = 0.0


EXAMPLE = Example(('discrete',))


@rescaled
def make_agent(
    specs: EnvironmentSpecs,
    train_step: tf.Variable,
    experience: Experience,
    *,
    network: NetworkOptions = NetworkOptions(),
    optimizer: OptimizerOptions = OptimizerOptions(),
    loss: DiscreteSACLoss = DiscreteSACLoss(),
    target_update_tau: float = 0.005,
    action_mask: str | None = None,
) -> Agent:
    """Makes an agent for one discrete action. Layers and rates are the paper's.

    Args:
      specs: the environment's specs; see `encoder` for observations.
      train_step: int64 scalar, counts gradient steps.
      experience: the experience, of uniform or prioritized order. All rows of a sequence but the last are trained.
      network: the layers of actor and critics; (256, 256) units each; without memory.
      optimizer: the optimizers of `critic`, `actor` and `alpha`; 3e-4, not clipped.
      loss: the losses' settings.
      target_update_tau: the weight of the critics in an update of their targets, which follows each train step.
      action_mask: the path of the observation's part that marks legal actions, such as 'action_mask'; see `ActionMask`.
        None has none.

    Raises:
      ValueError: if the action is another one, or the experience is a queue.
    """
    spec_checks.check_one_discrete_action(specs.action, 'discrete SAC')
    parts.check_experience(experience, 'discrete SAC')
    network = network.completed(specs, 'discrete SAC', fc_layer_params=(256, 256))
    mask, observation_spec = make_mask(specs, action_mask)
    actor = networks.actor(observation_spec, specs.action, network, masked=mask is not None)
    actor.create_variables()
    critics = critics_lib.make(observation_spec, specs.action, network)
    made = optimizer.make(train_step, experience.per_replica_batch_size, sac.RATES)
    targets = Targets([critics], target_update_tau)
    return DiscreteSACAgent(specs, train_step, experience, sac.Networks(actor, *critics), targets, made, (loss, mask))


class DiscreteSACAgent(parts.PartsAgent):
    """See the module.

    The extra metrics are means over the valid steps of the global batch: `critic_loss`, `actor_loss`, `alpha_loss`;
    `value` in the unit of returns, `entropy` [nats], and `alpha`.
    """

    def __init__(
        self,
        specs: EnvironmentSpecs,
        train_step: tf.Variable,
        experience: Experience,
        networks: sac.Networks,
        targets: Targets,
        made: dict[str, Any],
        settings: tuple[DiscreteSACLoss, ActionMask | None],
    ):
        """Makes the agent, within the strategy's scope; see `make_agent`. `settings` are loss and mask."""
        self._options, self._mask = settings
        policy = actor_policy.ActorPolicy(
            specs.time_step, specs.action, networks.actor, observation_and_action_constraint_splitter=self._mask
        )
        super().__init__(specs, train_step, experience, policy, made, targets)
        self._actor, self._critics, self._target_critics = networks
        self._log_alpha = tf.Variable(self._options.initial_log_alpha, dtype=tf.float32, name='log_alpha')
        self._num_choices = float(specs.action.maximum) + 1

    def _trained(self, part: str) -> list[Any]:
        return [{'critic': self._critics, 'actor': self._actor, 'alpha': self._log_alpha}[part]]

    def _losses(self, experience: Any, weights: tf.Tensor | None, training: bool) -> parts.Losses:
        """Returns the losses of critics, actor and temperature."""
        batch = transitions.of_steps(experience, self._options.gamma, self._options.reward_scale)

        def critic_loss() -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
            bootstraps, _ = self._value_and_entropy(batch.next_observation, self._target_critics)
            targets = tf.stop_gradient(batch.reward + batch.discount * bootstraps)
            values = self._critics.of_actions(self._divided(batch.observation)[0], batch.action, training)
            errors = targets[:, tf.newaxis] - values
            losses = tf.reduce_sum(tf.square(errors), axis=1)
            return losses, {'critic_loss': losses, parts.ERRORS: tf.reduce_mean(tf.abs(errors), axis=1)}

        def actor_loss() -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
            value, entropy = self._value_and_entropy(batch.observation, self._critics, training)
            return -value, {'actor_loss': -value, 'value': value, 'entropy': entropy}

        def alpha_loss() -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
            _, entropy = self._value_and_entropy(batch.observation, self._critics)
            wanted = self._options.target_entropy_share * self._greatest_entropy(batch.observation)
            losses = tf.exp(self._log_alpha) * tf.stop_gradient(entropy - wanted)
            return losses, {'alpha_loss': losses, 'alpha': tf.exp(self._log_alpha)}

        return parts.Losses(batch.counts, {'critic': critic_loss, 'actor': actor_loss, 'alpha': alpha_loss})

    def _divided(self, observation: Any) -> tuple[Any, Any]:
        """Returns what the networks see of an observation, and its mask of legal actions, or None."""
        return (observation, None) if self._mask is None else self._mask(observation)

    def _greatest_entropy(self, observation: Any) -> tf.Tensor | float:
        """Returns the uniform policy's entropy [nats], float32 [R] with a mask."""
        _, mask = self._divided(observation)
        if mask is None:
            return math.log(self._num_choices)
        return tf.math.log(tf.reduce_sum(tf.cast(mask, tf.float32), axis=-1))

    def _value_and_entropy(
        self, observation: Any, critics: critics_lib.Critics, training: bool = False
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns V by the critics, and the policy's entropy [nats], float32 [R]. Only the policy has a gradient."""
        observation, mask = self._divided(observation)
        masked = {} if mask is None else {'mask': mask}
        distribution, _ = self._actor(observation, step_type=(), network_state=(), training=training, **masked)
        log_probabilities = tf.nn.log_softmax(distribution.logits)
        probabilities = tf.exp(log_probabilities)  # 0 for illegal actions, whose logarithm is finite
        values = tf.stop_gradient(tf.reduce_min(critics(observation), axis=1))
        entropy = -tf.reduce_sum(probabilities * log_probabilities, axis=-1)
        alpha = tf.stop_gradient(tf.exp(self._log_alpha))
        return tf.reduce_sum(probabilities * values, axis=-1) + alpha * entropy, entropy
