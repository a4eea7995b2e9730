import threading

import numpy as np
import pytest
import tensorflow as tf

from tflearn.files.manifests import Manifests
from tflearn.files.numbered import KeepEvery
from tflearn.learner.checkpoints import Checkpoints


def _objects(value=0.0, units=3):
    return {'a': tf.Variable(tf.fill((units,), value)), 'step': tf.Variable(0, dtype=tf.int64)}


def test_restores_newest(tmp_path):
    saver = Checkpoints(tmp_path, objects := _objects(1.0))
    assert saver.restore_newest() is None
    saver.save(5)
    objects['a'].assign(tf.fill((3,), 2.0))
    saver.save(9)
    restored = _objects()
    path = Checkpoints(tmp_path, restored).restore_newest()
    assert path == str(tmp_path / 'ckpt-9')
    assert restored['a'].numpy().tolist() == [2.0] * 3


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
    ('objects', 'message'),
    [
        (_objects(units=4), r'a is float32\[3\] in the checkpoint, float32\[4\] here'),
        (_objects() | {'b': tf.Variable(0.0)}, r'b is absent in the checkpoint, float32\[\] here'),
        ({'step': tf.Variable(0, dtype=tf.int64)}, r'a is float32\[3\] in the checkpoint, absent here'),
        (_objects() | {'step': tf.Variable(0)}, r'step is int64\[\] in the checkpoint, int32\[\] here'),
    ],
)
def test_names_differences_and_restores_nothing(tmp_path, objects, message):
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


def test_rejects_max_to_keep_below_one():
    with pytest.raises(ValueError, match='max_to_keep=0'):
        Checkpoints('nowhere', {}, max_to_keep=0)


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
