"""Several replay servers as one."""

import collections
import contextlib
import itertools
import threading

import pytest

from tests import fakes
from tests.testing import lanes
from tests.testing.replay import BATCH, chunks_of, draw, experience, ring_content, write_steps
from tflearn.core.experience import Experience, Prioritized
from tflearn.core.waiting import wait_until
from tflearn.replay import backend, writers
from tflearn.replay.backend import Shards
from tflearn.replay.storage import REPLAY, Storage
from tflearn.replay.writers import ReplayWriter
from tflearn.sampling.mirror import ReplayMirror

FOUR = Shards(('a:1', 'b:1', 'c:1', 'd:1'))


def test_writers_are_spread_and_move_only_when_they_must():
    orders = [FOUR.ranked(f'collect_{i}') for i in range(1000)]
    assert all(sorted(order) == list(FOUR.addresses) for order in orders)
    for lost in (None, *FOUR.addresses):
        left = [next(address for address in order if address != lost) for order in orders]
        counts = collections.Counter(left)
        assert len(counts) == 4 - bool(lost) and max(counts.values()) < 1.2 * min(counts.values())
    fewer = Shards(FOUR.addresses[:3])
    assert all(FOUR.ranked(f'collect_{i}')[0] in ('d:1', fewer.ranked(f'collect_{i}')[0]) for i in range(1000)), (
        'a fourth shard takes writers, and moves no other'
    )


@pytest.mark.parametrize('num_pipelines', [1, 2, 3, 4])
def test_each_shard_belongs_to_one_pipeline(num_pipelines):
    parts = [FOUR.of_pipeline(i, num_pipelines) for i in range(num_pipelines)]
    assert sorted(itertools.chain(*parts)) == list(FOUR.addresses)
    assert all(parts)


def test_pipelines_share_shards_if_there_are_fewer():
    assert [Shards(('a:1', 'b:1')).of_pipeline(i, 3) for i in range(3)] == [('a:1',), ('b:1',), ('a:1',)]


def test_one_address_is_a_set_of_one():
    one = Shards(('host:8008',))
    assert one.ranked('anybody') == one.of_pipeline(0, 1) == ('host:8008',)
    with pytest.raises(ValueError, match="got replay servers at 'a:1, b:1, a:1'; need addresses that differ"):
        Shards(('a:1', 'b:1', 'a:1'))


def test_a_writer_keeps_its_order_among_the_shards_that_are_known():
    known = Shards(('', 'b:1', '', 'd:1'))
    for i in range(20):
        order = [address for address in FOUR.ranked(f'collect_{i}') if address in known.addresses]
        assert known.ranked(f'collect_{i}') == tuple(order)


def test_refuses_what_several_servers_would_draw(serve):
    storage = serve(experience('server')).storage
    backend.check_shards(storage, 1)
    with pytest.raises(ValueError, match='got 4 replay servers with .*Uniform.*from which the servers draw; need'):
        backend.check_shards(storage, 4)
    by_priority = Experience(replay=Prioritized(sampling='server'))
    backend.check_shards(Storage(by_priority, storage.data_spec), 4)


@pytest.fixture
def two(serve, tmp_path):
    """Two servers of one replay, whose learner keeps one sample per insert."""
    options = experience('learner', chunk_steps=4, samples_per_insert=1.0, min_size=32)
    return [serve(options, checkpoints=tmp_path / name / 'checkpoints') for name in 'ab']


@pytest.fixture
def open_mirror():
    """Returns a function (servers, filled_from) -> mirror."""
    with contextlib.ExitStack() as stack:

        def start(servers, filled_from=None):
            addresses = [served.address for served in servers]
            source = ReplayMirror(addresses, servers[0].storage, BATCH, 60.0, filled_from=filled_from)
            stack.callback(source.close)
            return source

        yield start


@lanes.classic
def test_one_mirror_of_two_servers_holds_the_ratio_over_both(two, open_mirror):
    """One of them gets three times as many steps. After a restart each worker fills its mirror with its own share."""
    threads = []
    for served, num_environments in zip(two, (6, 2), strict=True):
        writer = ReplayWriter(served.address, served.storage, num_environments, served.stop)
        environment = fakes.CheckedEnvironment((30,) * num_environments)
        threads.append(threading.Thread(target=write_steps, args=(writer, environment, 60), daemon=True))
        threads[-1].start()
    source = open_mirror(two)
    wait_until(lambda: draw(source) and not any(each.is_alive() for each in threads), 'all steps', 60, poll_secs=0.001)
    stored = [served.table(REPLAY).size for served in two]
    assert stored[0] > 2 * stored[1] > 0
    samples, inserts = source._samples, source._inserts - 32
    assert samples <= inserts + source._error_buffer + BATCH, 'samples of both are not more than inserts of both'
    source.close()
    shards = Shards(tuple(served.address for served in two))
    sizes = []
    for worker in range(2):
        mirror = open_mirror(two, shards.of_pipeline(worker, 2))
        draws = [served.table(REPLAY).samples for served in two]
        mirror._rebuild()
        sizes.append(len(mirror._ring._known))
        now = [served.table(REPLAY).samples for served in two]
        assert [a == b for a, b in zip(draws, now, strict=True)] == [worker == 1, worker == 0], 'only its own share'
    assert sizes == stored


def test_only_the_unsaved_tail_of_a_lost_shard_is_lost(monkeypatch, two, serve, open_mirror, tmp_path):
    """Its writer goes on with another one and returns; the learner is restarted. The version says when a step was."""
    monkeypatch.setattr(writers, '_RETURN_POLL_SECS', 0.1)
    first, second = two
    both = lambda: (first.address, second.address)  # noqa: E731
    writer = ReplayWriter(both, first.storage, 1, second.stop, server_timeout_secs=30.0)
    environment, written = fakes.CheckedEnvironment((1000,)), {}

    def write(version):
        before = writer.num_sequences
        write_steps(writer, environment, 16, version)
        written[version] = writer.num_sequences - before

    reading = open_mirror([second])  # so that its stream does not block the writer
    threading.Thread(target=reading.grant, args=(1,), daemon=True).start()
    write(1)
    first.server.checkpoint()
    write(2)
    assert second.table(REPLAY).size == 0
    first.server.close()
    write(3)
    moved = second.table(REPLAY).size
    assert moved >= 4
    options = first.storage.experience
    again = serve(options, first.server.port, tmp_path / 'a' / 'checkpoints')
    wait_until(writer._first_is_back.is_set, 'the first server', 30)
    saved = again.table(REPLAY).size
    write(4)
    assert again.table(REPLAY).size > saved and second.table(REPLAY).size == moved
    assert writer.lost_steps == 0
    reading.close()
    restarted = open_mirror([again, second])
    restarted._open_streams()
    restarted._rebuild()
    restarted._ring.publish()
    kept = collections.Counter(ring_content(restarted._ring, first.storage))
    assert kept == {version: count for version, count in written.items() if version != 2}


def test_reads_a_chunk_that_is_in_two_shards_once(two, open_mirror):
    """A writer that had no confirmation from a lost server sends the same chunks to another one."""
    for served in two:
        inserting = backend.connect(served.address).writer()
        inserting.insert([*chunks_of(served.storage, 0, 20)], [(REPLAY,)] * 20, 1.0)
        assert inserting.flush(0, 30.0)
        inserting.close()
    source = open_mirror(two)
    assert source.grant(1) == 1
    assert source.metrics()['replay_size'] == 20 * 4
    assert len(source._ring._known) == 20
