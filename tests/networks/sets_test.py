"""Attention over sets ignores absent nodes and the order of the others."""

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec

from tflearn.networks import sets

SPEC = {
    'graph': {'nodes': tf.TensorSpec((5, 3), tf.float32), 'present': tf.TensorSpec((5,), tf.int8)},
    'kind': tensor_spec.BoundedTensorSpec((), tf.int64, 0, 3, 'kind'),
}
NODES = np.random.default_rng(1).normal(size=(1, 5, 3)).astype(np.float32)


def test_only_present_nodes_count_whatever_their_order():
    layer = sets.SetAttention(units=8, num_heads=2)
    mask = np.array([[1, 0, 1, 1, 0]])
    features = layer([NODES, mask])
    assert features.shape == (1, 8)
    changed = np.where(mask[..., np.newaxis], NODES, 99.0).astype(np.float32)
    np.testing.assert_allclose(layer([changed, mask]), features, atol=1e-5)
    order = [3, 4, 0, 1, 2]
    np.testing.assert_allclose(layer([NODES[:, order], mask[:, order]]), features, atol=1e-5)
    assert not np.allclose(layer([NODES, np.ones((1, 5))]), features, atol=1e-3)
    assert not layer([NODES, np.zeros((1, 5))]).numpy().any(), 'an empty set has features of zeros'


def test_the_rest_is_joined():
    model = sets.make_network(
        SPEC, 'actor', 'graph.nodes', 'graph.present', units=8, num_heads=2, fc_layer_params=(16,)
    )

    def features(kind):
        mask = tf.ones((1, 5), tf.int8)
        return model({'graph': {'nodes': tf.constant(NODES), 'present': mask}, 'kind': tf.constant([kind], tf.int64)})

    assert features(0).shape == (1, 16)
    assert not np.allclose(features(0), features(1))
    kernels = [variable.shape.as_list() for variable in model.trainable_variables]
    assert [8 + 4, 16] in kernels, 'features of the set and a one-hot vector'


@pytest.mark.parametrize(
    ('nodes', 'mask'), [('graph', 'graph.present'), ('kind', 'graph.present'), ('graph.nodes', 'kind')]
)
def test_rejects_parts_of_other_shapes(nodes, mask):
    with pytest.raises(ValueError, match=f"^got nodes='{nodes}', mask='{mask}' .*; need nodes"):
        sets.make_network(SPEC, 'actor', nodes, mask)


def test_rejects_units_that_heads_do_not_divide():
    with pytest.raises(ValueError, match='got units=6, num_heads=4; need a multiple'):
        sets.SetAttention(units=6)
