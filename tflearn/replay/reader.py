"""TableReader: reads items of a replay table into a small queue in this process. ShardedReader: of several tables.

A stream cannot be interrupted and may wait for a lost server without a deadline, so it runs on its own thread. The
reader of the queue can be stopped, logs what it waits for, and gives up at a deadline.
"""

import collections
import contextlib
import functools
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf
from absl import logging

from tflearn.core import background
from tflearn.replay import backend
from tflearn.replay.item_reader import ItemReader, Prepare, Readers, unbuffered, unconverted
from tflearn.replay.storage import REPLAY, ReplayStatistics, Storage

_POLL_SECS = 0.25
_CHECK_CLOSED_MS = 5_000
_POLL_BATCH_SECS = 0.001
_LOST_SECS = 2.0
_REFRESH_SECS = 1.0


class _Blocks:
    """Items of a stream that were read ahead, in the blocks in which they came: of two threads."""

    def __init__(self, capacity: int):
        self._capacity, self._blocks = capacity, collections.deque[np.ndarray]()
        self._changed, self._size = threading.Condition(), 0

    def size(self) -> int:
        return self._size

    def put(self, block: np.ndarray, is_open: Callable[[], bool]) -> None:
        """Adds a block, once there are fewer items than fit."""
        with self._changed:
            while self._size >= self._capacity and is_open():
                self._changed.wait(_POLL_SECS)
            self._blocks.append(block)
            self._size += len(block)

    def take(self, count: int) -> np.ndarray:
        """Returns the next items, of which there must be as many; without a copy if they are of one block."""
        parts = []
        with self._changed:
            self._size -= count
            while count:
                block = self._blocks.popleft()
                parts.append(block[:count])
                count -= len(parts[-1])
            if len(parts[-1]) < len(block):
                self._blocks.appendleft(block[len(parts[-1]) :])
            self._changed.notify()
        return parts[0] if len(parts) == 1 else np.concatenate(parts)


class TableReader(ItemReader):
    """Reads a table until it is closed or no data have arrived for too long.

    Attributes:
      takes_in_graphs: whether `take` is also for a graph.
    """

    def __init__(
        self,
        address: str,
        storage: Storage,
        table: str,
        specs: Sequence[tf.TensorSpec],
        capacity: int,
        timeout_secs: float,
    ):
        """Makes the queue; reads nothing before `start`.

        Args:
          capacity: the queue's capacity [elements].
          timeout_secs: how long to wait for data before `error` is set.
        """
        super().__init__(address, table, timeout_secs)
        self._storage = storage
        self._ahead = _Blocks(capacity) if backend.connect(address).has_stream else None
        self.takes_in_graphs = self._ahead is None
        with tf.device('CPU:0'):
            self._queue = tf.queue.FIFOQueue(capacity, [spec.dtype for spec in specs], [spec.shape for spec in specs])

    def start(self, prepare: Prepare, in_flight: int, num_streams: int = 1) -> None:
        """Begins to read, unless it has begun.

        Args:
          prepare: converts the table's `backend.Sample`s to elements of the queue, either single ones or k of them
            as tensors [k, ...]; at most the capacity.
          in_flight: the number of items that the server may send ahead on each stream.
          num_streams: streams that are read at the same time and divide the items among them; their order may change.
            A backend that has a stream of its own is read by one, with as many items in flight.
        """
        if not self._threads:
            given = (prepare, in_flight, num_streams)
            self._threads = [background.Thread(target=self._draw, args=given, name='replay_draw')]
            self._threads[0].start()

    def size(self) -> int:
        """Returns the number of elements in the queue."""
        return self._ahead.size() if self._ahead else int(self._queue.size().numpy())

    def take(self, count: tf.Tensor | int) -> list[tf.Tensor]:
        """Returns the next `count` elements, stacked; there must be as many. One is not copied.

        Arrays, if the backend has streams.
        """
        if self._ahead:
            return [self._ahead.take(int(count))]
        with tf.device('CPU:0'):
            if isinstance(count, int) and count == 1:
                return [tf.expand_dims(component, 0) for component in tf.nest.flatten(self._queue.dequeue())]
            return tf.nest.flatten(self._queue.dequeue_many(count))

    def _draw(self, prepare: Prepare, in_flight: int, num_streams: int) -> None:
        """Reads until closed; an earlier failure becomes `error`."""
        try:
            self._read(prepare, in_flight, num_streams)
        except Exception as error:
            if not self.closed:
                self.error = error
            self.close()

    def _read(self, prepare: Prepare, in_flight: int, num_streams: int) -> None:
        """Reads until closed; samples of each stream in one operation outside of Python."""
        if self._ahead:
            self._repeat(functools.partial(self._read_stream, self._ahead, in_flight * num_streams))
            return
        samples = self._samples(in_flight)
        # A batch that is half full at a timeout waits for its other half.
        is_open = tf.data.Dataset.counter().take_while(unconverted(lambda _: tf.logical_not(self._queue.is_closed())))
        elements = prepare(is_open.flat_map(unconverted(lambda _: samples)))

        @unconverted
        def put(count: tf.Tensor, *tensors: tf.Tensor) -> tf.Tensor:
            components = tf.nest.flatten(tensors)
            by_itself = components[0].shape.rank == self._queue.shapes[0].rank
            enqueue = self._queue.enqueue if by_itself else self._queue.enqueue_many
            with tf.control_dependencies([enqueue(components)]):
                return count + 1

        def read() -> None:
            elements.reduce(tf.constant(0, tf.int64), put)

        others = [
            background.Thread(target=self._repeat, args=(read,), name='replay_draw') for _ in range(num_streams - 1)
        ]
        for thread in others:
            thread.start()
        self._threads += others
        self._repeat(read)

    def _read_stream(self, blocks: _Blocks, at_most: int) -> None:
        client = backend.connect(self._address)
        with contextlib.closing(client.stream(self._table, self._storage.item_shape, at_most)) as stream:
            for block in stream:
                if self._closed.is_set():
                    return
                if len(block):
                    blocks.put(block, lambda: not self._closed.is_set())

    def _samples(self, in_flight: int) -> tf.data.Dataset:
        """Returns what the streams consist of."""
        # After a silence it checks whether it is closed. If several items are in flight, one that arrives just then is
        # lost. That must not happen with a queue.
        timeout_ms = _CHECK_CLOSED_MS if self._storage.experience.replay.learns_from_old_items else -1
        client = backend.connect(self._address)
        return client.samples(self._table, self._storage.item_shape, in_flight, timeout_ms)

    def _repeat(self, read: Callable[[], None]) -> None:
        """Reads one stream until closed."""
        while not self._closed.is_set():
            try:
                read()
            except (tf.errors.OpError, backend.Lost) as error:
                if not self._closed.is_set():
                    reason = getattr(error, 'message', error)
                    logging.warning('the stream from %s broke; it is opened again: %s', self._address, reason)
            self._closed.wait(_POLL_SECS)

    def stop(self) -> None:
        """See `ItemReader`."""
        super().stop()
        self._queue.close(cancel_pending_enqueues=True)

    def _server_state(self) -> str:
        tables = backend.counts(self._address)
        table = f'with {ReplayStatistics.of(tables[REPLAY], self._storage)}' if tables else 'which does not answer'
        return f'the replay server at {self._address}, {table}'


class ShardedReader(TableReader):
    """Batches of items that several replay servers draw by priority, as one server with all their items would.

    A batch chooses a server for each of its items in proportion to the sum of the servers' priorities, and that server
    draws the item: so an item of priority p has the probability p / (sum over all servers), whichever server has it.
    Each item that a server draws reports that server's sum; where none was taken for `_REFRESH_SECS`, the items that
    were read ahead are dropped for newer ones. A server that gives no items for `_LOST_SECS` is left out until it gives
    a batch of them again: it is lost or empty, or its rate limiter waits for inserts.

    An element of its queue is a batch: items uint8 [B, T, num_bytes], their keys uint64 [B], N P float32 [B] (the
    number of all items times an item's probability), and the index of their server int32 [B].
    """

    def __init__(
        self,
        addresses: Sequence[str],
        storage: Storage,
        specs: Sequence[tf.TensorSpec],
        capacity: int,
        timeout_secs: float,
        seed: int | None = None,
    ):
        """Makes the queues; reads nothing before `start`.

        Args:
          addresses: the servers' addresses, 'host:port'.
          specs: the specs of a batch's tensors.
          capacity: batches that are made ahead.
          timeout_secs: see `TableReader`.
          seed: of the choice of servers; None draws one.
        """
        super().__init__(addresses[0], storage, REPLAY, specs, capacity, timeout_secs)
        self._addresses, self._specs, self._batch_size = tuple(addresses), specs, specs[0].shape[0]
        item = [tf.TensorSpec(storage.chunk_shape, tf.uint8)]
        item += [tf.TensorSpec((), dtype) for dtype in (tf.uint64, tf.float64, tf.float64, tf.int64)]
        self.each = [
            TableReader(address, storage, REPLAY, item, 2 * self._batch_size, timeout_secs) for address in addresses
        ]
        self._random = np.random.default_rng(seed)
        self._sums = np.full(len(self._addresses), np.nan)  # of priorities; not a number before the first item
        self._sizes = np.zeros(len(self._addresses), np.int64)
        self._taken_at = [0.0] * len(self._addresses)

    def start(self, prepare: Prepare, in_flight: int, num_streams: int = 1) -> None:
        """Begins to read; what it makes are batches already."""
        del prepare, in_flight, num_streams
        super().start(unbuffered, 1)

    def close(self) -> None:
        """See `ItemReader`."""
        Readers([self, *self.each]).close()

    def _samples(self, in_flight: int) -> tf.data.Dataset:
        """Returns the dataset of batches, which are chosen one after the other."""
        together = max(1, self._batch_size // (4 * len(self.each)))

        def arrange(sample: backend.Sample) -> tuple[tf.Tensor, ...]:
            info = sample.info
            return sample.data['chunk'], info.key, info.priority, info.probability, info.table_size

        def prepare(samples: tf.data.Dataset) -> tf.data.Dataset:
            return samples.batch(together, drop_remainder=True).map(unconverted(arrange))

        def batch(_: tf.Tensor) -> tuple[tf.Tensor, ...]:
            columns = tf.numpy_function(self._next, [], [spec.dtype for spec in self._specs])
            return tuple(tf.ensure_shape(each, spec.shape) for each, spec in zip(columns, self._specs, strict=True))

        for reader in self.each:
            reader.start(prepare, 2 * together)
        return tf.data.Dataset.counter().map(unconverted(batch))

    def _server_state(self) -> str:
        return ' and '.join(reader._server_state() for reader in self.each)

    def _next(self) -> list[np.ndarray]:
        """Returns the next batch; raises RuntimeError if there is none, since it was closed or failed."""
        try:
            if (counts := self._choose()) is not None:
                return self._batch(counts)
        except Exception as error:  # the training thread raises it
            self.error = error
        self.error = self.error or Readers(self.each).error
        self.stop()
        raise RuntimeError('the reader is closed')

    def _choose(self) -> np.ndarray | None:
        """Waits until the servers have the items of a batch. Returns how many of each to take; None once closed."""
        counts, since = None, time.monotonic()
        while not self.closed and not Readers(self.each).closed:
            self._refresh()
            sums = np.nan_to_num(self._sums)
            late = time.monotonic() - since > _LOST_SECS
            if not sums.any() or (np.isnan(self._sums).any() and not late):
                since = since if sums.any() else time.monotonic()
            else:
                counts = self._random.multinomial(self._batch_size, sums / sums.sum()) if counts is None else counts
                short = [i for i, reader in enumerate(self.each) if reader.size() < counts[i]]
                if not short:
                    self._sums = sums
                    return counts
                if late:
                    for i in short:
                        text = 'the replay server at %s has given no items for %.0f s; batches have none of it'
                        logging.warning(text, self._addresses[i], _LOST_SECS)
                        self._sums[i] = sums[i] = 0.0
                    counts, since = None, time.monotonic()
            self._closed.wait(_POLL_BATCH_SECS)
        return None

    def _refresh(self) -> None:
        """Learns a server's sum of priorities again where that is unknown or old."""
        for i, reader in enumerate(self.each):
            unknown = not self._sums[i] > 0
            if time.monotonic() - self._taken_at[i] < (0.0 if unknown else _REFRESH_SECS):
                continue
            if (size := reader.size()) >= (self._batch_size if unknown else 1):
                self._take(i, size)

    def _take(self, i: int, count: int) -> list[np.ndarray]:
        """Returns `count` items of a server, their keys and their probabilities there."""
        items, keys, priorities, probabilities, sizes = (part.numpy() for part in self.each[i].take(count))
        self._sums[i], self._sizes[i] = priorities[-1] / probabilities[-1], sizes[-1]
        self._taken_at[i] = time.monotonic()
        return [items, keys, probabilities]

    def _batch(self, counts: np.ndarray) -> list[np.ndarray]:
        shares = self._sums / self._sums.sum()  # by which the servers were chosen
        parts = [(i, *self._take(i, int(count))) for i, count in enumerate(counts) if count]
        present = shares > 0
        expected = [self._sizes[present].sum() * shares[i] * probabilities for i, _, _, probabilities in parts]
        order = self._random.permutation(self._batch_size)
        columns = [
            np.concatenate(each)[order] for each in zip(*((items, keys) for _, items, keys, _ in parts), strict=True)
        ]
        owners = np.repeat(np.arange(len(counts)), counts)[order]
        return [*columns, np.concatenate(expected)[order].astype(np.float32), owners.astype(np.int32)]
