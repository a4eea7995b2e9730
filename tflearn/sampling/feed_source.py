"""The learner's end of a feed: batches (FeedSource), or the items of a queue (FeedReader for `QueueSource`).

Nothing here needs Reverb: tf.data service delivers with TensorFlow's own operations.
"""

import threading
from typing import Any

import numpy as np
import tensorflow as tf

from tflearn.core.waiting import wait_until
from tflearn.replay.reader import Prepare, TableReader
from tflearn.replay.storage import Storage
from tflearn.sampling.feed_blocks import Blocks, from_columns
from tflearn.sampling.feed_server import FeedClient
from tflearn.sampling.source import Batch, Planned

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
    """Reads a feed like a table: a thread of its own, a queue that can be stopped, a deadline.

    Its address is the feed's.
    """

    def start(self, prepare: Prepare, in_flight: int, num_streams: int = 1) -> None:
        """Begins to read; what the feed sends are elements of the queue already."""
        del prepare, in_flight, num_streams
        super().start(lambda elements: elements, _IN_FLIGHT)

    def _samples(self, in_flight: int) -> tf.data.Dataset:
        dataset_id = wait_for_feed(self._address, self._storage, self._timeout_secs, self._closed)
        dispatcher = (FeedClient(self._address).state() or {}).get('dispatcher')
        return tf.data.experimental.service.from_dataset_id(
            'parallel_epochs',
            f'grpc://{dispatcher}',
            dataset_id,
            element_spec=tuple(Blocks(self._storage).specs),
            max_outstanding_requests=in_flight,
        )

    def _server_state(self) -> str:
        return _text(FeedClient(self._address))


class FeedSource(Planned):
    """A `Source` of a feed's batches; each of this process's is those of one replica after the other."""

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
        self._given = self._reader = FeedReader(address, storage, '', self._blocks.specs, _AHEAD, timeout_secs)
        self._granted, self._started = self.max_draw_steps, False
        with tf.device('CPU:0'):
            # What `grant` keeps: an element's columns [max_draw_steps, batch of all replicas, ...].
            self._columns = [
                tf.Variable(
                    tf.zeros((self.max_draw_steps, num_replicas * spec.shape[1], *spec.shape[2:]), spec.dtype),
                    trainable=False,
                )
                for spec in self._blocks.specs
            ]
        self._keep_order(self.max_draw_steps)
        self._set_order(np.arange(self.max_draw_steps, dtype=np.int32))

    def metrics(self) -> dict[str, Any]:
        """Returns that this process does not know the samples per insert, which the feed's workers keep."""
        return {'samples_per_insert': None}

    def grant(self, num_steps: int) -> int:
        """See `Source`. Waits for an element when all batches of the last one were granted."""
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

    def batch(self, drawn: tf.Tensor, i: tf.Tensor) -> Batch:
        """Returns batch `i` of a draw: the trajectory [B, T, ...], and its `policy_version` [B, T]."""
        with tf.device('CPU:0'):
            indices = tf.gather(drawn, i)
            return from_columns(self._blocks, [tf.gather(column, indices) for column in self._columns])
