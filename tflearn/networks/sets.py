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

    Blocks of a Transformer encoder without positions (Vaswani et al. 2017, "Attention Is All You Need", arXiv
    1706.03762), with layer normalization before each part (Xiong et al. 2020, arXiv 2002.04745), and the mean over the
    nodes that are there.
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
        weights = tf.cast(mask, features.dtype)[..., tf.newaxis]
        total = tf.reduce_sum(weights * self._norms[-1](features), axis=1)
        return total / tf.maximum(tf.reduce_sum(weights, axis=1), 1)


class _SetNetwork(tf.keras.Model):
    def __init__(
        self, places: tuple[int, int], attention: SetAttention, rest: NestEncoder | None, last: tf.keras.Sequential
    ):
        super().__init__()
        self._places, self._attention, self._rest, self._last = places, attention, rest, last

    def call(self, inputs: Any) -> tf.Tensor:
        leaves = tf.nest.flatten(inputs)
        features = self._attention([leaves[place] for place in self._places])
        if self._rest is not None:
            rest = self._rest([leaf for i, leaf in enumerate(leaves) if i not in self._places])
            features = tf.concat([features, rest], axis=-1)
        return self._last(features)


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
      ValueError: for a path that the observation does not have, or nodes or a mask of another shape.
    """
    paths, leaves = leaf_paths(spec), dict(zip(leaf_paths(spec), tf.nest.flatten(spec), strict=True))
    node, present = leaves.get(nodes), leaves.get(mask)
    if not node or not present or node.shape.rank != 2 or present.shape != node.shape[:1] or present.dtype.is_floating:
        described = ', '.join(f'{path}: {leaf.dtype.name} {leaf.shape}' for path, leaf in leaves.items())
        raise UserValueError(
            f"got nodes='{nodes}', mask='{mask}' and an observation with {described}; need nodes [N, F], and their "
            'mask [N] of integers or booleans'
        )
    rest = [leaf for path, leaf in leaves.items() if path not in (nodes, mask)]
    return _SetNetwork(
        (paths.index(nodes), paths.index(mask)),
        SetAttention(units, num_heads, num_blocks),
        NestEncoder(rest) if rest else None,
        tf.keras.Sequential([tf.keras.layers.Dense(number, 'relu') for number in fc_layer_params], name=name),
    )
