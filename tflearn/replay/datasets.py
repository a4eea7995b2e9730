"""The replay table as an endless tf.data stream of training batches.

Server-side sampling: rows of one column, batched first, unpacked after. Reverb's sampler cannot be interrupted, and
looks for a lost server for ever, so it runs on a thread of its own and hands its batches over in a small queue. Whoever
reads the queue can be stopped, says what it waits for, and gives up at a deadline.
"""

import threading
import time

import reverb
import tensorflow as tf
from absl import logging

from tflearn.experience import Experience
from tflearn.replay import connection, rows, statistics, tables
from tflearn.waiting import LOG_EVERY_SECS

_QUEUE_SIZE = 4
_POLL_SECS = 0.25


class ReplayStream:
    """Draws batches from the replay server until it is closed or nothing has come for too long."""

    def __init__(self, address: str, experience: Experience, layout: rows.RowLayout, timeout_secs: float):
        """Prepares the stream; nothing is drawn before `dataset` is called.

        Args:
          address: the replay server, 'host:port'.
          experience: of the run.
          layout: of the rows.
          timeout_secs: how long to wait for a batch before the dataset ends with `error` set.
        """
        self._address, self._experience, self._layout = address, experience, layout
        self._timeout_secs = timeout_secs
        self._closed = threading.Event()
        self.error: Exception | None = None

    def close(self) -> None:
        """Ends the dataset, also for a learner that waits for a batch. May be called from any thread."""
        self._closed.set()

    def dataset(self, context: tf.distribute.InputContext | None = None) -> tf.data.Dataset:
        """Starts drawing for one input pipeline.

        Args:
          context: of the input pipeline; gives the replicas that it feeds.

        Returns:
          A dataset of (trajectory [B, T, ...], info), where info is a dict with `policy_version` int64 [B, T] and B is
          `per_replica_batch_size`. Endless; it ends, with a whole batch for every replica, when the stream is closed
          or has an `error`.
        """
        item = self._layout.signature(self._experience.sequence_length)['rows']
        replicas = context.num_replicas_in_sync // context.num_input_pipelines if context else 1
        shape = (self._experience.per_replica_batch_size, *item.shape)
        batches = tf.queue.FIFOQueue(_QUEUE_SIZE, item.dtype)
        threading.Thread(target=self._draw, args=(batches, replicas, shape), name='replay_draw', daemon=True).start()

        def take(_: tf.Tensor) -> tf.Tensor:
            packed = batches.dequeue()
            packed.set_shape((None, *shape))
            return packed

        return (
            tf.data.Dataset.from_tensors(0)
            .repeat()
            .map(take)
            .take_while(lambda packed: tf.shape(packed)[0] > 0)
            .unbatch()
            .map(lambda packed: _unpack(self._layout, packed))
            .prefetch(2 * replicas)
        )

    def _draw(self, batches: tf.queue.FIFOQueue, replicas: int, shape: tuple[int, ...]) -> None:
        """Draws global batches [replicas, B, T, bytes], for ever and in one operation outside of Python."""
        # Made on this thread, where no strategy would make a variable for each replica of it.
        with tf.device('CPU:0'):
            num_drawn = tf.Variable(0, dtype=tf.int64, trainable=False)
        watch = threading.Thread(target=self._watch, args=(batches, num_drawn, shape), name='replay_watch', daemon=True)
        watch.start()
        drawn = reverb.TrajectoryDataset(
            server_address=self._address,
            table=tables.REPLAY,
            dtypes={'rows': tf.uint8},
            shapes={'rows': tf.TensorShape(shape[1:])},
            max_in_flight_samples_per_worker=2 * shape[0],
            num_workers_per_iterator=1,
        )
        drawn = drawn.batch(shape[0], drop_remainder=True).batch(replicas, drop_remainder=True)

        def hand_over(count: tf.Tensor, sample: reverb.ReplaySample) -> tf.Tensor:
            with tf.control_dependencies([batches.enqueue(sample.data['rows']), num_drawn.assign_add(1)]):
                return count + 1

        while not self._closed.is_set():
            try:
                drawn.reduce(tf.constant(0, tf.int64), hand_over)
            except tf.errors.OpError as error:
                if not self._closed.is_set():
                    logging.warning('the stream from %s broke off, and begins again: %s', self._address, error.message)
            self._closed.wait(_POLL_SECS)

    def _watch(self, batches: tf.queue.FIFOQueue, num_drawn: tf.Variable, shape: tuple[int, ...]) -> None:
        """Ends the dataset, by an empty batch, when the stream is closed or has waited too long."""
        last, since = -1, time.monotonic()
        next_log_secs = LOG_EVERY_SECS
        while not self._closed.wait(_POLL_SECS):
            count = int(num_drawn.numpy())
            if count != last or batches.size().numpy() > 0:
                last, since, next_log_secs = count, time.monotonic(), LOG_EVERY_SECS
                continue
            waited_secs = time.monotonic() - since
            if waited_secs >= self._timeout_secs:
                self.error = TimeoutError(f'waited {waited_secs:.0f} s in vain for data from {self._server_state()}')
                self.close()
            elif waited_secs >= next_log_secs:
                next_log_secs += LOG_EVERY_SECS
                logging.info('waiting for data (%.0f s) from %s', waited_secs, self._server_state())
        batches.enqueue(tf.zeros((0, *shape), tf.uint8))
        batches.close(cancel_pending_enqueues=True)

    def _server_state(self) -> str:
        info = connection.server_info(self._address)
        table = f'with {statistics.ReplayStatistics.of(info[tables.REPLAY])}' if info else 'which does not answer'
        return f'the replay server at {self._address}, {table}'


def _unpack(layout: rows.RowLayout, packed: tf.Tensor) -> tuple:
    columns = layout.unpack(packed)
    return columns['trajectory'], {'policy_version': columns['policy_version']}
