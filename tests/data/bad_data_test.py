"""Ten kinds of bad data: each gives one line that names what is wrong, and no trace back."""

import json

import numpy as np
import pytest

from tests.data import data_sets
from tests.data.reader_test import rewrite
from tests.testing import structured
from tflearn.core.errors import UserError
from tflearn.data import columns, conversion
from tflearn.data.reader import Dataset, EpisodeReader
from tflearn.data.shards import find_shards


def values(features, name, dtype):
    return np.frombuffer(features[name].bytes_list.value[0], dtype).copy()


def wrong_spec(directory):
    environment = structured.make_environment('dict of vectors')
    data_sets.write(directory / 'data', 8, environment)
    environment.close()


def truncated_file(directory):
    data_sets.write(directory / 'data', 8)
    (shard,) = find_shards(directory / 'data')
    shard.path.write_bytes(shard.path.read_bytes()[:-9])


def mixed_specs(directory):
    data_sets.write(directory / 'a', 8)
    wrong_spec(directory)


def empty_glob(directory):
    (directory / 'unrelated').mkdir()


def missing_number(directory):
    def spoil(features):
        rewards = values(features, 'reward', np.float32)
        rewards[0] = np.nan
        features['reward'].bytes_list.value[0] = rewards.tobytes()

    data_sets.write(directory / 'data', 8)
    rewrite(directory / 'data', spoil)


def endless_episode(directory):
    def spoil(features):
        for name, last in (('step_type', 1), ('next_step_type', 1)):
            steps = values(features, name, np.int32)
            steps[-2:] = last
            features[name].bytes_list.value[0] = steps.tobytes()

    data_sets.write(directory / 'data', 8)
    rewrite(directory / 'data', spoil)


def wrong_format(directory):
    (directory / 'data' / 'data').mkdir(parents=True)
    (directory / 'data' / 'data' / 'main_data.hdf5').write_bytes(b'not read')


def unreadable(directory):
    data_sets.write(directory / 'data', 8)
    (shard,) = find_shards(directory / 'data')
    target = shard.path.rename(directory / 'moved')
    shard.path.symlink_to(target.with_name('gone'))


def no_episodes(directory):
    data_sets.write(directory / 'data', 8)
    for shard in find_shards(directory / 'data'):
        shard.path.unlink()


def other_byte_order(directory):
    def spoil(features):
        for name, dtype in (('step_type', np.int32), ('next_step_type', np.int32)):
            features[name].bytes_list.value[0] = values(features, name, dtype).byteswap().tobytes()

    data_sets.write(directory / 'data', 8)
    rewrite(directory / 'data', spoil)


BAD = {
    wrong_spec: r'got the data set .*data with .*; the agent needs observation: float32\[2\]',
    truncated_file: r'got 1 damaged records, the last one in .*\.tfrecord at byte \d+: .*; restore the file, or allow',
    mixed_specs: r'got the data set .*/data with .*; the agent needs',
    empty_glob: r'where no dataset.json is; .*unrelated; need a directory',
    missing_number: r'at byte 0: got reward with numbers that are not finite',
    endless_episode: r'at byte 0: got an episode without an end',
    wrong_format: r'the paths found are .*data; need a directory .* \(tflearn data convert\)',
    unreadable: r'got .*\.tfrecord, which cannot be read \(No such file or directory\)',
    no_episodes: r'got no episodes in .*data; need at least one file',
    other_byte_order: r'at byte 0: got the step types \[0, .*; check that the numbers are little-endian',
}


@pytest.mark.parametrize('spoil', BAD, ids=lambda spoil: spoil.__name__)
def test_one_line_says_what_is_wrong(tmp_path, spoil):
    spoil(tmp_path)
    with pytest.raises(UserError, match=BAD[spoil]) as raised:
        list(EpisodeReader(Dataset([str(tmp_path / '*')]), data_sets.SPEC).episodes())
    assert '\n' not in str(raised.value)


def test_copies_of_mixed_specs_are_refused(tmp_path):
    mixed_specs(tmp_path)
    with pytest.raises(UserError, match='need|needs'):
        conversion.copy(Dataset([str(tmp_path / '*')]), tmp_path / 'copy')


def test_a_byte_order_in_the_description_is_refused(tmp_path):
    data_sets.write(tmp_path, 8)
    file = tmp_path / columns.DESCRIPTION
    file.write_text(json.dumps(json.loads(file.read_text())).replace('float32', '>f4'))
    with pytest.raises(
        UserError, match=r'got the column observation of >f4 in dataset.json; need a dtype of numpy such as float32'
    ):
        EpisodeReader(Dataset([str(tmp_path)]))


@pytest.mark.parametrize('columns_there', [3, [{}], [{'name': 'a', 'dtype': 'float32', 'shape': ['x']}], None])
def test_a_damaged_description_is_named(tmp_path, columns_there):
    data_sets.write(tmp_path, 8)
    file = tmp_path / columns.DESCRIPTION
    file.write_text(json.dumps({**json.loads(file.read_text()), 'columns': columns_there}))
    with pytest.raises(UserError, match=r'dataset.json with (no )?columns.*; need .*; restore the file'):
        columns.read_columns(tmp_path)


@pytest.mark.parametrize('content', [b'\xff', b'a {', b''])
def test_damaged_specs_are_named(tmp_path, content):
    data_sets.write(tmp_path, 8)
    (tmp_path / columns.SPECS).write_bytes(content)
    with pytest.raises(UserError, match='environment_specs.pbtxt, which cannot be read .*; restore it'):
        columns.read_specs(tmp_path)
