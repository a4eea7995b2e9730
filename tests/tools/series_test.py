import pytest
import tensorflow as tf

from tests.testing import forged
from tflearn.core.errors import UserValueError
from tflearn.files.run_dir import RunDir
from tflearn.tools import series


def write(run_dir, job, values, name):
    """Writes an event file with values of one metric by step."""
    writer = tf.summary.create_file_writer(str(run_dir.summaries(job)), filename_suffix=name)
    with writer.as_default():
        for step, value in values.items():
            tf.summary.scalar(f'{job}/loss', value, step)
        tf.summary.text('run/seed', '7', 0)
        tf.summary.histogram('actions', [1.0, 2.0], 0)
    writer.close()


def test_steps_that_were_taken_again_count_once(tmp_path):
    run_dir = RunDir(tmp_path)
    write(run_dir, 'train', {100: 1.0, 200: 2.0, 300: 3.0, 400: float('nan')}, '.first')
    write(run_dir, 'train', {200: 20.0, 250: 25.0}, '.second')
    write(run_dir, 'evaluate', {100: 7.0}, '.one')
    found = series.read(run_dir)
    assert sorted(found) == ['evaluate/loss', 'train/loss']
    assert found['train/loss'].steps.tolist() == [100, 200, 250], '300 is of the course before the restart'
    assert found['train/loss'].values.tolist() == [1.0, 20.0, 25.0]


def test_the_end_of_a_file_that_is_being_written_is_left_out(tmp_path):
    run_dir = RunDir(tmp_path)
    write(run_dir, 'train', {100: 1.0, 200: 2.0}, '.one')
    (file,) = run_dir.summaries('train').iterdir()
    file.write_bytes(file.read_bytes() + b'torn record')
    assert series.read(run_dir)['train/loss'].values.tolist() == [1.0, 2.0]


@pytest.mark.parametrize('length', [1 << 40, 2**63 - 1, 2**64 - 16])
def test_a_forged_length_ends_a_file_as_a_torn_record_does(tmp_path, length):
    """TensorFlow would make room for it: a segmentation fault."""
    run_dir = RunDir(tmp_path)
    new = series.NewScalars(run_dir)
    write(run_dir, 'train', {100: 1.0, 200: 2.0}, '.one')
    (file,) = run_dir.summaries('train').iterdir()
    file.write_bytes(file.read_bytes() + forged.header(length) + b'content')
    assert series.read(run_dir)['train/loss'].values.tolist() == [1.0, 2.0]
    for expected in ([1.0, 2.0], []):
        assert [value for tag, _, value in new() if tag == 'train/loss'] == expected


@pytest.mark.parametrize('kind', ['folder', 'loop', 'other records'])
def test_a_file_that_cannot_be_read_is_named(tmp_path, kind):
    run_dir = RunDir(tmp_path)
    write(run_dir, 'train', {100: 1.0}, '.one')
    (file,) = run_dir.summaries('train').iterdir()
    file.unlink()
    if kind == 'folder':
        file.mkdir()
    elif kind == 'loop':
        file.symlink_to(file.name)
    else:
        with tf.io.TFRecordWriter(str(file)) as writer:
            writer.write(b'no event')
    with pytest.raises(UserValueError, match=f'got {file}, which cannot be read .*; need an event file; remove it'):
        series.read(run_dir)


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(UserValueError, match='which is no directory'):
        series.read(RunDir(tmp_path / 'missing'))
    with pytest.raises(UserValueError, match='without event files'):
        series.read(RunDir(tmp_path))
