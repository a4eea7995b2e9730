"""Snapshots compared with TensorFlow's own checkpoints, value by value."""

import numpy as np
import pytest
import tensorflow as tf

from tflearn.core import strategies
from tflearn.learner.snapshots import CheckpointLayout


class Words(tf.train.experimental.PythonState):
    text = 'before'

    def serialize(self):
        return self.text

    def deserialize(self, string_value):
        self.text = string_value.decode()


def _saved(path):
    reader = tf.train.load_checkpoint(path)
    return {key: reader.get_tensor(key) for key in reader.get_variable_to_shape_map()}


def _assert_equal(path, other):
    ours, theirs = _saved(path), _saved(other)
    assert ours.keys() == theirs.keys()
    for key in ours:
        np.testing.assert_array_equal(ours[key], theirs[key], err_msg=key)


def _model(optimizer):
    """Two layers, an embedding, and an optimizer that has been used."""
    model = tf.Module()
    model.embedding = tf.Variable(tf.random.normal((10, 4)))
    model.kernels = [tf.Variable(tf.random.normal((4, 4))), tf.Variable(tf.random.normal((4, 4)))]
    variables = [model.embedding, *model.kernels]

    def step():
        with tf.GradientTape() as tape:
            value = tf.gather(model.embedding, [1, 5]) @ model.kernels[0] @ model.kernels[1]
            loss = tf.reduce_sum(value**2)
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    step()
    return {'model': model, 'optimizer': optimizer, 'words': Words()}, step


OPTIMIZERS = {
    'keras': lambda: tf.keras.optimizers.Adam(0.1),
    'legacy': lambda: tf.keras.optimizers.legacy.Adam(0.1),
    'v1': lambda: tf.compat.v1.train.AdamOptimizer(0.1),
}


@pytest.mark.parametrize('jit_compile', [False, True])
@pytest.mark.parametrize('optimizer', OPTIMIZERS)
def test_snapshot_equals_tensorflows_checkpoint_despite_later_updates(tmp_path, optimizer, jit_compile):
    objects, step = _model(OPTIMIZERS[optimizer]())
    checkpoint = tf.train.Checkpoint(**objects)
    layout = CheckpointLayout(checkpoint)
    assert layout.unmapped == []
    compiled = tf.function(step, jit_compile=jit_compile)
    compiled()
    expected = checkpoint.write(str(tmp_path / 'expected'))
    snapshot = layout.snapshot()
    for _ in range(5):
        compiled()
    objects['model'].embedding.scatter_nd_update([[1]], [[0.0] * 4])
    objects['words'].text = 'later'
    snapshot.write(str(tmp_path / 'snapshot'))
    _assert_equal(str(tmp_path / 'snapshot'), expected)
    assert not layout.stale()


def test_snapshots_of_agents(tmp_path, make_agent):
    agent = make_agent()
    agent.initialize()
    checkpoint = tf.train.Checkpoint(agent=agent, train_step=agent.train_step_counter)
    layout = CheckpointLayout(checkpoint)
    assert layout.unmapped == []
    layout.snapshot().write(str(tmp_path / 'snapshot'))
    _assert_equal(str(tmp_path / 'snapshot'), checkpoint.write(str(tmp_path / 'expected')))


@pytest.mark.parametrize('optimizer', OPTIMIZERS)
def test_snapshots_of_mirrored_variables(tmp_path, optimizer):
    strategy = strategies.make('mirrored:2')
    on_read, modes = tf.VariableSynchronization.ON_READ, tf.VariableAggregation
    with strategy.scope():
        objects = _used_optimizer(strategy, OPTIMIZERS[optimizer]())
        for mode in (modes.SUM, modes.MEAN, modes.ONLY_FIRST_REPLICA):
            objects[mode.name] = tf.Variable(0.0, synchronization=on_read, aggregation=mode, trainable=False)

        @tf.function
        def count():
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            for mode in (modes.SUM, modes.MEAN, modes.ONLY_FIRST_REPLICA):
                objects[mode.name].assign_add(1.0 + tf.cast(replica, tf.float32))

        strategy.run(count)
    checkpoint = tf.train.Checkpoint(**objects)
    layout = CheckpointLayout(checkpoint)
    assert layout.unmapped == []
    expected = checkpoint.write(str(tmp_path / 'expected'))
    snapshot = layout.snapshot()
    with strategy.scope():
        strategy.run(count)
    snapshot.write(str(tmp_path / 'snapshot'))
    _assert_equal(str(tmp_path / 'snapshot'), expected)
    assert _saved(expected)['SUM/.ATTRIBUTES/VARIABLE_VALUE'] == 3.0


def _used_optimizer(strategy, optimizer):
    """A mirrored variable and an optimizer that has been used."""
    objects = {'kernel': tf.Variable([1.0, 2.0]), 'optimizer': optimizer}

    @tf.function
    def step():
        strategy.run(lambda: optimizer.apply_gradients([(tf.ones(2), objects['kernel'])]))

    step()
    return objects


def test_new_variables_make_the_layout_stale():
    model, optimizer = tf.Module(), tf.compat.v1.train.AdamOptimizer(0.1)
    model.kernel = tf.Variable([1.0])
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
    layout = CheckpointLayout(checkpoint)
    optimizer.apply_gradients([(tf.ones(1), model.kernel)])  # makes the slots
    assert layout.stale()
    layout = CheckpointLayout(checkpoint)
    assert not layout.stale()
    model.kernel = tf.Variable([1.0])
    assert layout.stale()


def test_names_objects_without_a_snapshot():
    table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, -1)
    assert CheckpointLayout(tf.train.Checkpoint(a=tf.Variable(0.0), table=table)).unmapped == ['table']


def test_recognizes_values_of_optimizers():
    objects, _ = _model(tf.keras.optimizers.legacy.Adam(0.1))
    layout = CheckpointLayout(tf.train.Checkpoint(**objects))
    names = set(layout.described)
    assert {name for name in names if not layout.is_optimizers(name)} == {
        'model/embedding',
        'model/kernels/0',
        'model/kernels/1',
        'words',
    }
    assert {'optimizer/beta_1', 'model/kernels/0/.OPTIMIZER_SLOT/optimizer/m'} <= names
