"""ActorCriticAgent: an actor, and critics of its actions with target networks, as in SAC, AWAC and TD3.

They learn from old items, in any order, of which they make transitions.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tf_agents.networks import network as network_lib
from tf_agents.policies import actor_policy, tf_policy
from tf_agents.trajectories import time_step as ts

from tflearn.agents import parts
from tflearn.agents.parts import Problem
from tflearn.core.action_mask import ActionMask, make_mask
from tflearn.core.errors import UserValueError
from tflearn.networks import critics as critics_lib
from tflearn.networks import networks, state_dependent
from tflearn.networks.critics import Targets
from tflearn.optimization.optimizers import Optimizer


class Networks(NamedTuple):
    """The agent's networks.

    Attributes:
      actor: the policy.
      critics: the trained critics.
      targets: the critics of the targets; None if there are no others.
      mask: divides observations into the mask of legal actions and the rest; None takes them as
        they are.
    """

    actor: network_lib.Network
    critics: critics_lib.Critics
    targets: Any
    mask: ActionMask | None = None

    def make_targets(self, tau: float, period: int = 1) -> Targets:
        """Returns what lets the critics of the targets follow; see `Targets`."""
        return Targets([(self.critics, self.targets)], tau, period)


def make_networks(
    problem: Problem, algorithm: str, action_mask: str | None, unused: tuple[str, ...] = ('lstm_size', 'shared')
) -> Networks:
    """Makes an actor of one action, discrete or a vector of floats, and two critics of (256, 256) units by default.

    Raises:
      ValueError: if the experience is a queue, or the network has what the algorithm has no use
        for.
    """
    parts.check_experience(problem.experience, algorithm)
    specs = problem.specs
    network = problem.network.completed(specs, algorithm, unused, fc_layer_params=(256, 256))
    mask, observation_spec = make_mask(specs, action_mask)
    actor = networks.actor(observation_spec, specs.action, network, masked=mask is not None)
    actor.create_variables()
    return Networks(actor, *critics_lib.make(observation_spec, specs.action, network), mask)


class ActorCriticAgent(parts.PartsAgent):
    """The parts are `critic`, `actor`, and what an algorithm adds."""

    _clips = True  # actions to their bounds, before they are stored
    _policy_delay = 1  # train steps between two steps of all parts but the critics

    def __init__(
        self,
        problem: Problem,
        networks: Networks,
        optimizers: Mapping[str, Optimizer],
        targets: Targets | None,
        loss: Any,
        collect_policy: tf_policy.TFPolicy | None = None,
    ):
        """Makes the agent, within the strategy's scope; see `PartsAgent` for what is not explained here.

        Args:
          problem: what the agent is made for.
          networks: the networks.
          optimizers: the optimizers of the parts.
          targets: what follows the trained networks; None is for an algorithm without target
            networks.
          loss: the losses' settings.
          collect_policy: the policy that collects; None is the actor's.
        """
        self._actor, self._critics, self._target_critics, self._mask = networks
        self._options = loss
        policy = actor_policy.ActorPolicy(
            problem.specs.time_step,
            problem.specs.action,
            self._actor,
            clip=self._clips,
            observation_and_action_constraint_splitter=self._mask,
        )
        collect_policy = collect_policy or state_dependent.exploring(policy, self._actor)
        super().__init__(problem, collect_policy, optimizers, targets, policy)

    def _trained(self, part: str) -> list[Any]:
        return [self._critics if part == 'critic' else self._actor]

    def _due(self, part: str) -> tf.Tensor | None:
        if part == 'critic' or self._policy_delay == 1:
            return None
        return tf.equal((self.train_step_counter + 1) % self._policy_delay, 0)

    def _seen(self, observation: Any) -> tuple[Any, Any]:
        """Returns what the networks see of an observation, and its mask of legal actions, or None."""
        return (observation, None) if self._mask is None else self._mask(observation)

    def _distribution(self, observation: Any, training: bool = False, actor: Any = None) -> Any:
        """Returns what the actor, or another one, makes of observations [R, ...]."""
        seen, mask = self._seen(observation)
        masked = {} if mask is None else {'mask': mask}
        return (actor or self._actor)(seen, step_type=(), network_state=(), training=training, **masked)[0]

    def disagreement(self, observation: Any, action: Any) -> tf.Tensor:
        """Returns the standard deviation of the critics' values of one action each, float32 [R].

        Args:
          observation: nest of [R, ...].
          action: an integer, or a vector of floats, [R, ...]; of a distributional critic the mean
            counts.

        Raises:
          ValueError: if there is one critic.
        """
        seen, (action,) = self._seen(observation)[0], tf.nest.flatten(action)
        if self._critics.is_discrete:
            values = self._critics.of_actions(seen, action)
        else:
            values = tf.reduce_mean(self._critics(seen, action), axis=2)
        if values.shape[1] == 1:
            raise UserValueError(f'got a {type(self).__name__} of one critic for a disagreement; need two or more')
        return tf.math.reduce_std(values, axis=1)

    def _bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the least and the greatest numbers of an action of floats, joined to vectors of float32."""
        leaves = tf.nest.flatten(self.action_spec)
        low, high = (
            np.concatenate([np.broadcast_to(getattr(leaf, bound), leaf.shape).ravel() for leaf in leaves])
            for bound in ('minimum', 'maximum')
        )
        return low.astype(np.float32), high.astype(np.float32)


class Transitions(NamedTuple):
    """Transitions over one or several steps; R rows.

    Attributes:
      observation: nest of [R, ...].
      action: nest of [R, ...].
      reward: float32 [R], the sum of the discounted rewards.
      discount: float32 [R], of the value of `next_observation`; 0 where the episode terminated.
      next_observation: nest of [R, ...].
      counts: float32 [R], 0 for a row between two episodes, which has no action; else 1.
      returns: float32 [R], the sum of the discounted rewards of all steps of an item; () if the
        algorithm has no use for it.
    """

    observation: Any
    action: Any
    reward: tf.Tensor
    discount: tf.Tensor
    next_observation: Any
    counts: tf.Tensor
    returns: Any = ()


def of_n_steps(experience: Any, gamma: float, reward_scale: float) -> Transitions:
    """Returns the n-step transitions of sequences, one of each; fewer steps where an episode ended before.

    With the rewards r and discounts d of the steps 0 ... k - 1, where k is n, or where the episode
    ended:

      reward = sum_t gamma^t d_0 ... d_t-1 r_t
      discount = gamma^k d_0 ... d_k-1

    Args:
      experience: a Trajectory [B, n + 1, ...], whose last row is only used for its observation.
      gamma: the discount per step.
      reward_scale: the factor of the rewards.
    """
    if experience.reward.shape[1] == 2:
        return of_steps(experience, gamma, reward_scale)
    # Rows between two episodes, and those in which an environment failed, have no action; later
    # ones do not follow.
    own = tf.cast(experience.next_step_type[:, :-1] != ts.StepType.FIRST, tf.float32)
    valid = tf.math.cumprod(own, axis=1)
    discounts = tf.where(valid > 0, gamma * experience.discount[:, :-1], 1.0)
    rewards = tf.where(valid > 0, experience.reward[:, :-1], 0.0)
    reward = tf.reduce_sum(tf.math.cumprod(discounts, axis=1, exclusive=True) * rewards, axis=1)
    num_steps = tf.cast(tf.reduce_sum(valid, axis=1), tf.int32)
    first = lambda leaf: leaf[:, 0]  # noqa: E731
    return Transitions(
        tf.nest.map_structure(first, experience.observation),
        tf.nest.map_structure(first, experience.action),
        reward_scale * reward,
        tf.reduce_prod(discounts, axis=1),
        tf.nest.map_structure(lambda leaf: tf.gather(leaf, num_steps, axis=1, batch_dims=1), experience.observation),
        valid[:, 0],
    )


def of_steps(experience: Any, gamma: float, reward_scale: float) -> Transitions:
    """Returns the transitions of all rows but the last of sequences [B, T + 1, ...], one after the other: [B * T, ...].

    Args:
      experience: a Trajectory [B, T + 1, ...].
      gamma: the discount per step.
      reward_scale: the factor of the rewards.
    """
    now, following = slice(None, -1), slice(1, None)

    def rows(nest: Any, part: slice) -> Any:
        return tf.nest.map_structure(lambda leaf: joined_rows(leaf[:, part]), nest)

    counts = tf.cast(rows(experience.next_step_type, now) != ts.StepType.FIRST, tf.float32)
    # Where a row has no action, its reward may be anything.
    reward, discount = (tf.where(counts > 0, rows(leaf, now), 0.0) for leaf in (experience.reward, experience.discount))
    return Transitions(
        rows(experience.observation, now),
        rows(experience.action, now),
        reward_scale * reward,
        gamma * discount,
        rows(experience.observation, following),
        counts,
    )


def joined_rows(leaf: tf.Tensor) -> tf.Tensor:
    """Returns [B, T, ...] as [B * T, ...]."""
    if leaf.shape[1] == 1:
        return leaf[:, 0]
    return tf.reshape(leaf, tf.concat([[-1], tf.shape(leaf)[2:]], axis=0))


def critic_loss(batch: Transitions, bootstraps: tf.Tensor, values: tf.Tensor) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
    """Returns the squared errors of critics, summed over them, float32 [R], and their metrics.

    Args:
      batch: the transitions.
      bootstraps: float32 [R], the values of the observations that follow.
      values: float32 [R, N], the critics' values of the actions that were taken.
    """
    targets = tf.stop_gradient(batch.reward + batch.discount * bootstraps)
    errors = targets[:, tf.newaxis] - values
    losses = tf.reduce_sum(tf.square(errors), axis=1)
    metrics = {'critic_loss': losses, parts.ERRORS: tf.reduce_mean(tf.abs(errors), axis=1)}
    return losses, metrics | parts.shown(target=targets, q_value=values)
