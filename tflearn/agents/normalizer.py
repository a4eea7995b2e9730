"""Normalizer: normalizes values by the mean and variance of all values so far.

The result does not depend on the number of replicas.
"""

from collections.abc import Collection
from typing import Any

import tensorflow as tf
from tf_agents.typing import types

from tflearn.core import moments
from tflearn.core.errors import UserValueError
from tflearn.core.layout import ColumnLayout
from tflearn.core.types import EnvironmentSpecs, leaf_paths
from tflearn.networks import encoder
from tflearn.networks.networks import NetworkOptions

_OBSERVATION_CLIPPING = 5.0
_REWARD_CLIPPING = 10.0


class Normalizer(tf.Module):
    """Normalizes the floats of a nest of tensors, each by its own mean and deviation, which are 0 and 1 at first.

    Neighbouring vectors of the nest, and neighbouring numbers, have one variable for all their
    means, and one for all their variances (see `ColumnLayout`). Tensors of integers, which are
    categories, do not change.
    """

    def __init__(
        self,
        spec: types.NestedTensorSpec,
        clipping: float,
        center: bool = True,
        name: str = 'normalizer',
        skipped: Collection[str | None] = (),
    ):
        """Makes the variables, in the strategy's scope.

        Args:
          spec: a nest of specs with at least one of floats.
          clipping: the largest absolute value of the result.
          center: whether to subtract the mean and divide by the deviation. Else values are only
            divided, by their root mean square, or by more where the largest of them so far would
            exceed `clipping`: cutting large rewards alone could reverse which of two returns is the
            greater.
          name: the module's name.
          skipped: the paths of tensors that do not change either.
        """
        super().__init__(name)
        self._clipping, self._center = clipping, center
        named = enumerate(zip(leaf_paths(spec), tf.nest.flatten(spec), strict=True))
        self._floating = frozenset(i for i, (path, leaf) in named if leaf.dtype.is_floating and path not in skipped)
        self._joined = ColumnLayout(self._floats(spec))
        leaves = self._joined.specs
        self.count = moments.variable(tf.zeros(()), 'count')
        self.means = [moments.variable(tf.zeros(leaf.shape), 'mean') for leaf in leaves]
        self.variances = [moments.variable(tf.ones(leaf.shape), 'variance') for leaf in leaves]
        self.largest = [] if center else [moments.variable(tf.zeros(leaf.shape), 'largest') for leaf in leaves]

    @property
    def statistics(self) -> list[tf.Variable]:
        """The variables: the number of values, their means and variances, and if uncentered their largest ones."""
        return [self.count, *self.means, *self.variances, *self.largest]

    def _floats(self, nest: Any) -> list[Any]:
        return [leaf for i, leaf in enumerate(tf.nest.flatten(nest)) if i in self._floating]

    def __call__(self, values: Any) -> Any:
        """Returns the normalized values [..., *spec]."""
        leaves = self._joined.join(self._floats(values))
        if self._center:
            normal = [
                (leaf - mean) * tf.math.rsqrt(variance + 1e-8)
                for leaf, mean, variance in zip(leaves, self.means, self.variances, strict=True)
            ]
        else:
            normal = [
                leaf / tf.maximum(tf.sqrt(variance + tf.square(mean) + 1e-8), largest / self._clipping)
                for leaf, mean, variance, largest in zip(leaves, self.means, self.variances, self.largest, strict=True)
            ]
        normal = [tf.clip_by_value(leaf, -self._clipping, self._clipping) for leaf in normal]
        divided = iter(self._joined.divide(normal))
        changed = [next(divided) if i in self._floating else leaf for i, leaf in enumerate(tf.nest.flatten(values))]
        return tf.nest.pack_sequence_as(values, changed)

    def update(self, values: Any, counts: tf.Tensor) -> None:
        """Adds the values of the global batch, in replica context.

        Args:
          values: this replica's part, a nest of [B, T, *spec].
          counts: float32 [B, T], 1 for valid steps, 0 for others. Steps with values that are not
            finite are ignored.
        """
        leaves = self._joined.join(self._floats(values))
        number, means, squares, counted = moments.of_batch(leaves, counts)
        total = self.count + number
        for largest, leaf in zip(self.largest, counted, strict=False):
            moments.grow(largest, leaf)
        share = tf.math.divide_no_nan(number, total)
        moments.join(self.means, self.variances, share, (number, means, squares))
        self.count.assign(total)


Normalizers = tuple[Normalizer | None, Normalizer | None]  # of observations and rewards; None does not normalize


def make_normalizers(
    specs: EnvironmentSpecs, network: NetworkOptions, action_mask: str | None, of_observations: bool, of_rewards: bool
) -> Normalizers:
    """Makes the normalizers of an environment.

    Args:
      specs: the environment's specs.
      network: the layers; what has a layer of one's own does not change.
      action_mask: the path of the observation's part that marks legal actions, which does not
        change.
      of_observations: whether to normalize observations, within +-5, if they have floats.
      of_rewards: whether to divide rewards by their root mean square, or by a tenth of the largest
        one if that is more.

    Raises:
      ValueError: if observations to normalize are a single tensor that is neither of floats nor a
        category.
    """
    observation, spec = None, specs.observation
    if of_observations:
        if not tf.nest.is_nested(spec) and not encoder.is_categorical(spec) and not spec.dtype.is_floating:
            raise UserValueError(f'got observations {spec}; need floats, or normalize_observations=False')
        skipped = {*(network.preprocessing_layers or ()), action_mask}
        made = Normalizer(spec, _OBSERVATION_CLIPPING, name='observations', skipped=skipped)
        observation = made if made.means else None
    reward = Normalizer(specs.reward, _REWARD_CLIPPING, center=False, name='rewards') if of_rewards else None
    return observation, reward
