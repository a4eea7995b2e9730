"""A real feed in this process: replay server, dispatcher, worker; and the learner's end of it."""

import contextlib
import threading

import numpy as np
import pytest
import tensorflow as tf

from tests import streams
from tests.testing import replay
from tests.testing.experiences import experience
from tests.testing.replay import BATCH, DATA_SPEC, draw, fill
from tflearn.coordinator.client import Coordinator, Role
from tflearn.coordinator.server import CoordinatorServer
from tflearn.coordinator.state import FEED_WORKER
from tflearn.core.access import Access
from tflearn.core.experience import Prioritized, Queue
from tflearn.core.waiting import wait_until
from tflearn.launch.local import free_address
from tflearn.net.server_options import ServerOptions
from tflearn.replay.reader import TableReader
from tflearn.replay.storage import REPLAY, Storage
from tflearn.sampling import feed_source, feed_worker
from tflearn.sampling.feed_source import Blocks, FeedReader, wait_for_feed
from tflearn.sampling.mirror import ReplayMirror
from tflearn.sampling.queue_source import QueueSource


@pytest.fixture(scope='module')
def served(tmp_path_factory):
    """Replay servers, for all tests of this module."""
    with replay.serving(tmp_path_factory.mktemp('replay')) as start:
        yield start


@pytest.fixture(scope='module')
def address(tmp_path_factory):
    """The address of the dispatcher of this module."""
    with feed_worker.dispatching(tmp_path_factory.mktemp('feed'), 0) as port:
        yield f'localhost:{port}'


@contextlib.contextmanager
def working(address, storage, source, next_element):
    """A worker of tf.data service in this process."""
    dataset = feed_worker.FeedDataset(Blocks(storage), next_element)
    tf_data_worker = feed_worker.start_server(address, 'localhost', 0)
    dataset.register(address)
    try:
        yield
    finally:
        source.close()
        del tf_data_worker


@pytest.fixture(scope='module')
def fed(served, address):
    """A feed of a uniform replay: what is served, and the feed's address."""
    found = served(replay.experience('learner', max_size=1000))
    fill(found)
    mirror = ReplayMirror(found.address, found.storage, BATCH, 60.0, begins_filled=True)
    elements = feed_worker.of_batches(mirror, Blocks(found.storage))
    with working(address, found.storage, mirror, elements):
        yield found, address


def test_batches_are_those_of_the_replay(fed):
    found, address = fed
    assert wait_for_feed(address, found.storage, 30.0).element_spec == tuple(Blocks(found.storage).specs)
    with contextlib.closing(feed_source.batches(address, found.storage, 1, 60.0)) as source:
        trajectory, info = draw(source, 130)  # of two elements
    assert trajectory.observation.shape == (130, BATCH, 2, 2)
    assert (info['policy_version'].numpy() == 7).all()
    observations = trajectory.observation.numpy()  # episode and step
    np.testing.assert_array_equal(observations[:, :, 1] - observations[:, :, 0], np.full((130, BATCH, 2), [0, 1]))
    assert len(np.unique(observations.reshape(-1, 4), axis=0)) > 30
    assert len({batch.tobytes() for batch in observations}) > 100, 'batches differ'


def test_several_replicas_get_their_batches_one_after_the_other(fed):
    found, address = fed
    with contextlib.closing(feed_source.batches(address, found.storage, 3, 60.0)) as source:
        assert source.max_draw_steps == 128 // 3
        trajectory, _ = draw(source, 2)
    assert trajectory.observation.shape == (2, 3 * BATCH, 2, 2)


def test_a_worker_whose_function_has_another_name_is_refused():
    with contextlib.ExitStack() as ending:
        server = ending.enter_context(contextlib.closing(CoordinatorServer(ServerOptions('127.0.0.1', 0, 8, 1 << 20))))
        access = Access(f'127.0.0.1:{server.port}')
        workers = [Coordinator(access, f'feed_worker_{i}') for i in range(2)]
        one, two = (ending.enter_context(contextlib.closing(worker)) for worker in workers)
        one.join(Role(FEED_WORKER, 0, contract={'feed': {'function': 'pyfunc_0'}}), 30.0)
        with pytest.raises(ValueError, match='another version of TensorFlow in a worker of the feed: .*pyfunc_1'):
            two.join(Role(FEED_WORKER, 1, contract={'feed': {'function': 'pyfunc_1'}}), 30.0)


def test_a_feed_of_other_data_ends_at_the_deadline(fed):
    found, address = fed
    other = replay.Storage(experience(batch_size=5), replay.DATA_SPEC)
    has_none = rf'waiting for the feed at {address}, which has no data of this gin file and version of tflearn'
    with pytest.raises(TimeoutError, match=has_none):
        wait_for_feed(address, other, 0.3)
    nowhere = free_address()
    with contextlib.closing(feed_source.batches(nowhere, found.storage, 1, 0.5)) as source:
        assert source.grant(1) == 0
        with pytest.raises(TimeoutError, match=f'{nowhere}, which does not answer'):
            raise wait_until(lambda: source.error, 'the error', 5.0)


def test_a_stopped_learner_ends_its_wait(fed):
    found, _ = fed
    source = feed_source.batches(free_address(), found.storage, 1, 60.0)
    timer = threading.Timer(0.2, source.close)
    timer.start()
    assert source.grant(1) == 0 and source.error is None


def test_items_of_a_queue_arrive_once(served, address):
    found = served(experience(Queue, max_size=1000, batch_size=5))
    spec = tf.TensorSpec(found.storage.item_shape, tf.uint8)
    reader = TableReader(found.address, found.storage, REPLAY, [spec], 8, 60.0)
    elements = feed_worker.of_items([reader], Blocks(found.storage))
    with working(address, found.storage, elements.given, elements):
        fill(found, 24, (5,)).join(30)  # 4 episodes: 20 items
        source = QueueSource((address,), found.storage, 5, 60.0, FeedReader, seed=0)
        trajectory, _ = draw(source, 4, compiled=True)
        firsts = trajectory.observation[:, :, 0].numpy().astype(int).reshape(-1, 2)
        # Several requests are on the way, so that one element may overtake another.
        assert sorted(firsts.tolist()) == [[episode, step] for episode in range(4) for step in range(5)]
        assert found.table().size == 0
        source.close()
        fill(found, 6, (5,)).join(30)  # streams wait for an item without a deadline, and only then end
        streams.wait_until_ended()
    fill(found, 6, (5,)).join(30)


# The layout of a feed's elements: its size, its contract, and what is refused.


def blocks(kind=None, **settings):
    chosen = experience(kind, **settings) if kind else experience(**settings)
    return Blocks(Storage(chosen, DATA_SPEC))


def test_batches_are_joined_and_come_back_as_they_were():
    layout = blocks(batch_size=3)
    outer = layout.specs[0].shape[:3]
    assert outer == (128, 3, 2) and layout.num_bytes < 1 << 20
    data = tf.nest.map_structure(lambda spec: tf.ones((2, 3, 2, *spec.shape), spec.dtype), DATA_SPEC)
    info = {'policy_version': tf.fill((2, 3, 2), tf.constant(7, tf.int64))}
    columns = layout.join(data, info)
    assert len(columns) == len(layout.specs)
    same, its_info = layout.divide(columns)
    tf.nest.assert_same_structure(same, data)
    for one, other in zip(tf.nest.flatten(same), tf.nest.flatten(data), strict=True):
        tf.debugging.assert_equal(one, other)
    assert (its_info['policy_version'].numpy() == 7).all()


def test_large_batches_make_fewer_steps_of_an_element():
    layout = blocks(batch_size=100_000)
    assert layout.num_steps == 1
    assert 1 < blocks(batch_size=2_000).num_steps < 128


def test_other_data_have_another_name():
    assert blocks(batch_size=3).dataset_id == blocks(batch_size=3, chunk_steps=1).dataset_id
    assert len({each.dataset_id for each in (blocks(batch_size=3), blocks(batch_size=4), blocks(Queue))}) == 3


@pytest.mark.parametrize(
    ('kind', 'settings', 'message'),
    [
        (Prioritized, {}, r'got a feed with Experience.replay=Prioritized\(...\)'),
        (Queue, {'versions_ahead': 1}, 'got a feed with Queue.versions_ahead=1'),
    ],
)
def test_refuses_what_needs_an_answer_for_each_item(kind, settings, message):
    with pytest.raises(ValueError, match=message):
        blocks(kind, **settings)
