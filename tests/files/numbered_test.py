import os

import pytest
import tensorflow as tf

from tflearn.files.numbered import CheckpointFiles, KeepEvery, Numbered, newest_checkpoint


def test_names_of_one_form_are_numbered(tmp_path):
    kept = Numbered(tmp_path, 'config-{}.gin')
    assert kept.next_path() == tmp_path / 'config-1.gin'
    for middle in ('config-1', 'config-10', 'config-011', 'config-best', '.config-20', 'config-12.gin'):
        (tmp_path / f'{middle}.gin').touch()
    assert kept.numbers() == [1, 10]
    assert kept.next_path() == tmp_path / 'config-11.gin'


def test_a_directory_is_complete_with_all_that_it_needs(tmp_path):
    saved = Numbered(tmp_path, '{:08}', needs=['DONE'])
    for number in (1, 2, 3):
        saved.path(number).mkdir()
    for number in (1, 2):
        (saved.path(number) / 'DONE').touch()
    assert (saved.numbers(), saved.listed(), saved.newest) == ([1, 2], [1, 2, 3], 2)
    saved.prune([2])
    assert [path.name for path in tmp_path.iterdir()] == ['00000002']


def _write(directory, *steps, max_to_keep=2, keep_every_steps=None, damaged=()):
    files = CheckpointFiles(directory, max_to_keep, KeepEvery(keep_every_steps))
    files.damaged.update(damaged)
    for step in steps:
        files.write(step, tf.train.Checkpoint(step=tf.Variable(step)).write)
    return files.numbers()


def test_keeps_the_newest(tmp_path):
    assert _write(tmp_path, 1, 2, 3, 4) == [3, 4]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        'checkpoint',
        'ckpt-3.data-00000-of-00001',
        'ckpt-3.index',
        'ckpt-4.data-00000-of-00001',
        'ckpt-4.index',
    ]
    assert tf.train.latest_checkpoint(str(tmp_path)) == str(tmp_path / 'ckpt-4') == newest_checkpoint(tmp_path)
    assert tf.train.get_checkpoint_state(str(tmp_path)).all_model_checkpoint_paths == [
        str(tmp_path / 'ckpt-3'),
        str(tmp_path / 'ckpt-4'),
    ]


def test_keeps_the_first_of_each_interval(tmp_path):
    steps = range(3, 40, 3)
    expected = [12, 21, 30, 36, 39]
    assert _write(tmp_path / 'one', *steps, keep_every_steps=10) == expected
    for step in steps:  # a new process for each
        kept = _write(tmp_path / 'many', step, keep_every_steps=10)
    assert kept == expected


def test_interval_longer_than_the_run_keeps_no_more(tmp_path):
    assert _write(tmp_path, 1, 2, 3, 4, keep_every_steps=1000) == [3, 4]


def test_keeps_one_of_each_time(tmp_path):
    files = CheckpointFiles(tmp_path, max_to_keep=1, keep_every=KeepEvery(hours=2.0))
    for step in range(8):  # written every 50 minutes
        files.write(step, tf.train.Checkpoint(step=tf.Variable(step)).write)
        os.utime(files.path(step), (1e9 + 3000 * step,) * 2)
    assert files.numbers() == [0, 3, 6, 7]


def test_damaged_checkpoints_do_not_count(tmp_path):
    assert _write(tmp_path, 8, 9, keep_every_steps=9) == [8, 9]
    assert _write(tmp_path, 8, max_to_keep=1, keep_every_steps=9, damaged=[9]) == [8]


def test_keeps_the_checkpoint_just_written(tmp_path):
    assert _write(tmp_path, 100) == [100]
    assert _write(tmp_path, 1, max_to_keep=1) == [1, 100], 'of a run that did not restore'


def test_failed_write_changes_nothing(tmp_path):
    _write(tmp_path, 1, 2)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}

    def fail(prefix):
        tf.io.write_file(prefix + '.data-00000-of-00001', 'half')
        raise OSError('disk full')

    with pytest.raises(OSError, match='disk full'):
        CheckpointFiles(tmp_path, 2).write(2, fail)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_removes_files_of_a_killed_process(tmp_path):
    left = tmp_path / '.writing-ckpt-1.index-0123456789ab-1'  # of another machine, just now
    left.mkdir()
    (left / 'ckpt-1.data-00000-of-00001').write_bytes(b'half')
    (tmp_path / 'ckpt-best.index').write_bytes(b'of somebody else')
    assert _write(tmp_path, 2) == [2]
    assert not left.exists()
    assert (tmp_path / 'ckpt-best.index').exists()


def test_rejects_invalid_arguments(tmp_path):
    with pytest.raises(ValueError, match='max_to_keep=0'):
        CheckpointFiles(tmp_path, 0)
    with pytest.raises(ValueError, match='KeepEvery.steps=0'):
        KeepEvery(0)
    with pytest.raises(ValueError, match='need a checkpoint'):
        newest_checkpoint(tmp_path / 'nowhere')


def test_keeps_what_is_needed_elsewhere(tmp_path):
    files = CheckpointFiles(tmp_path, 1, needed=lambda: [1, 7])
    for step in (1, 2, 3):
        files.write(step, tf.train.Checkpoint(step=tf.Variable(step)).write)
    assert files.numbers() == [1, 3]


def test_sets_a_checkpoint_aside(tmp_path):
    _write(tmp_path, 1, 2)
    files = CheckpointFiles(tmp_path, 2)
    names = {path.name for path in files.files(2)}
    files.set_aside(2)
    assert files.numbers() == [1]
    assert {path.name for path in (tmp_path / 'unused').iterdir()} == names
