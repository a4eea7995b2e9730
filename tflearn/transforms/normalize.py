"""Normalization of observations and rewards by their mean and variance,
which the learner estimates.

The statistics are updated after each train step with the steps that it trained on; they are in
checkpoints, travel to collectors with the weights, and are a part of exported policies.
`statistics.py` has the ways to estimate them.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tf_agents.specs import tensor_spec

from tflearn.core.moments import grow, variable
from tflearn.core.settings import PositiveFloat, checked
from tflearn.core.types import EnvironmentSpecs
from tflearn.transforms.statistics import Moments, Running, Statistics
from tflearn.transforms.transform import ObservationTransform, RewardTransform

_EPSILON = 1e-8


class Observations(ObservationTransform):
    """Subtracts the mean of floats and divides by their deviation, each element by its own."""

    need = 'floats'
    statistics: Moments

    @checked
    def __init__(
        self,
        clipping: PositiveFloat = 5.0,
        statistics: Statistics = Running(),  # noqa: B008 - it is frozen
        paths: Sequence[str] | None = None,
    ):
        """
        Args:
          clipping: the largest absolute value of the result.
          statistics: of which values mean and variance are.
          paths: the paths of the parts to normalize; None normalizes all floats.
        """
        super().__init__(paths)
        self._clipping, self._how = clipping, statistics

    def fits(self, spec: tf.TensorSpec) -> bool:
        """See `ObservationTransform`."""
        return bool(spec.dtype.is_floating)

    def transform_specs(self, specs: EnvironmentSpecs) -> EnvironmentSpecs:
        """See `Transform`."""
        transformed = super().transform_specs(specs)
        self.statistics = self._how.make(list(self.specs.values()), 'observations')
        self.policy_variables = [*self.statistics.means, *self.statistics.variances]
        return transformed

    def transform_leaf_spec(self, spec: tf.TensorSpec) -> tf.TensorSpec:
        """See `ObservationTransform`."""
        return tensor_spec.BoundedTensorSpec(spec.shape, spec.dtype, -self._clipping, self._clipping, spec.name)

    def transform_observation(self, observation: Any) -> Any:
        """See `ObservationTransform`."""
        leaves = tf.nest.flatten(observation)
        for i, mean, variance in zip(self.specs, self.statistics.means, self.statistics.variances, strict=True):
            normal = (tf.cast(leaves[i], tf.float32) - mean) * tf.math.rsqrt(variance + _EPSILON)
            leaves[i] = tf.cast(tf.clip_by_value(normal, -self._clipping, self._clipping), leaves[i].dtype)
        return tf.nest.pack_sequence_as(observation, leaves)

    def update(self, experience: Any, counts: tf.Tensor) -> None:
        """See `Transform`."""
        leaves = tf.nest.flatten(experience.observation)
        self.statistics.update([leaves[i] for i in self.specs], counts)


class Rewards(RewardTransform):
    """Divides rewards by their root mean square,
    or by more where the largest so far would exceed the bound.

    So their sign stays, and the order of returns. Only a reward that is larger than all before it
    is cut, once.
    """

    statistics: Moments

    @checked
    def __init__(
        self,
        clipping: PositiveFloat = 10.0,
        statistics: Statistics = Running(),  # noqa: B008 - it is frozen
    ):
        """
        Args:
          clipping: the bound of the result's absolute value.
          statistics: of which rewards the root mean square is.
        """
        self._clipping, self._how = clipping, statistics

    def transform_reward_spec(self, spec: tf.TensorSpec) -> tf.TensorSpec:
        """See `RewardTransform`."""
        self.statistics = self._how.make([spec], 'rewards')
        self.statistics.largest = variable(tf.zeros(spec.shape), 'largest')
        self.policy_variables = [*self.statistics.means, *self.statistics.variances, self.statistics.largest]
        return spec

    def transform_reward(self, reward: tf.Tensor) -> tf.Tensor:
        """See `RewardTransform`."""
        (mean,), (variance,) = self.statistics.means, self.statistics.variances
        scale = tf.sqrt(variance + tf.square(mean) + _EPSILON)
        normal = reward / tf.maximum(scale, self.statistics.largest / self._clipping)
        return tf.clip_by_value(normal, -self._clipping, self._clipping)

    def update(self, experience: Any, counts: tf.Tensor) -> None:
        """See `Transform`."""
        (counted,) = self.statistics.update([experience.reward], counts)
        grow(self.statistics.largest, counted)
