"""Columns that are computed from the rewards of an episode."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from tests import fakes
from tests.data import data_sets
from tflearn.agents import bc
from tflearn.data import columns
from tflearn.data.reader import Dataset, EpisodeReader


def spec_with(*names):
    info = {name: tf.TensorSpec((), tf.float32, name) for name in names}
    return data_sets.SPEC._replace(policy_info=info)


def test_returns_of_episodes_are_computed_when_they_are_read(tmp_path):
    data_sets.write(tmp_path, 40, fakes.CheckedEnvironment((3, 5, 7)))
    names = ('episode_return', 'return_to_go')
    assert tuple(f'policy_info.{name}' for name in names) == tuple(column.name for column in columns.DERIVED)
    assert names == bc.EPISODE_WEIGHTS
    episodes = list(EpisodeReader(Dataset([str(tmp_path)]), spec_with(*names)).episodes())
    assert len(episodes) > 10
    totals = set()
    for episode in episodes:
        rewards = episode.reward.astype(np.float64)
        assert episode.step_type[-1] == 2
        np.testing.assert_array_equal(episode.policy_info['episode_return'], [rewards.sum()] * len(rewards))
        expected = [rewards[t:].sum() for t in range(len(rewards))]
        np.testing.assert_array_equal(episode.policy_info['return_to_go'], expected)
        totals.add(rewards.sum())
    assert len(totals) > 2
    plain = next(EpisodeReader(Dataset([str(tmp_path)]), data_sets.SPEC).episodes())
    np.testing.assert_array_equal(plain.reward, episodes[0].reward)


def test_several_rewards_are_added_and_a_reward_after_the_end_does_not_count():
    names = {'step_type': (), 'reward.a': (), 'reward.b': (2,)}
    kinds = {name: columns.Column(name, 'float32', shape) for name, shape in names.items()}
    episode = {
        kinds['step_type']: np.int32([0, 1, 2]),
        kinds['reward.a']: np.float32([1, 2, 50]),
        kinds['reward.b']: np.float32([[1, 1], [0, 3], [9, 9]]),
    }
    total, to_go = (columns.derive(column, episode) for column in columns.DERIVED)
    np.testing.assert_array_equal(total, np.float32([8, 8, 8]))
    np.testing.assert_array_equal(to_go, np.float32([8, 5, 0]))
    assert total.dtype == to_go.dtype == np.float32


def test_other_columns_that_files_lack_are_refused(tmp_path):
    data_sets.write(tmp_path, 20)
    with pytest.raises(ValueError, match=r'the agent needs policy_info\.quality: float32\[\]'):
        EpisodeReader(Dataset([str(tmp_path)]), spec_with('quality'))
    with pytest.raises(ValueError, match=r'policy_info\.policy_state: .*; set Slicing.store_policy_state=False, since'):
        EpisodeReader(Dataset([str(tmp_path)]), spec_with('policy_state'))
    other = dataclasses.replace(columns.DERIVED[0], dtype='float64')
    assert other not in columns.DERIVED
