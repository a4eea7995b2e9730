"""What a writer writes is complete, and added to what is there."""

import json

import pytest

from tests import fakes
from tests.data import data_sets
from tests.testing import structured
from tflearn.data import columns, writer
from tflearn.data.reader import Dataset, EpisodeReader
from tflearn.data.writer import EpisodeWriter
from tflearn.errors import UserOSError


def test_files_hold_complete_episodes_and_say_so(tmp_path):
    data_sets.write(tmp_path / 'data', num_steps=30, file_bytes=1500)
    shards = writer.shards(tmp_path / 'data')
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
    assert [(shard.number, shard.episodes) for shard in writer.shards(tmp_path)] == [(0, 3), (1, 3)]
    assert sorted(path.name for path in tmp_path.glob('.*')) == ['.other-00000.tfrecord']
    assert EpisodeWriter(tmp_path, fakes.CheckedEnvironment().specs).num_episodes == 6


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
    assert sum(shard.episodes for shard in writer.shards(tmp_path)) == 3


def test_the_description_is_readable(tmp_path):
    data_sets.write(tmp_path, num_steps=8, metadata={'policy': 'random'})
    described = json.loads((tmp_path / columns.DESCRIPTION).read_text())
    assert described['format'] == 1
    assert {'name': 'observation', 'dtype': 'float32', 'shape': [2]} in described['columns']
    assert columns.read_metadata(tmp_path) == {'policy': 'random'}
    assert columns.read_specs(tmp_path) == fakes.CheckedEnvironment().specs


@pytest.mark.parametrize('name', ['file/x', 'a' * 300, 'loop', 'loop/x'])
def test_a_directory_that_cannot_be_made_is_named(tmp_path, name):
    (tmp_path / 'file').touch()
    (tmp_path / 'loop').symlink_to('loop')
    with pytest.raises(UserOSError, match='got the directory .*, which cannot be made .*; need another path'):
        EpisodeWriter(tmp_path / name, fakes.CheckedEnvironment().specs)
