"""REINFORCE: the policy gradient with the returns of complete episodes, with or without a baseline.

Williams 1992, "Simple statistical gradient-following algorithms for connectionist reinforcement
learning" (Machine Learning 8). Unlike TF-Agents' agent, it trains on unclipped actions, and the
result does not depend on the number of replicas. TF-Agents' loss fails without a complete episode,
and includes padding when it normalizes returns.
"""

from typing import Any

import tensorflow as tf
from tf_agents.agents import tf_agent
from tf_agents.utils import common, value_ops

from tflearn.agents import parts, ppo
from tflearn.agents.actor_value import ActorValueAgent, ActorValueNetwork, complete
from tflearn.agents.algorithm import ANY_ACTION, Example, factory
from tflearn.agents.normalizer import make_normalizers
from tflearn.agents.parts import Problem
from tflearn.core.errors import UserValueError
from tflearn.core.experience import BatchItems, Experience, Queue, Slicing
from tflearn.core.settings import Fraction, NonNegativeFloat, checked_dataclass
from tflearn.core.types import Agent
from tflearn.networks import heads
from tflearn.networks.networks import NetworkOptions
from tflearn.optimization import schedules

# Episodes of up to 200 steps, and the row at their end.
EXPERIENCE = Experience(
    slicing=Slicing(sequence_length=201, stride=200, pad_episodes=True), replay=Queue(max_size=16), batch=BatchItems(8)
)


@checked_dataclass(frozen=True)
class ReinforceLoss:
    """The loss: policy + value_coefficient * baseline's - entropy_coefficient * entropy.

    Attributes:
      gamma: the discount per environment step, in [0, 1].
      entropy_coefficient: the coefficient of the policy's entropy, or a schedule of the train step.
      value_coefficient: the coefficient of the baseline's squared error.
      normalize_returns: whether to normalize returns, minus the baseline, to mean 0 and variance 1
        over the batch's complete episodes.
      baseline: whether there is a baseline, the observation's value.
    """

    gamma: Fraction = 0.99
    entropy_coefficient: float | schedules.Schedule = 0.0
    value_coefficient: NonNegativeFloat = 0.5
    normalize_returns: bool = True
    baseline: bool = True


EXAMPLE = Example(ANY_ACTION, data=('queue',), network=NetworkOptions((8,), (8,), lstm_size=(4,)), sequence_length=5)


@factory
def make_agent(
    problem: Problem,
    *,
    loss: ReinforceLoss = ReinforceLoss(),
    normalize_observations: bool = False,
    normalize_rewards: bool = False,
    action_mask: str | None = None,
) -> Agent:
    """Makes a REINFORCE agent.

    Args:
      experience: the experience, a queue of padded items, each long enough for a complete episode
        and the row after it; longer episodes are ignored.
      network: the layers of policy and baseline, which share none; (64, 64) units, with tanh. With
        memory, an item starts with its episode, so no states are stored
        (`Slicing.store_policy_state`).
      optimizer: the optimizer, of the part `reinforce`; 1e-3, clipped at 0.5.
      loss: the loss's coefficients.

    Raises:
      ValueError: if the action is not supported (see `networks`), observations to normalize are not
        floats, or the experience is not a queue of padded items without stored states.
    """
    _check(problem.experience)
    network = complete(problem, 'REINFORCE', ('shared',))
    normalizers = make_normalizers(problem.specs, network, action_mask, normalize_observations, normalize_rewards)
    optimizers = problem.optimizers({'reinforce': 1e-3}, 0.5)
    actor_value = ActorValueNetwork(problem.specs, network, action_mask)
    return ReinforceAgent(problem, actor_value, optimizers, loss, normalizers)


def _check(experience: Experience) -> None:
    replay, slicing = experience.replay, experience.slicing
    if replay.learns_from_old_items or not slicing.pad_episodes or replay.iteration:
        raise UserValueError(
            f'got Experience.replay={replay!r}, pad_episodes={slicing.pad_episodes}; need a Queue without Iteration, '
            'and True: REINFORCE learns once from complete episodes'
        )
    if slicing.store_policy_state:
        raise UserValueError(
            'got Slicing.store_policy_state=True; REINFORCE needs False: its sequences start with their episodes'
        )


class ReinforceAgent(ActorValueAgent):
    """See the module.

    The extra metrics of the loss are sums over an episode, averaged over the episodes of the global
    batch: `policy_loss`, `value_loss`, `entropy` [nats]; and `num_episodes`, and `ignored_share`,
    the share of the steps that are of longer episodes than an item, on which it does not train.
    """

    def __init__(self, *args: Any):
        """Takes the arguments of `ActorValueAgent`."""
        super().__init__(*args)
        self._train_sequence_length = None

    def _trained(self, part: str) -> list[Any]:
        return [self._network] if self._options.baseline else self._network.policy_variables

    def _step(self, experience: Any, weights: tf.Tensor | None) -> tuple[tf_agent.LossInfo, tf.Tensor | None]:
        if self._reward_normalizer:
            self._reward_normalizer.update(experience.reward, _counts(experience))
        info, taken = super()._step(experience, weights)
        if self._observation_normalizer:
            counts = _counts(experience) * (1.0 if taken is None else tf.cast(taken, tf.float32))
            self._observation_normalizer.update(experience.observation, counts)
        return info, taken

    def _reduces(self, part: str) -> bool:
        return True  # the number of episodes

    def _losses(self, experience: Any, weights: tf.Tensor | None, training: bool) -> parts.Losses:
        return _counts(experience), {'reinforce': lambda _: self._loss_of(experience, weights, training)}

    def _loss_of(
        self, experience: Any, weights: tf.Tensor | None, training: bool
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """Returns this replica's share of sums over complete episodes, divided by their number in the global batch.

        It is 0 if there is none.
        """
        options, counts = self._options, _counts(experience)
        observation, reward = self._normalized(experience.observation, experience.reward)
        # Sums restart after an episode's last step, whatever ended it.
        discounts = tf.where(_ends(experience), 0.0, options.gamma * experience.discount)
        returns = tf.stop_gradient(value_ops.discounted_return(reward, discounts, time_major=False))
        (distribution, values), _ = self._network(observation, step_type=experience.step_type, training=training)
        advantages, errors = returns, tf.zeros_like(returns)
        if options.baseline:
            advantages, errors = returns - tf.stop_gradient(values), tf.math.squared_difference(returns, values)
        if options.normalize_returns:
            advantages = ppo.normalized(advantages, counts)
        counts *= 1.0 if weights is None else weights
        losses = {
            'policy_loss': -common.log_probability(distribution, experience.action, self.action_spec) * advantages,
            'value_loss': errors,
            'entropy': heads.entropy(distribution, 2, self._draws),
        }
        sums = [tf.reduce_sum(tf.where(counts > 0, counts * each, 0.0)) for each in losses.values()]
        steps = tf.cast(~experience.is_boundary()[:, :-1], tf.float32)  # a last row is also the next item's first
        used = tf.reduce_sum(_counts(experience)[:, :-1])
        own = tf.stack([*sums, used, tf.reduce_sum(steps), tf.reduce_sum(tf.cast(_ends(experience), tf.float32))])
        total = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tf.stop_gradient(own))
        num_episodes, coefficient = total[-1], schedules.at(options.entropy_coefficient, self.train_step_counter)
        loss = sums[0] + options.value_coefficient * sums[1] - coefficient * sums[2]
        means = tf.unstack(tf.math.divide_no_nan(total[:-3], num_episodes))
        ignored = tf.math.divide_no_nan(total[-2] - total[-3], total[-2])
        extra = dict(zip(losses, means, strict=True)) | {'num_episodes': num_episodes, 'ignored_share': ignored}
        return tf.math.divide_no_nan(loss, num_episodes), extra


def _ends(experience: Any) -> tf.Tensor:
    """Returns bool [B, T], whether a row is the last of a complete episode.

    A sequence has rows of one episode. If its first row is not the episode's first, it is the end
    of a longer one.
    """
    return experience.is_last() & experience.is_first()[:, :1]


def _counts(experience: Any) -> tf.Tensor:
    """Returns float32 [B, T]: 1 for the steps of complete episodes, 0 for other rows, such as padding."""
    until_end = tf.cumsum(tf.cast(_ends(experience), tf.int32), axis=1, reverse=True) > 0
    return tf.cast(until_end & ~experience.is_boundary(), tf.float32)
