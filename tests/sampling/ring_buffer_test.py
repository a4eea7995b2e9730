import mmap
import threading

import numpy as np
import pytest
import tensorflow as tf

from tests.testing.replay import DATA_SPEC, chunks_of, experience, ring_content
from tflearn.core.layout import ColumnLayout
from tflearn.core.waiting import wait_until
from tflearn.replay.chunks import REPEATED, chunk_rows
from tflearn.replay.storage import Storage
from tflearn.sampling.ring_buffer import RingBuffer, RingColumns, SharedArray


def test_keeps_the_newest_sequences():
    storage = Storage(experience('learner', max_size=1000, chunk_steps=4, sequence_length=3), DATA_SPEC)
    ring = RingBuffer(storage)
    for first in range(0, 900, 30):
        assert ring.add(chunks_of(storage, first, 30)) == 120
        newest = (first + 30) * 4
        assert ring_content(ring, storage) == list(range(max(0, newest - 1000), newest))
    assert ring.size == 1000


def test_drops_sequences_that_do_not_fit_into_memory():
    """Chunks in which few sequences begin fill the rows before `max_size` sequences are reached."""
    storage = Storage(experience('learner', max_size=4000, chunk_steps=16, sequence_length=2), DATA_SPEC)
    ring = RingBuffer(storage)
    begins = [1, *[0] * 14, 1]
    for first in range(0, 2000, 50):
        ring.add(chunks_of(storage, first, 50, begins))
        content = ring_content(ring, storage)
        newest = [chunk * 16 + row for chunk in range(first + 50) for row in (0, 15)]
        assert content == newest[-len(content) :]
    assert ring.size < 2000


def test_ignores_chunks_that_it_has_already():
    storage = Storage(experience('learner', max_size=1000, chunk_steps=4), DATA_SPEC)
    ring = RingBuffer(storage)
    ring.add(chunks_of(storage, 0, 10))
    assert ring.add(chunks_of(storage, 5, 10)) == 40
    assert ring_content(ring, storage) == list(range(15 * 4))


def test_chunks_in_parts_take_no_more_room_than_complete_ones():
    """50 environments, each with one more sequence in every part."""
    storage = Storage(experience('learner', max_size=8000, chunk_steps=16, sequence_length=3), DATA_SPEC)
    ring, expected = RingBuffer(storage), []
    for first in range(0, 600, 50):
        for num_starts in range(1, 17):
            assert ring.add(_parts(storage, first, 50, num_starts)) == 50
            expected += [chunk * 16 + num_starts - 1 for chunk in range(first, first + 50)]
        assert ring_content(ring, storage) == expected[-8000:]
        assert (np.diff(_numbers(ring, storage)) == 1).all()
    ring.add(chunks_of(storage, 595, 5))  # sent again
    assert ring_content(ring, storage) == expected[-8000:]
    assert ring.size == 8000


def test_late_part_of_a_chunk_drops_no_other_chunks():
    """When its memory is needed, only older chunks are dropped."""
    storage = Storage(experience('learner', max_size=4000, chunk_steps=16, sequence_length=2), DATA_SPEC)
    ring = RingBuffer(storage)
    (complete,) = chunks_of(storage, 0, 1)
    part = complete.copy()
    chunk_rows(part, storage.layout.num_bytes)[5:] = 0
    ring.add([part])
    first = 1
    while not ring.has_dropped:
        ring.add(chunks_of(storage, first, 10, [1, *[0] * 14, 1]))
        size, first = ring.size, first + 10
        if first == 101:
            ring.add([complete])
    assert ring.size > 0.9 * size


def _numbers(ring, storage):
    """The numbers of all rows of all sequences [n, T]."""
    oldest, size = ring.window.numpy()
    starts = ring.starts.numpy()[(oldest + np.arange(size)) % ring.starts.shape[0]]
    rows = starts[:, None] + np.arange(storage.experience.slicing.sequence_length)
    return ring.columns.batch(ring.columns.draw(rows[None]), 0)['policy_version'].numpy()


def test_there_is_room_after_the_oldest_chunk_was_continued_last():
    """More environments than the ring has room for chunks, each with one sequence, and no call of `publish`."""
    storage = Storage(experience('learner', max_size=8000, chunk_steps=64, sequence_length=2), DATA_SPEC)
    ring, num_chunks = RingBuffer(storage), storage.mirror_rows // storage.chunk_shape[0]
    parts = _parts(storage, 0, num_chunks + 1, 1)
    assert ring.write(parts) == num_chunks
    ring.write(_parts(storage, 0, 1, 2))
    ring.publish()
    assert ring.write(parts[num_chunks:]) == 1


def _parts(storage, first, count, num_starts):
    """The parts of chunks first, first + 1, ... that end with their sequence `num_starts`, the only new one."""
    parts = chunks_of(storage, first, count)
    rows = chunk_rows(parts, storage.layout.num_bytes)
    rows[:, num_starts:, 0] = 0
    rows[:, num_starts + storage.experience.slicing.sequence_length - 1 :] = 0
    rows[:, : num_starts - 1, 0] *= REPEATED
    return parts


def test_only_rows_of_sequences_take_memory():
    storage = Storage(experience('learner', max_size=1000, chunk_steps=16, sequence_length=2), DATA_SPEC)
    ring = RingBuffer(storage)
    capacity = storage.mirror_rows // 2
    for first in range(0, 2 * capacity, 100):
        ring.add(chunks_of(storage, first, 100, [0] * 15 + [1]))
    assert ring.size == min(1000, capacity)
    assert ring_content(ring, storage)[-1] == (first + 99) * 16 + 15


def test_known_chunks_do_not_hide_dropped_ones():
    """Room for future rows is allocated while there are no new sequences; the oldest chunk is dropped for it."""
    storage = Storage(experience('learner', max_size=4000, chunk_steps=4, sequence_length=2), DATA_SPEC)
    ring = RingBuffer(storage)
    first = 0
    while not ring.has_dropped:
        ring.add(chunks_of(storage, first, 10, [1, 0, 0, 0]))
        first += 10
    assert ring.write(chunks_of(storage, first - 2, 2, [1, 0, 0, 0])) == 2
    before = ring.window.numpy()
    (chunk,), unknown = chunks_of(storage, first, 1), -1
    while ring._allocate(unknown, chunk_rows(chunk, storage.layout.num_bytes), np.arange(4)) is not None:
        unknown -= 1
    ring.publish()
    oldest, size = ring.window.numpy()
    assert size == ring.size < before[1]
    assert oldest == ring._oldest % 4000


def test_draws_are_complete_while_another_thread_writes():
    storage = Storage(experience('learner', max_size=500, chunk_steps=4, sequence_length=3), DATA_SPEC)
    ring = RingBuffer(storage)
    ring.add(chunks_of(storage, 0, 100))
    done, failures = threading.Event(), []
    num_writes = 0

    def write():
        nonlocal num_writes
        first = 100
        try:
            while not done.is_set():
                first += ring.write(chunks_of(storage, first, 20))
                num_writes += 1
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    try:
        newest = 0
        for i in range(60):
            ring.publish()
            drawn = ring.draw(tf.constant(10), 64, 0, tf.constant(i, tf.int64))
            before = num_writes  # the next but one began after the draw
            wait_until(
                lambda before=before: failures or num_writes > before + 1, 'the other thread', 30, poll_secs=0.001
            )
            assert not failures
            numbers = ring.batch(drawn, tf.range(10))[1]['policy_version'].numpy()
            assert (np.diff(numbers) == 1).all()
            newest = max(newest, numbers.max())
    finally:
        done.set()
        thread.join(30)
    assert newest > 2 * 4 * storage.mirror_rows // 6, 'the ring wrapped at least once'


SPEC = {
    'image': tf.TensorSpec((12, 12, 3), tf.uint8, 'image'),
    'state': (tf.TensorSpec((3,), tf.float32, 'velocity'), tf.TensorSpec((100, 2), tf.float32, 'map')),
    'done': tf.TensorSpec((), tf.bool, 'done'),
    'count': tf.TensorSpec((), tf.int64, 'count'),
}


def _values(num_rows):
    random = np.random.default_rng(0)
    return tf.nest.map_structure(
        lambda spec: random.integers(0, 2, (num_rows, *spec.shape)).astype(spec.dtype.as_numpy_dtype), SPEC
    )


def test_returns_narrow_and_wide_columns_together():
    layout, values = ColumnLayout(SPEC), _values(20)
    columns = RingColumns(layout, 30)
    columns.write(5, layout.pack(values))
    indices = np.random.default_rng(1).integers(0, 20, (4, 6, 2))  # batches, sequences, steps
    drawn = tf.function(columns.draw)(tf.constant(5 + indices))
    for i in range(4):
        batch = tf.function(columns.batch)(drawn, tf.constant(i))
        tf.nest.map_structure(
            lambda got, column, i=i: np.testing.assert_array_equal(got, column[indices[i]]), batch, values
        )


def test_draw_does_not_copy_images():
    layout = ColumnLayout(SPEC)
    columns = RingColumns(layout, 30)
    assert columns.drawn_bytes == 3 * 4 + 1 + 8
    drawn = columns.draw(tf.zeros((4, 6, 2), tf.int64))
    assert sum(part.shape.num_elements() * part.dtype.size for part in drawn[0]) == 4 * 6 * 2 * columns.drawn_bytes


@pytest.mark.parametrize('num_rows', [3, 1000])
@pytest.mark.parametrize(
    'dtype', [tf.bool, tf.uint8, tf.int8, tf.int32, tf.int64, tf.bfloat16, tf.float16, tf.float32, tf.float64], ids=str
)
def test_compiled_program_reads_current_values(num_rows, dtype):
    array = SharedArray(num_rows, (2, 5), dtype)
    read = tf.function(lambda: array.gather(tf.range(num_rows)))
    assert not np.any(read().numpy().astype(bool))
    random = np.random.default_rng(0)
    for _ in range(2):
        written = random.integers(0, 2, (num_rows, 2, 5)).astype(dtype.as_numpy_dtype)
        array.rows[:] = written.view(np.uint8).reshape(num_rows, -1)
        assert read().dtype == dtype
        np.testing.assert_array_equal(read(), written)


def test_rows_without_dimensions():
    array = SharedArray(1, (), tf.int64)
    array.rows[:] = np.array([[7]], np.int64).view(np.uint8)
    assert array.gather(tf.constant([[0, 0]])).numpy().tolist() == [[7, 7]]


def test_works_without_huge_pages(monkeypatch):
    class Memory(mmap.mmap):
        def madvise(self, *_):
            raise OSError('Invalid argument')

    monkeypatch.setattr(mmap, 'mmap', Memory)
    array = SharedArray(200, (), tf.int32)
    array.rows[150] = np.array([7], np.int32).view(np.uint8)
    assert array.gather(tf.constant(150)).numpy() == 7
