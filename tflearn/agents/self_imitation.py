"""Self-imitation: recorded actions are imitated as far as their return exceeds the value of their observation.

Oh et al. 2018, "Self-Imitation Learning" (arXiv 1806.05635), equations 2 and 3:

  L_policy = - log pi(a | x) max(R - V(x), 0)      L_value = 1/2 max(R - V(x), 0)^2

There the steps are the agent's own past ones, here those of `Initial.demonstrations`. Unlike in
behavioural cloning, steps that are no better than what the policy reaches by itself count nothing.
"""

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tf_agents.trajectories import time_step as ts

from tflearn.core.settings import NonNegativeFloat, checked_dataclass
from tflearn.core.train_step import Draws
from tflearn.optimization.schedules import Schedule


@checked_dataclass(frozen=True)
class SelfImitation:
    """The weights of the losses.

    Attributes:
      coefficient: of the policy's, in the unit of the advantages; or a schedule of the train step.
      value_coefficient: of the value's.
    """

    coefficient: NonNegativeFloat | Schedule = 0.1
    value_coefficient: NonNegativeFloat = 0.01


class Steps(NamedTuple):
    """Recorded steps, which are drawn with equal chances.

    Attributes:
      observation: [N, ...].
      action: [N, ...].
      sums: float32 [N], the discounted sum of the rewards to the episode's end.
      last_factor: float32 [N], the discount of the value of the episode's last observation; 0 if it
        was terminated.
      last: the last observations of the episodes, [M, ...].
      episode: int32 [N], the number of the episode.
    """

    observation: Any
    action: Any
    sums: tf.Tensor
    last_factor: tf.Tensor
    last: Any
    episode: tf.Tensor

    def draw(self, draws: Draws, count: int | tf.Tensor) -> 'Steps':
        """Returns `count` steps, with the last observation of each in `last`."""
        size = tf.shape(self.sums)[0]
        places = tf.random.stateless_uniform([count], draws.seed(), maxval=size, dtype=tf.int32)
        take = lambda nest, indices: tf.nest.map_structure(lambda leaf: tf.gather(leaf, indices), nest)  # noqa: E731
        drawn = take(self._replace(last=()), places)
        return drawn._replace(last=take(self.last, drawn.episode))


def steps_of(episodes: Any, gamma: float) -> Steps:
    """Returns the steps of recorded episodes.

    Args:
      episodes: a Trajectory [N, ...] of complete episodes, one after the other.
      gamma: the discount per environment step.
    """
    valid = np.asarray(episodes.next_step_type) != ts.StepType.FIRST  # others are episodes' last observations
    rewards, discounts = (np.asarray(column, np.float64) for column in (episodes.reward, episodes.discount))
    sums, factors = np.zeros(len(valid)), np.ones(len(valid))  # those of last observations
    for i in np.flatnonzero(valid)[::-1]:
        sums[i] = rewards[i] + gamma * discounts[i] * sums[i + 1]
        factors[i] = gamma * discounts[i] * factors[i + 1]
    rows = lambda nest, which: tf.nest.map_structure(lambda leaf: tf.constant(np.asarray(leaf)[which]), nest)  # noqa: E731
    return Steps(
        observation=rows(episodes.observation, valid),
        action=rows(episodes.action, valid),
        sums=tf.constant(np.float32(sums[valid])),
        last_factor=tf.constant(np.float32(factors[valid])),
        last=rows(episodes.observation, ~valid),
        episode=tf.constant(np.int32(np.cumsum(~valid)[valid])),
    )


def losses(log_probs: tf.Tensor, errors: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the losses of policy and value for each step, float32 [B]; an action of probability 0 has none.

    Args:
      log_probs: float32 [B], log pi(a | x).
      errors: float32 [B], R - V(x).
    """
    gains = tf.nn.relu(errors)
    possible = tf.where(tf.math.is_finite(log_probs), log_probs, 0.0)
    return -possible * tf.stop_gradient(gains), tf.square(gains) / 2
