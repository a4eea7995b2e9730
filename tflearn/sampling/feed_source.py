"""The learner's end of a feed: batches (FeedSource), or the items of a queue (FeedReader for `QueueSource`).

Nothing here needs Reverb: tf.data service delivers with TensorFlow's own operations.
"""

import threading
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tflearn.core.waiting import wait_until
from tflearn.replay.reader import Prepare, TableReader
from tflearn.replay.storage import Storage
from tflearn.sampling.feed_blocks import Blocks, from_columns
from tflearn.sampling.feed_client import FeedClient

_POLL_SECS = 0.0005
_IN_FLIGHT = 4  # elements, over all workers
_AHEAD = 2  # elements that wait in this process


def wait_for_feed(address: str, storage: Storage, timeout_secs: float, stop: threading.Event | None = None) -> str:
    """Waits until a feed has a worker. Returns the id of its dataset.

    Raises:
      TimeoutError: if there is none in time.
      ValueError: if it feeds other elements.
    """
    client, blocks = FeedClient(address), Blocks(storage)

    def state() -> dict[str, Any] | None:
        found = client.state()
        return found if found and found.get('workers') else None

    found = wait_until(state, lambda: _text(client), timeout_secs, stop)
    blocks.check(found, f'a feed at {address}')
    return str(found['dataset_id'])


def _text(client: FeedClient) -> str:
    state = client.state()
    if state is None:
        return f'the feed at {client.address}, which does not answer'
    return f'the feed at {client.address}, which has {state.get("workers", 0)} workers'


class FeedReader(TableReader):
    """Reads a feed like a table: a thread of its own, a queue that can be stopped, a deadline."""

    def __init__(
        self,
        address: str,
        storage: Storage,
        table: str,
        specs: Sequence[tf.TensorSpec],
        capacity: int,
        timeout_secs: float,
    ):
        """Makes the queue; see `TableReader`. `address` is the feed's."""
        super().__init__(address, storage, table, specs, capacity, timeout_secs)
        self._blocks, self._client = Blocks(storage), FeedClient(address)

    def start(self, prepare: Prepare, in_flight: int, num_streams: int = 1) -> None:
        """Begins to read; what the feed sends are elements of the queue already."""
        del prepare, in_flight, num_streams
        super().start(lambda elements: elements, _IN_FLIGHT)

    def _samples(self, in_flight: int) -> tf.data.Dataset:
        dataset_id = wait_for_feed(self._address, self._storage, self._timeout_secs, self._closed)
        dispatcher = (self._client.state() or {}).get('dispatcher')
        return tf.data.experimental.service.from_dataset_id(
            'parallel_epochs',
            f'grpc://{dispatcher}',
            dataset_id,
            element_spec=tuple(self._blocks.specs),
            max_outstanding_requests=in_flight,
        )

    def _server_state(self) -> str:
        return _text(self._client)


class FeedSource:
    """A `BatchSource` of a feed's batches; each of this process's is those of one replica after the other.

    Attributes:
      takes_indices: see `BatchSource`.
    """

    takes_indices = True

    def __init__(self, address: str, storage: Storage, num_replicas: int, timeout_secs: float):
        """Reads nothing before the first `grant`.

        Args:
          address: the feed's, 'host:port'.
          num_replicas: the replicas of this process.
          timeout_secs: how long to wait for data before `grant` returns 0 with `error` set.

        Raises:
          ValueError: if such experience cannot be fed.
        """
        self._blocks = Blocks(storage)
        self._num_replicas = num_replicas
        self.max_draw_steps = max(1, self._blocks.num_steps // num_replicas)
        self._reader = FeedReader(address, storage, '', self._blocks.specs, _AHEAD, timeout_secs)
        self._granted, self._started = self.max_draw_steps, False
        with tf.device('CPU:0'):
            self._columns = [tf.Variable(tf.zeros(spec.shape, spec.dtype), trainable=False) for spec in self._specs()]
            self._next = tf.Variable(0, trainable=False, dtype=tf.int64)

    def _specs(self) -> list[tf.TensorSpec]:
        """The specs of what `grant` keeps: an element's columns [max_draw_steps, batch of all replicas, ...]."""
        steps, replicas = self.max_draw_steps, self._num_replicas
        return [
            tf.TensorSpec((steps, replicas * spec.shape[1], *spec.shape[2:]), spec.dtype) for spec in self._blocks.specs
        ]

    @property
    def error(self) -> Exception | None:
        """Why there are no more batches; None if there are, or if the source was closed."""
        return self._reader.error

    def metrics(self) -> dict[str, Any]:
        """Returns that this process does not know the samples per insert, which the feed's workers keep."""
        return {'samples_per_insert': None}

    def close(self) -> None:
        """See `BatchSource`."""
        self._reader.close()

    def grant(self, num_steps: int) -> int:
        """See `BatchSource`. Waits for an element when all batches of the last one were granted."""
        if not self._started:
            self._started = True
            self._reader.start(lambda elements: elements, _IN_FLIGHT)
        if self._granted == self.max_draw_steps and not self._take():
            return 0
        granted = min(num_steps, self.max_draw_steps - self._granted)
        self._granted += granted
        return granted

    def _take(self) -> bool:
        """Waits for an element, and keeps it. Returns False if there will be none."""
        while not self._reader.size():
            if self._reader.closed:
                return False
            self._reader.wait(_POLL_SECS)
        self._reader.resume()
        for column, variable in zip(self._reader.take(1), self._columns, strict=True):
            used = column[0] if self._num_replicas == 1 else column[0, : self.max_draw_steps * self._num_replicas]
            variable.assign(tf.reshape(used, variable.shape))
        self._next.assign(0)
        self._granted = 0
        return True

    def draw(self, num_steps: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """See `BatchSource`. Returns the batches' indices, int64 [num_steps]."""
        del seed  # the feed's workers draw
        with tf.device('CPU:0'):
            begin = self._next.read_value()
            self._next.assign(begin + tf.cast(num_steps, tf.int64))
            return begin + tf.range(tf.cast(num_steps, tf.int64))

    def batch(self, drawn: tf.Tensor, i: tf.Tensor) -> tuple[Any, dict[str, tf.Tensor]]:
        """Returns batch `i` of a draw: the trajectory [B, T, ...], and its `policy_version` [B, T]."""
        with tf.device('CPU:0'):
            indices = tf.gather(drawn, i)
            return from_columns(self._blocks, [tf.gather(column, indices) for column in self._columns])
