"""What was written is read, field by field; what is damaged is skipped and named."""

import gzip
import itertools
import json
import os

import numpy as np
import pytest
import tensorflow as tf

from tests import fakes
from tests.data import data_sets
from tests.testing import forged, structured
from tflearn.data import columns, conversion, writer
from tflearn.data import reader as reader_module
from tflearn.data.reader import Dataset, EpisodeReader, Part
from tflearn.data.shards import find_shards


def read(directory, spec=data_sets.SPEC, **filters):
    return list(EpisodeReader(Dataset([str(directory)], **filters), spec).episodes())


def assert_equal(episodes, wanted):
    assert len(episodes) == len(wanted) > 0
    for episode, leaves in zip(episodes, wanted, strict=True):
        for got, need in zip(tf.nest.flatten(episode), leaves, strict=True):
            assert got.dtype == need.dtype
            np.testing.assert_array_equal(got, need)


@pytest.mark.parametrize('task', [task for task in structured.TASKS if 'masked' not in task])
@pytest.mark.parametrize('compress', [False, True])
def test_round_trip(tmp_path, task, compress):
    environment = structured.make_environment(task, num_environments=3)
    rows = data_sets.write(tmp_path, 20, environment, compress=compress, file_bytes=2000)
    spec = columns.data_spec(columns.read_specs(tmp_path))
    tf.nest.assert_same_structure(spec, columns.data_spec(environment.specs))
    assert_equal(read(tmp_path, spec), data_sets.split(rows))
    environment.close()


def test_episodes_pass_filters(tmp_path):
    rows = data_sets.write(tmp_path, 120)
    returns = sorted(leaves[-2].sum() for leaves in data_sets.split(rows))
    assert len(set(returns)) > 2
    got = sorted(episode.reward.sum() for episode in read(tmp_path, min_return=1.0, max_return=2.0))
    assert got == [value for value in returns if 1 <= value <= 2]
    assert len(read(tmp_path, max_episodes=4)) == 4


def test_several_directories_by_pattern(tmp_path):
    for name in ('b', 'a'):
        data_sets.write(tmp_path / name, 8)
    reader = EpisodeReader(Dataset([str(tmp_path / '*')]), data_sets.SPEC)
    assert [directory.name for directory in reader.directories] == ['a', 'b']
    assert (len(list(reader.episodes())), reader.num_episodes, reader.num_steps) == (6, 6, 2 * (2 * 3 + 5))


def damage(path, offset, value=0xFF):
    data = bytearray(path.read_bytes())
    data[offset] ^= value
    path.write_bytes(bytes(data))


def test_damaged_records_are_skipped_up_to_a_limit(tmp_path, caplog):
    wanted = data_sets.split(data_sets.write(tmp_path, 60))
    (shard,) = find_shards(tmp_path)
    size = shard.path.stat().st_size
    damage(shard.path, size // 2)
    with pytest.raises(RuntimeError, match=rf'got 1 damaged records, the last one in {shard.path} at byte \d+: .*corr'):
        read(tmp_path)
    reader = EpisodeReader(Dataset([str(tmp_path)], max_damaged=1), data_sets.SPEC)
    episodes = list(reader.episodes())
    assert (len(episodes), reader.num_damaged) == (len(wanted) - 1, 1)
    assert f'skipped a damaged record in {shard.path} at byte' in caplog.text
    # Records before it and after it were read.
    np.testing.assert_array_equal(episodes[0].reward, wanted[0][-2])
    np.testing.assert_array_equal(episodes[-1].reward, wanted[-1][-2])


def test_the_end_of_a_truncated_file_is_one_damaged_record(tmp_path):
    wanted = data_sets.split(data_sets.write(tmp_path, 60))
    (shard,) = find_shards(tmp_path)
    shard.path.write_bytes(shard.path.read_bytes()[:-20])
    assert_equal(read(tmp_path, max_damaged=1), wanted[:-1])
    with pytest.raises(RuntimeError, match='got 1 damaged records'):
        read(tmp_path)


def test_a_damaged_compressed_file_ends_there(tmp_path):
    wanted = data_sets.split(data_sets.write(tmp_path, 400, compress=True))
    (shard,) = find_shards(tmp_path)
    data = shard.path.read_bytes()
    shard.path.write_bytes(data[: len(data) // 2])
    with pytest.raises((OSError, EOFError)):
        gzip.decompress(shard.path.read_bytes())
    episodes = read(tmp_path, max_damaged=1)
    assert 0 < len(episodes) < len(wanted)
    assert_equal(episodes, wanted[: len(episodes)])


def rewrite(directory, change):
    """Writes the file again with `change`d features."""
    (shard,) = find_shards(directory)
    examples = [tf.train.Example.FromString(record.numpy()) for record in tf.data.TFRecordDataset(str(shard.path))]
    with tf.io.TFRecordWriter(str(shard.path)) as file:
        for example in examples:
            change(example.features.feature)
            file.write(example.SerializeToString())


def _not_a_number(features):
    values = np.frombuffer(features['reward'].bytes_list.value[0], np.float32).copy()
    values[0] = np.nan
    features['reward'].bytes_list.value[0] = values.tobytes()


def _too_short(features):
    features['action'].bytes_list.value[0] = features['action'].bytes_list.value[0][:-8]


def _without_a_column(features):
    del features['reward']


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        (_not_a_number, 'got reward with numbers that are not finite'),
        (_too_short, 'at byte 0: .*reshape'),
        (_without_a_column, 'at byte 0: got an episode without reward'),
    ],
)
def test_wrong_values_count_as_damage(tmp_path, change, message):
    data_sets.write(tmp_path, 8)
    rewrite(tmp_path, change)
    with pytest.raises(RuntimeError, match=message):
        read(tmp_path)
    reader = EpisodeReader(Dataset([str(tmp_path)], max_damaged=3), data_sets.SPEC)
    assert (list(reader.episodes()), reader.num_damaged) == ([], 3)


def _other_format(directory):
    file = directory / columns.DESCRIPTION
    file.write_text(json.dumps({**json.loads(file.read_text()), 'format': 9}))


def _no_json(directory):
    (directory / columns.DESCRIPTION).write_text('{')


def _no_files(directory):
    for shard in find_shards(directory):
        shard.path.unlink()


@pytest.mark.parametrize(
    ('spoil', 'message'),
    [
        (_other_format, 'of format 9; need one of'),
        (_no_json, 'got a damaged file .*dataset.json'),
        (_no_files, 'got no episodes in '),
    ],
)
def test_wrong_data_sets_are_refused(tmp_path, spoil, message):
    data_sets.write(tmp_path, 8)
    spoil(tmp_path)
    with pytest.raises(ValueError, match=message):
        read(tmp_path)


def test_wrong_paths_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"got Dataset.paths with '.*/no', where no dataset.json is; need a directory"):
        EpisodeReader(Dataset([str(tmp_path / 'no')]))
    with pytest.raises(ValueError, match='which is a URL'):
        EpisodeReader(Dataset(['gs://bucket/data']))
    with pytest.raises(ValueError, match=r"got Dataset.paths='data'; need a list"):
        Dataset('data')


def test_other_columns_than_the_agent_needs_are_refused(tmp_path):
    data_sets.write(tmp_path / 'a', 8)
    environment = structured.make_environment('dict of vectors')
    data_sets.write(tmp_path / 'b', 8, environment)
    environment.close()
    with pytest.raises(ValueError, match=r'/b with .*; the agent needs observation: float32\[2\]'):
        read(tmp_path / '*')


def test_more_columns_than_needed_are_left_out(tmp_path):
    specs = fakes.CheckedEnvironment().specs
    stored = (*columns.columns_of(columns.data_spec(specs)), columns.Column('policy_info.logits', 'float32', (3,)))
    rows = data_sets.split(data_sets.write(tmp_path / 'plain', 8))
    with_info = writer.EpisodeWriter(tmp_path / 'more', specs, stored)
    for leaves in rows:
        with_info.write([*leaves, np.zeros((len(leaves[0]), 3), np.float32)])
    with_info.close()
    assert_equal(read(tmp_path / 'more'), rows)
    assert set(read(tmp_path / 'more', None)[0]) == {column.name for column in stored}


def rows_of(trajectories):
    """The rows of Trajectories [T, ...], as bytes."""
    return [
        b''.join(leaf[t].tobytes() for leaf in tf.nest.flatten(one))
        for one in trajectories
        for t in range(len(one.step_type))
    ]


def own(directory, num_pipelines, **settings):
    """A reader for each input pipeline."""
    dataset = Dataset([str(directory)], **settings)
    return [
        EpisodeReader(dataset, data_sets.SPEC, part=Part(pipeline=i, num_pipelines=num_pipelines))
        for i in range(num_pipelines)
    ]


@pytest.mark.parametrize('num_pipelines', [2, 3])
@pytest.mark.parametrize('file_bytes', [1000, 64 << 20], ids=['by files', 'by episodes'])
def test_parts_are_disjoint_and_together_whole(tmp_path, num_pipelines, file_bytes):
    for seed in range(2):
        data_sets.write(tmp_path / str(seed), 90, seed=seed, file_bytes=file_bytes)
    whole = rows_of(read(tmp_path / '*'))
    parts = [rows_of(reader.episodes()) for reader in own(tmp_path / '*', num_pipelines)]
    assert sorted(itertools.chain(*parts)) == sorted(whole)
    assert max(map(len, parts)) - min(map(len, parts)) < 0.5 * len(whole) / num_pipelines
    for reader, part in zip(own(tmp_path / '*', num_pipelines), parts, strict=True):
        assert rows_of(reader.joined()) == part
        assert reader.num_read == sum(row[0] == 0 for row in part), 'as many as there are FIRST rows'
        assert sorted(rows_of(episodes for _, episodes in reader.shuffled(1, 0))) == sorted(part)


@pytest.mark.parametrize(
    ('settings', 'part'),
    [
        ({}, Part()),
        ({'min_return': 1.0}, Part()),
        ({'max_episodes': 7}, Part()),
        ({}, Part(0.4, validation=True)),
        ({'max_return': 2.0}, Part(0.4, pipeline=1, num_pipelines=2)),
    ],
    ids=['all', 'by return', 'some', 'validation', 'one of two pipelines'],
)
def test_episodes_of_one_record_are_read_like_those_of_their_own(tmp_path, settings, part):
    data_sets.write(tmp_path / 'alone', 120)
    conversion.copy(Dataset([str(tmp_path / 'alone')]), tmp_path / 'together')
    (shard,) = find_shards(tmp_path / 'together')
    assert shard.episodes >= 30 > len(list(tf.data.TFRecordDataset(str(shard.path))))
    alone, together = (
        EpisodeReader(Dataset([str(tmp_path / name)], **settings), data_sets.SPEC, part=part)
        for name in ('alone', 'together')
    )
    found = [record for record, _ in together.records()]
    assert found == [record for record, _ in alone.records()]
    shuffled = lambda reader: (each for _, each in reader.shuffled(0, 0))  # noqa: E731
    for read_all in (EpisodeReader.episodes, EpisodeReader.joined, shuffled):
        assert sorted(rows_of(read_all(together))) == sorted(rows_of(read_all(alone)))
        assert together.num_read == alone.num_read


def test_one_wrong_episode_of_a_record_costs_itself_alone(tmp_path):
    data_sets.write(tmp_path / 'alone', 60)
    conversion.copy(Dataset([str(tmp_path / 'alone')]), tmp_path / 'together')
    rewrite(tmp_path / 'together', _not_a_number)
    for read_all in (EpisodeReader.joined, EpisodeReader.episodes):
        (reader,) = own(tmp_path / 'together', 1, max_damaged=1)
        assert rows_of(read_all(reader)) == rows_of(read(tmp_path / 'alone')[1:])
        assert (reader.num_damaged, reader.num_read) == (1, reader.num_episodes - 1)


@pytest.mark.parametrize('num_pipelines', [1, 2])
def test_a_shuffled_part_goes_on_at_each_position(tmp_path, num_pipelines, monkeypatch):
    monkeypatch.setattr(reader_module, '_MAX_AT_ONCE', 3)
    data_sets.write(tmp_path, 90, file_bytes=1500)
    for reader in own(tmp_path, num_pipelines):
        found = list(reader.shuffled(3, 1))
        assert len(found) > 3
        for number, (position, _) in enumerate(found):
            assert rows_of(each for _, each in reader.shuffled(3, 1, position)) == rows_of(
                each for _, each in found[number + 1 :]
            )
        assert rows_of(each for _, each in found) != rows_of(each for _, each in reader.shuffled(3, 2))


def test_a_damaged_record_among_others_is_skipped_and_named(tmp_path, caplog):
    data_sets.write(tmp_path, 60)
    (shard,) = find_shards(tmp_path)
    wanted = rows_of(read(tmp_path))
    examples = [record.numpy() for record in tf.data.TFRecordDataset(str(shard.path))]
    spoilt = tf.train.Example.FromString(examples[4])
    _not_a_number(spoilt.features.feature)
    with tf.io.TFRecordWriter(str(shard.path)) as file:
        for example in [*examples[:4], spoilt.SerializeToString(), *examples[5:]]:
            file.write(example)
    (reader,) = own(tmp_path, 1, max_damaged=1)
    found = rows_of(episodes for _, episodes in reader.shuffled(0, 0))
    assert set(found) < set(wanted) and (reader.num_damaged, reader.num_read) == (1, len(examples) - 1)
    assert (
        f'skipped a damaged record in {shard.path} at byte {sum(len(one) + 16 for one in examples[:4])}' in caplog.text
    )
    with pytest.raises(RuntimeError, match='got 1 damaged records'):
        list(own(tmp_path, 1)[0].shuffled(0, 0))


@pytest.mark.parametrize('length', [1 << 40, 2**63 - 1, 2**64 - 16])
def test_a_forged_length_is_a_damaged_record(tmp_path, length):
    """Its checksum is right, and TensorFlow would make room for it: a segmentation fault."""
    data_sets.write(tmp_path, 60)
    (shard,) = find_shards(tmp_path)
    shard.path.write_bytes(forged.header(length) + shard.path.read_bytes()[12:])
    with pytest.raises(RuntimeError, match='got 1 damaged records, the last one in .*corrupted: a record of'):
        read(tmp_path)


def test_a_compressed_record_too_large_for_the_memory_is_refused_by_its_length(tmp_path):
    """Of 3 GB of zeros 3 MB are on disk, and TensorFlow looks at a checksum when it has made room for all."""
    data_sets.write(tmp_path, 60, compress=True)
    (shard,) = find_shards(tmp_path)
    with gzip.open(shard.path, 'wb') as file:
        file.write(forged.header(3 * 10**9) + bytes(10**6))
    with pytest.raises(RuntimeError, match='got 1 damaged records.*a record of 3000000000 bytes; need at most'):
        read(tmp_path)


@pytest.mark.parametrize('make', [os.mkfifo, os.mkdir])
def test_what_is_no_file_is_refused(tmp_path, make):
    """To open a named pipe would wait until somebody writes into it."""
    data_sets.write(tmp_path, 60)
    (shard,) = find_shards(tmp_path)
    shard.path.unlink()
    make(shard.path)
    with pytest.raises(OSError, match='which is no regular file; need files of episodes'):
        read(tmp_path)
    shard.path.rename(tmp_path / 'moved')
    (tmp_path / 'dataset.json').unlink()
    make(tmp_path / 'dataset.json')
    with pytest.raises(ValueError, match='which is no regular file; need a JSON object'):
        read(tmp_path)
