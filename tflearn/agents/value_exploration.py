"""Exploration by the values of all actions, instead of random ones: inverse gap weighting, and softmax (Boltzmann).

Foster and Rakhlin 2020, "Beyond UCB: Optimal and Efficient Contextual Bandits with Regression
Oracles" (arXiv 2002.04926), SquareCB, algorithm 1. With values f of K legal actions, of which b has
the greatest,

  p_a = 1 / (K + gamma (f_b - f_a))   for each other action a,     p_b = 1 - the sum of theirs

Its regret is bounded for whatever network or regression learns the values, by its error in
predicting rewards. Simchi-Levi and Xu 2020, "Bypassing the Monster: A Faster and Simpler Optimal
Algorithm for Contextual Bandits under Realizability" (arXiv 2003.12699), FALCON, has the same
probabilities, a gamma for each epoch, and epochs that double: see `schedules.in_epochs`.

Differs from the papers: values are learned from batches while actions are drawn, and not from all
steps before this one, nor in epochs; gamma is a setting, in the unit of one by rewards, not the
bound's value. `Boltzmann` draws with probabilities proportional to exp(f / temperature).

The probabilities are exact: exported policies have their logarithms as logits, by which a server
draws, and logs what it has drawn.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tensorflow_probability as tfp
from tf_agents.policies import tf_policy
from tf_agents.trajectories import policy_step
from tf_agents.trajectories import time_step as ts

from tflearn.core.settings import PositiveFloat, checked_dataclass
from tflearn.optimization import schedules


@checked_dataclass(frozen=True)
class SquareCB:
    """Draws an action the less often, the more its value is below the greatest; see the module.

    Attributes:
      gamma: how much the gap counts, in one by the unit of values; 0 would draw evenly. A number, or
        a schedule of the train step: it has to grow, as with the root of the steps
        (`schedules.power`), for a regret that does.
    """

    gamma: PositiveFloat | schedules.Schedule = 100.0

    def logits(self, values: tf.Tensor, legal: tf.Tensor, train_step: tf.Tensor) -> tf.Tensor:
        """Returns the log-probabilities of actions, float64 [B, K]; see `logits_of`."""
        gamma = tf.cast(schedules.at(self.gamma, train_step), tf.float64)
        possible = tf.where(legal, values, values.dtype.min)
        gaps = tf.reduce_max(possible, axis=-1, keepdims=True) - values
        count = tf.reduce_sum(tf.cast(legal, tf.float64), axis=-1, keepdims=True)
        best = tf.one_hot(tf.argmax(possible, axis=-1), values.shape[-1], dtype=tf.float64)
        others = tf.where(legal, (1 - best) / (count + gamma * gaps), 0.0)
        return tf.math.log(others + best * (1 - tf.reduce_sum(others, axis=-1, keepdims=True)))


@checked_dataclass(frozen=True)
class Boltzmann:
    """Draws an action with a probability proportional to exp(value / temperature).

    Attributes:
      temperature: in the unit of values; a number, or a schedule of the train step.
    """

    temperature: PositiveFloat | schedules.Schedule = 1.0

    def logits(self, values: tf.Tensor, legal: tf.Tensor, train_step: tf.Tensor) -> tf.Tensor:
        """Returns unnormalized log-probabilities of actions, float64 [B, K]; see `logits_of`."""
        scaled = values / tf.cast(schedules.at(self.temperature, train_step), tf.float64)
        possible = tf.where(legal, scaled, scaled.dtype.min)
        greatest = tf.reduce_max(possible, axis=-1, keepdims=True)
        return tf.math.log(tf.cast(legal, tf.float64)) + scaled - greatest


ByValues = SquareCB | Boltzmann


def logits_of(exploration: ByValues, train_step: tf.Variable) -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns a function from values to the logits by which actions are drawn, float32 [B, K].

    It takes floats [B, K], the lowest number of their type for actions that are not legal. Where
    none is, all are drawn.

    Args:
      exploration: the distribution.
      train_step: integer scalar, for schedules.
    """

    def logits(values: tf.Tensor) -> tf.Tensor:
        legal = values > values.dtype.min
        # In float64: of 1 less many float32 probabilities the last digits would be lost.
        finite = tf.where(legal, tf.cast(values, tf.float64), 0.0)
        legal |= ~tf.reduce_any(legal, axis=-1, keepdims=True)
        return tf.cast(exploration.logits(finite, legal, train_step), tf.float32)

    return logits


class ValuePolicy(tf_policy.TFPolicy):
    """Draws actions by their values, which another policy's distribution has as logits, as TF-Agents' QPolicy does."""

    def __init__(self, policy: tf_policy.TFPolicy, exploration: ByValues, train_step: tf.Variable):
        """Takes the policy of the values, the distribution, and the train step, for schedules."""
        super().__init__(
            policy.time_step_spec,
            policy.action_spec,
            policy_state_spec=policy.policy_state_spec,
            info_spec=policy.info_spec,
            observation_and_action_constraint_splitter=policy.observation_and_action_constraint_splitter,
            name='value_policy',
        )
        # A function, since the train step is no variable of the policy: a collector has its own.
        self._policy, self._logits = policy, logits_of(exploration, train_step)

    def _variables(self) -> Any:
        return self._policy.variables()

    def _distribution(self, time_step: ts.TimeStep, policy_state: Any) -> policy_step.PolicyStep:
        step = self._policy.distribution(time_step, policy_state)
        logits = self._logits(step.action.logits_parameter())
        return step._replace(action=tfp.distributions.Categorical(logits, dtype=self.action_spec.dtype))
