"""The last layers of policies: features -> the distribution of the action, float32 in any precision of the network."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from tf_agents.agents.sac import sac_agent, tanh_normal_projection_network
from tf_agents.distributions import utils as distribution_utils
from tf_agents.networks import network, normal_projection_network, utils
from tf_agents.specs import distribution_spec, tensor_spec
from tf_agents.typing import types

from tflearn.core.errors import UserValueError
from tflearn.core.train_step import Draws
from tflearn.networks import own_heads, state_dependent

INITIAL_DEVIATION = own_heads.INITIAL_DEVIATION
_IMPOSSIBLE = -1e9  # a logit with a probability of 0, and finite products with it
_NORMAL = (tfp.distributions.Normal, tfp.distributions.MultivariateNormalDiag, state_dependent.StateDependentNormal)

MakeProjection = Callable[[types.BoundedTensorSpec], network.Network]


def sample(distributions: Any, draws: Draws, sample_shape: Sequence[int] = ()) -> Any:
    """Returns samples [*sample_shape, ...] of each distribution of a nest, by random numbers that XLA draws too.

    So it is for normal distributions with independent dimensions, also those of `tanh_normal`.
    Others draw by themselves, other numbers in XLA than without.
    """
    return tf.nest.map_structure(lambda distribution: _sample(distribution, draws, sample_shape), distributions)


def _sample(distribution: tfp.distributions.Distribution, draws: Draws, sample_shape: Sequence[int]) -> tf.Tensor:
    if isinstance(distribution, own_heads.ByNumbers):
        return _sample(distribution.inner, draws, sample_shape)
    if isinstance(distribution, distribution_utils.SquashToSpecNormal):
        # By the bijector, which remembers what it squashed for the log-probabilities.
        bijector = distribution._squashed_distribution.bijector
        return bijector.forward(_sample(distribution.input_distribution, draws, sample_shape))
    if type(distribution) in _NORMAL:
        mean, deviation = distribution.mean(), distribution.stddev()
        shape = tf.concat([np.array(sample_shape, np.int32), tf.shape(mean)], axis=0)
        return mean + deviation * tf.cast(draws.normal(shape), mean.dtype)
    return distribution.sample(sample_shape, seed=draws.seed())


def entropy(distributions: Any, outer_rank: int, draws: Draws) -> tf.Tensor:
    """Returns the entropy of a nest of distributions [nats], float32 of the outer dimensions.

    Of one without a formula, it is estimated by an action that is drawn, and so is its gradient.
    """

    def of_one(distribution: tfp.distributions.Distribution) -> tf.Tensor:
        try:
            return distribution.entropy()
        except NotImplementedError:
            action = _sample(distribution, draws, ())
            if distribution.reparameterization_type == tfp.distributions.FULLY_REPARAMETERIZED:
                return -distribution.log_prob(action)
            # The draw has no gradient: that of the mean is the mean of -log p times the gradient of log p.
            log_prob = distribution.log_prob(tf.stop_gradient(action))
            known = tf.stop_gradient(log_prob)
            return -known * (1 + log_prob - known)

    return _summed(map(of_one, tf.nest.flatten(distributions)), outer_rank)


def divergence(before: Any, after: Any, outer_rank: int, draws: Draws) -> tf.Tensor:
    """Returns KL(before | after) of two nests of distributions [nats], float32 of the outer dimensions.

    Of one without a formula, it is estimated by an action that is drawn from the first: without a
    bias, and never below 0 (r - 1 - log r, of the ratio r of the second's probability to the
    first's).
    """

    def of_two(first: tfp.distributions.Distribution, second: tfp.distributions.Distribution) -> tf.Tensor:
        try:
            return first.kl_divergence(second)
        except NotImplementedError:
            action = tf.stop_gradient(_sample(first, draws, ()))
            log_ratio = second.log_prob(action) - first.log_prob(action)
            return tf.math.expm1(log_ratio) - log_ratio

    return _summed(map(of_two, tf.nest.flatten(before), tf.nest.flatten(after)), outer_rank)


def _summed(parts: Iterable[tf.Tensor], outer_rank: int) -> tf.Tensor:
    return tf.add_n([tf.reduce_sum(part, axis=list(range(outer_rank, part.shape.rank))) for part in parts])


class _Float32Inputs:
    """Casts a projection's inputs to float32, whatever the encoder's precision."""

    def call(self, inputs: tf.Tensor, outer_rank: int, training: bool = False, mask: tf.Tensor | None = None) -> Any:
        """See `DistributionNetwork.call`."""
        return super().call(tf.cast(inputs, tf.float32), outer_rank, training, mask)  # type: ignore[misc]


class _Normal(_Float32Inputs, normal_projection_network.NormalProjectionNetwork):
    pass


class _TanhNormal(_Float32Inputs, tanh_normal_projection_network.TanhNormalProjectionNetwork):
    pass


def normal(action_spec: types.BoundedTensorSpec, deviation: float = INITIAL_DEVIATION) -> network.Network:
    """Makes a normal distribution of an action in [-1, 1], with a mean within the bounds.

    Args:
      action_spec: the action's spec.
      deviation: the initial deviation, in the unit of `action_spec`.
    """
    return _Normal(action_spec, std_bias_initializer_value=np.log(np.expm1(deviation)), name='NormalProjectionNetwork')


def noise_of(
    action_spec: types.NestedTensorSpec,
    initial_deviation: float | None,
    state_dependent_noise: state_dependent.StateDependentNoise | None = None,
    make_head: own_heads.MakeHead | None = None,
) -> state_dependent.StateDependentNoise | float:
    """Returns what `projections` takes of the arguments of `make_agent`, of which one may be set.

    Raises:
      ValueError: if both are, or one with a head of one's own, or there is an initial deviation of no
        float action.
    """
    check_no_head(make_head, initial_deviation=initial_deviation, state_dependent_noise=state_dependent_noise)
    if initial_deviation is not None and not any(leaf.dtype.is_floating for leaf in tf.nest.flatten(action_spec)):
        raise UserValueError(
            f'got initial_deviation={initial_deviation:g} for the action {action_spec}; need floats for it; set it to '
            'None'
        )
    if state_dependent_noise and initial_deviation is not None:
        raise UserValueError(
            f'got initial_deviation={initial_deviation:g} with state_dependent_noise, which has one of its own; need '
            'one of them; set StateDependentNoise.initial_deviation'
        )
    return state_dependent_noise or initial_deviation or INITIAL_DEVIATION


def check_no_head(make_head: own_heads.MakeHead | None, **others: Any) -> None:
    """Raises ValueError if there is a head of one's own and another argument of the distribution."""
    for name, value in others.items():
        if make_head and value is not None:
            raise UserValueError(f'got NetworkOptions.make_head with {name}; need one of them; remove {name}')


def tanh_normal(action_spec: types.BoundedTensorSpec) -> network.Network:
    """Makes a normal distribution that tanh squashes into the bounds, with a log deviation within [-20, 2]."""
    return _TanhNormal(action_spec, std_transform=sac_agent.std_clip_transform, name='TanhNormalProjectionNetwork')


class _Categorical(network.DistributionNetwork):
    """Categorical distributions of one number of choices. (TF-Agents' own class fails with NumPy 2.)"""

    def __init__(self, sample_spec: types.BoundedTensorSpec, name: str = 'CategoricalProjectionNetwork'):
        """Takes the spec of integers counted from 0, with one maximum."""
        shape = (*sample_spec.shape, int(np.max(sample_spec.maximum)) + 1)
        parameters = {'logits': tensor_spec.TensorSpec(shape, tf.float32, f'{name}_logits')}
        output_spec = distribution_spec.DistributionSpec(
            tfp.distributions.Categorical, parameters, sample_spec=sample_spec, dtype=sample_spec.dtype
        )
        super().__init__(input_tensor_spec=None, state_spec=(), output_spec=output_spec, name=name)
        self._output_shape = shape
        self._projection_layer = tf.keras.layers.Dense(
            int(np.prod(shape)),
            kernel_initializer=tf.compat.v1.keras.initializers.VarianceScaling(0.1),
            name='logits',
        )

    def call(self, inputs: tf.Tensor, outer_rank: int, training: bool = False, mask: None = None) -> Any:
        """See `DistributionNetwork.call`."""
        del mask
        batch_squash = utils.BatchSquash(outer_rank)
        logits = self._projection_layer(tf.cast(batch_squash.flatten(inputs), tf.float32), training=training)
        logits = batch_squash.unflatten(tf.reshape(logits, [-1, *self._output_shape]))
        return self.output_spec.build_distribution(logits=logits), ()


class _MultiCategorical(_Categorical):
    """Categorical distributions of several numbers of choices: each has the logits of the largest, some impossible."""

    def __init__(self, sample_spec: types.BoundedTensorSpec, name: str = 'MultiCategoricalProjectionNetwork'):
        """Takes the spec of integers counted from 0."""
        sizes = np.broadcast_to(np.asarray(sample_spec.maximum) + 1, sample_spec.shape)
        largest = tensor_spec.BoundedTensorSpec(
            sample_spec.shape, sample_spec.dtype, 0, sizes.max() - 1, sample_spec.name
        )
        super().__init__(largest, name=name)
        choices = np.arange(sizes.max()) < sizes[..., np.newaxis]  # bool [*shape, largest]
        # The place of each choice in a mask, which has the possible ones only; the impossible ones
        # follow it.
        self._num_choices = int(sizes.sum())
        self._places = np.where(choices, np.cumsum(choices).reshape(choices.shape) - 1, self._num_choices)

    def call(self, inputs: tf.Tensor, outer_rank: int, training: bool = False, mask: tf.Tensor | None = None) -> Any:
        """See `DistributionNetwork.call`. Takes a mask bool [..., number of choices], as of `ActionMask`."""
        distribution, state = super().call(inputs, outer_rank, training)
        if mask is None:
            mask = tf.ones([self._num_choices], tf.bool)
        mask = tf.concat([mask, tf.zeros_like(mask[..., :1])], axis=-1)
        logits = tf.where(tf.gather(mask, self._places, axis=-1), distribution.logits, _IMPOSSIBLE)
        return self.output_spec.build_distribution(logits=logits), state


class _Logits(_MultiCategorical):
    """Categorical distributions of logits [..., number of choices] that a network of one's own computed."""

    def call(self, inputs: tf.Tensor, outer_rank: int, training: bool = False, mask: tf.Tensor | None = None) -> Any:
        """See `_MultiCategorical.call`."""
        if mask is not None:
            inputs = tf.where(mask, inputs, _IMPOSSIBLE)
        padded = tf.concat([inputs, tf.fill(tf.shape(inputs[..., :1]), _IMPOSSIBLE)], axis=-1)
        return self.output_spec.build_distribution(logits=tf.gather(padded, self._places, axis=-1)), ()


def num_choices(action_spec: types.NestedTensorSpec) -> int | None:
    """Returns the number of choices of all integers of an action; None for a nest or floats."""
    if tf.nest.is_nested(action_spec) or not tensor_spec.is_discrete(action_spec):
        return None
    return int((np.broadcast_to(np.asarray(action_spec.maximum), action_spec.shape) + 1).sum())


def of_logits(action_spec: types.BoundedTensorSpec) -> network.Network:
    """Makes a network without weights: logits [..., `num_choices`] -> distribution of the action, float32."""
    return made_in_float32(_Logits)(action_spec)


def categorical(action_spec: types.BoundedTensorSpec, masked: bool = False) -> network.Network:
    """Makes a categorical distribution of each integer of an action, all counted from 0; `masked` takes a mask."""
    if masked or np.unique(action_spec.maximum).size > 1:
        return _MultiCategorical(action_spec)
    return _Categorical(action_spec)


def projections(
    action_spec: types.NestedTensorSpec,
    masked: bool = False,
    noise: state_dependent.StateDependentNoise | float = INITIAL_DEVIATION,
    make_head: own_heads.MakeHead | None = None,
) -> Any:
    """Makes a network for each tensor of the action: features -> distribution of the tensor, float32.

    Args:
      action_spec: the action's spec.
      masked: whether the network, for integers, takes a mask of legal actions.
      noise: the noise of floats, for their distribution; or the initial deviation of a normal one,
        which does not depend on features.
      make_head: makes the distribution of floats instead; None does not.
    """

    def projection(spec: types.BoundedTensorSpec) -> network.Network:
        if tensor_spec.is_discrete(spec):
            return categorical(spec, masked)
        if make_head:
            return own_heads.Head(spec, make_head)
        if isinstance(noise, state_dependent.StateDependentNoise):
            return state_dependent.Head(spec, noise)
        return normal(spec, noise)

    return tf.nest.map_structure(made_in_float32(projection), action_spec)


def in_float32(layer: tf.keras.layers.Dense) -> tf.keras.layers.Dense:
    """Returns a float32 layer with the settings of `layer`, which has no variables yet."""
    if layer.compute_dtype == 'float32':
        return layer
    return tf.keras.layers.Dense(
        layer.units,
        layer.activation,
        kernel_initializer=layer.kernel_initializer,
        bias_initializer=layer.bias_initializer,
        name=layer.name,
        dtype='float32',
    )


def made_in_float32(make: MakeProjection) -> MakeProjection:
    """Returns `make` with layers that compute in float32."""

    def made(spec: types.BoundedTensorSpec) -> Any:
        before = tf.keras.mixed_precision.global_policy()
        tf.keras.mixed_precision.set_global_policy('float32')
        try:
            return make(spec)
        finally:
            tf.keras.mixed_precision.set_global_policy(before)

    return made
