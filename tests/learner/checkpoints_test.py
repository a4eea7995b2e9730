import threading

import numpy as np
import pytest
import tensorflow as tf

from tflearn.core import strategies
from tflearn.files.manifests import Manifests
from tflearn.files.numbered import KeepEvery
from tflearn.learner.checkpoints import Checkpoints
from tflearn.learner.snapshots import CheckpointLayout


def _objects(value=0.0, units=3):
    return {'a': tf.Variable(tf.fill((units,), value)), 'step': tf.Variable(0, dtype=tf.int64)}


def test_skips_a_damaged_newest_checkpoint(tmp_path):
    saver = Checkpoints(tmp_path, objects := _objects(1.0))
    saver.save(5)
    objects['a'].assign(tf.fill((3,), 2.0))
    saver.save(9)
    (tmp_path / 'ckpt-9.data-00000-of-00001').write_bytes(b'')
    restored = _objects()
    assert Checkpoints(tmp_path, restored).restore_newest() == str(tmp_path / 'ckpt-5')
    assert restored['a'].numpy().tolist() == [1.0] * 3


@pytest.mark.parametrize('damage', ['ckpt-5.index', 'ckpt-5.data-00000-of-00001'])
def test_rejects_a_directory_of_damaged_checkpoints(tmp_path, damage):
    Checkpoints(tmp_path, _objects()).save(5)
    (tmp_path / damage).write_bytes(b'rubbish')
    with pytest.raises(ValueError, match='only 1 damaged'):
        Checkpoints(tmp_path, _objects()).restore_newest()


@pytest.mark.parametrize(
    ('make_objects', 'message'),
    [
        (lambda: _objects(units=4), r'a is float32\[3\] in the checkpoint, float32\[4\] here'),
        (lambda: _objects() | {'b': tf.Variable(0.0)}, r'b is absent in the checkpoint, float32\[\] here'),
        (lambda: {'step': tf.Variable(0, dtype=tf.int64)}, r'a is float32\[3\] in the checkpoint, absent here'),
        (lambda: _objects() | {'step': tf.Variable(0)}, r'step is int64\[\] in the checkpoint, int32\[\] here'),
    ],
)
def test_names_differences_and_restores_nothing(tmp_path, make_objects, message):
    objects = make_objects()
    Checkpoints(tmp_path, _objects(7.0)).save(5)
    files = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    before = {name: variable.numpy().tolist() for name, variable in objects.items()}
    with pytest.raises(ValueError, match=message):
        Checkpoints(tmp_path, objects).restore_newest()
    assert {name: variable.numpy().tolist() for name, variable in objects.items()} == before
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == files


@pytest.mark.parametrize('state', [None, '', 'rubbish', 'model_checkpoint_path: "ckpt-5"\n'])
def test_finds_the_newest_without_the_state_file(tmp_path, state):
    saver = Checkpoints(tmp_path, objects := _objects(1.0))
    assert saver.restore_newest() is None
    saver.save(5)
    objects['a'].assign(tf.fill((3,), 2.0))
    saver.save(9)
    (tmp_path / 'checkpoint').unlink()
    if state is not None:
        (tmp_path / 'checkpoint').write_text(state)
    restored = _objects()
    assert Checkpoints(tmp_path, restored).restore_newest() == str(tmp_path / 'ckpt-9')
    assert restored['a'].numpy().tolist() == [2.0] * 3


def test_deletes_old_checkpoints(tmp_path):
    saver = Checkpoints(tmp_path, _objects(), max_to_keep=2)
    for step in (1, 2, 3, 4):
        saver.save(step)
    assert sorted(path.name for path in tmp_path.glob('*.index')) == ['ckpt-3.index', 'ckpt-4.index']


def test_optional_objects_may_be_absent_on_either_side(tmp_path, caplog):
    Checkpoints(tmp_path, _objects(7.0) | {'old': tf.Variable(1.0)}).save(5)
    objects = _objects() | {'new': tf.Variable(3.0)}
    with pytest.raises(ValueError, match='new is absent in the checkpoint'):
        Checkpoints(tmp_path, objects, optional=['old']).restore_newest()
    Checkpoints(tmp_path, objects, optional=['old', 'new']).restore_newest()
    assert (objects['a'].numpy().tolist(), objects['new'].numpy()) == ([7.0] * 3, 3.0)
    assert 'has no new' in caplog.text
    wrong = _objects() | {'old': tf.Variable([1.0])}
    with pytest.raises(ValueError, match=r'old is float32\[\] in the checkpoint, float32\[1\] here'):
        Checkpoints(tmp_path, wrong, optional=['old']).restore_newest()


def test_saved_step(tmp_path):
    checkpoints = Checkpoints(tmp_path, _objects())
    assert (checkpoints.saved_step, checkpoints.newest) == (None, None)
    checkpoints.save(5)
    assert (checkpoints.saved_step, checkpoints.newest) == (5, str(tmp_path / 'ckpt-5'))
    restored = Checkpoints(tmp_path, _objects())
    restored.restore_newest()
    assert restored.saved_step == 5


def test_save_after_a_damaged_newest_checkpoint(tmp_path):
    saver = Checkpoints(tmp_path, _objects(), max_to_keep=1, keep_every=KeepEvery(9))
    for step in (5, 9, 20):
        saver.save(step)
    (tmp_path / 'ckpt-20.data-00000-of-00001').write_bytes(b'')
    goes_on = Checkpoints(tmp_path, _objects(), max_to_keep=1, keep_every=KeepEvery(9))
    assert goes_on.restore_newest() == str(tmp_path / 'ckpt-9')
    goes_on.save(12)
    assert sorted(path.name for path in tmp_path.glob('*.index')) == ['ckpt-12.index', 'ckpt-9.index']
    assert Checkpoints(tmp_path, _objects()).restore_newest() == str(tmp_path / 'ckpt-12')


def test_tensorflow_restores_our_checkpoint(tmp_path):
    checkpoints = Checkpoints(tmp_path, _objects(7.0), asynchronous=True)
    checkpoints.save(5)
    checkpoints.wait()
    restored = _objects()
    checkpoint = tf.train.Checkpoint(**restored)
    checkpoint.restore(tf.train.latest_checkpoint(str(tmp_path))).assert_consumed()
    assert restored['a'].numpy().tolist() == [7.0] * 3


def test_restores_tensorflows_checkpoint(tmp_path):
    checkpoint = tf.train.Checkpoint(**_objects(7.0))
    tf.train.CheckpointManager(checkpoint, str(tmp_path), 3).save(checkpoint_number=5)
    restored = _objects()
    assert Checkpoints(tmp_path, restored).restore_newest() == str(tmp_path / 'ckpt-5')
    assert restored['a'].numpy().tolist() == [7.0] * 3


def test_wait_raises_the_error_of_an_asynchronous_save(tmp_path, caplog):
    directory = tmp_path / 'checkpoints'
    checkpoints = Checkpoints(directory, _objects(), asynchronous=True)
    directory.write_text('a file in its place')
    checkpoints.save(5)
    with pytest.raises(OSError, match=r'could not save .*ckpt-5 \('):
        checkpoints.wait()
    assert checkpoints.saved_step is None
    assert 'could not save' in caplog.text
    assert 'checkpoint_writer' not in [thread.name for thread in threading.enumerate()]
    checkpoints.save(6)
    directory.unlink()
    checkpoints.save(7)
    checkpoints.wait()
    assert (checkpoints.saved_step, checkpoints.newest) == (7, str(directory / 'ckpt-7'))


def test_synchronous_save_raises_its_error(tmp_path):
    (tmp_path / 'file').write_text('in its place')
    checkpoints = Checkpoints(tmp_path / 'file', _objects())
    with pytest.raises(OSError, match='could not save'):
        checkpoints.save(5)


def test_saves_objects_without_a_snapshot(tmp_path, caplog):
    table = lambda: tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, -1)  # noqa: E731
    objects = _objects(7.0) | {'table': table()}
    objects['table'].insert(tf.constant([1], tf.int64), tf.constant([10], tf.int64))
    checkpoints = Checkpoints(tmp_path, objects, asynchronous=True)
    checkpoints.save(5)
    objects['table'].insert(tf.constant([1], tf.int64), tf.constant([20], tf.int64))
    checkpoints.save(6)
    assert caplog.text.count('training waits for its checkpoints') == 1
    (tmp_path / 'ckpt-6.index').write_bytes(b'')
    restored = _objects() | {'table': table()}
    assert Checkpoints(tmp_path, restored).restore_newest() == str(tmp_path / 'ckpt-5')
    assert restored['table'].lookup(tf.constant([1], tf.int64)).numpy().tolist() == [10]


def test_refuses_weights_that_are_not_finite(tmp_path, caplog):
    objects = _objects(1.0) | {'mask': tf.Variable([0.0, -np.inf])}
    checkpoints = Checkpoints(tmp_path, objects, finite=('a', 'mask'), asynchronous=True)
    checkpoints.restore_newest()
    checkpoints.save(5)
    checkpoints.wait()
    objects['a'].assign([1.0, np.nan, 1.0])
    checkpoints.save(6)
    with pytest.raises(FloatingPointError, match='at train step 6 .*, in a; .* the newest checkpoint is .*ckpt-5$'):
        checkpoints.wait()
    assert (checkpoints.saved_step, checkpoints.newest) == (None, str(tmp_path / 'ckpt-5'))
    assert 'not finite' in caplog.text
    objects['a'].assign([np.inf, 1.0, 1.0])
    checkpoints.save(7)
    with pytest.raises(FloatingPointError):
        checkpoints.wait()
    objects['a'].assign([2.0, 2.0, 2.0])
    checkpoints.save(8)
    checkpoints.wait()
    assert (checkpoints.refusal, checkpoints.newest) == (None, str(tmp_path / 'ckpt-8'))


def test_restores_what_the_newest_manifest_names(tmp_path, caplog):
    def checkpoints(epoch, objects):
        manifests = Manifests(tmp_path, tmp_path / 'manifests', 'train', epoch)
        return Checkpoints(tmp_path / 'train', objects, manifests=manifests), manifests

    saver, first = checkpoints(1, objects := _objects(1.0))
    assert saver.restore_newest() is None
    saver.save(5)
    objects['a'].assign_add(tf.ones_like(objects['a']))
    saver.save(9)
    assert next(iter(first.whole())).train_step == 9
    first.add('ckpt-5', (tmp_path / 'train').glob('ckpt-5.*'))  # a replay server went back to the pair before
    goes_on, second = checkpoints(2, restored := _objects())
    assert goes_on.restore_newest() == str(tmp_path / 'train' / 'ckpt-5')
    assert (restored['a'].numpy() == _objects(1.0)['a'].numpy()).all()
    assert (tmp_path / 'train' / 'unused' / 'ckpt-9.index').exists()
    assert second.newest_first()[0].parts['train'].epoch == 2
    with pytest.raises(RuntimeError, match='of epoch 1; need epoch 2, which has taken over'):
        saver.save(11)  # the first process comes back
    assert checkpoints(3, _objects())[0].restore_newest() == str(tmp_path / 'train' / 'ckpt-5')


# Snapshots compared with TensorFlow's own checkpoints, value by value.


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
