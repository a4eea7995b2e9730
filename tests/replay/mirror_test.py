import json
import threading

import numpy as np
import tensorflow as tf

from tests import fakes
from tests.replay.conftest import DATA_SPEC
from tests.replay.sources_test import draw, experience, fill, open_source  # noqa: F401
from tests.replay.writers_test import _run
from tflearn.replay.mirror import RingBuffer
from tflearn.replay.storage import REPLAY, STREAM, Storage
from tflearn.replay.writers import ReplayWriter


def _chunks(storage, first, count, begins=None):
    """Chunks whose rows carry a running number in the column `policy_version`."""
    length, num_bytes = storage.chunk_shape
    chunks = np.zeros((count, length, num_bytes), np.uint8)
    for i, chunk in enumerate(chunks):
        numbers = (first + i) * storage.num_starts + np.arange(length)
        chunk[:, 1:9] = numbers.astype(np.int64)[:, None].view(np.uint8)
        chunk[: storage.num_starts, 0] = 1 if begins is None else begins
    return chunks


def _content(ring, storage):
    """The numbers of the first rows of all sequences in the ring, oldest first."""
    oldest, size = ring.window.numpy()
    places = ring.starts.numpy()[(oldest + np.arange(size)) % ring.starts.shape[0]]
    rows = storage.layout.unpack(tf.gather(ring.rows.read_value(), places))
    return rows['policy_version'].numpy().tolist()


def test_the_ring_keeps_the_newest():
    storage = Storage(experience('learner', max_size=1000, chunk_steps=4, sequence_length=3), DATA_SPEC)
    ring = RingBuffer(storage)
    for first in range(0, 900, 30):
        assert ring.add(_chunks(storage, first, 30)) == 120
        newest = (first + 30) * 4
        assert _content(ring, storage) == list(range(max(0, newest - 1000), newest))
    assert ring.size == 1000


def test_the_ring_gives_up_what_its_memory_does_not_hold():
    """Chunks in which few sequences begin fill the rows before the places."""
    storage = Storage(experience('learner', max_size=4000, chunk_steps=16, sequence_length=2), DATA_SPEC)
    ring = RingBuffer(storage)
    begins = [1, *[0] * 14, 1]
    for first in range(0, 2000, 50):
        ring.add(_chunks(storage, first, 50, begins))
        content = _content(ring, storage)
        newest = [chunk * 16 + place for chunk in range(first + 50) for place in (0, 15)]
        assert content == newest[-len(content) :]
    assert ring.size < 2000


def test_what_is_there_already_is_left_out():
    storage = Storage(experience('learner', max_size=1000, chunk_steps=4), DATA_SPEC)
    ring = RingBuffer(storage)
    ring.add(_chunks(storage, 0, 10))
    assert ring.add(_chunks(storage, 5, 10)) == 40
    assert _content(ring, storage) == list(range(15 * 4))


def test_only_rows_of_sequences_take_memory():
    storage = Storage(experience('learner', max_size=1000, chunk_steps=16, sequence_length=2), DATA_SPEC)
    ring = RingBuffer(storage)
    capacity = storage.mirror_rows // 2
    for first in range(0, 2 * capacity, 100):
        ring.add(_chunks(storage, first, 100, [0] * 15 + [1]))
    assert ring.size == min(1000, capacity)
    assert _content(ring, storage)[-1] == (first + 99) * 16 + 15


def test_a_mirror_that_has_no_more_room_is_full(serve, open_source):  # noqa: F811
    """Draws begin although episodes are so short that `min_size` of their sequences will never fit."""
    served = serve(experience('learner', max_size=20_000, min_size=20_000, chunk_steps=16, samples_per_insert=1.0))
    source = open_source(served)
    ring = source._ring
    begins = [1, 0] * 8
    for first in range(0, 2 * served.storage.max_chunks, 200):
        assert source._allowed_steps(1) == 0 or ring.has_dropped
        ring.add(_chunks(served.storage, first, 200, begins))
    assert ring.size < 20_000
    source._inserts = 40_000
    assert source._allowed_steps(1) == 1


def test_a_server_that_lost_everything_is_taken_as_it_is(serve, open_source):  # noqa: F811
    """The checkpoint tells of more inserts than samples need; the replay is empty. Both sides must go on."""
    served = serve(experience('learner', samples_per_insert=4.0, min_size=64, chunk_steps=4))
    source = open_source(served, timeout_secs=20.0)
    source.deserialize(json.dumps({'inserts': 100_000, 'samples': 1_000}))
    fill(served, 200)
    draw(source, 5)
    assert source.figures()['replay_size'] >= 64


def test_it_is_filled_from_the_server_after_a_restart(serve, open_source):  # noqa: F811
    served = serve(experience('learner', min_size=30, chunk_steps=4))
    thread = fill(served, 60)
    first = open_source(served)
    draw(first)
    thread.join(30)
    stored = served.table(REPLAY).current_size
    first.close()
    # While there is no learner, steps go on to come, up to what the stream holds.
    fill(served, 60).join(30)
    assert served.table(REPLAY).current_size == 2 * stored
    second = open_source(served)
    draw(second)
    assert second.figures()['replay_size'] >= 2 * 30
    draw(second, 2)
    # What lay in the stream is not there twice.
    sequences = second.figures()['replay_size']
    threading.Event().wait(0.5)
    draw(second)
    assert second.figures()['replay_size'] == sequences
    assert served.table(STREAM).current_size == 0


def test_writers_go_on_when_the_learner_reads(serve, open_source):  # noqa: F811
    """A stream that nobody reads holds writers back, and lets them go on when somebody does."""
    served = serve(experience('learner', chunk_steps=1, min_size=1))
    stop = threading.Event()
    writer = ReplayWriter(served.address, served.storage, 8, stop)
    thread = threading.Thread(target=_run, args=(writer, fakes.CheckedEnvironment((50,) * 8), 200), daemon=True)
    thread.start()
    thread.join(3.0)
    assert thread.is_alive(), 'held back'
    source = open_source(served)
    for _ in range(100):
        draw(source)
        thread.join(0.1)
        if not thread.is_alive():
            break
    assert not thread.is_alive()
    stop.set()
