"""Costs with limits: a transform that makes one reward of several, some of which are costs.

    transforms = [costs.Limited((None, 0.4))]  # the second reward is a cost: at most 0.4 per step on average

The costs are parts of the environment's vector of rewards; `environments.info_costs` makes one of
what is in its info.
"""

from collections.abc import Sequence
from typing import Annotated, Any

import tensorflow as tf

from tflearn.core import agent_data, moments, summary_tensors
from tflearn.core.errors import UserValueError
from tflearn.core.settings import PositiveFloat, Range, checked
from tflearn.core.types import EnvironmentSpecs
from tflearn.transforms.transform import RewardTransform

_BOUND = 12.0  # of a multiplier's logarithm: 6e-6 ... 2e5


class Limited(RewardTransform):
    """Finds the most reward whose costs are within limits of their mean per environment step.

    The agent's reward is (r - sum_i m_i c_i) / (1 + sum_i m_i), with r the sum of the rewards that
    are no costs, c_i the costs, and m_i multipliers, which the learner finds. With each train step
    (of PPO: each iteration), for which collectors take n environment steps,

        e_i = clip(mean c_i / limit_i - 1, -1, 1)
        u_i <- u_i + rate (1 - exp(-n / window_steps)) e_i
        m_i <- exp(u_i + gain e_i)

    so a cost above its limit weighs more. This is the Lagrangian of a constrained Markov decision
    process with the proportional and integral terms, and the normalized reward, of Stooke et al.
    2020, "Responsive Safety in Reinforcement Learning by PID Lagrangian Methods", arXiv 2007.04322,
    section 6. Deviations: the mean per step in place of an episode's sum, which depends on its
    length; logarithms of multipliers, so that costs of any scale fit; and no critic of the costs
    alone.

    The mean is of the policy that collects, which explores, and of steps alike, whatever the
    discount: a limit of an episode's sum is limit * (steps of an episode). A step weighs
    exp(-age / window_steps); the age of the weights that took it is known of steps in a replay too,
    so neither its size nor how often a step is drawn changes how fast multipliers move.

    Attributes:
      multipliers: float32 variable [n], 0 for what is no cost; in checkpoints.
    """

    multipliers: tf.Variable

    @checked
    def __init__(
        self,
        limits: Sequence[float | None],
        rate: Annotated[float, Range(above=0, most=1)] = 0.5,
        gain: Annotated[float, Range(least=0)] = 1.0,
        window_steps: PositiveFloat = 5000.0,
    ):
        """
        Args:
          limits: of each reward None, or, of a cost, the most that its mean per environment step
            may be, above 0.
          rate: how far the logarithm of a multiplier moves in a window, at most.
          gain: how far it is moved at once by a cost of twice its limit; damps oscillations.
          window_steps: environment steps of all collectors after which a step counts 1/e.
        """
        self._limits, self._rate, self._gain = tuple(limits), rate, gain
        self._window = window_steps

    def transform_specs(self, specs: EnvironmentSpecs) -> EnvironmentSpecs:
        """See `Transform`.

        Raises:
          ValueError: if there are not as many limits as rewards, none of a cost, or one that is not
            above 0.
        """
        numbers = [each for each in self._limits if each is not None]
        fits = specs.reward.shape == (len(self._limits),) and 0 < len(numbers) < len(self._limits)
        if not fits or min(numbers) <= 0:
            raise UserValueError(
                f'got costs.Limited with limits={self._limits} for the reward {specs.reward}; need a vector of '
                'rewards, and for each None or, of a cost, a limit above 0: one of either at least'
            )
        self._is_cost = tf.constant([each is not None for each in self._limits])
        self._most = tf.constant([each or 1.0 for each in self._limits], tf.float32)
        zeros = tf.zeros_like(self._most)
        self.multipliers = moments.variable(tf.cast(self._is_cost, tf.float32), 'multipliers')
        self._logarithms, self._sums = moments.variable(zeros, 'logarithms'), moments.variable(zeros, 'sums')
        self._number, self._newest = moments.variable(0.0, 'number'), moments.variable(0.0, 'newest_version')
        # In the window: environment steps, and versions of the weights.
        self._steps, self._versions = moments.variable(0.0, 'steps'), moments.variable(0.0, 'versions')
        self.statistics = tf.Module('limits')
        self.statistics.state = [self.multipliers, self._logarithms, self._sums, self._number]
        self.statistics.ages = [self._newest, self._steps, self._versions]
        self.policy_variables = [self.multipliers]
        return EnvironmentSpecs(specs.observation, specs.action)

    def transform_reward(self, reward: tf.Tensor) -> tf.Tensor:
        """See `RewardTransform`."""
        weights = tf.where(self._is_cost, -self.multipliers, 1.0) / (1 + tf.reduce_sum(self.multipliers))
        return tf.reduce_sum(reward * weights, axis=-1)

    def update(self, experience: Any, counts: tf.Tensor) -> None:
        """See `Transform`."""
        context = tf.distribute.get_replica_context()
        steps = context.all_reduce(tf.distribute.ReduceOp.SUM, tf.reduce_sum(counts)) / self.draws_per_step
        kept = tf.exp(-steps / self._window)
        counts *= self._weights(steps, kept)
        is_finite = tf.math.is_finite(experience.reward)
        counts = tf.where(tf.reduce_all(is_finite, axis=-1), counts, 0.0)
        sums = tf.einsum('bt,bti->i', counts, tf.where(is_finite, experience.reward, 0.0))
        number, sums = context.all_reduce(tf.distribute.ReduceOp.SUM, [tf.reduce_sum(counts), sums])
        mean = tf.math.divide_no_nan(
            self._sums.assign(kept * self._sums + sums), self._number.assign(kept * self._number + number)
        )
        excess = tf.where(self._is_cost, tf.clip_by_value(mean / self._most - 1, -1, 1), 0.0)
        logarithms = self._logarithms + self._rate * (1 - kept) * excess
        logarithms = self._logarithms.assign(tf.clip_by_value(logarithms, -_BOUND, _BOUND))
        self.multipliers.assign(tf.where(self._is_cost, tf.exp(logarithms + self._gain * excess), 0.0))
        for i, limit in enumerate(self._limits):
            if limit is not None:
                summary_tensors.scalar(f'costs/{i}/mean', mean[i])
                summary_tensors.scalar(f'costs/{i}/multiplier', self.multipliers[i])

    def _weights(self, steps: tf.Tensor, kept: tf.Tensor) -> tf.Tensor:
        """Returns the weights of a batch's items [B, 1], by the ages of their policies."""
        versions = agent_data.policy_versions()
        if versions is None:
            return tf.ones((1, 1))
        # Of each item: transforms before this one may have removed rows.
        versions = tf.cast(tf.reduce_max(versions, axis=1, keepdims=True), tf.float32)
        newest = tf.maximum(self._newest, tf.reduce_max(versions))
        number = self._versions.assign(kept * self._versions + newest - self._newest)
        self._newest.assign(newest)
        steps_per_version = tf.math.divide_no_nan(self._steps.assign(kept * self._steps + steps), number)
        return tf.exp((versions - newest) * steps_per_version / self._window)
