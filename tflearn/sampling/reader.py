"""TableReader: reads items of a replay table into a small queue in this process.

Reverb's sampler cannot be interrupted and waits for a lost server without a deadline, so it runs on its own thread. The
reader of the queue can be stopped, logs what it waits for, and gives up at a deadline.
"""

import threading
import time
from collections.abc import Callable, Sequence

import reverb
import tensorflow as tf
from absl import logging

from tflearn.errors import UserTimeoutError
from tflearn.experience import Queue
from tflearn.replay import connection
from tflearn.replay.storage import REPLAY, ReplayStatistics, Storage
from tflearn.waiting import LOG_EVERY_SECS

_POLL_SECS = 0.25
_CHECK_CLOSED_MS = 5_000
_CLOSE_SECS = 1.0

Prepare = Callable[[tf.data.Dataset], tf.data.Dataset]


class TableReader:
    """Reads a table until it is closed or no data have arrived for too long."""

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
        self._address, self._storage, self._table = address, storage, table
        self._timeout_secs = timeout_secs
        self._closed = threading.Event()
        self._threads: list[threading.Thread] = []
        self._waits_since: float | None = None
        self.error: Exception | None = None
        with tf.device('CPU:0'):
            self._queue = tf.queue.FIFOQueue(capacity, [spec.dtype for spec in specs], [spec.shape for spec in specs])

    def start(self, prepare: Prepare, in_flight: int, num_streams: int = 1) -> None:
        """Begins to read.

        Args:
          prepare: converts the table's `reverb.ReplaySample`s to elements of the queue, either single ones or k of them
            as tensors [k, ...]; at most the capacity.
          in_flight: the number of items that the server may send ahead on each stream.
          num_streams: streams that are read at the same time and divide the items among them; their order may change.
        """
        given = (prepare, in_flight, num_streams)
        draw = threading.Thread(target=self._draw, args=given, name='replay_draw', daemon=True)
        watch = threading.Thread(target=self._watch, name='replay_watch', daemon=True)
        self._threads = [draw, watch]
        for thread in (draw, watch):
            thread.start()

    @property
    def closed(self) -> bool:
        """Whether the reader was closed."""
        return self._closed.is_set()

    def size(self) -> int:
        """Returns the number of elements in the queue."""
        return int(self._queue.size().numpy())

    def take(self, count: tf.Tensor | int) -> list[tf.Tensor]:
        """Returns the next `count` elements, stacked; there must be as many. Also for a graph. One is not copied."""
        with tf.device('CPU:0'):
            if isinstance(count, int) and count == 1:
                return [tf.expand_dims(component, 0) for component in tf.nest.flatten(self._queue.dequeue())]
            return tf.nest.flatten(self._queue.dequeue_many(count))

    def wait(self, secs: float) -> None:
        """Waits for `secs`, as a caller that cannot continue without data: the deadline counts until `resume`."""
        if self._waits_since is None:
            self._waits_since = time.monotonic()
        self._closed.wait(secs)

    @property
    def is_waited_for(self) -> bool:
        """Whether a caller cannot continue without data."""
        return self._waits_since is not None

    def sleep(self, secs: float) -> None:
        """Waits for `secs`, or until the reader is closed."""
        self._closed.wait(secs)

    def resume(self) -> None:
        """Records that data arrived, which ends the wait that `wait` began."""
        self._waits_since = None

    def close(self) -> None:
        """Stops reading at the next item. May be called from any thread."""
        close_all([self])

    def _draw(self, prepare: Prepare, in_flight: int, num_streams: int) -> None:
        """Reads until closed; an earlier failure becomes `error`."""
        try:
            self._read(prepare, in_flight, num_streams)
        except Exception as error:
            self.error = error
            self.close()

    def _read(self, prepare: Prepare, in_flight: int, num_streams: int) -> None:
        """Reads until closed, each stream in one operation outside of Python."""
        shape = tf.TensorShape(self._storage.item_shape)
        samples = reverb.TrajectoryDataset(
            server_address=self._address,
            table=self._table,
            dtypes={'chunk': tf.uint8},
            shapes={'chunk': shape},
            max_in_flight_samples_per_worker=in_flight,
            num_workers_per_iterator=1,
            # After a silence it checks whether it is closed. If several items are in flight, one that arrives just then
            # is lost. That must not happen with a queue.
            rate_limiter_timeout_ms=-1 if isinstance(self._storage.experience.replay, Queue) else _CHECK_CLOSED_MS,
        )
        # A batch that is half full at a timeout waits for its other half.
        elements = prepare(tf.data.Dataset.counter().take_while(self._is_open).flat_map(lambda _: samples))

        def put(count: tf.Tensor, *tensors: tf.Tensor) -> tf.Tensor:
            components = tf.nest.flatten(tensors)
            by_itself = components[0].shape.rank == self._queue.shapes[0].rank
            enqueue = self._queue.enqueue if by_itself else self._queue.enqueue_many
            with tf.control_dependencies([enqueue(components)]):
                return count + 1

        def read() -> None:
            elements.reduce(tf.constant(0, tf.int64), put)

        others = [
            threading.Thread(target=self._repeat, args=(read,), name='replay_draw', daemon=True)
            for _ in range(num_streams - 1)
        ]
        for thread in others:
            thread.start()
        self._threads += others
        self._repeat(read)

    def _repeat(self, read: Callable[[], None]) -> None:
        """Reads one stream until closed."""
        while not self._closed.is_set():
            try:
                read()
            except tf.errors.OpError as error:
                if not self._closed.is_set():
                    logging.warning('the stream from %s broke; it is opened again: %s', self._address, error.message)
            self._closed.wait(_POLL_SECS)

    def _is_open(self, _: tf.Tensor) -> tf.Tensor:
        return tf.logical_not(self._queue.is_closed())

    def _watch(self) -> None:
        """Watches the deadline until closed; an earlier failure becomes `error`."""
        try:
            self._wait_for_deadline()
        except Exception as error:
            self.error = error
            self.close()
        finally:
            self._queue.close(cancel_pending_enqueues=True)

    def _wait_for_deadline(self) -> None:
        """Logs what the caller waits for, and gives up at the deadline."""
        next_log_secs = LOG_EVERY_SECS
        while not self._closed.wait(_POLL_SECS):
            since = self._waits_since
            waited_secs = time.monotonic() - since if since else 0.0
            if waited_secs < LOG_EVERY_SECS:
                next_log_secs = LOG_EVERY_SECS
            if waited_secs >= self._timeout_secs:
                what = f'data from {self._server_state()}'
                self.error = UserTimeoutError(f'timed out after {waited_secs:.0f} s waiting for {what}')
                self.close()
            elif waited_secs >= next_log_secs:
                next_log_secs += LOG_EVERY_SECS
                logging.info('waiting for data (%.0f s) from %s', waited_secs, self._server_state())

    def _server_state(self) -> str:
        info = connection.server_info(self._address)
        table = f'with {ReplayStatistics.of(info[REPLAY], self._storage)}' if info else 'which does not answer'
        return f'the replay server at {self._address}, {table}'


def close_all(readers: Sequence[TableReader]) -> None:
    """Closes readers, and waits for all of them together, while their servers are still up: see `TableReader.close`."""
    closing = [reader for reader in readers if not reader.closed]
    for reader in closing:
        reader._closed.set()
    deadline = time.monotonic() + _CLOSE_SECS
    for reader in closing:
        if reader._threads and threading.current_thread() not in reader._threads:
            for thread in reader._threads[:]:  # a stream would wait for a lost server forever
                thread.join(max(0.0, deadline - time.monotonic()))


def one_by_one(samples: tf.data.Dataset) -> tf.data.Dataset:
    """Returns single items, without additional buffers; see `TableReader.start`."""
    options = tf.data.Options()
    options.autotune.enabled = False  # it would add buffers
    return samples.map(lambda sample: sample.data['chunk']).with_options(options)
