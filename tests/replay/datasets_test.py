import collections
import contextlib
import threading
import time

import numpy as np
import pytest

from tests import fakes
from tests.replay.writers_test import _run
from tflearn.experience import Experience
from tflearn.learner import strategies
from tflearn.replay import tables
from tflearn.replay.datasets import ReplayStream
from tflearn.replay.writers import ReplayWriter


@pytest.fixture
def open_stream():
    """Returns a function (served, experience, timeout) -> ReplayStream; all are closed at the end."""
    with contextlib.ExitStack() as stack:

        def start(served, experience, timeout_secs=60.0):
            stream = ReplayStream(served.address, experience, served.layout, timeout_secs)
            stack.callback(stream.close)
            return stream

        yield start


def _fill(served, experience, num_steps=40):
    writer = ReplayWriter(served.address, experience, served.layout, 2, threading.Event())
    _run(writer, fakes.CheckedEnvironment((3, 5)), num_steps)


def test_batches_hold_what_was_written(serve, open_stream):
    experience = Experience(sequence_length=3, min_size=1, per_replica_batch_size=16)
    served = serve(experience)
    _fill(served, experience)
    stream = open_stream(served, experience, 30)
    trajectory, info = next(iter(stream.dataset()))
    assert trajectory.observation.shape == (16, 3, 2)
    assert info['policy_version'].shape == (16, 3)
    assert (info['policy_version'].numpy() == 7).all()
    for steps in trajectory.observation[..., 1].numpy():
        assert (np.diff(steps) >= 0).all()


def test_shapes_are_static(serve, open_stream):
    experience = Experience(min_size=1, per_replica_batch_size=8)
    served = serve(experience)
    dataset = open_stream(served, experience, 30).dataset()
    assert dataset.element_spec[0].observation.shape.as_list() == [8, 2, 2]


def test_items_are_drawn_uniformly(serve, open_stream):
    experience = Experience(min_size=1, per_replica_batch_size=50)
    served = serve(experience)
    _fill(served, experience, 40)
    num_items = served.table().current_size
    stream = open_stream(served, experience, 30)
    counts = collections.Counter()
    for trajectory, _ in stream.dataset().take(200):
        ends = trajectory.observation[:, 0].numpy()  # (episode, step) of the first row; two environments share them
        counts.update(map(tuple, ends.tolist()))
    expected = 200 * 50 / num_items
    # Items of both environments may look alike: compare with one or two items' share, at five standard deviations.
    for count in counts.values():
        share = count / expected
        assert min(abs(share - 1), abs(share - 2)) < 5 / np.sqrt(expected)


def test_it_gives_up_with_the_state_of_the_table(serve, open_stream):
    experience = Experience(min_size=1000)
    served = serve(experience)
    _fill(served, experience, 8)
    stream = open_stream(served, experience, 1.0)
    assert list(stream.dataset()) == []
    with pytest.raises(TimeoutError, match=r'waited 1 s in vain for data .* of 100000 items'):
        raise stream.error


def test_it_can_be_stopped_while_it_waits(serve, open_stream):
    experience = Experience(min_size=1000)
    served = serve(experience)
    stream = open_stream(served, experience, 300)
    threading.Timer(0.5, stream.close).start()
    start = time.monotonic()
    assert list(stream.dataset()) == []
    assert time.monotonic() - start < 30
    assert stream.error is None


def test_a_queue_hands_out_each_item_once_and_in_order(serve, open_stream):
    experience = Experience(order='queue', min_size=1, max_size=1000, per_replica_batch_size=5)
    served = serve(experience)
    writer = ReplayWriter(served.address, experience, served.layout, 1, threading.Event())
    _run(writer, fakes.CheckedEnvironment((5,)), 24)  # 4 episodes: 20 items
    iterator = iter(open_stream(served, experience, 30).dataset())
    drawn = [tuple(first) for _ in range(4) for first in next(iterator)[0].observation[:, 0].numpy().tolist()]
    assert drawn == [(episode, step) for episode in range(4) for step in range(5)]
    assert served.server.info()[tables.REPLAY].current_size == 0


def test_replicas_get_whole_batches_up_to_the_end(serve, open_stream):
    """Two replicas: no batch is lost or doubled, and both see the end at once."""
    experience = Experience(order='queue', min_size=1, max_size=1000, per_replica_batch_size=5)
    served = serve(experience)
    writer = ReplayWriter(served.address, experience, served.layout, 1, threading.Event())
    _run(writer, fakes.CheckedEnvironment((5,)), 36)  # 30 items: three global batches
    stream = open_stream(served, experience)
    strategy = strategies.make('mirrored:2')
    threading.Timer(3.0, stream.close).start()
    sizes, first = [], []
    for trajectory, _ in strategy.distribute_datasets_from_function(stream.dataset):
        parts = strategy.experimental_local_results(trajectory.observation)
        sizes.append([part.shape[0] for part in parts])
        first += [tuple(row) for part in parts for row in part[:, 0].numpy().tolist()]
    assert sizes == [[5, 5]] * 3
    assert first == [(episode, step) for episode in range(6) for step in range(5)]
