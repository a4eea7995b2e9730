"""Hindsight: trains on goals that were achieved later,
as if they had been wanted (hindsight experience replay, HER).

Andrychowicz et al. 2017, "Hindsight Experience Replay" (arXiv 1707.01495), for environments whose
observation has an achieved and a desired goal, as gymnasium's goal environments have. There, copies
with other goals are stored; here the replay holds the episodes as they were, and a sequence gets a
new goal each time it is drawn. The goals come from the rows around the sequence, which items have
to have: `Slicing.future_steps`.
"""

from collections.abc import Callable
from typing import Any, Literal

import tensorflow as tf
from tf_agents.trajectories import time_step as ts

from tflearn.core.errors import UserValueError
from tflearn.core.settings import Fraction, NonNegativeFloat, PositiveInt, checked
from tflearn.core.types import EnvironmentSpecs, leaf_paths
from tflearn.transforms.transform import Stage, Transform, or_zero

Strategy = Literal['future', 'final', 'episode']
OfGoals = Callable[[Any, Any], tf.Tensor]


@checked
def reached(threshold: NonNegativeFloat = 0.0) -> OfGoals:
    """Returns a function of achieved and desired goals [..., n]:
    whether their distance is at most `threshold`.

    Args:
      threshold: the largest Euclidean distance; 0 for goals that have to be equal.
    """

    def is_reached(achieved: tf.Tensor, desired: tf.Tensor) -> tf.Tensor:
        difference = tf.cast(achieved, tf.float32) - tf.cast(desired, tf.float32)
        return tf.reduce_sum(tf.square(difference), axis=-1) <= threshold**2

    return is_reached


def sparse_reward(threshold: float = 0.0) -> OfGoals:
    """Returns a function of achieved and desired goals [..., n]:
    0 where the goal is reached, else -1, float32 [...].

    Args:
      threshold: see `reached`.
    """
    is_reached = reached(threshold)
    return lambda achieved, desired: tf.cast(is_reached(achieved, desired), tf.float32) - 1.0


class Hindsight(Transform):
    """Replaces desired goals of sequences by goals that their episode achieved,
    and computes the rewards of these.

    All steps of a sequence get the same goal. Steps that keep their goal, and what policies act on,
    do not change.
    """

    stage = Stage.RELABEL

    @checked
    def __init__(
        self,
        horizon: PositiveInt,
        reward: OfGoals,
        terminated: OfGoals | None = None,
        proportion: Fraction = 0.8,
        strategy: Strategy = 'future',
        desired_goal: str = 'desired_goal',
        achieved_goal: str = 'achieved_goal',
    ):
        """
        Args:
          horizon: the rows after a sequence that goals may come from, as many as
            `Slicing.future_steps`: for all of an episode, its longest duration +
            1 - `Slicing.sequence_length` [steps]. With strategy='episode' also the rows before it,
            `Slicing.history_steps`.
          reward: a TensorFlow function of goals achieved after steps and of desired ones, [B, T,
            *goal]; it returns the steps' rewards, float32 [B, T], as the environment computes them.
          terminated: a function of the same goals, bool [B, T]: whether the episode ends with the
            step. None: episodes do not end at goals, and discounts stay.
          proportion: the share of sequences with a new goal; 0.8 is four for each that keeps its
            own.
          strategy: which goals: 'future', one achieved in the episode after the sequence's first
            step; 'final', at the episode's end; 'episode', any in the episode.
          desired_goal: the path of the goal in the observation.
          achieved_goal: the path of what is achieved, of the same spec.
        """
        self.future_steps = horizon
        self.history_steps = horizon if strategy == 'episode' else 0
        self._reward, self._terminated = reward, terminated
        self._proportion, self._strategy = proportion, strategy
        self._paths = (desired_goal, achieved_goal)
        self._desired = self._achieved = 0

    def transform_specs(self, specs: EnvironmentSpecs) -> EnvironmentSpecs:
        """See `Transform`.

        Raises:
          ValueError: if the observation has no such goals, or a function of goals returns something
            else.
        """
        paths, leaves = leaf_paths(specs.observation), tf.nest.flatten(specs.observation)
        if missing := [path for path in self._paths if path not in paths]:
            raise UserValueError(
                f"got Hindsight of '{missing[0]}' and an observation with the parts {', '.join(paths)}; need the paths "
                'of the desired and the achieved goal'
            )
        self._desired, self._achieved = (paths.index(path) for path in self._paths)
        desired, achieved = leaves[self._desired], leaves[self._achieved]
        if desired.shape != achieved.shape or desired.dtype != achieved.dtype:
            raise UserValueError(
                f'got the goals {desired} and {achieved}; need the same shape and dtype, since one replaces the other'
            )
        goals = tf.zeros((2, 3, *desired.shape), desired.dtype)
        for name, function, dtype in (('reward', self._reward, tf.float32), ('terminated', self._terminated, tf.bool)):
            if function is None:
                continue
            result = tf.convert_to_tensor(function(goals, goals))
            if result.shape != (2, 3) or result.dtype != dtype:
                raise UserValueError(
                    f'got {result.dtype.name} of shape {result.shape} from Hindsight.{name} of goals '
                    f'{tuple(goals.shape)}; need {dtype.name} of shape (2, 3), one for each step'
                )
        return specs

    def transform_experience(self, experience: Any) -> Any:
        """See `Transform`. Removes the rows before and after the sequences."""
        leaves = tf.nest.flatten(experience.observation)
        goal, is_new = self._draw(experience.step_type, leaves[self._achieved])
        end = experience.step_type.shape[1] - self.future_steps
        rows = tf.nest.map_structure(lambda leaf: leaf[:, self.history_steps : end], experience)
        leaves = tf.nest.flatten(rows.observation)
        desired = leaves[self._desired]
        goal = tf.broadcast_to(goal[:, tf.newaxis], tf.shape(desired))
        leaves[self._desired] = tf.where(_column(is_new, desired), goal, desired)
        goals = leaves[self._achieved][:, 1:], goal[:, 1:]
        # Not between episodes. The last row's reward is not used.
        is_step = rows.next_step_type[:, :-1] != ts.StepType.FIRST
        is_new = is_new[:, tf.newaxis]
        reward = tf.where(is_new, or_zero(self._reward(*goals), is_step), rows.reward[:, :-1])
        discount = rows.discount[:, :-1]
        if self._terminated is not None:
            ends = tf.where(self._terminated(*goals), tf.zeros_like(discount), tf.ones_like(discount))
            discount = tf.where(is_new & is_step, ends, discount)
        return rows._replace(
            observation=tf.nest.pack_sequence_as(rows.observation, leaves),
            reward=tf.concat([reward, rows.reward[:, -1:]], axis=1),
            discount=tf.concat([discount, rows.discount[:, -1:]], axis=1),
        )

    def _draw(self, step_type: tf.Tensor, achieved: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Draws a goal [B, *goal] for each sequence, and whether it is used, bool [B]."""
        is_last = step_type == ts.StepType.LAST
        # Not the copies before an episode's first row and after its boundary row.
        is_copy = tf.pad(is_last[:, 1:] & is_last[:, :-1], [[0, 0], [1, 0]])
        is_first = step_type == ts.StepType.FIRST
        is_copy |= tf.pad(is_first[:, 1:] & is_first[:, :-1], [[0, 0], [0, 1]])
        after = tf.range(step_type.shape[1]) > self.history_steps
        chosen = ~is_copy & {'future': after, 'final': after & is_last, 'episode': True}[self._strategy]
        numbers = tf.where(chosen, tf.random.uniform(tf.shape(step_type)), -1.0)
        goal = tf.gather(achieved, tf.argmax(numbers, axis=1), batch_dims=1)
        is_new = tf.random.uniform(tf.shape(step_type)[:1]) < self._proportion
        return goal, is_new & tf.reduce_any(chosen, axis=1)


def _column(flags: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    """Returns flags [B] as [B, 1, ...], of the rank of `like`."""
    return tf.reshape(flags, [-1, *[1] * (like.shape.rank - 1)])
