"""Batches from real queues: items used once or several times, none too old, from several servers."""

import contextlib
import threading

import numpy as np
import pytest
import tensorflow as tf

from tests import fakes
from tests.testing import lanes
from tests.testing.experiences import experience
from tests.testing.replay import draw, fill, write_steps
from tflearn.core.experience import Queue, Reuse
from tflearn.core.waiting import Stopped, wait_until
from tflearn.replay.reader import TableReader
from tflearn.replay.writers import ReplayWriter
from tflearn.sampling.queue_source import QueueSource

BROKEN = ('reverb.TrajectoryDataset', 'tflearn.replay.backend.counts')


@pytest.fixture
def start(serve):
    """Returns a function: experience's fields -> the served queue and its source."""
    with contextlib.ExitStack() as stack:

        def make(**changes):
            served = serve(experience(Queue, **({'max_size': 1000, 'batch_size': 5} | changes)))
            batch_size = served.storage.experience.per_replica_batch_size
            source = QueueSource([served.address], served.storage, batch_size, 60.0, TableReader, seed=0)
            # A stream waits for an item without a deadline, and only then notices that it is closed.
            stack.callback(lambda: fill(served, 6, (5,)).join(30))
            stack.callback(source.close)
            return served, source

        yield make


def firsts(trajectory):
    """Episode and step of each sequence's first row, [num_steps, B, 2]."""
    return trajectory.observation[:, :, 0].numpy().astype(int).tolist()


EPISODES = [[[episode, step] for step in range(5)] for episode in range(4)]


def test_returns_each_item_once_and_in_order(start):
    served, source = start()
    fill(served, 24, (5,)).join(30)  # 4 episodes: 20 items
    trajectory, info = draw(source, 4, compiled=True)
    assert firsts(trajectory) == EPISODES
    assert served.table().size == 0
    assert (info['policy_version'].numpy() == 7).all()
    assert trajectory.observation.shape == (4, 5, 2, 2)
    assert source.metrics() == {'stale_sequences': 0, 'greatest_policy_lag': 0}


def test_shapes_are_static(start):
    _, source = start()
    spec = tf.TensorSpec((), tf.int64)
    first = tf.function(lambda count, seed: source.batch(source.draw(count, seed), 0), autograph=False)
    trajectory, _ = first.get_concrete_function(spec, spec).structured_outputs
    assert trajectory.observation.shape.as_list() == [5, 2, 2]


def test_reuses_batches(start):
    served, source = start(training=Reuse(times=2, recent_batches=2))
    fill(served, 24, (5,)).join(30)
    trajectory, _ = draw(source, 8)
    assert firsts(trajectory) == [EPISODES[i] for i in (0, 1, 0, 1, 2, 3, 2, 3)]


def test_replays_earlier_batches(start):
    served, source = start(training=Reuse(replay_proportion=1.0, replay_batches=2))
    fill(served, 24, (5,)).join(30)
    trajectory, _ = draw(source, 8)
    drawn = [EPISODES.index(batch) for batch in firsts(trajectory)]
    assert drawn[::2] == [0, 1, 2, 3]
    assert all(replayed in (fresh, fresh - 1) for fresh, replayed in zip(drawn[::2], drawn[1::2], strict=True))


def test_drops_items_that_are_too_old(start):
    served, source = start(max_policy_lag=2, training=Reuse(times=3), batch_size=2)
    writer = ReplayWriter(served.address, served.storage, 1, served.stop)
    environment = fakes.CheckedEnvironment((1000,))

    def write(version, num_steps):
        write_steps(writer, environment, num_steps, version)
        writer.flush()

    write(1, 4)  # 3 items
    write(2, 4)
    source.on_version(3)
    trajectory, info = draw(source, 1)
    assert info['policy_version'].numpy()[0, :, 0].tolist() == [1, 1]
    source.on_version(4)  # the rest of version 1 is too old now, also reused batches
    trajectory, info = draw(source, 3)
    assert info['policy_version'].numpy()[:, :, 0].tolist() == 3 * [[2, 2]]
    assert source.metrics() == {'stale_sequences': 1, 'greatest_policy_lag': 2}
    assert trajectory.observation.shape[0] == 3


@pytest.mark.parametrize(('episode_steps', 'kept'), [(5, 5), pytest.param(3, 3, marks=pytest.mark.slow)])
def test_drops_episodes_of_other_lengths(start, episode_steps, kept):
    slicing = {'sequence_length': 6, 'stride': 5, 'pad_episodes': True}
    served, source = start(**slicing, episode_steps=episode_steps, batch_size=2)
    fill(served, 24, (3, 5)).join(30)
    trajectory, _ = draw(source, 1)
    assert firsts(trajectory) == [[[0, 0], [1, 0]]]
    observations, types = trajectory.observation.numpy()[0], trajectory.step_type.numpy()[0]
    assert observations[:, : kept + 1, 1].astype(int).tolist() == 2 * [list(range(kept + 1))]
    assert (types[:, kept] == 2).all()
    metrics = source.metrics()
    assert metrics['other_episodes'] >= 1 and metrics['stale_sequences'] == 0
    assert source.used_and_dropped()[1] == metrics['other_episodes']


def test_short_queue_blocks_the_writer(start):
    """The queue, the learner's batches and one item of the writer: then the writer waits for the learner."""
    served, source = start(max_size=1, batch_size=8)
    writer = ReplayWriter(served.address, served.storage, 1, served.stop)
    environment = fakes.CheckedEnvironment((1000,))

    def write():
        with contextlib.suppress(Stopped):
            write_steps(writer, environment, 100)

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    draw(source, 1)
    wait_until(lambda: writer.num_sequences >= 8 + 4, 'the queue to be full again', 30)
    thread.join(0.5)
    assert 8 + 4 <= writer.num_sequences <= 8 + 5
    draw(source, 2)
    wait_until(lambda: writer.num_sequences >= 3 * 8 + 4, 'more', 30)
    served.stop.set()
    thread.join(30)


def test_reads_no_further_ahead_than_it_may(start):
    served, source = start(max_in_flight=2)
    fill(served, 24, (5,)).join(30)  # 20 items
    draw(source, 2)
    wait_until(lambda: source._readers.each[0].size() == 2, 'the items that are read ahead', 30)
    assert served.table().size >= 20 - 2 * 5 - 4  # the stream holds two more


def test_takes_items_from_several_servers(serve, tmp_path):
    settings = experience(Queue, max_size=1000, batch_size=10)
    served = [serve(settings, checkpoints=tmp_path / str(i)) for i in range(2)]
    source = QueueSource([one.address for one in served], served[0].storage, 10, 60.0, TableReader)
    for one in served:
        fill(one, 12, (5,)).join(30)
    trajectory, _ = draw(source, 2)
    drawn = sorted(first for batch in firsts(trajectory) for first in batch)
    np.testing.assert_array_equal(drawn, sorted(2 * [first for episode in EPISODES[:2] for first in episode]))
    source.close()
    for one in served:
        fill(one, 6, (5,)).join(30)


def test_takes_items_evenly_from_full_servers(serve, tmp_path):
    """Within a batch and from batch to batch; a third server has no items, and is not waited for."""
    settings = experience(Queue, max_size=100, batch_size=3)
    served = [serve(settings, checkpoints=tmp_path / str(i)) for i in range(3)]
    source = QueueSource([one.address for one in served], served[0].storage, 3, 60.0, TableReader)
    for one, version in zip(served[:2], (1, 2), strict=True):
        writer = ReplayWriter(one.address, one.storage, 1, one.stop)
        write_steps(writer, fakes.CheckedEnvironment((1000,)), 41, version)  # 40 items
    source.start()
    wait_until(lambda: [reader.size() for reader in source._readers.each] == [40, 40, 0], 'full queues', 30)
    _, info = draw(source, 13)
    drawn = info['policy_version'].numpy()[:, :, 0]
    assert [int((drawn == version).sum()) for version in (1, 2)] in ([20, 19], [19, 20])
    source.close()
    for one in served:
        fill(one, 6, (5,)).join(30)


@pytest.mark.parametrize('broken', lanes.sample(BROKEN, BROKEN[1]))
def test_reports_errors_of_reader_threads_immediately(start, monkeypatch, broken):
    def fail(*_, **__):
        raise TypeError('broken')

    monkeypatch.setattr(broken, fail)
    monkeypatch.setattr('tflearn.replay.item_reader.LOG_EVERY_SECS', 0.0)  # so that it logs immediately
    _, source = start()
    assert source.grant(1) == 0
    assert isinstance(source.error, TypeError)
