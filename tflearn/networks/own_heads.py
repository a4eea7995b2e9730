"""Distributions of actions for `NetworkOptions.make_head`: beta, squashed normal, mixtures; and what takes one's own.

    network = NetworkOptions(make_head=own_heads.beta)
    make_agent = functools.partial(ppo.make_agent, network=network)

What makes a head takes the spec of a tensor of floats, in [-1, 1] for the agent whatever the
environment's unit is, and returns how many numbers the last layer computes, and a function that
makes the distribution of them. These numbers are what is stored as the behaviour, and what an
exported policy's distribution has.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from tf_agents.distributions import tanh_bijector_stable
from tf_agents.networks import network, utils
from tf_agents.specs import distribution_spec
from tf_agents.typing import types

from tflearn.core.errors import UserTypeError, UserValueError
from tflearn.core.types import check_call

NUMBERS = 'numbers'  # the parameter of a distribution by numbers
INITIAL_DEVIATION = 0.35  # of an action in [-1, 1]
_EDGE = 1e-6  # of (0, 1), where the density of a beta distribution has no limit

# float32 [..., n] -> a distribution of actions [..., *shape of the spec].
MakeDistribution = Callable[[tf.Tensor], tfp.distributions.Distribution]
MakeHead = Callable[[types.BoundedTensorSpec], tuple[int, MakeDistribution]]


def beta(spec: types.BoundedTensorSpec) -> tuple[int, MakeDistribution]:
    """A beta distribution of each number, within its bounds, which has no mass at them.

    Chou et al. 2017, "Improving Stochastic Policy Gradients in Continuous Control with Deep
    Reinforcement Learning using the Beta Distribution" (ICML), section 4: both parameters are
    softplus + 1, so that there is one mode.
    """

    def distribution(numbers: tf.Tensor) -> tfp.distributions.Distribution:
        # A little more than 1, where there would be no mode.
        concentrations = tf.nn.softplus(_shaped(numbers, spec.shape, 2)) + 1.0001
        shares = tfp.distributions.Independent(_Beta(*tf.unstack(concentrations)), spec.shape.rank)
        return tfp.distributions.TransformedDistribution(shares, tfp.bijectors.Shift(-1.0)(tfp.bijectors.Scale(2.0)))

    return 2 * spec.shape.num_elements(), distribution


class _Beta(tfp.distributions.Beta):
    """Takes numbers at the edges of (0, 1), where float32 rounds to, as the nearest ones within."""

    def _log_prob(self, value: tf.Tensor) -> tf.Tensor:
        return super()._log_prob(tf.clip_by_value(value, _EDGE, 1 - _EDGE))


def squashed_normal(spec: types.BoundedTensorSpec) -> tuple[int, MakeDistribution]:
    """A normal distribution that tanh squashes into the bounds, whose deviations depend on the observation."""

    def distribution(numbers: tf.Tensor) -> tfp.distributions.Distribution:
        loc, raw = tf.unstack(_shaped(numbers, spec.shape, 2))
        return _Squashed(tfp.distributions.Independent(_normal(loc, raw), spec.shape.rank))

    return 2 * spec.shape.num_elements(), distribution


def mixture(spec: types.BoundedTensorSpec, num_components: int = 5) -> tuple[int, MakeDistribution]:
    """A mixture of such normal distributions of the whole tensor: several ways to act in one observation.

    The greedy action is the mode of the likeliest component. The means begin evenly between the
    bounds.

    Args:
      spec: the action's spec.
      num_components: how many there are.

    Raises:
      ValueError: if there is none.
    """
    if num_components < 1:
        raise UserValueError(f'got num_components={num_components}; need at least 1')
    size = spec.shape.num_elements()
    starts = np.linspace(-1.0, 1.0, num_components + 2, dtype=np.float32)[1:-1]
    starts = starts.reshape([-1] + [1] * spec.shape.rank)

    def distribution(numbers: tf.Tensor) -> tfp.distributions.Distribution:
        logits, rest = numbers[..., :num_components], numbers[..., num_components:]
        loc, raw = tf.unstack(_shaped(rest, (num_components, *spec.shape), 2))
        components = tfp.distributions.Independent(_normal(loc + starts, raw), spec.shape.rank)
        made = _Mixture(tfp.distributions.Categorical(logits), components, reparameterize=True)
        return _Squashed(made)

    return num_components * (1 + 2 * size), distribution


class _Mixture(tfp.distributions.MixtureSameFamily):
    def _mode(self) -> tf.Tensor:
        likeliest = tf.argmax(self.mixture_distribution.logits_parameter(), axis=-1)
        modes = self.components_distribution.mean()
        return tf.gather(modes, likeliest, axis=likeliest.shape.rank, batch_dims=likeliest.shape.rank)


class _Squashed(tfp.distributions.TransformedDistribution):
    """A distribution after tanh; its mode is what becomes of the mode before."""

    def __init__(self, distribution: tfp.distributions.Distribution):
        super().__init__(distribution, tanh_bijector_stable.Tanh())

    def _mode(self) -> tf.Tensor:
        return self.bijector.forward(self.distribution.mode())


def _normal(loc: tf.Tensor, raw: tf.Tensor) -> tfp.distributions.Distribution:
    return tfp.distributions.Normal(loc, tf.nn.softplus(raw + np.log(np.expm1(INITIAL_DEVIATION))) + 1e-4)


def _shaped(numbers: tf.Tensor, shape: Sequence[int], count: int) -> tf.Tensor:
    """Returns [count, ..., *shape] of [..., count * size of the shape]."""
    parts = tf.stack(tf.split(numbers, count, axis=-1))
    return tf.reshape(parts, tf.concat([tf.shape(parts)[:-1], shape], axis=0))


class ByNumbers(tfp.distributions.Distribution):
    """A distribution that a function makes of numbers; they are its one parameter.

    Attributes:
      inner: what the function made.
    """

    def __init__(self, numbers: tf.Tensor, make: MakeDistribution, name: str = 'ByNumbers'):
        """Takes float32 [..., n], and the function."""
        self.inner = inner = make(numbers)
        super().__init__(
            inner.dtype,
            inner.reparameterization_type,
            validate_args=False,
            allow_nan_stats=True,
            parameters={NUMBERS: numbers},
            name=name,
        )

    def _batch_shape(self) -> tf.TensorShape:
        return self.inner.batch_shape

    def _event_shape(self) -> tf.TensorShape:
        return self.inner.event_shape

    # Public methods, as SquashToSpecNormal's, which is an inner one too.
    def sample(self, sample_shape: Any = (), seed: Any = None, name: str = 'sample', **_: Any) -> tf.Tensor:
        """See `Distribution`."""
        return self.inner.sample(sample_shape, seed, name)

    def log_prob(self, value: tf.Tensor, name: str = 'log_prob', **_: Any) -> tf.Tensor:
        """See `Distribution`."""
        return self.inner.log_prob(value, name)

    def mode(self, name: str = 'mode', **_: Any) -> tf.Tensor:
        """See `Distribution`."""
        return self.inner.mode(name)

    def entropy(self, name: str = 'entropy', **_: Any) -> tf.Tensor:
        """See `Distribution`."""
        return self.inner.entropy(name)

    def kl_divergence(self, other: 'ByNumbers', name: str = 'kl_divergence') -> tf.Tensor:
        """See `Distribution`."""
        return self.inner.kl_divergence(other.inner, name)


class Head(network.DistributionNetwork):
    """Features -> the distribution of a tensor of floats that a function makes of one layer's numbers."""

    def __init__(self, spec: types.BoundedTensorSpec, make_head: MakeHead):
        """Makes no variables yet.

        Raises:
          ValueError: if the distribution is not of the action, or has no mode.
          TypeError: if `make_head` returns something else.
        """
        check_call('make_head', make_head, 'tflearn.networks.own_heads.beta', 'spec')
        found = make_head(spec)
        if not (isinstance(found, tuple) and len(found) == 2 and isinstance(found[0], int) and callable(found[1])):
            raise UserTypeError(
                f'got {found!r:.100} from make_head; need (n, distribution): how many numbers the last layer computes, '
                'and a function that makes the distribution of them'
            )
        count, make = found
        _check(spec, make, count)
        numbers = {NUMBERS: tf.TensorSpec((count,), tf.float32, NUMBERS)}
        builder = lambda numbers: ByNumbers(numbers, make)  # noqa: E731
        output = distribution_spec.DistributionSpec(builder, numbers, sample_spec=spec)
        super().__init__(None, (), output, 'OwnHead')
        initial = tf.keras.initializers.VarianceScaling(0.1)  # as of other heads
        self._numbers = tf.keras.layers.Dense(count, kernel_initializer=initial, name=NUMBERS, dtype='float32')

    def call(self, inputs: tf.Tensor, outer_rank: int, training: bool = False, mask: None = None) -> Any:
        """See `DistributionNetwork.call`."""
        del mask
        squash = utils.BatchSquash(outer_rank)
        numbers = self._numbers(tf.cast(squash.flatten(inputs), tf.float32), training=training)
        return self.output_spec.build_distribution(numbers=squash.unflatten(numbers)), ()


def check_gradients(make_head: MakeHead, spec: types.BoundedTensorSpec) -> None:
    """Raises ValueError if an action that is drawn has no gradient, by which a critic trains the head."""
    count, make = make_head(spec)
    made = make(tf.zeros((1, count)))
    if made.reparameterization_type != tfp.distributions.FULLY_REPARAMETERIZED:
        raise UserValueError(
            f'got the distribution {type(made).__name__} from make_head, whose draws have no gradient, by which '
            'critics train an actor; need one that is FULLY_REPARAMETERIZED; choose it, or an algorithm such as PPO'
        )


def _check(spec: types.BoundedTensorSpec, make: MakeDistribution, count: int) -> None:
    """Makes a distribution of zeros, and asks it what policies and losses will."""
    made = make(tf.zeros((2, count)))
    if not isinstance(made, tfp.distributions.Distribution):
        raise UserTypeError(f'got {made!r:.100} as the distribution of make_head; need one of TensorFlow Probability')
    kind = type(made).__name__
    try:
        mode, log_prob = made.mode(), made.log_prob(made.sample())
    except NotImplementedError as error:
        raise UserValueError(
            f'got the distribution {kind} from make_head, without a mode, which is the greedy action, or a density; '
            'need both; derive a class from it that has `_mode`'
        ) from error
    if mode.shape != (2, *spec.shape) or mode.dtype != spec.dtype or log_prob.shape[:1] != [2]:
        raise UserValueError(
            f'got a distribution of actions {mode.dtype.name} {mode.shape[1:]} from make_head; need '
            f'{spec.dtype.name} {spec.shape}, as the action is'
        )
