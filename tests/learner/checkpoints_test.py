import pytest
import tensorflow as tf

from tflearn.learner.checkpoints import Checkpoints


def _objects(value=0.0, units=3):
    return {'a': tf.Variable(tf.fill((units,), value)), 'step': tf.Variable(0, dtype=tf.int64)}


def test_newest_comes_back(tmp_path):
    saver = Checkpoints(tmp_path, objects := _objects(1.0))
    assert saver.restore_newest() is None
    saver.save(5)
    objects['a'].assign(tf.fill((3,), 2.0))
    saver.save(9)
    restored = _objects()
    path = Checkpoints(tmp_path, restored).restore_newest()
    assert path == str(tmp_path / 'ckpt-9')
    assert restored['a'].numpy().tolist() == [2.0] * 3


def test_a_damaged_newest_is_passed_over(tmp_path):
    saver = Checkpoints(tmp_path, objects := _objects(1.0))
    saver.save(5)
    objects['a'].assign(tf.fill((3,), 2.0))
    saver.save(9)
    (tmp_path / 'ckpt-9.data-00000-of-00001').write_bytes(b'')
    restored = _objects()
    assert Checkpoints(tmp_path, restored).restore_newest() == str(tmp_path / 'ckpt-5')
    assert restored['a'].numpy().tolist() == [1.0] * 3


@pytest.mark.parametrize('damage', ['ckpt-5.index', 'ckpt-5.data-00000-of-00001'])
def test_only_damaged_ones_is_an_error(tmp_path, damage):
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
def test_what_does_not_fit_is_named_and_nothing_is_touched(tmp_path, objects, message):
    Checkpoints(tmp_path, _objects(7.0)).save(5)
    files = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    before = {name: variable.numpy().tolist() for name, variable in objects.items()}
    with pytest.raises(ValueError, match=message):
        Checkpoints(tmp_path, objects).restore_newest()
    assert {name: variable.numpy().tolist() for name, variable in objects.items()} == before
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == files


@pytest.mark.parametrize('state', [None, '', 'rubbish', 'model_checkpoint_path: "ckpt-5"\n'])
def test_the_newest_is_found_whatever_the_state_file_says(tmp_path, state):
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


def test_old_ones_go(tmp_path):
    saver = Checkpoints(tmp_path, _objects(), max_to_keep=2)
    for step in (1, 2, 3, 4):
        saver.save(step)
    assert sorted(path.name for path in tmp_path.glob('*.index')) == ['ckpt-3.index', 'ckpt-4.index']


def test_none_to_keep():
    with pytest.raises(ValueError, match='max_to_keep=0'):
        Checkpoints('nowhere', {}, max_to_keep=0)
