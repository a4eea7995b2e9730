"""Batches of a run's own steps and of demonstrations, in shares that change."""

import numpy as np
import pytest
import tensorflow as tf

from tests import fakes
from tests.sampling.episode_rows_test import episode
from tests.testing.replay import BATCH, DATA_SPEC, draw, experience, write_steps
from tflearn.core.train_step import set_env_steps
from tflearn.optimization import schedules
from tflearn.replay.storage import Storage
from tflearn.sampling.loaded_episodes import LoadedEpisodes
from tflearn.sampling.mix import Mix, demonstration_shares
from tflearn.sampling.ring_source import LocalReplay

SHOWN = 100  # more than the observations of the run's own steps


def shifted(one):
    """An episode whose observations are greater by `SHOWN`."""
    return one._replace(observation=one.observation + np.float32(SHOWN))


class Own:
    """A writer of the run's own steps."""

    def __init__(self, replay):
        self._replay = replay

    def __call__(self, trajectory, version):
        self._replay(trajectory, version)

    def flush(self):
        pass


def make_source(num_own_steps=100, num_replicas=1, train_step=0, **settings):
    """A source of `BATCH` items for each replica, whose run has taken so many batched steps of two environments."""
    storage = Storage(experience('learner', samples_per_insert=4.0, min_size=10), DATA_SPEC)
    size = BATCH * num_replicas
    shown = LoadedEpisodes(
        storage, (shifted(episode(i, 3 + i % 4)) for i in range(20)), None, size, seed=1, name='demonstrations'
    )
    own = LocalReplay(storage, 2, size)
    counter = tf.Variable(train_step, dtype=tf.int64)
    source = Mix([own, shown], num_replicas, demonstration_shares(counter, BATCH, **settings))
    if num_own_steps:
        write_steps(Own(source.sources[0]), fakes.CheckedEnvironment((3, 5)), num_own_steps)
    return source, counter


def demonstrations(trajectory):
    """Which items are demonstrations, [..., B]."""
    shown = trajectory.observation.numpy()[..., 1] >= SHOWN
    assert (shown.all(-1) == shown.any(-1)).all(), 'an item has rows of both'
    return shown.all(-1)


def test_each_replica_gets_its_share_of_demonstrations():
    source, _ = make_source(share=0.25, num_replicas=2)
    trajectory, info = draw(source, 3, compiled=True)
    assert trajectory.observation.shape == (3, 2 * BATCH, 2, 2)
    assert (info['policy_version'].numpy() == 7).all(), 'demonstrations have the mean version of the others'
    expected = np.tile(2 * [*12 * [False], *4 * [True]], (3, 1))
    np.testing.assert_array_equal(demonstrations(trajectory), expected)


def test_only_own_items_count_as_samples():
    source, _ = make_source(share=0.75)
    own = source.sources[0]
    inserts = own._inserts - 10
    assert source.owed_steps == inserts * 4 // 4, 'batches have four items of their own'
    assert source.grant(10**6) == inserts
    assert source.grant(1) == 0
    assert source.metrics() == {
        'replay_size': own.metrics()['replay_size'],
        'unused_steps': 0,
        'samples_per_insert': 4.0,
        'demonstration_share': 0.75,
    }


def test_the_share_follows_a_schedule():
    source, step = make_source(share=schedules.piecewise([(0, 0.5), (100, 0.0), (200, 2.0)]))
    counts = []
    for at in (0, 50, 100, 200):
        step.assign(at)
        before = source.sources[0]._samples
        trajectory, _ = draw(source)
        counts.append(int(demonstrations(trajectory).sum()))
        assert source.sources[0]._samples - before == BATCH - counts[-1]
    assert counts == [8, 4, 0, 15], 'at least one item is the own one'


def test_the_share_may_follow_environment_steps():
    source, _ = make_source(share=schedules.by_env_steps(schedules.linear(0.5, 0.0, 100)))
    set_env_steps(50)
    assert demonstrations(draw(source)[0]).sum() == 4


def test_trains_on_demonstrations_alone_before_there_are_other_items():
    source, step = make_source(0, num_pretrain_steps=5, share=0.5)
    assert source.owed_steps == 5
    assert source.metrics()['demonstration_share'] == 1.0
    step.assign(2)
    trajectory, _ = draw(source, 2)
    assert demonstrations(trajectory).all()
    assert source.grant(100) == 3, 'never across the end'
    step.assign(5)
    assert source.owed_steps == source.grant(100) == 0
    write_steps(Own(source.sources[0]), fakes.CheckedEnvironment((3, 5)), 60)
    assert source.sources[0].metrics()['samples_per_insert'] == 0
    trajectory, _ = draw(source, 2)
    assert demonstrations(trajectory).sum(-1).tolist() == [8, 8]
    source.close()
    assert source.grant(1) == 0


@pytest.mark.parametrize('ratio', [None, 2.0])
def test_what_fills_a_replay_counts_for_its_minimum_only(ratio):
    storage = Storage(experience('learner', samples_per_insert=ratio, min_size=10), DATA_SPEC)
    replay = LocalReplay(storage, 2, BATCH)
    write_steps(Own(replay), fakes.CheckedEnvironment((3, 5)), 40)
    assert replay.owed_steps > 0
    replay.begin_collection()
    size = replay._inserts
    assert replay.owed_steps == 0
    write_steps(Own(replay), fakes.CheckedEnvironment((3, 5)), 30)
    assert replay.owed_steps == (30 if ratio is None else (replay._inserts - size) * 2 // BATCH)


def test_demonstrations_go_on_where_a_checkpoint_was():
    source, _ = make_source(share=0.5)
    position = source.sources[1].serialize()
    drawn = draw(source, 3)[0].observation.numpy()
    resumed, _ = make_source(share=0.5)
    draw(resumed, 2)  # of a run that was killed before it saved again
    assert set(resumed.state()) == {'demonstrations'}
    resumed.state()['demonstrations'].deserialize(position)
    again = draw(resumed, 3)[0].observation.numpy()
    shown = drawn[..., 1] >= SHOWN
    assert shown.sum() == 3 * BATCH // 2 * 2, 'two rows of each'
    np.testing.assert_array_equal(again[shown], drawn[shown])
