"""LocalQueue: the queue of a process that acts and trains alternately, without a server."""

import collections
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tflearn.core.resumable import Resumable
from tflearn.replay.chunks import ChunkBuilder, chunk_rows, pack
from tflearn.replay.item_reader import ItemReader, Prepare
from tflearn.replay.storage import REPLAY, Storage


class LocalQueue(ItemReader, Resumable):
    """Observer of trajectories [B, ...], and what reads their items: on no thread, so in a fixed order.

    It has room for all items: they are taken as soon as there are enough for a batch.
    """

    reads_ahead = False

    def __init__(self, storage: Storage, num_environments: int):
        """Begins empty, for items of the storage's layout from B environments."""
        super().__init__('this process', REPLAY)
        self._layout = storage.layout
        self._chunks = ChunkBuilder(storage.experience, storage.num_starts, num_environments, self._layout.num_bytes)
        self._items: collections.deque[np.ndarray] = collections.deque()  # the oldest first

    def __call__(self, trajectory: Any, policy_version: int) -> None:
        """Adds one step of every environment: arrays [B, ...], boundary rows included."""
        pack(self._layout, trajectory, policy_version, self._chunks.next_rows)
        chunks = self._chunks.append(trajectory.step_type, trajectory.next_step_type, trajectory.discount)
        chunks += self._chunks.take_full()
        self._items += [chunk_rows(chunk, self._layout.num_bytes) for chunk in chunks]

    def begin_with_next(self) -> None:
        """See `ChunkBuilder.begin_with_next`."""
        self._chunks.begin_with_next()

    def start(self, prepare: Prepare, in_flight: int, num_streams: int = 1) -> None:
        """Nothing: no item is read ahead."""

    def size(self) -> int:
        """Returns the number of items that nobody has taken."""
        return len(self._items)

    def take(self, count: tf.Tensor | int) -> list[tf.Tensor]:
        """See `ItemReader`; not for a graph. Returns arrays."""
        return [np.stack([self._items.popleft() for _ in range(int(count))])]

    def content(self) -> dict[str, Any]:
        """See `Resumable`."""
        items = {'column_chunk': np.stack(self._items)} if self._items else {}
        return {'chunks': self._chunks.content(), 'items': {REPLAY: items}}

    def set_content(self, content: Mapping[str, Any]) -> None:
        """See `Resumable`."""
        self._chunks.set_content(content['chunks'])
        self._items = collections.deque(content['items'][REPLAY].get('column_chunk', ()))
