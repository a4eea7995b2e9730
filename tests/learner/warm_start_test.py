import numpy as np
import pytest
import tensorflow as tf

from tflearn.core import strategies
from tflearn.learner import warm_start
from tflearn.learner.checkpoints import Checkpoints


def _objects(value, units=(2, 3)):
    """Two networks of the same shape, and an optimizer that was used on one of them."""
    agent = tf.Module()
    agent.net, agent.target = tf.Module(), tf.Module()
    for network in (agent.net, agent.target):
        network.layers = [tf.Variable(tf.fill((size,), value + i)) for i, size in enumerate(units)]
    agent.optimizer = tf.keras.optimizers.legacy.Adam(1.0)
    layers = agent.net.layers
    agent.optimizer.apply_gradients(
        [(tf.fill((size,), value), layer) for size, layer in zip(units, layers, strict=True)]
    )
    for i, layer in enumerate(layers):
        layer.assign(tf.fill(layer.shape, value + i))
    return {'agent': agent, 'step': tf.Variable(int(value))}


def _values(objects):
    """Everything, by name."""
    agent = objects['agent']
    optimizer = {f'optimizer/{i}': variable for i, variable in enumerate(agent.optimizer.variables())}
    layers = {f'{name}/{i}': layer for name in ('net', 'target') for i, layer in enumerate(getattr(agent, name).layers)}
    return {name: value.numpy().tolist() for name, value in {**optimizer, **layers, 'step': objects['step']}.items()}


@pytest.fixture
def source(tmp_path):
    objects = _objects(5.0)
    checkpoints = Checkpoints(tmp_path, objects)
    checkpoints.save(1)
    objects['agent'].net.layers[0].assign([7.0, 8.0])
    checkpoints.save(2)
    return tmp_path


NET = {'net/0': [7.0, 8.0], 'net/1': [6.0] * 3}
TARGET = {'target/0': [5.0] * 2, 'target/1': [6.0] * 3}
TARGET_AS_NET = {'target/0': [7.0, 8.0], 'target/1': [6.0] * 3}


@pytest.mark.parametrize(
    ('prefixes', 'changed'),
    [
        (['agent/net'], NET),
        (['agent/net/layers/1'], {'net/1': [6.0] * 3}),
        (['agent'], NET | TARGET),
        (['agent/net', 'step'], NET | {'step': 5}),
        ({'agent/target': 'agent/net'}, TARGET_AS_NET),
        (
            {'agent/net': 'agent/net', 'agent/target': 'agent/net'},
            NET | TARGET_AS_NET,
        ),
        ({'agent': 'agent', 'agent/target': 'agent/net'}, NET | TARGET_AS_NET),
    ],
)
def test_loads_only_values_below_the_prefixes(source, prefixes, changed):
    objects = _objects(1.0)
    before = _values(objects)
    names = warm_start.load(source, objects, prefixes)
    assert _values(objects) == before | changed
    assert len(names) == len(changed)


def test_loads_a_given_checkpoint(source):
    objects = _objects(1.0)
    warm_start.load(source / 'ckpt-1', objects, ['agent/net'])
    assert objects['agent'].net.layers[0].numpy().tolist() == [5.0, 5.0]


def test_loads_optimizers_on_request(source):
    objects = _objects(1.0)
    before, other = _values(objects), _values(_objects(5.0))
    warm_start.load(source, objects, ['agent'], optimizers=True)
    assert _values(objects) == before | {name: value for name, value in other.items() if 'optimizer' in name}
    with pytest.raises(ValueError, match='no optimizer is called step here'):
        warm_start.load(source, objects, ['step'], optimizers=True)
    with pytest.raises(ValueError, match='nothing is called agent/optimizer here except for optimizers'):
        warm_start.load(source, objects, ['agent/optimizer'])


def test_loads_mirrored_variables(source):
    strategy = strategies.make('mirrored:2')
    with strategy.scope():
        network = tf.Module()
        network.layers = [tf.Variable(tf.zeros(2)), tf.Variable(tf.zeros(3))]
    warm_start.load(source, {'net': network}, {'net': 'agent/net'})
    for replica in strategy.experimental_local_results(network.layers[0]):
        np.testing.assert_array_equal(replica, [7.0, 8.0])


@pytest.mark.parametrize(
    ('units', 'prefixes', 'message'),
    [
        ((2, 4), ['agent/net'], r'agent/net/layers/1 is float32\[3\] in the checkpoint, .* is float32\[4\] here'),
        ((2, 3, 4), ['agent/net'], r'agent/net/layers/2 is absent in the checkpoint, .* is float32\[4\] here'),
        ((2,), ['agent/net'], r'agent/net/layers/1 is float32\[3\] in the checkpoint, .* is absent here'),
        ((2, 3), ['agent/ne'], 'nothing is called agent/ne here'),
        (
            (2, 3),
            {'agent/net': 'agent/other'},
            r'agent/other/layers/0 is absent in the checkpoint, agent/net/layers/0 is',
        ),
        (
            (2, 3),
            {'step': 'agent/net/layers/0'},
            r'agent/net/layers/0 is float32\[2\] in the checkpoint, step is int32',
        ),
    ],
)
def test_names_differences_and_loads_nothing(source, units, prefixes, message):
    objects = _objects(1.0, units)
    before = _values(objects)
    with pytest.raises(ValueError, match=message):
        warm_start.load(source, objects, prefixes)
    assert _values(objects) == before


def test_rejects_unreadable_checkpoints(source, tmp_path):
    objects = _objects(1.0)
    before = _values(objects)
    (source / 'ckpt-2.data-00000-of-00001').write_bytes(b'')
    with pytest.raises(ValueError, match='ckpt-2, which cannot be read'):
        warm_start.load(source, objects, ['agent/net'])
    with pytest.raises(ValueError, match='ckpt-3, which cannot be read'):
        warm_start.load(source / 'ckpt-3', objects, ['agent/net'])
    with pytest.raises(ValueError, match='need a checkpoint'):
        warm_start.load(tmp_path.parent / tmp_path.name / '..', objects, ['agent/net'])
    assert _values(objects) == before


class Policy(tf.Module):
    """Two layers, whose variables Keras numbers."""

    def __init__(self, first, value=0.0, units=(2, 3)):
        super().__init__()
        names = [f'net/dense_{first + i}/kernel' if first + i else 'net/dense/kernel' for i in range(len(units))]
        values = [tf.fill((size,), value + i) for i, size in enumerate(units)]
        self.model_variables = [tf.Variable(each, name=name) for each, name in zip(values, names, strict=True)]


def saved_policy(directory, **settings):
    tf.saved_model.save(Policy(**settings), str(directory))
    return str(directory)


def test_loads_a_policy_by_the_names_of_its_variables(tmp_path):
    """dense_9 and dense_10 there are dense and dense_1 here: numbers are compared, not texts."""
    path = saved_policy(tmp_path, first=9, value=5.0)
    here, critic = Policy(0).model_variables, tf.Variable(1.0, name='value/bias')
    assert warm_start.load_policy(path, [critic, *reversed(here)]) == ['value/bias:0']
    assert [variable.numpy().tolist() for variable in here] == [[5.0] * 2, [6.0] * 3]
    assert critic.numpy() == 1.0


def test_refuses_a_policy_of_other_networks(tmp_path):
    path = saved_policy(tmp_path, first=0, value=5.0)
    here = Policy(0, units=(2, 4)).model_variables
    with pytest.raises(ValueError, match=r'net/dense/kernel:0 is float32\[3\] there, float32\[4\] here'):
        warm_start.load_policy(path, here)
    assert here[0].numpy().tolist() == [0.0] * 2, 'nothing is loaded'
    with pytest.raises(ValueError, match='net/dense/kernel:0 is there 2 times, here 1 times'):
        warm_start.load_policy(path, here[:1])
    with pytest.raises(ValueError, match='which cannot be read as one'):
        warm_start.load_policy(tmp_path / 'nothing', here)
