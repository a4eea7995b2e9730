"""What every replay backend does, by the doors that jobs use: limits, order, restarts, several and lost servers."""

import collections
import contextlib
import dataclasses
import itertools
import pathlib
import threading
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests import fakes, streams
from tests.testing import forks
from tests.testing.experiences import experience
from tests.testing.replay import DATA_SPEC, NoFlush, chunks_of, draw, ring_content, serving, write_steps
from tflearn.core import extras
from tflearn.core.experience import Prioritization, Prioritized, Queue
from tflearn.core.waiting import Stopped, wait_until
from tflearn.launch.local import free_port
from tflearn.replay import backend, item_reader, reader, servers, writers
from tflearn.replay.backend import Shards
from tflearn.replay.checkpoints import DamagedCheckpoint
from tflearn.replay.chunks import chunk_id
from tflearn.replay.priorities import PriorityUpdater
from tflearn.replay.reader import TableReader
from tflearn.replay.storage import REPLAY, STREAM, Storage, TableSpec
from tflearn.replay.writers import ReplayWriter
from tflearn.sampling import replay_servers
from tflearn.sampling.mirror import ReplayMirror
from tflearn.sampling.queue_source import QueueSource

QUEUE = experience(Queue, max_size=20, batch_size=5)
MIRRORED = experience(sampling='learner', min_size=1, batch_size=4, chunk_steps=4)
ADDRESS = {backend.REVERB: 'localhost:{}', backend.VALKEY: 'valkey://localhost:{}'}
DRAWING = pytest.mark.parametrize('kind', [backend.REVERB], indirect=True)  # by order and priority


@pytest.fixture(params=ADDRESS)
def kind(request):
    if request.param == backend.REVERB and extras.default_replay_backend() != backend.REVERB:
        pytest.skip('needs Reverb, which the current lane has not')
    return request.param


@pytest.fixture
def serve(tmp_path, kind):
    """Returns a function experience -> Served; all servers are closed at the end."""
    with serving(tmp_path, kind) as start:
        yield start


@pytest.fixture
def serve_tables(tmp_path, kind):
    """Returns a function specs -> the client of a server with these tables."""
    with contextlib.ExitStack() as stack:
        numbers = itertools.count()

        def start(*specs):
            server = servers.serve(specs, 0, tmp_path / str(next(numbers)) / 'checkpoints', kind=kind)
            stack.callback(server.close)
            return backend.connect(server.address)

        yield start


@dataclasses.dataclass
class Apart:
    """A server of `MIRRORED` that can be lost and started again, in a process of its own."""

    kind: str
    port: int
    folder: pathlib.Path
    stop: threading.Event
    running: Any = None
    storage: Storage = dataclasses.field(default_factory=lambda: Storage(MIRRORED, DATA_SPEC))

    @property
    def address(self):
        return ADDRESS[self.kind].format(self.port)

    def start(self):
        log, arguments = self.folder / 'log', (self.kind, self.port, self.folder)
        self.running = forks.start('tests.replay.conformance_program', *arguments, log=log)
        backend.wait_for_table(self.address, REPLAY, self.storage.signature, 60.0)

    def save(self):
        request = self.folder / 'save'
        request.touch()
        wait_until(lambda: not request.exists(), 'the checkpoint', 30)

    def lose(self):
        self.running.kill()
        self.running.wait(30)


@pytest.fixture
def apart(tmp_path, kind, monkeypatch):
    monkeypatch.setattr(reader, '_CHECK_CLOSED_MS', 300)  # so that streams end soon after they are closed
    server = Apart(kind, free_port(), tmp_path, threading.Event())
    server.start()
    yield server
    server.stop.set()
    streams.wait_until_ended()
    server.lose()


@pytest.fixture
def closing():
    """Closes sources at the end: returns what it is called with."""
    with contextlib.ExitStack() as stack:

        def add(source):
            stack.callback(source.close)
            return source

        yield add


def table(order, max_size=100, **limits):
    return TableSpec('table', max_size, {'chunk': tf.TensorSpec((4,), tf.uint8)}, order, **limits)


def items(first, count):
    return [np.array([i, 0, 0, 0], np.uint8) for i in range(first, first + count)]


def insert(client, values, table_name='table', timeout_secs=5.0):
    """Inserts items; returns whether all of them are in the table."""
    writer = client.writer()
    writer.insert(values, [(table_name,)] * len(values), 1.0)
    is_done = writer.flush(0, timeout_secs)
    if is_done:
        writer.close()
    return is_done


def drawn(client, count, table_name='table'):
    """Draws so many items, or those that come until there is none for a while; their first bytes."""
    if client.has_stream:
        blocks = itertools.takewhile(len, client.stream(table_name, (4,), 1))
        return [int(item[0]) for item in itertools.islice(itertools.chain.from_iterable(blocks), count)]
    return [int(sample.data['chunk'][0]) for sample in client.samples(table_name, (4,), 1, 500).take(count)]


def inserted_ids(served):
    chunks = backend.connect(served.address).scan(served.storage, REPLAY, 30.0, served.stop)
    return collections.Counter(map(chunk_id, chunks))


def insert_chunks(served, first, count, tables=(REPLAY,)):
    writer = backend.connect(served.address).writer()
    writer.insert([*chunks_of(served.storage, first, count)], [tables] * count, 1.0)
    assert writer.flush(0, 10.0)
    writer.close()


# Limits and order.


def test_a_queue_gives_each_item_once_in_order_and_blocks_its_writers(serve_tables):
    client = serve_tables(table('queue', 4))
    writer = client.writer()
    writer.insert(items(0, 6), [('table',)] * 6, 1.0)
    assert writer.flush(2, 5.0)
    assert not writer.flush(0, 0.3)
    assert client.counts(5)['table'].size == 4
    background = threading.Thread(target=writer.flush, args=(0, 30.0), name='fill', daemon=True)
    background.start()
    assert drawn(client, 6) == [0, 1, 2, 3, 4, 5]
    background.join(30)
    assert writer.flush(0, 0.0)
    writer.close()
    assert dataclasses.astuple(client.counts(5)['table'])[:4] == (0, 4, 6, 6)


@DRAWING
@pytest.mark.parametrize('order', ['uniform', 'priority'])
def test_the_oldest_item_makes_room(serve_tables, order):
    client = serve_tables(table(order, 5))
    assert insert(client, items(0, 12))
    assert dataclasses.astuple(client.counts(5)['table'])[:3] == (5, 5, 12)
    assert set(drawn(client, 60)) == {7, 8, 9, 10, 11}


def test_a_table_that_is_scanned_holds_the_newest_items(serve):
    served = serve(experience(sampling='learner', min_size=1, batch_size=4, chunk_steps=4, max_size=20))
    insert_chunks(served, 0, 12)
    assert dataclasses.astuple(served.table())[:3] == (5, 5, 12)
    assert inserted_ids(served) == dict.fromkeys(range(7, 12), 1)
    saved = pathlib.Path(served.server.checkpoint())
    for at_most, found in ((None, 5), (3, 3)):
        stored = backend.stored_items(saved, [*served.server.counts()], at_most)
        assert len({chunk_id(chunk) for chunk in stored} & {*range(7, 12)}) == found


@DRAWING
def test_an_item_is_removed_when_it_was_drawn_often_enough(serve_tables):
    client = serve_tables(table('uniform', max_times_sampled=2))
    assert insert(client, items(0, 3))
    assert sorted(drawn(client, 100)) == [0, 0, 1, 1, 2, 2]


@DRAWING
def test_the_ratio_of_samples_to_inserts_blocks_both_sides(serve_tables):
    client = serve_tables(table('uniform', min_size=4, samples_per_insert=2.0, error_buffer=4.0))
    assert insert(client, items(0, 3))
    assert drawn(client, 1) == []
    assert insert(client, items(3, 1))  # 4 inserts: samples may be ahead by 4
    assert len(drawn(client, 100)) == 4
    assert insert(client, items(4, 4))  # 4 more give 8 samples, and as many as they are behind
    assert not insert(client, items(8, 1), timeout_secs=0.3)
    limits = client.counts(5)['table']
    assert (limits.samples_per_insert, limits.min_diff, limits.max_diff) == (2.0, 4.0, 12.0)


def test_refuses_limits_that_deadlock():
    with pytest.raises(ValueError, match='need at least the greater of that and 1'):
        table('uniform', samples_per_insert=8.0, error_buffer=2.0)


def test_refuses_tables_of_another_configuration(serve):
    served = serve(QUEUE)
    other = Storage(experience(Queue, sequence_length=3), DATA_SPEC).signature
    with pytest.raises(ValueError, match='start both with the same gin file'):
        backend.wait_for_table(served.address, REPLAY, other, 10.0)
    with pytest.raises(ValueError, match="need the table 'elsewhere'"):
        backend.wait_for_table(served.address, 'elsewhere', other, 10.0)
    backend.wait_for_table(served.address, REPLAY, served.storage.signature, 10.0)


# Queues, with versions and lag.


def write(served, num_steps, version=7, addresses=None):
    """Writes steps of one environment with episodes of 5 steps, on a thread since the queue may block it."""

    def run():
        writer = ReplayWriter(addresses or served.address, served.storage, 1, served.stop)
        with contextlib.suppress(Stopped):
            write_steps(writer, fakes.CheckedEnvironment((5,)), num_steps, version)

    thread = threading.Thread(target=run, name='fill', daemon=True)
    thread.start()
    return thread


def test_a_queue_source_takes_each_item_once(serve, closing):
    served = serve(QUEUE)
    source = closing(QueueSource([served.address], served.storage, 5, 60.0, TableReader, seed=0))
    thread = write(served, 48)  # 40 items, twice what the queue holds
    trajectory, info = draw(source, 8)
    thread.join(30)
    expected = [[[episode, step] for step in range(5)] for episode in range(8)]
    assert trajectory.observation[:, :, 0].numpy().astype(int).tolist() == expected
    assert (info['policy_version'].numpy() == 7).all()
    assert served.table().size == 0
    source.close()
    write(served, 6).join(30)  # a stream ends with an item


def test_a_queue_source_drops_what_is_too_old(serve, closing):
    served = serve(experience(Queue, max_size=100, batch_size=5, max_policy_lag=1))
    source = closing(QueueSource([served.address], served.storage, 5, 60.0, TableReader, seed=0))
    for version in (1, 2, 3):
        write(served, 6, version).join(30)
    source.on_version(3)
    _, info = draw(source, 2)
    assert info['policy_version'].numpy().ravel().tolist() == [2] * 10 + [3] * 10
    assert source.metrics() == {'stale_sequences': 5, 'greatest_policy_lag': 1}
    source.close()
    write(served, 6, 3).join(30)


# Scans, mirrors, priorities, draws of the server.


def test_a_scan_finds_every_item_and_leaves_them_there(serve):
    served = serve(MIRRORED)
    assert not inserted_ids(served)
    insert_chunks(served, 100, 40)
    for _ in range(2):
        assert inserted_ids(served) == dict.fromkeys(range(100, 140), 1)
    assert served.table().size == 40


def test_a_mirror_holds_what_was_there_and_what_comes(serve, closing):
    served = serve(MIRRORED)
    insert_chunks(served, 0, 10)
    source = closing(ReplayMirror(served.address, served.storage, 4, 60.0))
    draw(source)
    insert_chunks(served, 10, 10, (REPLAY, STREAM))
    insert_chunks(served, 5, 10, (REPLAY, STREAM))  # sent again
    wait_until(lambda: draw(source) and source.metrics()['replay_size'] == 80, 'the stream', 30)
    assert sorted(ring_content(source._ring, served.storage)) == list(range(80))


@DRAWING
def test_priorities_decide_what_is_drawn(serve_tables):
    client = serve_tables(table('priority'))
    assert insert(client, items(0, 4))
    keys = {}
    for sample in client.samples('table', (4,), 1, 500).take(100):
        keys[int(sample.data['chunk'][0])] = int(sample.info.key)
        assert float(sample.info.probability) == pytest.approx(0.25) and int(sample.info.table_size) == 4
    client.update('table', {keys[0]: 0.0, keys[1]: 3.0, keys[2]: 1.0, keys[3]: 0.0, 12345: 1.0})
    found = collections.Counter(drawn(client, 400)[100:])  # some were drawn ahead
    assert set(found) == {1, 2} and 2.0 < found[1] / found[2] < 4.5
    updater = PriorityUpdater(client.address, 'table', Prioritization(alpha=1.0, epsilon=0.0))
    updater.update(0, np.array([keys[1], keys[3]], np.uint64), np.array([0.0, 0.5]))
    assert updater.flush(30.0)
    updater.close()
    assert set(drawn(client, 200)[100:]) == {2, 3}


@DRAWING
def test_a_learner_draws_by_priority_from_several_servers(serve, tmp_path, closing):
    replay = experience(Prioritized, min_size=1, batch_size=8, sampling='server')
    two = [serve(replay, checkpoints=tmp_path / name / 'checkpoints') for name in 'ab']
    for version, served in enumerate(two):
        write(served, 24, version).join(30)
    source = closing(
        replay_servers.PrioritizedDraws([served.address for served in two], two[0].storage, 8, 60.0, seed=0)
    )
    _, info = draw(source, 8)
    assert {*info['policy_version'].numpy().ravel().tolist()} == {0, 1}
    # Only what comes from the second server keeps its priority.
    for step in range(200):
        granted = source.grant(1)
        drawn_now = source.draw(tf.constant(granted, tf.int64), tf.constant(step, tf.int64))
        _, info = source.batch(drawn_now, tf.constant(0, tf.int64))
        versions = info['policy_version'].numpy()[:, 0]
        source.update(step, np.where(versions == 0, 0.0, 1.0)[None].repeat(granted, 0))
        assert source.flush(30.0)
    assert np.mean(versions) > 0.9


@DRAWING
def test_the_server_draws_uniformly(serve, closing):
    served = serve(experience(sampling='server', min_size=8, batch_size=8, chunk_steps=4))
    write(served, 60).join(30)
    source = closing(replay_servers.uniform_draws(served.address, served.storage, 8, 60.0))
    trajectory, _ = draw(source, 40)
    steps = collections.Counter(map(tuple, trajectory.observation[:, :, 0].numpy().reshape(-1, 2).astype(int).tolist()))
    assert len(steps) >= 40 and max(steps.values()) < 40


# Restarts, lost and slow servers.


def test_a_checkpoint_keeps_content_and_counts(serve):
    served = serve(QUEUE)
    write(served, 12).join(30)
    before = served.server.counts()
    assert not served.server.has_checkpoint
    served.server.checkpoint()
    served.server.close()
    again = serve(QUEUE)
    assert again.server.counts() == before and again.server.restored is not None


def test_refuses_a_checkpoint_of_other_tables_and_a_damaged_one(serve, tmp_path):
    served = serve(QUEUE)
    write(served, 12).join(30)
    served.server.checkpoint()
    served.server.close()
    with pytest.raises(ValueError, match='max_size is 20 in the checkpoint, 30 in this run'):
        serve(experience(Queue, max_size=30, batch_size=5))
    newest = max((tmp_path / 'replay' / 'checkpoints').iterdir())
    for path in newest.iterdir():
        if path.name != 'DONE':
            path.unlink()
    with pytest.raises(DamagedCheckpoint, match='remove this directory to continue'):
        serve(QUEUE)


def test_what_was_not_confirmed_is_sent_again_to_a_restarted_server(apart, closing, monkeypatch):
    """No episode is cut, and a mirror counts each chunk once."""
    monkeypatch.setattr(writers, '_MAX_PENDING_SECS', 1000.0)
    writer = ReplayWriter(apart.address, apart.storage, 1, apart.stop, tables=[REPLAY])
    environment = fakes.CheckedEnvironment((1000,))
    write_steps(writer, environment, 40, version=1)
    apart.save()
    apart.lose()
    write_steps(NoFlush(writer), environment, 20, version=2)
    apart.start()
    write_steps(writer, environment, 20, version=3)
    assert writer.lost_steps == 0
    source = closing(ReplayMirror(apart.address, apart.storage, 4, 60.0))
    draw(source)
    assert collections.Counter(ring_content(source._ring, apart.storage)) == {1: 39, 2: 19, 3: 19}


def test_a_writer_changes_to_another_server_and_returns(apart, serve, monkeypatch):
    monkeypatch.setattr(writers, '_RETURN_POLL_SECS', 0.1)
    other = serve(MIRRORED)
    shards = Shards((apart.address, other.address))
    given = {'tables': [REPLAY], 'server_timeout_secs': 30.0}
    writer = ReplayWriter(lambda: shards.addresses, apart.storage, 1, other.stop, **given)
    environment = fakes.CheckedEnvironment((1000,))
    write_steps(writer, environment, 16)
    assert (backend.counts(apart.address)[REPLAY].size, other.table().size) == (4, 0)
    apart.lose()
    write_steps(writer, environment, 16)
    moved = other.table().size
    assert moved >= 4
    apart.start()
    wait_until(writer._first_is_back.is_set, 'the first server', 30)
    write_steps(writer, environment, 16)
    assert other.table().size == moved
    assert backend.counts(apart.address)[REPLAY].size >= 4
    assert writer.lost_steps == 0


def test_items_of_several_servers_are_taken_alternately(serve, tmp_path, closing):
    two = [serve(QUEUE, checkpoints=tmp_path / name / 'checkpoints') for name in 'ab']
    source = closing(QueueSource([served.address for served in two], two[0].storage, 4, 60.0, TableReader, seed=0))
    for version, served in enumerate(two):
        write(served, 12, version).join(30)
    source.start()
    wait_until(lambda: all(each.size() >= 8 for each in source._readers.each), 'the items', 30)
    _, info = draw(source, 4)
    versions = info['policy_version'].numpy()[:, :, 0].ravel()
    assert sorted(versions.tolist()) == [0] * 8 + [1] * 8
    for served in two:
        write(served, 12)


def test_a_reader_goes_on_after_a_restart_and_waits_no_longer_than_it_may(apart, closing):
    spec = apart.storage.signature['chunk']
    stream = closing(reader.TableReader(apart.address, apart.storage, STREAM, [spec], 4, 3.0))
    stream.start(item_reader.one_by_one, 1)
    insert_chunks(apart, 0, 1, (STREAM,))
    wait_until(stream.size, 'the first chunk', 30)
    apart.lose()
    apart.start()
    insert_chunks(apart, 1, 1, (STREAM,))
    wait_until(lambda: stream.size() == 2, 'the second chunk', 30)
    taken = np.asarray(stream.take(2)[0])
    assert [chunk_id(chunk) for chunk in taken] == [0, 1]

    def gives_up():
        stream.wait(0.05)
        return stream.error

    error = wait_until(gives_up, 'the deadline', 30)
    assert isinstance(error, TimeoutError) and apart.address in str(error)


def test_a_blocked_writer_ends_when_nobody_needs_its_steps(serve):
    served = serve(QUEUE)
    asked = []
    writer = ReplayWriter(served.address, served.storage, 1, served.stop, lambda: len(asked.append(0) or asked) < 3)
    with pytest.raises(Stopped, match='nobody needs'):
        write_steps(writer, fakes.CheckedEnvironment((5,)), 100)
    assert served.table().size == 20


def test_a_lost_server_is_noticed_within_a_deadline(serve, kind):
    client = backend.connect(ADDRESS[kind].format(1))
    assert client.counts(1) is None and not client.is_listening()
    served = serve(QUEUE)
    writer = ReplayWriter(served.address, served.storage, 1, served.stop, server_timeout_secs=1.0)
    served.server.close()
    with pytest.raises(TimeoutError, match='the replay server at'):
        write_steps(writer, fakes.CheckedEnvironment((5,)), 100)
    assert writer.lost_steps > 0


def test_a_port_in_use_is_refused(serve):
    served = serve(QUEUE)
    with pytest.raises(ValueError, match=r'got .*need .*'):
        serve(QUEUE, served.server.port)
