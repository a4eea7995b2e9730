import collections
import threading
import time

import numpy as np
import pytest

from tests import fakes
from tests.replay.writers_test import _run
from tflearn.experience import Experience
from tflearn.replay import tables
from tflearn.replay.datasets import ReplayStream
from tflearn.replay.writers import ReplayWriter


@pytest.fixture
def stop():
    event = threading.Event()
    yield event
    event.set()


def _fill(served, experience, num_steps=40):
    writer = ReplayWriter(served.address, experience, served.layout, 2, threading.Event())
    _run(writer, fakes.CheckedEnvironment((3, 5)), num_steps)


def test_batches_hold_what_was_written(serve, stop):
    experience = Experience(sequence_length=3, min_size=1, per_replica_batch_size=16)
    served = serve(experience)
    _fill(served, experience)
    stream = ReplayStream(served.address, experience, served.layout, stop, timeout_secs=30)
    trajectory, info = next(iter(stream.dataset()))
    assert trajectory.observation.shape == (16, 3, 2)
    assert info['policy_version'].shape == (16, 3)
    assert (info['policy_version'].numpy() == 7).all()
    for steps in trajectory.observation[..., 1].numpy():
        assert (np.diff(steps) >= 0).all()


def test_shapes_are_static(serve, stop):
    experience = Experience(min_size=1, per_replica_batch_size=8)
    served = serve(experience)
    dataset = ReplayStream(served.address, experience, served.layout, stop, timeout_secs=30).dataset()
    assert dataset.element_spec[0].observation.shape.as_list() == [8, 2, 2]


def test_items_are_drawn_uniformly(serve, stop):
    experience = Experience(min_size=1, per_replica_batch_size=50)
    served = serve(experience)
    _fill(served, experience, 40)
    num_items = served.table().current_size
    stream = ReplayStream(served.address, experience, served.layout, stop, timeout_secs=30)
    counts = collections.Counter()
    for trajectory, _ in stream.dataset().take(200):
        ends = trajectory.observation[:, 0].numpy()  # (episode, step) of the first row; two environments share them
        counts.update(map(tuple, ends.tolist()))
    expected = 200 * 50 / num_items
    # Items of both environments may look alike: compare with one or two items' share, at five standard deviations.
    for count in counts.values():
        share = count / expected
        assert min(abs(share - 1), abs(share - 2)) < 5 / np.sqrt(expected)


def test_it_gives_up_with_the_state_of_the_table(serve, stop):
    experience = Experience(min_size=1000)
    served = serve(experience)
    _fill(served, experience, 8)
    stream = ReplayStream(served.address, experience, served.layout, stop, timeout_secs=1.0)
    assert list(stream.dataset()) == []
    with pytest.raises(TimeoutError, match=r'waited 1 s in vain for data .* of 100000 items'):
        raise stream.error


def test_it_can_be_stopped_while_it_waits(serve, stop):
    experience = Experience(min_size=1000)
    served = serve(experience)
    stream = ReplayStream(served.address, experience, served.layout, stop, timeout_secs=300)
    threading.Timer(0.5, stop.set).start()
    start = time.monotonic()
    assert list(stream.dataset()) == []
    assert time.monotonic() - start < 30
    assert stream.error is None


def test_a_queue_hands_out_each_item_once_and_in_order(serve, stop):
    experience = Experience(order='queue', min_size=1, max_size=1000, per_replica_batch_size=5)
    served = serve(experience)
    writer = ReplayWriter(served.address, experience, served.layout, 1, threading.Event())
    _run(writer, fakes.CheckedEnvironment((5,)), 24)  # 4 episodes: 20 items
    iterator = iter(ReplayStream(served.address, experience, served.layout, stop, timeout_secs=30).dataset())
    drawn = [tuple(first) for _ in range(4) for first in next(iterator)[0].observation[:, 0].numpy().tolist()]
    assert drawn == [(episode, step) for episode in range(4) for step in range(5)]
    assert served.server.info()[tables.REPLAY].current_size == 0
