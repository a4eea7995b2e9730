"""Noisy layers, whose weights have learned random deviations: exploration that a network learns by itself.

Fortunato et al. 2018, "Noisy Networks for Exploration" (arXiv 1706.10295): y = (mu + sigma * noise)
x, with factorised Gaussian noise (section 3, b). Differs from the paper: each row of a batch has
noise of its own, not the batch one; and a policy's noise stays the same for an episode, as in
Plappert et al. 2018, "Parameter Space Noise for Exploration" (arXiv 1706.01905). Noise that is
drawn in each step averages out within a few: on CartPole the policy that collects then acts like
the greedy one, and stays where that is.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf
from tf_agents.policies import tf_policy
from tf_agents.trajectories import policy_step
from tf_agents.typing import types

from tflearn.core.errors import UserValueError


class Noise(threading.local):
    """Whether the noisy layers that share this object draw noise: within `drawn()` in this thread, else they do not."""

    def __init__(self, sigma: float):
        """`sigma` is the initial deviation sigma_0 times the root of the layer's inputs; 0.5 in the paper.

        Raises:
          ValueError: if it is not above 0.
        """
        if not sigma > 0:
            raise UserValueError(f'got noisy_sigma={sigma!r}; need a number above 0, such as 0.5, or None')
        self.sigma = sigma
        self._normal: Callable[[tf.Tensor], tf.Tensor] | None = None

    @property
    def is_drawn(self) -> bool:
        """Whether the layers have noise."""
        return self._normal is not None

    @contextlib.contextmanager
    def drawn(self, normal: Callable[[tf.Tensor], tf.Tensor]) -> Iterator[None]:
        """The layers have noise in the block: of normal numbers that the function returns for each [B, features]."""
        before, self._normal = self._normal, normal
        try:
            yield
        finally:
            self._normal = before

    def draw(self, features: tf.Tensor) -> tf.Tensor:
        """Returns the factors of the noise of features, the paper's f of normal numbers: float32 of their shape."""
        assert self._normal is not None
        drawn = self._normal(features)
        return tf.sign(drawn) * tf.sqrt(tf.abs(drawn))


class NoisyDense(tf.keras.layers.Layer):
    """Features float32 [B, F] -> float32 [B, units]."""

    def __init__(self, units: int, noise: Noise, activation: str | None = None, name: str | None = None):
        """Takes the number of outputs, what turns noise on, and the name of Keras' activation."""
        super().__init__(dtype='float32', name=name)
        self._units, self._noise = units, noise
        self._activation = tf.keras.activations.get(activation)

    def build(self, input_shape: tf.TensorShape) -> None:
        """Makes mu in U[-1/sqrt(F), 1/sqrt(F)] and sigma = sigma_0 / sqrt(F), for weights and biases."""
        inputs = int(input_shape[-1])
        self.num_normal = inputs + self._units  # numbers of its noise
        bound = inputs**-0.5
        uniform = tf.keras.initializers.RandomUniform
        sigma = tf.keras.initializers.Constant(self._noise.sigma * bound)
        self._kernel = self.add_weight('kernel', (inputs, self._units), initializer=uniform(-bound, bound))
        self._bias = self.add_weight('bias', (self._units,), initializer=uniform(-bound, bound))
        self._kernel_sigma = self.add_weight('kernel_sigma', (inputs, self._units), initializer=sigma)
        self._bias_sigma = self.add_weight('bias_sigma', (self._units,), initializer=sigma)

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """See the class."""
        outputs = inputs @ self._kernel + self._bias
        if self._noise.is_drawn:
            of_inputs, of_outputs = self._noise.draw(inputs), self._noise.draw(outputs)
            # Row by row, (sigma * of_outputs of_inputs^T) x, without a matrix for each row.
            outputs += ((inputs * of_inputs) @ self._kernel_sigma + self._bias_sigma) * of_outputs
        return self._activation(outputs)


class Layers(tf.keras.layers.Layer):
    """Noisy fully connected layers with relu, before a last layer."""

    def __init__(self, units: Sequence[int], noise: Noise, last: tf.keras.layers.Layer):
        """Takes the layers' units and what follows them."""
        super().__init__(dtype='float32', name='noisy')
        self._hidden = [NoisyDense(count, noise, 'relu', f'hidden_{i}') for i, count in enumerate(units)]
        self._last = last

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """See the class."""
        outputs = tf.cast(inputs, tf.float32)
        for layer in self._hidden:
            outputs = layer(outputs)
        return self._last(outputs)


class NoisePolicy(tf_policy.TFPolicy):
    """A policy that acts by another one, without memory, and by noise, which is its state: that of an episode."""

    def __init__(self, policy: tf_policy.TFPolicy, noise_spec: types.NestedTensorSpec, name: str, clip: bool = False):
        """Takes the other policy, the noise's spec, and whether actions are clipped to their bounds."""
        super().__init__(
            policy.time_step_spec,
            policy.action_spec,
            policy_state_spec=noise_spec,
            info_spec=policy.info_spec,
            clip=clip,
            observation_and_action_constraint_splitter=policy.observation_and_action_constraint_splitter,
            name=name,
        )
        self._policy = policy

    def _variables(self) -> Sequence[tf.Variable]:
        variables: Sequence[tf.Variable] = self._policy.variables()
        return variables

    def _get_initial_state(self, batch_size: Any) -> Any:
        # TF-Agents calls this at each first step of an episode too. Floats are normal, integers 0.
        def initial(spec: tf.TensorSpec) -> tf.Tensor:
            shape = [*(() if batch_size is None else (batch_size,)), *spec.shape]
            return tf.random.normal(shape, dtype=spec.dtype) if spec.dtype.is_floating else tf.zeros(shape, spec.dtype)

        return tf.nest.map_structure(initial, self.policy_state_spec)


class NoisyPolicy(NoisePolicy):
    """A policy of networks with noisy layers."""

    def __init__(self, policy: tf_policy.TFPolicy, noise: Noise, network: tf.Module):
        """Takes the policy, its network's noise, and its network."""
        layers = [layer for layer in network.submodules if isinstance(layer, NoisyDense)]
        spec = tf.TensorSpec([sum(layer.num_normal for layer in layers)], tf.float32, 'noise')
        super().__init__(policy, spec, 'noisy_policy')
        self._noise = noise

    def _drawn(self, held: tf.Tensor) -> contextlib.AbstractContextManager[None]:
        taken = 0

        def normal(features: tf.Tensor) -> tf.Tensor:
            nonlocal taken
            begin = taken % held.shape[1]  # a policy may call its network more than once
            taken = begin + features.shape[-1]
            return held[:, begin:taken]

        return self._noise.drawn(normal)

    def _action(self, time_step: Any, policy_state: Any, seed: Any) -> policy_step.PolicyStep:
        with self._drawn(policy_state):
            return self._policy.action(time_step, (), seed)._replace(state=policy_state)

    def _distribution(self, time_step: Any, policy_state: Any) -> policy_step.PolicyStep:
        with self._drawn(policy_state):
            return self._policy.distribution(time_step, ())._replace(state=policy_state)
