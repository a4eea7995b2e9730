"""Transforms of rewards: clip, scale, shift, weighted sum; rewards computed from observations."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tf_agents.trajectories import time_step as ts

from tflearn.core import types
from tflearn.core.errors import UserValueError
from tflearn.transforms.transform import RewardTransform, Stage, Transform, or_zero

RewardFunction = Callable[[Any, Any, Any], tf.Tensor]


class Clip(RewardTransform):
    """Clips rewards to `low` ... `high`, in Mnih et al. 2015 to -1 ... 1."""

    def __init__(self, low: float = -1.0, high: float = 1.0):
        """
        Args:
          low: the smallest reward.
          high: the largest reward.
        """
        if not low < high:
            raise UserValueError(f'got rewards.Clip(low={low}, high={high}); need low < high')
        self._low, self._high = low, high

    def transform_reward(self, reward: tf.Tensor) -> tf.Tensor:
        """See `RewardTransform`."""
        return tf.clip_by_value(reward, self._low, self._high)


class Scale(RewardTransform):
    """Multiplies rewards by `factor`."""

    def __init__(self, factor: float):
        """
        Args:
          factor: the factor, not 0.
        """
        if not factor:
            raise UserValueError(f'got rewards.Scale(factor={factor}); need another number than 0')
        self._factor = factor

    def transform_reward(self, reward: tf.Tensor) -> tf.Tensor:
        """See `RewardTransform`."""
        return reward * self._factor


class Shift(RewardTransform):
    """Adds `amount` to the reward of each step."""

    def __init__(self, amount: float):
        """
        Args:
          amount: what is added.
        """
        self._amount = amount

    def transform_reward(self, reward: tf.Tensor) -> tf.Tensor:
        """See `RewardTransform`."""
        return reward + self._amount


class Function(Transform):
    """Replaces rewards by a function of observation, action and next observation, as the environment made these.

    A policy that reads rewards gets 0 while it acts.
    """

    stage = Stage.REWARD

    def __init__(self, function: RewardFunction):
        """
        Args:
          function: a TensorFlow function of nests of tensors [B, T, ...]; it returns rewards, float32 [B, T].
        """
        self._function = function

    def transform_specs(self, specs: types.EnvironmentSpecs) -> types.EnvironmentSpecs:
        """See `Transform`.

        Raises:
          ValueError: if the function's result has another shape or dtype than rewards.
        """
        observation, action = (types.zeros(spec, (2, 3)) for spec in (specs.observation, specs.action))
        reward = tf.convert_to_tensor(self._function(observation, action, observation))
        if reward.dtype != tf.float32 or reward.shape != (2, 3):
            raise UserValueError(
                f'got rewards of shape {reward.shape}, {reward.dtype.name}, for steps [2, 3] from the function '
                f'{self._function}; need (2, 3), float32: one for each step'
            )
        return types.EnvironmentSpecs(specs.observation, specs.action)

    def transform_time_step(self, time_step: ts.TimeStep, state: Any) -> tuple[ts.TimeStep, Any]:
        """See `Transform`."""
        return time_step._replace(reward=tf.zeros_like(time_step.discount)), state

    def transform_experience(self, experience: Any) -> Any:
        """See `Transform`.

        The reward of a sequence's last row is 0: its next observation is not there, and no agent uses it.
        """
        now = lambda nest: tf.nest.map_structure(lambda leaf: leaf[:, :-1], nest)  # noqa: E731
        after = tf.nest.map_structure(lambda leaf: leaf[:, 1:], experience.observation)
        reward = self._function(now(experience.observation), now(experience.action), after)
        reward = or_zero(reward, experience.next_step_type[:, :-1] != ts.StepType.FIRST)
        return experience._replace(reward=tf.pad(reward, [[0, 0], [0, 1]]))


class Weighted(RewardTransform):
    """Adds up several rewards, each times its weight; the weights can be changed while a run goes on.

    Attributes:
      weights: float32 variable [n], in checkpoints. The train job assigns it what is in the run's reward weights file.
    """

    weights: tf.Variable

    def __init__(self, weights: Sequence[float]):
        """
        Args:
          weights: the rewards' weights at the start of a run.
        """
        self._initial = tuple(weights)

    def transform_specs(self, specs: types.EnvironmentSpecs) -> types.EnvironmentSpecs:
        """See `Transform`.

        Raises:
          ValueError: if there are not as many weights as rewards.
        """
        if specs.reward.shape != (len(self._initial),):
            raise UserValueError(
                f'got rewards.Weighted of {len(self._initial)} weights for the reward {specs.reward}; need a vector of '
                'rewards, and a weight for each'
            )
        self.weights = tf.Variable(
            tf.constant(self._initial, tf.float32),
            trainable=False,
            name='reward_weights',
            aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
        )
        self.statistics = tf.Module('reward_weights')
        self.statistics.weights = self.weights
        self.policy_variables = [self.weights]
        return types.EnvironmentSpecs(specs.observation, specs.action)

    def transform_reward(self, reward: tf.Tensor) -> tf.Tensor:
        """See `RewardTransform`."""
        return tf.reduce_sum(reward * self.weights, axis=-1)
