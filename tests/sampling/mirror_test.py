import json
import math
import threading
import time
import tracemalloc

import pytest
import reverb
import tensorflow as tf

from tests import fakes
from tests.testing.replay import NoFlush, chunks_of, draw, experience, fill, ring_content, write_steps
from tflearn.core.waiting import wait_until
from tflearn.replay import backend
from tflearn.replay.chunks import chunk_id
from tflearn.replay.storage import REPLAY, STREAM
from tflearn.replay.writers import ReplayWriter


def test_mirror_without_room_counts_as_full(serve, open_source):
    """Draws begin although episodes are so short that `min_size` of their sequences will never fit."""
    served = serve(experience('learner', max_size=20_000, min_size=20_000, chunk_steps=16, samples_per_insert=1.0))
    source = open_source(served)
    ring = source._ring
    begins = [1, 0] * 8
    for first in range(0, 2 * served.storage.max_chunks, 200):
        assert source._allowed_steps(1) == 0 or ring.has_dropped
        ring.add(chunks_of(served.storage, first, 200, begins))
    assert ring.size < 20_000
    source._inserts_before = 20_000
    assert source._allowed_steps(1) == 1


def test_continues_with_a_server_that_lost_its_content(serve, open_source):
    """The checkpoint counts more inserts than the samples need, but the replay is empty. Both sides must continue."""
    served = serve(experience('learner', samples_per_insert=4.0, min_size=64, chunk_steps=4))
    source = open_source(served, timeout_secs=20.0)
    source.deserialize(json.dumps({'inserts': 100_000, 'samples': 1_000}))
    fill(served, 200)
    draw(source, 5)
    assert source.metrics()['replay_size'] >= 64


def test_waits_for_slow_data(serve, open_source):
    """They take longer than the timeout, which applies only if no data arrive at all."""
    served = serve(experience('learner', min_size=64, chunk_steps=4))
    source = open_source(served, timeout_secs=3.0)
    over = threading.Event()

    def write():
        writer = ReplayWriter(served.address, served.storage, 2, served.stop)
        while not over.wait(0.5):
            write_steps(writer, fakes.CheckedEnvironment((50, 50)), 5)

    writing = threading.Thread(target=write, daemon=True)
    start = time.monotonic()
    writing.start()
    try:
        draw(source)
        assert time.monotonic() - start > 3.0
    finally:
        over.set()
        writing.join(30)


def test_restart_fills_the_mirror_from_the_server(serve, open_source):
    served = serve(experience('learner', min_size=30, chunk_steps=4))
    thread = fill(served, 60)
    first = open_source(served)
    draw(first)
    thread.join(30)
    stored = served.table(REPLAY).size
    first.close()
    # While there is no learner, steps keep arriving until the stream is full.
    fill(served, 60).join(30)
    assert served.table(REPLAY).size == 2 * stored
    second = open_source(served)
    draw(second)
    assert second.metrics()['replay_size'] >= 2 * 30
    draw(second, 2)
    # The stream's items are not in the mirror twice.
    sequences = second.metrics()['replay_size']
    threading.Event().wait(0.5)
    draw(second)
    assert second.metrics()['replay_size'] == sequences
    assert served.table(STREAM).size == 0


def test_keeps_equal_sequences(serve, open_source):
    """With 64 equal environments, before and after a restart."""
    served = serve(experience('learner', chunk_steps=1))
    thread = fill(served, 8, (3,) * 64)
    for _ in range(2):
        source = open_source(served)
        wait_until(lambda source=source: draw(source) and source.metrics()['replay_size'] >= 6 * 64, 'all of them', 30)
        assert source.metrics()['replay_size'] == 6 * 64
        source.close()
    thread.join(30)


def test_slow_steps_are_drawn_immediately_and_stored_in_complete_chunks(monkeypatch, serve, open_source):
    monkeypatch.setattr('tflearn.replay.writers._PART_SECS', -1.0)
    served = serve(experience('learner', max_size=640))
    source = open_source(served)
    slow, environment = (
        NoFlush(ReplayWriter(served.address, served.storage, 4, served.stop)),
        fakes.CheckedEnvironment((1000,) * 4),
    )
    for num_steps in (5, 13, 32):  # 50 in all, of four environments, in chunks of 16
        write_steps(slow, environment, num_steps)
        inserts = slow.writer.num_complete_sequences
        wait_until(lambda inserts=inserts: draw(source) and source._inserts >= inserts, 'the steps', 30, poll_secs=0.01)
        assert source._inserts == source.metrics()['replay_size'] == inserts
    numbers = ring_content(source._ring, served.storage, 'observation')
    slow.writer.flush()
    assert served.table(REPLAY).size == 4 * 4
    source.close()
    restarted = open_source(served)
    draw(restarted)
    assert restarted.metrics()['replay_size'] == inserts
    assert ring_content(restarted._ring, served.storage, 'observation') == numbers


def _insert(served, chunks):
    """Complete chunks go into the table, from which a mirror is restored, but not into the stream."""
    writer = reverb.Client(served.address).trajectory_writer(1)
    for chunk in chunks:
        writer.append({'chunk': chunk})
        writer.create_item(REPLAY, 1.0, {'chunk': writer.history['chunk'][-1]})
    writer.flush()
    writer.close()


def test_restart_reads_and_keeps_each_chunk_once(serve, open_source):
    """Besides the mirror no more memory is used than the chunks take."""
    served, num_chunks = serve(experience('learner', chunk_steps=64)), 1000
    _insert(served, chunks_of(served.storage, 0, num_chunks))
    num_bytes = num_chunks * math.prod(served.storage.item_shape)
    for num_reads in (1, 2):
        source = open_source(served)
        if num_reads == 2:  # the first one traces functions
            tracemalloc.start()
        assert source.grant(1) == 1
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        source.close()
        assert source.metrics()['replay_size'] == 64 * num_chunks
        draws = served.table(REPLAY).samples
        assert num_reads * num_chunks <= draws < num_reads * 2 * num_chunks  # uniform draws would take 7 times as many
    assert num_bytes < peak_bytes < 1.5 * num_bytes
    assert ring_content(source._ring, served.storage) == list(range(64 * num_chunks)), 'oldest first'
    chunks = backend.connect(served.address).scan(served.storage, REPLAY, 30.0, served.stop)
    assert all(chunk.base is None for chunk in chunks), 'views would keep entire batches in memory'


def test_reads_several_streams_ahead_but_no_more_than_the_ratio_allows(serve, open_source):
    """A learner that takes nothing has as many chunks as its queue and one stream would have."""
    served = serve(experience('learner', chunk_steps=4, samples_per_insert=1.0, min_size=1))
    ahead = served.storage.stream_chunks
    writer = reverb.Client(served.address).trajectory_writer(1)
    for chunk in chunks_of(served.storage, 0, 3 * ahead):
        writer.append({'chunk': chunk})
        writer.create_item(STREAM, 1.0, {'chunk': writer.history['chunk'][-1]})
    source = open_source(served)
    source._wanted_chunks = lambda: 0
    threading.Thread(target=source.grant, args=(1,), daemon=True).start()
    read = lambda: served.table(STREAM).samples  # noqa: E731
    wait_until(lambda: source._num_streams <= read(), 'a chunk of each stream', 60)
    threading.Event().wait(0.3)
    assert source._num_streams == 8 and read() <= ahead + 2
    source._wanted_chunks = lambda: ahead
    wait_until(lambda: source._ring.num_written == 3 * ahead * 4, 'all of them, each once', 30)
    writer.close()


def test_reads_items_that_a_dead_reader_left(serve):
    served = serve(experience('learner', chunk_steps=4))
    _insert(served, chunks_of(served.storage, 0, 50))
    keys = {sample[0].info.key for sample in reverb.Client(served.address).sample(REPLAY, 20)}
    reverb.Client(served.address).mutate_priorities(REPLAY, updates=dict.fromkeys(keys, 0.0))
    for _ in range(2):
        chunks = backend.connect(served.address).scan(served.storage, REPLAY, 30.0, served.stop)
        assert sorted(map(chunk_id, chunks)) == list(range(50))


def test_waits_for_a_server_that_answers_late(monkeypatch, serve, open_source):
    """The mirror never begins empty because the server did not answer."""
    options = experience('learner', chunk_steps=4)
    served, asked = serve(options), []
    _insert(served, chunks_of(served.storage, 0, 50))
    served.server.checkpoint()
    served.server.close()
    counts = backend.counts
    monkeypatch.setattr(backend, '_COUNTS_TIMEOUT_SECS', 1)
    monkeypatch.setattr(backend, 'counts', lambda address: (counts(address), asked.append(0))[0])
    source = open_source(served)
    thread = threading.Thread(target=source.grant, args=(1,), daemon=True)
    thread.start()
    wait_until(lambda: asked, 'a question without an answer', 30)
    serve(options, served.server.port)
    thread.join(60)
    assert source.metrics()['replay_size'] == 200


def test_server_that_does_not_answer_is_an_error(monkeypatch, serve, open_source):
    monkeypatch.setattr(backend, '_COUNTS_TIMEOUT_SECS', 1)
    served = serve(experience('learner'))
    served.server.close()
    source = open_source(served, timeout_secs=1.0)
    assert source.grant(1) == 0
    with pytest.raises(TimeoutError, match=f'waiting for the replay server at {served.address}'):
        raise source.error


def test_reports_read_errors_immediately(monkeypatch, serve, open_source):
    monkeypatch.setattr('reverb.TrajectoryDataset', lambda **_: tf.data.Dataset.from_tensors(1.0))
    source = open_source(serve(experience('learner')))
    assert source.grant(1) == 0
    assert isinstance(source.error, AttributeError)


def test_writers_continue_when_the_learner_reads(serve, open_source):
    """A stream without a reader blocks writers until there is one."""
    served = serve(experience('learner', chunk_steps=1, min_size=1))
    stop = threading.Event()
    writer = ReplayWriter(served.address, served.storage, 8, stop)
    thread = threading.Thread(target=write_steps, args=(writer, fakes.CheckedEnvironment((50,) * 8), 200), daemon=True)
    thread.start()
    thread.join(3.0)
    assert thread.is_alive(), 'blocked'
    source = open_source(served)
    for _ in range(100):
        draw(source)
        thread.join(0.1)
        if not thread.is_alive():
            break
    assert not thread.is_alive()
    stop.set()
