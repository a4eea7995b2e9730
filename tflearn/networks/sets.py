"""A network over sets: a varying number of nodes, a mask of those that are there, and the rest of the observation."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tf_agents.typing import types

from tflearn.core.errors import UserValueError
from tflearn.core.types import leaf_paths
from tflearn.networks.encoder import NestEncoder


class SetAttention(tf.keras.layers.Layer):
    """Nodes [B, N, F] and a mask [B, N], 0 where there is none -> features [B, units], whatever the nodes' order.

    Blocks of a Transformer encoder without positions (Vaswani et al. 2017, "Attention Is All You
    Need", arXiv 1706.03762), with layer normalization before each part (Xiong et al. 2020, arXiv
    2002.04745), and the mean over the nodes that are there.
    """

    def __init__(self, units: int = 64, num_heads: int = 4, num_blocks: int = 2, **kwargs: Any):
        """
        Args:
          units: the size of a node's features, a multiple of `num_heads`.
          num_heads: the attention heads of a block.
          num_blocks: the number of blocks.
          **kwargs: Keras' arguments of a layer.
        """
        super().__init__(**kwargs)
        if units % num_heads:
            raise UserValueError(f'got units={units}, num_heads={num_heads}; need a multiple')
        layers = tf.keras.layers
        self._settings = {'units': units, 'num_heads': num_heads, 'num_blocks': num_blocks}
        self._first = layers.Dense(units)
        self._norms = [layers.LayerNormalization() for _ in range(2 * num_blocks + 1)]
        self._attentions = [layers.MultiHeadAttention(num_heads, units // num_heads) for _ in range(num_blocks)]
        self._dense = [
            tf.keras.Sequential([layers.Dense(2 * units, 'relu'), layers.Dense(units)]) for _ in range(num_blocks)
        ]

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return {**super().get_config(), **self._settings}

    def call(self, inputs: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        """See the class."""
        nodes, mask = tf.cast(inputs[0], self.compute_dtype), tf.cast(inputs[1], tf.bool)
        features = self._first(nodes)
        for i, (attention, dense) in enumerate(zip(self._attentions, self._dense, strict=True)):
            normal = self._norms[2 * i](features)
            features += attention(normal, normal, attention_mask=mask[:, tf.newaxis, :])
            features += dense(self._norms[2 * i + 1](features))
        return masked_mean(self._norms[-1](features), mask)


def masked_mean(features: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """Returns the mean [B, F] of features [B, N, F] where the mask [B, N] is not 0."""
    weights = tf.cast(tf.cast(mask, tf.bool), features.dtype)[..., tf.newaxis]
    return tf.reduce_sum(weights * features, axis=1) / tf.maximum(tf.reduce_sum(weights, axis=1), 1)


class PartsNetwork(tf.keras.Model):
    """Features of some parts of an observation, joined with the rest, before fully connected layers."""

    def __init__(
        self,
        name_and_layer: tuple[str, tf.keras.layers.Layer],
        spec: types.NestedTensorSpec,
        chosen: Sequence[str],
        fc_layer_params: Sequence[int],
        name: str,
    ):
        """
        Args:
          name_and_layer: the name in checkpoints, and the parts [B, ...] -> features [B, F], or [B,
            N, F] of nodes, whose mean is taken, of those in the mask, the second part.
          spec: the observation's spec.
          chosen: the paths of the parts.
          fc_layer_params: units of the last layers.
          name: the name of the last layers.
        """
        super().__init__()
        setattr(self, *name_and_layer)  # before what follows, as in the order of the variables
        self._of_parts = lambda: name_and_layer[1]
        paths, leaves = leaf_paths(spec), tf.nest.flatten(spec)
        self._places = tuple(map(paths.index, chosen))
        rest = [leaf for path, leaf in zip(paths, leaves, strict=True) if path not in chosen]
        self._rest = NestEncoder(rest) if rest else None
        self._last = tf.keras.Sequential([tf.keras.layers.Dense(units, 'relu') for units in fc_layer_params], name=name)

    def call(self, inputs: Any) -> tf.Tensor:
        """Takes an observation."""
        leaves = tf.nest.flatten(inputs)
        parts = [leaves[place] for place in self._places]
        features = self._of_parts()(parts)
        if features.shape.rank == 3:
            features = masked_mean(features, parts[1])
        if self._rest is not None:
            rest = self._rest([leaf for i, leaf in enumerate(leaves) if i not in self._places])
            features = tf.concat([features, tf.cast(rest, features.dtype)], axis=-1)
        return self._last(features)


def described(spec: types.NestedTensorSpec) -> str:
    """Returns the parts of an observation for a message."""
    parts = zip(leaf_paths(spec), tf.nest.flatten(spec), strict=True)
    return ', '.join(f'{path}: {leaf.dtype.name} {leaf.shape}' for path, leaf in parts)


def make_network(
    spec: types.NestedTensorSpec,
    name: str,
    nodes: str,
    mask: str,
    units: int = 64,
    num_heads: int = 4,
    num_blocks: int = 2,
    fc_layer_params: Sequence[int] = (64,),
) -> tf.keras.Model:
    """Makes a network for `make_network` of any agent: attention over a set, joined with the rest of the observation.

    Args:
      spec: the observation's spec.
      name: the name of its last layers.
      nodes: the path of the nodes, [N, F].
      mask: the path of the mask, integers or booleans [N]: 0 where there is no node.
      units: see `SetAttention`.
      num_heads: see `SetAttention`.
      num_blocks: see `SetAttention`.
      fc_layer_params: units of the fully connected layers after them.

    Raises:
      ValueError: for a path that the observation does not have, or nodes or a mask of another
        shape.
    """
    leaves = dict(zip(leaf_paths(spec), tf.nest.flatten(spec), strict=True))
    node, present = leaves.get(nodes), leaves.get(mask)
    if not node or not present or node.shape.rank != 2 or present.shape != node.shape[:1] or present.dtype.is_floating:
        raise UserValueError(
            f"got nodes='{nodes}', mask='{mask}' and an observation with {described(spec)}; need nodes [N, F], "
            'and their mask [N] of integers or booleans'
        )
    attention = SetAttention(units, num_heads, num_blocks)
    return PartsNetwork(('_attention', attention), spec, (nodes, mask), fc_layer_params, name)
