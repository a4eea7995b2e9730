"""Transforms of rewards: clip, scale, shift, weighted sum; rewards computed from observations;
weights from a file.
"""

import os
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypedDict

import tensorflow as tf
from absl import logging
from tf_agents.trajectories import time_step as ts

from tflearn.core import moments, types
from tflearn.core.errors import UserError, UserValueError
from tflearn.core.settings import Range
from tflearn.core.types import Agent
from tflearn.files.run_dir import RunDir, read_json
from tflearn.transforms.transform import RewardTransform, Stage, Transform, or_zero

_MAX_WEIGHT = 1e38  # which float32 can hold

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
    """Replaces rewards by a function of observation, action and next observation,
    as the environment made these.

    A policy that reads rewards gets 0 while it acts.
    """

    stage = Stage.REWARD

    def __init__(self, function: RewardFunction):
        """
        Args:
          function: a TensorFlow function of nests of tensors [B, T, ...]; it returns rewards,
            float32 [B, T].
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

        The reward of a sequence's last row is 0: its next observation is not there, and no agent
        uses it.
        """
        now = lambda nest: tf.nest.map_structure(lambda leaf: leaf[:, :-1], nest)  # noqa: E731
        after = tf.nest.map_structure(lambda leaf: leaf[:, 1:], experience.observation)
        reward = self._function(now(experience.observation), now(experience.action), after)
        reward = or_zero(reward, experience.next_step_type[:, :-1] != ts.StepType.FIRST)
        return experience._replace(reward=tf.pad(reward, [[0, 0], [0, 1]]))


class Weighted(RewardTransform):
    """Adds up several rewards, each times its weight;
    the weights can be changed while a run goes on.

    Attributes:
      weights: float32 variable [n], in checkpoints. The train job assigns it what is in the run's
        reward weights file.
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
        self.weights = moments.variable(tf.constant(self._initial, tf.float32), 'reward_weights')
        self.statistics = tf.Module('reward_weights')
        self.statistics.weights = self.weights
        self.policy_variables = [self.weights]
        return types.EnvironmentSpecs(specs.observation, specs.action)

    def transform_reward(self, reward: tf.Tensor) -> tf.Tensor:
        """See `RewardTransform`."""
        return tf.reduce_sum(reward * self.weights, axis=-1)


def weights_reader(agent: Agent, run_dir: RunDir) -> Callable[[int], None]:
    """Returns a trigger's action: assigns an agent's reward weights what a file says,
    {"weights": [...]}, if it is new.

    A file that cannot be used is logged, and changes nothing. What was assigned stays in
    checkpoints.

    Args:
      agent: the agent; for one without reward weights no file is read.
      run_dir: the run's directory, which has the file.
    """
    variable: tf.Variable | None = getattr(agent, 'reward_weights', None)
    path, newest = run_dir.reward_weights, (0, 0)

    def read(step: int) -> None:
        nonlocal newest
        if variable is None:
            return
        try:
            status = os.stat(path)
            if (found := (status.st_mtime_ns, status.st_size)) == newest:
                return
            weights = (read_json(path, _Weights) or {}).get('weights', [])
            if len(weights) != variable.shape[0]:
                raise UserValueError(f'got {path} with weights={weights!r:.200}; need {variable.shape[0]} numbers')
        except UserError as error:
            # What cannot be read now, without a file handle for example, may be read later.
            if not isinstance(error, OSError):
                newest = found
            logging.error('the reward weights stay as they are: %s', error)
            return
        except OSError:  # there is none, or a link that leads nowhere
            return
        newest = found
        variable.assign(weights)
        logging.info('train step %d: reward weights %s', step, weights)

    return read


class _Weights(TypedDict):
    """`RunDir.reward_weights`."""

    weights: list[Annotated[float, Range(least=-_MAX_WEIGHT, most=_MAX_WEIGHT)]]
