"""Exploration by the collector, not by the agent:
initial random actions, and an epsilon for each environment.
"""

import functools
from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
import tensorflow as tf
from tf_agents.policies import epsilon_greedy_policy, random_tf_policy, tf_policy
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import policy_step
from tf_agents.trajectories import time_step as ts
from tf_agents.typing import types

from tflearn.core.action_mask import ActionMask
from tflearn.core.errors import UserValueError
from tflearn.core.settings import Fraction, NonNegativeFloat, PositiveInt, Range, checked, checked_dataclass
from tflearn.core.types import EvaluationPolicy


@checked_dataclass(frozen=True)
class EpsilonLadder:
    """A different epsilon for each environment instead of the agent's, so that some explore and some hardly do.

    epsilon_i = base^(1 + i / (N - 1) * alpha), i = 0 ... N - 1 (Horgan et al. 2018, "Distributed
    Prioritized Experience Replay", arXiv 1803.00933, section 4.1, with environments instead of
    actors). With N = 1 it is `base`.

    Attributes:
      base: the epsilon of the first environment, in (0, 1).
      alpha: how fast epsilon falls; the last environment's is base^(1 + alpha).
      num_collectors: the number of collectors that share the ladder, all with B environments.
        Collector k has the epsilons from index k * B, so the last one is the greediest.
    """

    base: Annotated[float, Range(above=0, below=1)] = 0.4
    alpha: NonNegativeFloat = 7.0
    num_collectors: PositiveInt = 1

    def epsilons(self, collector: int, num_environments: int) -> np.ndarray:
        """Returns the epsilons of one collector's environments, float32 [B].

        Args:
          collector: the collector's number, counted from 0.

        Raises:
          ValueError: if the ladder has no such collector.
        """
        if not 0 <= collector < self.num_collectors:
            raise UserValueError(
                f'got the collector number {collector} for an epsilon ladder of num_collectors={self.num_collectors}; '
                f'need 0 ... {self.num_collectors - 1}; set num_collectors to the number that share the ladder'
            )
        size = self.num_collectors * num_environments
        index = collector * num_environments + np.arange(num_environments)
        return (self.base ** (1 + index / max(1, size - 1) * self.alpha)).astype(np.float32)


def with_epsilons(policy: tf_policy.TFPolicy, epsilons: np.ndarray) -> tf_policy.TFPolicy:
    """Returns an epsilon-greedy policy with an epsilon for each environment of a batch;
    it shares the variables.

    Args:
      policy: an epsilon-greedy policy, such as DQN's collect policy.
      epsilons: float32 [B], which replace the policy's epsilon.

    Raises:
      ValueError: if the policy is not epsilon-greedy.
    """
    if hasattr(policy, 'with_wrapped'):  # it transforms observations
        return policy.with_wrapped(with_epsilons(policy.wrapped_policy, epsilons))
    if not isinstance(policy, epsilon_greedy_policy.EpsilonGreedyPolicy):
        raise UserValueError(
            f'got an epsilon ladder for the collect policy {type(policy).__name__}; need an epsilon-greedy one, such '
            "as DQN's; remove the ladder"
        )
    return epsilon_greedy_policy.EpsilonGreedyPolicy(policy.wrapped_policy, tf.constant(epsilons))


def uniform(policy: tf_policy.TFPolicy) -> tf_policy.TFPolicy:
    """Returns a policy that draws actions uniformly within their bounds,
    and whose data have the spec of `policy`'s.

    If `policy` records only the log-probability of its actions, so does this one. It does not
    change the policy state, so a recurrent policy that continues in the middle of an episode has no
    memory of the steps before.

    Raises:
      ValueError: if an action has no bounds, or the policy records info that random actions do not
        have.
    """
    inner = policy
    while not hasattr(inner, 'takes_reward') and hasattr(inner, 'with_wrapped'):
        inner = inner.wrapped_policy
    if hasattr(inner, 'takes_reward'):  # it remembers the previous action
        return policy.with_wrapped(uniform(policy.wrapped_policy))
    for spec in tf.nest.flatten(policy.action_spec):
        if not isinstance(spec, tensor_spec.BoundedTensorSpec) or not _bounded(spec):
            raise UserValueError(f'got random actions for the action spec {spec}; need finite bounds to draw within')
    _check_info(policy)
    mask = policy.observation_and_action_constraint_splitter
    if mask is not None and policy.action_spec.shape.rank:
        raise UserValueError(
            f'got random actions for a mask of the action {policy.action_spec}; need one Discrete action; set '
            'initial_random_steps=0'
        )
    return random_tf_policy.RandomTFPolicy(
        policy.time_step_spec,
        policy.action_spec,
        policy_state_spec=policy.policy_state_spec,
        info_spec=policy.info_spec,
        emit_log_probability=policy.emit_log_probability,
        observation_and_action_constraint_splitter=mask,
    )


def _check_info(policy: tf_policy.TFPolicy) -> None:
    info = policy.info_spec
    recorded = tf.nest.flatten(info)
    log_probabilities = policy_step.get_log_probability(info, ()) if policy.emit_log_probability else ()
    if len(recorded) > len(tf.nest.flatten(log_probabilities)):
        names = ', '.join(sorted(spec.name or '?' for spec in recorded))
        raise UserValueError(
            f'got random actions instead of a policy that records {names}; need one that records nothing, or only the '
            'log-probabilities of its actions; set initial_random_steps=0'
        )


def _bounded(spec: tensor_spec.BoundedTensorSpec) -> bool:
    if spec.dtype.is_integer:
        return True
    bounds = np.abs([spec.minimum, spec.maximum])
    return bool(np.all(bounds < spec.dtype.max))


class EpsilonPolicy:
    """Takes another policy's actions, but in each row, with probability epsilon,
    a uniform one within the bounds.

    With a mask of legal actions, it draws only these, and refuses a step in which nothing is legal.
    """

    @checked
    def __init__(
        self,
        policy: EvaluationPolicy,
        epsilon: Fraction,
        action_spec: types.NestedTensorSpec,
        seed: int | None = None,
        action_mask: ActionMask | None = None,
    ):
        """
        Args:
          epsilon: the share of random actions, in [0, 1].
          action_spec: the action's spec, whose leaves have finite bounds.

        Raises:
          ValueError: if epsilon is not in [0, 1], or an action has no bounds.
        """
        for spec in tf.nest.flatten(action_spec):
            bounds = [getattr(spec, 'minimum', -np.inf), getattr(spec, 'maximum', np.inf)]
            if not all(np.isfinite(bound).all() for bound in bounds):
                raise UserValueError(
                    f'got epsilon={epsilon} for the action spec {spec}; need finite bounds, or epsilon=0'
                )
        self._policy, self._epsilon, self._action_spec = policy, epsilon, action_spec
        self._random = np.random.default_rng(seed)
        self._action_mask, self._num_steps = action_mask, 0

    @property
    def info(self) -> Mapping[str, np.ndarray]:
        """The info of the other policy's actions."""
        return getattr(self._policy, 'info', {})

    def initial_state(self, batch_size: int) -> Any:
        """See `EvaluationPolicy`."""
        return self._policy.initial_state(batch_size)

    def action(self, time_step: ts.TimeStep, policy_state: Any) -> tuple[Any, Any]:
        """See `EvaluationPolicy`."""
        if self._action_mask is not None:
            self._action_mask.check(time_step, self._num_steps)
        self._num_steps += 1
        action, policy_state = self._policy.action(time_step, policy_state)
        explores = self._random.random(len(time_step.step_type)) < self._epsilon
        if self._action_mask is not None:
            drawn = self._action_mask.sample(time_step.observation, self._random)
            return np.where(explores.reshape(-1, *[1] * (drawn.ndim - 1)), drawn, action), policy_state
        return tf.nest.map_structure(
            lambda spec, leaf: self._mixed(spec, leaf, explores), self._action_spec, action
        ), policy_state

    def _mixed(self, spec: Any, leaf: np.ndarray, explores: np.ndarray) -> np.ndarray:
        low, high = (np.broadcast_to(bound, leaf.shape) for bound in (spec.minimum, spec.maximum))
        integer = spec.dtype.is_integer
        draw: Any = functools.partial(self._random.integers, endpoint=True) if integer else self._random.uniform
        drawn: np.ndarray = draw(low, high, leaf.shape)
        return np.where(explores.reshape(-1, *[1] * (leaf.ndim - 1)), drawn, leaf).astype(leaf.dtype)
