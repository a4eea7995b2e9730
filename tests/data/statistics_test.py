import numpy as np
import pytest

from tests.data import data_sets
from tflearn.core import record_files
from tflearn.data import action_table, columns, conversion, statistics, writer
from tflearn.data.reader import Dataset
from tflearn.data.shards import find_shards


def test_statistics_are_those_of_the_episodes(tmp_path):
    episodes = data_sets.split(data_sets.write(tmp_path / 'data', 60, metadata={'policy': 'random'}))
    found = statistics.Statistics(Dataset([str(tmp_path / 'data')]))
    np.testing.assert_allclose(found.returns, [leaves[-2].sum() for leaves in episodes])
    np.testing.assert_array_equal(found.lengths, [len(leaves[0]) - 1 for leaves in episodes])
    assert found.terminated == 1.0
    text = found.text()
    assert 'policy random' in text
    assert f'{len(episodes)} episodes of {len(episodes)}, {found.lengths.sum()} environment steps' in text
    assert 'observation: float32[2]' in text
    found.draw(tmp_path / 'drawn.png')
    assert (tmp_path / 'drawn.png').read_bytes().startswith(b'\x89PNG')
    for name in ('none/drawn.png', 'drawn.nope'):
        with pytest.raises(ValueError, match='got the picture .*; need the path of a PNG file'):
            found.draw(tmp_path / name)


def test_actions_without_probabilities_and_many_of_them():
    table = action_table.ActionTable({1: 'one'})
    for i in range(40):
        table.add(np.arange(i % 2, 25), np.full(25 - i % 2, 2.0))
    lines = list(table.lines())
    assert lines[1] == '  one: 40, 2, -' and lines[20] == '  20: 40, 2, -'
    assert lines[21:] == [
        '  and 5 more, of at most 40 rows',
        'warning: 1 of 25 actions have fewer than 30 rows (0): their mean rewards are chance; a policy may prefer them '
        'for it',
    ]
    assert list(action_table.ActionTable().lines()) == []


def test_missing_values_are_counted(tmp_path):
    episodes = data_sets.split(data_sets.write(tmp_path / 'whole', 60))
    spoilt = writer.EpisodeWriter(tmp_path / 'data', columns.read_specs(tmp_path / 'whole'))
    observation, reward = 1, 4
    episodes[0][observation][0, 1] = np.nan
    episodes[1][observation][:2] = np.nan
    episodes[2][observation][0, 0] = np.inf
    episodes[3][reward][0] = np.nan
    for leaves in episodes:
        spoilt.write(leaves)
    spoilt.close()
    found = statistics.Statistics(Dataset([str(tmp_path / 'data')]))
    text = found.text()
    assert 'observation: float32[2]  from 0 to' in text
    assert ', 5 missing (NaN), 1 infinite' in text
    assert '1 episodes have no return, since rewards are missing' in text
    assert f'return: mean {np.mean([leaves[reward].sum() for i, leaves in enumerate(episodes) if i != 3]):.4g}' in text
    found.draw(tmp_path / 'drawn.png')
    assert (tmp_path / 'drawn.png').read_bytes().startswith(b'\x89PNG')
    with pytest.raises(RuntimeError, match='got observation with numbers that are not finite'):
        conversion.copy(Dataset([str(tmp_path / 'data')]), tmp_path / 'copy')


def test_copy_joins_and_filters(tmp_path):
    for name in ('a', 'b'):
        data_sets.write(tmp_path / name, 60, seed=ord(name))
    dataset = Dataset([str(tmp_path / name) for name in 'ab'], min_return=2.0)
    kept = statistics.Statistics(dataset)
    assert conversion.copy(dataset, tmp_path / 'c', compress=True) == (len(kept.returns), kept.lengths.sum())
    (shard,) = find_shards(tmp_path / 'c')
    assert shard.path.suffix == '.gz' and shard.episodes == len(kept.returns)
    assert 4 * len([*record_files.read(shard.path, 0, 'GZIP')]) < shard.episodes, 'short episodes share records'
    np.testing.assert_array_equal(statistics.Statistics(Dataset([str(tmp_path / 'c')])).returns, kept.returns)
    with pytest.raises(OSError, match='got the directory .*, which cannot be made'):
        conversion.copy(Dataset([str(tmp_path / 'a')]), tmp_path / ('a' * 300))
    with pytest.raises(ValueError, match=r'got the output .*, which exists'):
        conversion.copy(dataset, tmp_path / 'c')


def test_copy_refuses_other_columns(tmp_path):
    data_sets.write(tmp_path / 'a', 8)
    more = [*columns.read_columns(tmp_path / 'a'), columns.Column('policy_info.value', 'float32', ())]
    writer.EpisodeWriter(tmp_path / 'b', columns.read_specs(tmp_path / 'a'), more).close()
    with pytest.raises(ValueError, match=r'got .*b with policy_info.value: float32\[\], unlike .*; need data'):
        conversion.copy(Dataset([str(tmp_path / '*')]), tmp_path / 'c')
    assert not (tmp_path / 'c').exists()
