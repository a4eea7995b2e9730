"""A network over graphs: nodes, edges between them, masks of those that are there, and the rest of the observation."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tf_agents.typing import types

from tflearn.core.errors import UserValueError
from tflearn.core.types import leaf_paths
from tflearn.networks.sets import PartsNetwork, described


class MessagePassing(tf.keras.layers.Layer):
    """Nodes [B, N, F], their mask [B, N] and edges [B, E, 2] -> features of the nodes [B, N, units].

    Gilmer et al. 2017, "Neural Message Passing for Quantum Chemistry" (arXiv 1704.01212, equations
    1 and 2). In each round a node gets the mean of its neighbours' messages, of a layer on the
    features of both, and a layer on its features and that mean is added to its features. Messages
    pass an edge in both directions. The paper has sums, and functions of edges' features, which are
    not here.

    An edge counts if both of its nodes are there, and its mask, if there is one, is not 0. So
    unused rows of a list of edges may hold -1, or any index of an absent node.
    """

    def __init__(self, units: int = 64, num_rounds: int = 2, **kwargs: Any):
        """
        Args:
          units: the size of a node's features.
          num_rounds: the number of edges that a message passes one after the other.
          **kwargs: Keras' arguments of a layer.
        """
        super().__init__(**kwargs)
        self._settings = {'units': units, 'num_rounds': num_rounds}
        self._first = tf.keras.layers.Dense(units, 'relu')
        self._messages = [tf.keras.layers.Dense(units, 'relu') for _ in range(num_rounds)]
        self._updates = [tf.keras.layers.Dense(units, 'relu') for _ in range(num_rounds)]

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return {**super().get_config(), **self._settings}

    def call(self, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
        """See the class. Takes [nodes, mask, edges], or [nodes, mask, edges, mask of the edges [B, E]]."""
        nodes, mask, edges, *edge_mask = inputs
        present = tf.cast(tf.cast(mask, tf.bool), self.compute_dtype)  # [B, N]
        num_nodes = nodes.shape[1]
        edges = tf.cast(edges, tf.int32)
        valid = tf.reduce_all((edges >= 0) & (edges < num_nodes), axis=-1)  # [B, E]
        if edge_mask:
            valid &= tf.cast(edge_mask[0], tf.bool)
        edges = tf.where(valid[..., tf.newaxis], edges, 0)
        both = tf.reduce_prod(tf.gather(present, edges, axis=1, batch_dims=1), axis=-1)
        valid &= both > 0
        source = tf.concat([edges[..., 0], edges[..., 1]], axis=1)  # [B, 2E]: both directions
        target = tf.concat([edges[..., 1], edges[..., 0]], axis=1)
        weights = tf.cast(tf.concat([valid, valid], axis=1), self.compute_dtype)[..., tf.newaxis]
        features = self._first(tf.cast(nodes, self.compute_dtype)) * present[..., tf.newaxis]
        count = tf.maximum(_sum_by_node(weights, target, num_nodes), 1)
        for message, update in zip(self._messages, self._updates, strict=True):
            ends = [tf.gather(features, index, axis=1, batch_dims=1) for index in (source, target)]
            sent = message(tf.concat(ends, axis=-1)) * weights
            received = _sum_by_node(sent, target, num_nodes) / count
            features += update(tf.concat([features, received], axis=-1)) * present[..., tf.newaxis]
        return features


def _sum_by_node(values: tf.Tensor, nodes: tf.Tensor, num_nodes: int) -> tf.Tensor:
    """Returns the sums [B, num_nodes, F] of values [B, M, F] by the indices of their nodes [B, M]."""
    batch_size = tf.shape(values)[0]
    first = tf.range(batch_size)[:, tf.newaxis] * num_nodes
    size = values.shape[-1]
    flat = tf.math.unsorted_segment_sum(
        tf.reshape(values, [-1, size]), tf.reshape(nodes + first, [-1]), batch_size * num_nodes
    )
    return tf.reshape(flat, [batch_size, num_nodes, size])


def make_network(
    spec: types.NestedTensorSpec,
    name: str,
    nodes: str,
    mask: str,
    edges: str,
    edge_mask: str | None = None,
    units: int = 64,
    num_rounds: int = 2,
    fc_layer_params: Sequence[int] = (64,),
) -> tf.keras.Model:
    """Makes a network for `make_network` of any agent: the mean of a graph's nodes, joined with the rest.

    Args:
      nodes: the path of the nodes, [N, F].
      mask: the path of the nodes' mask, integers or booleans [N]: 0 where there is no node.
      edges: the path of the edges, integers [E, 2]: the indices of the two nodes of each.
      edge_mask: the path of the edges' mask, integers or booleans [E]; None counts each edge whose
        nodes are there.
      units: see `MessagePassing`.
      num_rounds: see `MessagePassing`.
      fc_layer_params: units of the fully connected layers after the mean.

    Raises:
      ValueError: for a path that the observation does not have, or parts of another shape.
    """
    leaves = dict(zip(leaf_paths(spec), tf.nest.flatten(spec), strict=True))
    chosen = [nodes, mask, edges, *([edge_mask] if edge_mask else [])]
    if not _fits([leaves.get(path) for path in chosen]):
        raise UserValueError(
            f"got nodes='{nodes}', mask='{mask}', edges='{edges}', edge_mask={edge_mask!r} and an observation with "
            f'{described(spec)}; need nodes [N, F], edges [E, 2] of integers, and masks [N] and [E] of integers or '
            'booleans'
        )
    passing = MessagePassing(units, num_rounds)
    return PartsNetwork(('_passing', passing), spec, chosen, fc_layer_params, name)


def _fits(leaves: Sequence[tf.TensorSpec | None]) -> bool:
    """Returns whether there are nodes, their mask, edges, and a mask of these where one is named, of fitting shapes."""
    found = [leaf for leaf in leaves if leaf is not None]
    if len(found) < len(leaves) or [leaf.shape.rank for leaf in found] != [2, 1, 2, 1][: len(found)]:
        return False
    node, mask, edge, *edge_mask = found
    masks_fit = mask.shape == node.shape[:1] and all(each.shape == edge.shape[:1] for each in edge_mask)
    of_integers = edge.dtype.is_integer and not any(each.dtype.is_floating for each in (mask, *edge_mask))
    return bool(masks_fit and of_integers and edge.shape[1] == 2)
