"""ServedDataset: the batches of a dataset that other processes serve, such as a feed or a replay server.

Such a dataset waits for them, and for a lost one without an end. So a thread reads it ahead, into a queue that a draw
takes from: its waits are those of `grant`, which can be stopped and which give up at a deadline.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tflearn.replay.item_reader import Prepare
from tflearn.replay.reader import TableReader
from tflearn.sampling.source import Batch, Source

_POLL_SECS = 0.001
_MAX_GATHER_POLLS = 20


class ServedDataset(Source):
    """A `Source` of the batches that a `TableReader` reads.

    It has no position: what is served is drawn at random, or is gone once it was read.
    """

    def __init__(
        self,
        reader: TableReader,
        unpack: Callable[[Sequence[tf.Tensor]], Batch],
        max_draw_steps: int,
        num_replicas: int = 1,
        prepare: Prepare = lambda samples: samples,
        in_flight: int = 1,
    ):
        """Reads nothing before the first `grant`.

        Args:
          reader: reads the dataset; an element of its queue is a batch.
          unpack: maps the columns of batches [n, ...] to data and info.
          max_draw_steps: the maximum number of batches in one draw, for which the queue has room.
          num_replicas: how many of the dataset's batches, one after the other, are the batch of this process.
          prepare: see `TableReader.start`.
          in_flight: see `TableReader.start`.
        """
        self._given = self._reader = reader
        self._unpack, self._num_replicas = unpack, num_replicas
        self._prepare, self._in_flight = prepare, in_flight
        self.max_draw_steps, self.takes_indices = max_draw_steps, max_draw_steps > 1

    def start(self) -> None:
        """See `Source`."""
        self._reader.start(self._prepare, self._in_flight)

    def grant(self, num_steps: int) -> int:
        """See `Source`. Waits for batches; for half as many as fit into a draw only as long as they arrive soon."""
        self.start()
        # A call for every single batch would slow down the threads that read.
        wanted, polls = min(num_steps, (self.max_draw_steps + 1) // 2), 0
        while not self._reader.closed:
            size = self._reader.size() // self._num_replicas
            polls += bool(size)
            if size >= wanted or polls > _MAX_GATHER_POLLS:
                self._reader.resume()
                return min(num_steps, size, self.max_draw_steps)
            self._reader.wait(_POLL_SECS)
        return 0

    def draw(self, num_steps: tf.Tensor, seed: tf.Tensor, batch_size: tf.Tensor | None = None) -> Any:
        """See `Source`. Returns data and info [num_steps, B, ...]; they were drawn elsewhere, without the seed."""
        del seed, batch_size
        return self._unpack(self._take(num_steps))

    def _take(self, num_steps: tf.Tensor) -> list[tf.Tensor]:
        # A single one is not copied: such batches are large.
        count = 1 if self.max_draw_steps == 1 else tf.cast(num_steps, tf.int32)
        columns = self._reader.take(count * self._num_replicas)
        shapes = [(-1, self._num_replicas * column.shape[1], *column.shape[2:]) for column in columns]
        return [tf.reshape(column, shape) for column, shape in zip(columns, shapes, strict=True)]

    def batch(self, drawn: Any, i: tf.Tensor) -> Batch:
        """Returns batch `i` of a draw."""
        if self.max_draw_steps == 1:
            return tf.nest.map_structure(lambda column: tf.squeeze(column, 0), drawn)
        return tf.nest.map_structure(lambda column: tf.gather(column, i), drawn)
