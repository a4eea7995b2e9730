"""Message passing ignores absent nodes and edges, and the order of nodes and edges."""

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec

from tflearn.networks import graph

NODES = np.random.default_rng(1).normal(size=(1, 5, 3)).astype(np.float32)
MASK = np.array([[1, 1, 1, 1, 0]])
EDGES = np.array([[[0, 1], [1, 2], [4, 0], [-1, -1]]])
SPEC = {
    'graph': {
        'edges': tf.TensorSpec((4, 2), tf.int64),
        'nodes': tf.TensorSpec((5, 3), tf.float32),
        'present': tf.TensorSpec((5,), tf.int8),
        'used': tf.TensorSpec((4,), tf.int8),
    },
    'kind': tensor_spec.BoundedTensorSpec((), tf.int64, 0, 3, 'kind'),
}


@pytest.fixture(scope='module')
def layer():
    made = graph.MessagePassing(units=8, num_rounds=1)
    made([NODES, MASK, EDGES])
    for variable in made.trainable_variables:  # relus that are above 0 show every change
        variable.assign(tf.abs(variable) + 0.1)
    return made


def test_a_round_of_messages_is_the_papers(layer):
    """Written out with loops, for each node and its neighbours."""
    weights = [variable.numpy() for variable in layer.trainable_variables]
    relu = lambda x, i: np.maximum(x @ weights[i] + weights[i + 1], 0)  # noqa: E731
    hidden = relu(NODES[0], 0) * MASK[0][:, np.newaxis]
    neighbours = {0: [1], 1: [0, 2], 2: [1], 3: [], 4: []}
    expected = np.zeros_like(hidden)
    for node, others in neighbours.items():
        sent = [relu(np.concatenate([hidden[other], hidden[node]]), 2) for other in others]
        mean = np.mean(sent, axis=0) if sent else np.zeros(8)
        if MASK[0, node]:
            expected[node] = hidden[node] + relu(np.concatenate([hidden[node], mean]), 4)
    np.testing.assert_allclose(layer([NODES, MASK, EDGES])[0], expected, rtol=1e-4)


def test_absent_nodes_and_edges_do_not_count(layer):
    features = layer([NODES, MASK, EDGES])
    changed = np.where(MASK[..., np.newaxis], NODES, 99.0).astype(np.float32)
    np.testing.assert_allclose(layer([changed, MASK, EDGES]), features)
    np.testing.assert_allclose(layer([NODES, MASK, EDGES, np.array([[1, 1, 1, 0]])]), features)
    without = layer([NODES, MASK, EDGES, np.array([[1, 0, 1, 0]])])
    assert not np.allclose(without[0, 2], features[0, 2]) and np.allclose(without[0, 3], features[0, 3])
    np.testing.assert_allclose(layer([NODES, MASK, EDGES[:, ::-1, ::-1]]), features, rtol=1e-5)
    order = np.array([3, 4, 0, 1, 2])
    indices = np.where(EDGES < 0, -1, np.argsort(order)[EDGES])
    renamed = layer([NODES[:, order], MASK[:, order], indices])
    np.testing.assert_allclose(renamed, features.numpy()[:, order], rtol=1e-5)


def test_each_graph_of_a_batch_has_its_own_edges(layer):
    two = layer([np.repeat(NODES, 2, axis=0), np.repeat(MASK, 2, axis=0), np.concatenate([EDGES, 0 * EDGES])])
    np.testing.assert_allclose(two[0], layer([NODES, MASK, EDGES])[0], rtol=1e-5)
    assert not np.allclose(two[1], two[0])


def test_the_rest_is_joined():
    arguments = ('graph.nodes', 'graph.present', 'graph.edges', 'graph.used')
    model = graph.make_network(SPEC, 'actor', *arguments, units=8, fc_layer_params=(16,))

    def features(kind):
        parts = {'nodes': NODES, 'present': MASK, 'edges': EDGES, 'used': np.ones((1, 4))}
        observation = {'graph': parts, 'kind': np.array([kind])}
        return model(tf.nest.map_structure(lambda value, spec: tf.constant(value, spec.dtype), observation, SPEC))

    assert features(0).shape == (1, 16) and not np.allclose(features(0), features(1))
    kernels = [variable.shape.as_list() for variable in model.trainable_variables]
    assert [8 + 4, 16] in kernels, 'features of the graph and a one-hot vector'


@pytest.mark.parametrize(
    'paths',
    [
        ('graph', 'graph.present', 'graph.edges', None),
        ('graph.nodes', 'kind', 'graph.edges', None),
        ('graph.nodes', 'graph.present', 'graph.nodes', None),
        ('graph.nodes', 'graph.present', 'graph.edges', 'graph.present'),
    ],
)
def test_rejects_parts_of_other_shapes(paths):
    with pytest.raises(ValueError, match=f"^got nodes='{paths[0]}', mask='{paths[1]}', edges=.*; need nodes"):
        graph.make_network(SPEC, 'actor', *paths)
