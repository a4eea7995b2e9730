"""AWAC: an actor that clones recorded actions by the critics' advantages, from data and then online.

Nair et al. 2020, "AWAC: Accelerating Online Reinforcement Learning with Offline Datasets" (arXiv 2006.09359, algorithm
1). With two critics Q_i and their slow targets Q'_i, sums and means over the steps of a batch:

  critic loss = mean of sum_i (r + gamma min_j Q'_j(s', a') - Q_i(s, a))^2,   a' drawn from pi(. | s')
  advantage   = min_i Q_i(s, a) - min_i Q_i(s, b),                            b drawn from pi(. | s)
  actor loss  = -sum of w log pi(a | s),   w = softmax of advantage / temperature over the batch        (equation 13)

As in the authors' program the weights of a batch sum to 1, and the policy's normal distribution has a mean within the
bounds and a deviation that does not depend on the observation. For discrete actions means over pi take the place of
what is drawn.
"""

from typing import Any

import tensorflow as tf
from tf_agents.policies import actor_policy
from tf_agents.utils import common

from tflearn.agents import parts, sac
from tflearn.agents.example import Example
from tflearn.agents.rescaled_actions import rescaled
from tflearn.core.action_mask import ActionMask, make_mask
from tflearn.core.experience import BatchItems, Experience, Uniform
from tflearn.core.settings import Fraction, PositiveFloat, PositiveInt, checked_dataclass
from tflearn.core.types import Agent, EnvironmentSpecs
from tflearn.networks import critics as critics_lib
from tflearn.networks import heads, networks, spec_checks
from tflearn.networks.networks import NetworkOptions
from tflearn.networks.targets import Targets
from tflearn.optimization import offline_loss, transitions
from tflearn.optimization.optimizers import OptimizerOptions

EXPERIENCE = Experience(
    replay=Uniform(max_size=1_000_000, min_size=1_000, samples_per_insert=1024.0), batch=BatchItems(1024)
)


@checked_dataclass(frozen=True)
class AWACLoss:
    """The losses; see the module.

    Attributes:
      gamma: the discount per environment step, in [0, 1].
      temperature: lambda, in the unit of returns: the smaller, the more the best actions of a batch count.
      num_action_samples: actions drawn for the value of an observation, whose mean it is. For continuous actions.
      reward_scale: the factor of the rewards.
    """

    gamma: Fraction = 0.99
    temperature: PositiveFloat = 1.0
    num_action_samples: PositiveInt = 1
    reward_scale: float = 1.0


EXAMPLE = Example(('discrete', 'continuous'))


@rescaled
def make_agent(
    specs: EnvironmentSpecs,
    train_step: tf.Variable,
    experience: Experience,
    *,
    network: NetworkOptions = NetworkOptions(),
    optimizer: OptimizerOptions = OptimizerOptions(),
    loss: AWACLoss = AWACLoss(),
    target_update_tau: float = 0.005,
    action_mask: str | None = None,
) -> Agent:
    """Makes an agent for one vector of continuous actions or one discrete action.

    Args:
      specs: the environment's specs; see `encoder` for observations. Continuous actions need finite bounds.
      train_step: int64 scalar, counts gradient steps.
      experience: the experience, of uniform or prioritized order. All rows of a sequence but the last are trained.
      network: the layers of actor and critics; (256, 256) units each; without memory.
      optimizer: the optimizers of `critic` and `actor`; 3e-4, not clipped.
      loss: the losses' settings.
      target_update_tau: the weight of the critics in an update of their targets, which follows each train step.
      action_mask: the path of the observation's part that marks legal actions, such as 'action_mask'; see `ActionMask`.
        None has none.

    Raises:
      ValueError: if the action is another one, or the experience is a queue.
    """
    spec_checks.check_one_action(specs.action, 'AWAC')
    parts.check_experience(experience, 'AWAC')
    network = network.completed(specs, 'AWAC', fc_layer_params=(256, 256))
    mask, observation_spec = make_mask(specs, action_mask)
    actor = networks.actor(observation_spec, specs.action, network, masked=mask is not None)
    actor.create_variables()
    critics = critics_lib.make(observation_spec, specs.action, network)
    made = optimizer.make(train_step, experience.per_replica_batch_size, {'critic': 3e-4, 'actor': 3e-4})
    targets = Targets([critics], target_update_tau)
    return AWACAgent(specs, train_step, experience, sac.Networks(actor, *critics), targets, made, (loss, mask))


class AWACAgent(parts.PartsAgent):
    """See the module.

    The extra metrics are means over the valid steps of the global batch: `critic_loss`; `value` and `advantage`, in the
    unit of returns; and `log_likelihood` of the recorded actions. `actor_loss` is the sum of the weighted ones.
    """

    def __init__(
        self,
        specs: EnvironmentSpecs,
        train_step: tf.Variable,
        experience: Experience,
        networks: sac.Networks,
        targets: Targets,
        made: dict[str, Any],
        settings: tuple[AWACLoss, ActionMask | None],
    ):
        """Makes the agent, within the strategy's scope; see `make_agent`. `settings` are loss and mask."""
        self._options, self._mask = settings
        policy = actor_policy.ActorPolicy(
            specs.time_step,
            specs.action,
            networks.actor,
            clip=False,
            observation_and_action_constraint_splitter=self._mask,
        )
        super().__init__(specs, train_step, experience, policy, made, targets)
        self._actor, self._critics, self._target_critics = networks

    def _trained(self, part: str) -> list[Any]:
        return [self._critics if part == 'critic' else self._actor]

    def _losses(self, experience: Any, weights: tf.Tensor | None, training: bool) -> parts.Losses:
        """Returns the losses of critics and actor."""
        options = self._options
        batch = transitions.of_steps(experience, options.gamma, options.reward_scale)
        (taken,), counts = tf.nest.flatten(batch.action), batch.counts
        seen, following = self._seen(batch.observation), self._seen(batch.next_observation)

        def critic_loss() -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
            bootstraps = self._value(*following, self._target_critics, num_samples=1)
            targets = tf.stop_gradient(batch.reward + batch.discount * bootstraps)
            errors = targets[:, tf.newaxis] - self._critics.of_actions(seen[0], taken, training)
            losses = tf.reduce_sum(tf.square(errors), axis=1)
            return losses, {'critic_loss': losses, parts.ERRORS: tf.reduce_mean(tf.abs(errors), axis=1)}

        def actor_loss() -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
            distribution = self._distribution(*seen, training=training)
            log_probs = common.log_probability(distribution, batch.action, self.action_spec)
            legal = offline_loss.legal_counts(log_probs, self._mask is not None)
            value = self._value(*seen, self._critics, num_samples=options.num_action_samples)
            advantages = tf.reduce_min(self._critics.of_actions(seen[0], taken), axis=1) - value
            factors = offline_loss.softmax_weights(advantages, options.temperature, counts * legal)
            log_probs *= legal
            losses = -log_probs * offline_loss.with_mean_one(factors, counts)
            metrics = {'value': value, 'advantage': advantages, 'log_likelihood': log_probs}
            return losses, metrics | {'actor_loss': losses}

        return parts.Losses(counts, {'critic': critic_loss, 'actor': actor_loss})

    def _seen(self, observation: Any) -> tuple[Any, Any]:
        """Returns what the networks see of an observation, and its mask of legal actions, or None."""
        return (observation, None) if self._mask is None else self._mask(observation)

    def _distribution(self, observation: Any, mask: Any, training: bool = False) -> Any:
        masked = {} if mask is None else {'mask': mask}
        return self._actor(observation, step_type=(), network_state=(), training=training, **masked)[0]

    def _value(self, observation: Any, mask: Any, critics: critics_lib.Critics, num_samples: int) -> tf.Tensor:
        """Returns the mean value of the policy's actions, float32 [R], without a gradient."""
        distribution = self._distribution(observation, mask)
        if critics.is_discrete:
            (probabilities,) = (leaf.probs_parameter() for leaf in tf.nest.flatten(distribution))
            values = tf.reduce_min(critics(observation), axis=1)
            return tf.stop_gradient(tf.reduce_sum(probabilities * values, axis=-1))
        drawn = [tf.nest.flatten(heads.sample(distribution, self._draws))[0] for _ in range(num_samples)]
        values = [tf.reduce_min(critics.of_actions(observation, action), axis=1) for action in drawn]
        return tf.stop_gradient(tf.add_n(values) / num_samples)
