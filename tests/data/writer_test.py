"""What a writer writes is complete, and added to what is there."""

import json

import numpy as np
import pytest
import tensorflow as tf

from tests import fakes
from tests.data import data_sets
from tests.testing import structured
from tflearn.core.errors import UserOSError
from tflearn.data import columns, writer
from tflearn.data.reader import Dataset, EpisodeReader
from tflearn.data.shards import find_shards
from tflearn.data.writer import EpisodeRecorder, EpisodeWriter


def test_files_hold_complete_episodes_and_say_so(tmp_path):
    data_sets.write(tmp_path / 'data', num_steps=30, file_bytes=1500)
    shards = find_shards(tmp_path / 'data')
    # Episodes of 3 and of 5 steps, and a boundary row each.
    assert sum(shard.episodes for shard in shards) == 30 // 4 + 30 // 6
    assert sum(shard.steps for shard in shards) == 3 * (30 // 4) + 5 * (30 // 6)
    assert len(shards) > 2
    for shard in shards[:-1]:
        assert 1500 <= shard.path.stat().st_size < 3000


def test_a_writer_continues_and_removes_what_a_killed_one_left(tmp_path):
    data_sets.write(tmp_path, num_steps=8)
    (tmp_path / '.data-00001.tfrecord').write_bytes(b'half')
    (tmp_path / '.other-00000.tfrecord').write_bytes(b'of another writer')
    data_sets.write(tmp_path, num_steps=8)
    assert [(shard.number, shard.episodes) for shard in find_shards(tmp_path)] == [(0, 3), (1, 3)]
    assert sorted(path.name for path in tmp_path.glob('.*')) == ['.other-00000.tfrecord']
    assert EpisodeWriter(tmp_path, fakes.CheckedEnvironment().specs).num_episodes == 6


@pytest.mark.parametrize('rows_together', [1, 2, 64])
def test_a_recorder_writes_long_and_short_episodes_in_the_order_in_which_they_end(tmp_path, monkeypatch, rows_together):
    environment = fakes.CheckedEnvironment((1, 150, 3, 70))
    spec = columns.data_spec(environment.specs)
    row_bytes = 4 * sum(column.num_bytes for column in columns.columns_of(spec))
    monkeypatch.setattr(writer, '_MAX_BYTES', rows_together * row_bytes)
    rows = data_sets.write(tmp_path, num_steps=500, environment=environment)
    expected = data_sets.split(rows)
    found = list(EpisodeReader(Dataset([str(tmp_path)]), spec).episodes())
    assert len(found) == len(expected) == 500 // 2 + 500 // 151 + 500 // 4 + 500 // 71
    for episode, leaves in zip(found, expected, strict=True):
        for array, leaf in zip(tf.nest.flatten(episode), leaves, strict=True):
            np.testing.assert_array_equal(array, leaf)


def test_a_recorder_counts_episodes_that_are_not_written_yet(tmp_path):
    rows = data_sets.write(tmp_path / 'data', num_steps=40)
    made = EpisodeWriter(tmp_path / 'again', fakes.CheckedEnvironment().specs)
    recorder = EpisodeRecorder(made, len(rows[0].step_type))
    for t, row in enumerate(rows):
        recorder(row)
        ended = [len(leaves[0]) - 1 for leaves in data_sets.split(rows[: t + 1])]
        assert (recorder.num_episodes, recorder.num_steps) == (len(ended), sum(ended))
    assert made.num_episodes < recorder.num_episodes
    made.close()
    assert (made.num_episodes, made.num_steps) == (recorder.num_episodes, recorder.num_steps)
    made.close()
    files = [shard.path.read_bytes() for name in ('data', 'again') for shard in find_shards(tmp_path / name)]
    assert len(files) == 2 and files[0] == files[1]


def test_writers_of_other_names_share_a_data_set(tmp_path):
    for name in ('a', 'b'):
        data_sets.write(tmp_path, num_steps=8, name=name)
    assert len(list(EpisodeReader(Dataset([str(tmp_path)])).episodes())) == 6
    with pytest.raises(ValueError, match=r"got name='a/b'; need letters"):
        data_sets.write(tmp_path, name='a/b')


def test_other_columns_are_refused(tmp_path):
    data_sets.write(tmp_path, num_steps=8)
    with pytest.raises(ValueError, match=r'got episodes with observation\.a: float32\[3\].* write to another'):
        data_sets.write(tmp_path, environment=structured.make_environment('dict of vectors'))
    assert sum(shard.episodes for shard in find_shards(tmp_path)) == 3


def test_the_description_is_readable(tmp_path):
    data_sets.write(tmp_path, num_steps=8, metadata={'policy': 'random'})
    described = json.loads((tmp_path / columns.DESCRIPTION).read_text())
    assert described['format'] == 2
    assert {'name': 'observation', 'dtype': 'float32', 'shape': [2]} in described['columns']
    assert columns.read_metadata(tmp_path) == {'policy': 'random'}
    assert columns.read_specs(tmp_path) == fakes.CheckedEnvironment().specs


@pytest.mark.parametrize('name', ['file/x', 'a' * 300, 'loop', 'loop/x'])
def test_a_directory_that_cannot_be_made_is_named(tmp_path, name):
    (tmp_path / 'file').touch()
    (tmp_path / 'loop').symlink_to('loop')
    with pytest.raises(UserOSError, match='got the directory .*, which cannot be made .*; need another path'):
        EpisodeWriter(tmp_path / name, fakes.CheckedEnvironment().specs)
