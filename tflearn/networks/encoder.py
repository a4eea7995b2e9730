"""Encodes observations for networks: each leaf of the observation by its kind.

  kind        which tensors                                    encoded as
  bytes       uint8 of rank 1 or more (images)                 numbers from 0 to 1; convolutions may follow
  categories  other integers with bounds, uint8 scalars        one-hot vectors; if there are more than ONE_HOT_SIZE
                                                               categories in total, rows of a
                                                               trained table
  numbers     floats, zeros and ones, integers without bounds  unchanged

Bounds that are those of the dtype do not count as bounds. A category out of its bounds is encoded
as zeros, but environments and exported policies reject it before.

The leaves of a nested observation are encoded one by one and then concatenated to one vector
(`NestEncoder`). There, images, bytes or floats [height, width, channels], also pass through
convolutions.

Any leaf can have a Keras layer of one's own instead, by its path (see `types.leaf_paths`).
"""

import itertools
import re
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.networks import network, utils
from tf_agents.typing import types
from tf_agents.utils import nest_utils

from tflearn.core import layout
from tflearn.core.errors import UserValueError
from tflearn.core.types import integer_bounds, is_keras_3, leaf_paths
from tflearn.networks import keras_3

ONE_HOT_SIZE = 1_000
EMBEDDING_SIZE = 64
MAX_CATEGORIES = 100_000
_CHECKED_ROWS = (2, 3)  # of one row a layer may take it all; two numbers, as one may be that of categories
# (filters, kernel size, stride) for an image in a nest, with zeros around it, so that any size
# fits.
CONVOLUTIONS = ((16, 3, 2), (32, 3, 2))

ConvLayerParams = Sequence[tuple[int, int, int]]
Layers = Mapping[str, tf.keras.layers.Layer]  # layers of one's own, by the path of the leaf


class Pixels(tf.keras.layers.Layer):
    """Scales bytes, 0 to 255, to numbers from 0 to 1."""

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Takes uint8 of any shape; returns the layer's compute dtype."""
        return tf.cast(inputs, self.compute_dtype) / 255


class _Categories(tf.keras.layers.Layer):
    """Encodes categories, integers [B, ...], as features [B, num_features].

    Attributes:
      minimum: the first category of each integer.
      sizes: the number of categories of each integer.
    """

    def __init__(self, minimum: Sequence[int], sizes: Sequence[int], **kwargs: Any):
        """Takes the first category and the number of categories of each integer, in row-major order."""
        super().__init__(**kwargs)
        self.minimum, self.sizes = tuple(minimum), tuple(sizes)

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments, since TF-Agents' networks copy their layers."""
        return {**super().get_config(), 'minimum': self.minimum, 'sizes': self.sizes}

    def _indices(self, inputs: tf.Tensor) -> tf.Tensor:
        """Returns int64 [B, number of integers], counted from 0; -1 if out of bounds."""
        flat = tf.cast(tf.reshape(inputs, [-1, len(self.sizes)]), tf.int64)
        counted = flat - tf.constant(self.minimum, tf.int64)
        return tf.where((counted >= 0) & (counted < tf.constant(self.sizes, tf.int64)), counted, -1)


class OneHot(_Categories):
    """Encodes each integer as a one-hot vector; float [B, sum(sizes)]."""

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """See the class."""
        most = max(self.sizes)
        hot = tf.reshape(
            tf.one_hot(self._indices(inputs), most, dtype=self.compute_dtype), [-1, len(self.sizes) * most]
        )
        used = np.flatnonzero(np.arange(most) < np.asarray(self.sizes)[:, np.newaxis])
        return hot if used.size == hot.shape[1] else tf.gather(hot, used, axis=1)

    @classmethod
    def joined(cls, layers: Sequence['OneHot | tf.keras.layers.Layer']) -> 'OneHot | None':
        """Returns one layer for the integers of several, one after the other; None if others are among them."""
        made = [layer for layer in layers if isinstance(layer, OneHot)]
        if len(made) < len(layers):
            return None
        return cls([low for layer in made for low in layer.minimum], [size for layer in made for size in layer.sizes])


class Embedding(_Categories):
    """Encodes each category as a row of a trained table; float [B, number of integers * EMBEDDING_SIZE]."""

    def build(self, input_shape: Any) -> None:
        """Makes the table, float32 [sum(sizes), EMBEDDING_SIZE]."""
        initializer = tf.keras.initializers.RandomNormal(stddev=EMBEDDING_SIZE**-0.5)
        self._table = self.add_weight('table', [sum(self.sizes), EMBEDDING_SIZE], initializer=initializer)
        super().build(input_shape)

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """See the class."""
        indices = self._indices(inputs)
        first_rows = tf.constant(np.cumsum([0, *self.sizes[:-1]]), tf.int64)
        rows = tf.gather(self._table, tf.maximum(indices, 0) + first_rows)
        known = tf.cast(indices >= 0, rows.dtype)[..., tf.newaxis]
        return tf.reshape(rows * known, [-1, len(self.sizes) * EMBEDDING_SIZE])


def compute_dtype() -> tf.DType:
    """Returns the dtype in which layers compute: that of Keras' global policy."""
    return tf.as_dtype(tf.keras.mixed_precision.global_policy().compute_dtype)


def is_categorical(spec: types.TensorSpec) -> bool:
    """Returns whether a leaf of the observation contains categories."""
    if spec.dtype == tf.uint8 and spec.shape.rank:
        return False
    bounds = integer_bounds(spec)
    return bounds is not None and not (np.all(bounds[0] == 0) and np.all(bounds[1] <= 1))


def make_layer(spec: types.TensorSpec) -> tf.keras.layers.Layer | None:
    """Returns the layer that encodes a leaf of the observation; None if it is not encoded.

    Raises:
      ValueError: for more than MAX_CATEGORIES categories.
    """
    if spec.dtype == tf.uint8 and spec.shape.rank:
        return Pixels()
    if not is_categorical(spec):
        return None
    minimum, maximum = integer_bounds(spec)  # type: ignore[misc]
    sizes = [int(high) - int(low) + 1 for low, high in zip(minimum.flat, maximum.flat, strict=True)]  # not of int64
    if sum(sizes) > MAX_CATEGORIES:
        raise UserValueError(
            f'got {sum(sizes)} categories in the observation {spec}; need at most {MAX_CATEGORIES}; if its integers '
            'are quantities, let the environment return floats'
        )
    layer = OneHot if sum(sizes) <= ONE_HOT_SIZE else Embedding
    return layer([int(number) for number in minimum.flat], sizes)


def is_image(spec: types.TensorSpec) -> bool:
    """Returns whether a leaf of the observation is an image [height, width, channels] of bytes or floats."""
    return bool(spec.shape.rank == 3 and (spec.dtype == tf.uint8 or spec.dtype.is_floating))


def network_arguments(
    observation_spec: types.NestedTensorSpec,
    conv_layer_params: ConvLayerParams | None = None,
    layers: Layers | None = None,
) -> dict[str, Any]:
    """Returns the arguments with which a TF-Agents network encodes an observation.

    Args:
      observation_spec: the observation's spec.
      conv_layer_params: convolutions of images; None has none for a single image, and
        `CONVOLUTIONS` in a nest.
      layers: layers of one's own, by the path of the leaf.

    Raises:
      ValueError: for more than MAX_CATEGORIES categories.
    """
    if tf.nest.is_nested(observation_spec):
        joined = NestEncoder(observation_spec, conv_layer_params, layers)
        return {'preprocessing_layers': None, 'preprocessing_combiner': joined, 'conv_layer_params': None}
    own = (layers or {}).get('observation')
    layer = make_layer(observation_spec) if own is None else _copy(own)
    return {'preprocessing_layers': layer, 'preprocessing_combiner': None, 'conv_layer_params': conv_layer_params}


class NestEncoder(tf.keras.layers.Layer):
    """Encodes each leaf of an observation by its kind or by a layer of one's own; joins them to [B, num_features]."""

    def __init__(
        self,
        spec: types.NestedTensorSpec,
        conv_layer_params: ConvLayerParams | None = None,
        layers: Layers | None = None,
        **kwargs: Any,
    ):
        """Copies `layers`, since each network has weights of its own; see `network_arguments` for the arguments."""
        super().__init__(**kwargs)
        if conv_layer_params is None and not tf.nest.is_nested(spec):
            conv_layer_params = ()
        # Not attributes, since Keras would wrap them and track the layers that were given.
        arguments = {'spec': spec, 'conv_layer_params': conv_layer_params, 'layers': layers}
        self._arguments = lambda: arguments
        specs = tf.nest.flatten(spec)
        self._encoders = [
            _copy(layers[path]) if layers and path in layers else self._encoder(leaf, conv_layer_params)
            for path, leaf in zip(leaf_paths(spec), specs, strict=True)
        ]
        # Each operation costs about a microsecond, whatever it does: neighbours of a kind take one
        # for all of them.
        kinds = [_kind(i, leaf, encoder) for i, (leaf, encoder) in enumerate(zip(specs, self._encoders, strict=True))]
        runs = [[i for i, _ in run] for _, run in itertools.groupby(enumerate(kinds), lambda item: item[1])]
        self._runs = lambda: runs
        self._joined = [OneHot.joined([self._encoders[i] for i in run]) if len(run) > 1 else None for run in runs]

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments, since TF-Agents' networks copy their layers."""
        return {**super().get_config(), **self._arguments()}

    def _encoder(self, spec: types.TensorSpec, conv_layer_params: ConvLayerParams | None) -> tf.keras.layers.Layer:
        layer = make_layer(spec)
        if not is_image(spec):
            return layer or tf.keras.layers.Flatten()
        padding = 'same' if conv_layer_params is None else 'valid'
        convolutions = [
            tf.keras.layers.Conv2D(filters, size, stride, padding, activation='relu', kernel_initializer='he_normal')
            for filters, size, stride in (CONVOLUTIONS if conv_layer_params is None else conv_layer_params)
        ]
        return tf.keras.Sequential([*([layer] if layer else []), *convolutions, tf.keras.layers.Flatten()])

    def call(self, inputs: Any) -> tf.Tensor:
        """See the class."""
        leaves, features = tf.nest.flatten(inputs), []
        for run, one_hot in zip(self._runs(), self._joined, strict=True):
            joined = _join([leaves[i] for i in run]) if len(run) > 1 else leaves[run[0]]
            layer = one_hot or self._encoders[run[0]]
            features.append(_flat(joined if isinstance(layer, tf.keras.layers.Flatten) else layer(joined)))
        return layout.concat([tf.cast(leaf, self.compute_dtype) for leaf in features])


def _kind(i: int, spec: types.TensorSpec, layer: tf.keras.layers.Layer) -> tuple[Any, ...]:
    """Returns the same for leaves that one operation can encode together."""
    if isinstance(layer, OneHot):
        return OneHot, spec.dtype, max(layer.sizes)
    return (spec.dtype,) if isinstance(layer, tf.keras.layers.Flatten) and not spec.shape.rank else (i,)


def _join(leaves: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns leaves [B, ...] of one dtype, one after the other: [B, their numbers]."""
    if all(leaf.shape.rank == 1 for leaf in leaves):
        return layout.stack(leaves)
    return tf.concat([_flat(leaf) for leaf in leaves], axis=1)


def _flat(leaf: tf.Tensor) -> tf.Tensor:
    """Returns a leaf [B, ...] as [B, its numbers]."""
    if leaf.shape.rank == 2:
        return leaf
    return tf.reshape(leaf, [tf.shape(leaf)[0], np.prod(leaf.shape[1:], dtype=int)])


def check_layers(observation_spec: types.NestedTensorSpec, layers: Layers) -> None:
    """Checks that layers of one's own exist for leaves of the observation, and take them.

    Raises:
      ValueError: for a path that no leaf has; or naming the leaf and the layer that does not take
        it.
    """
    leaves = dict(zip(leaf_paths(observation_spec), tf.nest.flatten(observation_spec), strict=True))
    for path, layer in layers.items():
        if path not in leaves:
            raise UserValueError(f"got preprocessing_layers for '{path}'; need one of: {', '.join(leaves)}")
        leaf = leaves[path]
        got = f"got the observation '{path}' of shape {leaf.shape}, {leaf.dtype.name} for the layer '{layer.name}'"
        try:
            copied = _copy(layer)
        except (NotImplementedError, TypeError) as error:
            raise UserValueError(
                f"got the layer '{layer.name}' for the observation '{path}', which cannot be copied; need a method "
                "get_config that returns the constructor's arguments, since each network has a layer of its own"
            ) from error
        for rows in _CHECKED_ROWS:
            try:
                features = copied(tf.zeros([rows, *leaf.shape], leaf.dtype))
            except (ValueError, TypeError, NotImplementedError, tf.errors.OpError) as error:
                raise UserValueError(
                    f'{got}, which does not take it; need a layer that does: {_reason(error)}'
                ) from error
            if not (isinstance(features, tf.Tensor) and features.shape[:1] == [rows]):
                raise UserValueError(
                    f'{got}, which returns {getattr(features, "shape", type(features).__name__)} for {rows} of them; '
                    'need a row for each; a scalar may need tf.keras.layers.Reshape((1,)) before it'
                )


def _reason(error: Exception) -> str:
    """Returns the last line of an error of Keras 2 or 3, without its lists of arguments and its colours."""
    text = re.split('(?:Call a|A)rguments received', re.sub('\x1b\\[[0-9;]*m', '', str(error)))[0]
    lines = text.strip().splitlines()
    return lines[-1] if lines else type(error).__name__


def _copy(layer: Any) -> tf.keras.layers.Layer:
    """Returns a new layer with the settings of one of `tf.keras` or of Keras 3."""
    make = lambda: type(layer).from_config(layer.get_config())  # noqa: E731
    return keras_3.Layer(make) if is_keras_3(layer) else make()


# (observation's spec, name) -> a network from observations to features: a model or layer of Keras 2
# or 3, or TF-Agents' network.
MakeNetwork = Callable[[types.NestedTensorSpec, str], Any]
_MADE: weakref.WeakSet[Any] = weakref.WeakSet()  # no two networks of an agent share weights


def check_keras(name: str, value: str, functions: Any, example: str) -> None:
    """Raises ValueError for the name of an activation or initializer that Keras does not have.

    Args:
      name: the setting's name.
      value: its value.
      functions: Keras' module of them.
      example: a name that there is.
    """
    try:
        functions.get(value)
    except (ValueError, TypeError) as error:
        kind = functions.__name__.rpartition('.')[2]
        raise UserValueError(f"got {name}={value!r}; need a name of Keras's {kind}, such as {example!r}") from error


def own_network(
    make_network: MakeNetwork,
    spec: types.NestedTensorSpec,
    name: str,
    with_memory: bool = False,
    num_choices: int | None = None,
) -> network.Network:
    """Makes a network of one's own, and its variables.

    Args:
      make_network: makes it; each call a new one.
      spec: the observation's spec.
      name: the network's name.
      with_memory: whether the network may have a state.
      num_choices: the number of an action's choices, if the network may also return their logits
        and a value.

    Raises:
      ValueError: if it does not take the observation, has a state, or does not return features, a
        vector of floats.
    """
    made = make_network(spec, name)
    if made in _MADE:
        raise UserValueError(f"got the network '{made.name}' twice; need a new one from each call of make_network")
    _MADE.add(made)
    if is_keras_3(made):
        model = made
        made = keras_3.Layer(lambda: model)
    if not isinstance(made, network.Network):
        made = _KerasNetwork(made, spec, name)
    leaves = zip(leaf_paths(spec), tf.nest.flatten(spec), strict=True)
    given = ', '.join(f'{path}: {leaf.dtype.name} {leaf.shape}' for path, leaf in leaves)
    try:
        features = made.create_variables(spec)
    except (ValueError, TypeError, LookupError, AttributeError, tf.errors.OpError) as error:
        raise UserValueError(
            f"got the network '{name}', which does not take the observation ({given}); need one that does: "
            f'{_reason(error)}'
        ) from error
    if not (_is_vector(features) or (num_choices and _are_logits_and_value(features, num_choices))):
        more = f', or a pair of the logits ({num_choices},) of the choices and a value ()' if num_choices else ''
        raise UserValueError(
            f"got the network '{name}', which returns {features} for an observation; need a vector of floats: "
            f'features, from which the agent computes values and actions{more}'
        )
    if made.state_spec and not with_memory:
        raise UserValueError(
            f"got the network '{name}' with the state {made.state_spec}; need one without memory here; choose an "
            'algorithm with memory, such as PPO or R2D2'
        )
    return made


def _is_vector(spec: Any) -> bool:
    return isinstance(spec, tf.TensorSpec) and spec.dtype.is_floating and spec.shape.rank == 1


def _are_logits_and_value(specs: Any, num_choices: int) -> bool:
    if not isinstance(specs, list | tuple) or len(specs) != 2 or not _is_vector(specs[0]):
        return False
    logits, value = specs
    fits = isinstance(value, tf.TensorSpec) and value.dtype.is_floating and value.shape in [(), (1,)]
    return bool(fits and logits.shape == (num_choices,))


class _KerasNetwork(network.Network):
    """A Keras model or layer, which takes one outer dimension, as a network that takes any number of them."""

    def __init__(self, model: tf.keras.layers.Layer, spec: types.NestedTensorSpec, name: str):
        super().__init__(input_tensor_spec=spec, state_spec=(), name=name)
        self._model = model

    def call(self, inputs: Any, step_type: Any = None, network_state: Any = (), training: bool = False) -> Any:
        """See `network.Network.call`."""
        squash = utils.BatchSquash(nest_utils.get_outer_rank(inputs, self.input_tensor_spec))
        flat = tf.nest.map_structure(squash.flatten, inputs)
        features = self._model(flat, training=training)
        return tf.nest.map_structure(squash.unflatten, features), network_state
