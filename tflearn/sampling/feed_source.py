"""A feed's elements, which its workers send; and the learner's end of it.

That is a dataset of batches, or of the items of a queue (FeedReader for `QueueSource`). Nothing here needs Reverb:
tf.data service delivers with TensorFlow's own operations.
"""

import contextlib
import hashlib
import json
import math
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tflearn.core.experience import check_feed
from tflearn.core.layout import ColumnLayout
from tflearn.core.waiting import is_listening, wait_until
from tflearn.replay.chunks import with_version
from tflearn.replay.item_reader import Prepare
from tflearn.replay.reader import TableReader
from tflearn.replay.storage import Storage
from tflearn.sampling.served_dataset import ServedDataset
from tflearn.sampling.source import Batch

PROTOCOL = 1
_MAX_STEPS = 128
_MAX_BYTES = 8 << 20  # a message has several of them in flight


class Blocks:
    """What an element of the feed holds.

    With a uniform replay it is the batches of some train steps, each for one replica, as columns: neighbours of one
    dtype are joined, since each tensor of a message costs. With a queue it is as many items as there are, as rows.

    Attributes:
      is_queue: whether elements are items.
      num_steps: the batches of an element; the most items.
      specs: the specs of an element's tensors: [num_steps, B, T, ...] each; of items uint8 [None, T, bytes].
    """

    def __init__(self, storage: Storage):
        """Computes the layout; raises ValueError if such experience cannot be fed."""
        experience = storage.experience
        check_feed(experience.replay)
        self.is_queue = not experience.replay.learns_from_old_items
        self.signature = storage.layout.text
        length = experience.slicing.num_rows
        row = {'policy_version': tf.TensorSpec((), tf.int64), 'trajectory': storage.data_spec}
        self._columns = ColumnLayout(row)
        batch_size = 1 if self.is_queue else experience.per_replica_batch_size
        self.num_steps = max(1, min(_MAX_STEPS, _MAX_BYTES // (batch_size * length * storage.layout.num_bytes)))
        if self.is_queue:
            self.specs = [tf.TensorSpec((None, length, storage.layout.num_bytes), tf.uint8)]
        else:
            outer = (self.num_steps, batch_size, length)
            self.specs = [tf.TensorSpec((*outer, *spec.shape), spec.dtype) for spec in self._columns.specs]

    @property
    def num_bytes(self) -> int:
        """The size of an element [bytes]; of items, of the largest one."""
        known = ([self.num_steps if size is None else size for size in spec.shape] for spec in self.specs)
        return sum(math.prod(shape) * spec.dtype.size for shape, spec in zip(known, self.specs, strict=True))

    def join(self, data: Any, info: Mapping[str, tf.Tensor]) -> list[tf.Tensor]:
        """Returns the tensors of an element: of batches [num_steps, B, T, ...] as a `Source` returns them."""
        return self._columns.join({'policy_version': info['policy_version'], 'trajectory': data})

    def divide(self, columns: Sequence[tf.Tensor]) -> Batch:
        """Returns data and info of the batches that `join` joined, whatever their outer dimensions are."""
        return with_version(self._columns.divide(list(columns)))

    @property
    def dataset_id(self) -> str:
        """The name of a dataset of such elements: workers and learners of other data have another one."""
        texts = [f'{spec.dtype.name}{list(spec.shape)}' for spec in self.specs]
        element = {'protocol': PROTOCOL, 'element': texts, 'row': self.signature}
        return f'replay_{hashlib.blake2b(json.dumps(element).encode(), digest_size=8).hexdigest()}'


_IN_FLIGHT = 4  # elements, over all workers
_AHEAD = 2  # elements that wait in this process


def wait_for_feed(
    address: str, storage: Storage, timeout_secs: float, stop: threading.Event | None = None
) -> tf.data.Dataset:
    """Waits until a worker has registered what this learner reads. Returns the dataset of the elements.

    Raises:
      TimeoutError: if there is none in time.
    """
    dataset_id = Blocks(storage).dataset_id

    def found() -> tf.data.Dataset | None:
        if is_listening(address):
            with contextlib.suppress(ValueError, tf.errors.OpError):  # there is none yet
                return tf.data.experimental.service.from_dataset_id(
                    'parallel_epochs', f'grpc://{address}', dataset_id, max_outstanding_requests=_IN_FLIGHT
                )
        return None

    return wait_until(found, lambda: _text(address), timeout_secs, stop)


def _text(address: str) -> str:
    has = 'has no data of this gin file and version of tflearn' if is_listening(address) else 'does not answer'
    return f'the feed at {address}, which {has}'


class FeedReader(TableReader):
    """Reads a feed like a table: a thread of its own, a queue that can be stopped, a deadline.

    Its address is the feed's.
    """

    def start(self, prepare: Prepare, in_flight: int, num_streams: int = 1) -> None:
        """Begins to read; what the feed sends are elements of the queue already."""
        del prepare, in_flight, num_streams
        super().start(lambda elements: elements, _IN_FLIGHT)

    def _samples(self, in_flight: int) -> tf.data.Dataset:
        del in_flight
        return wait_for_feed(self._address, self._storage, self._timeout_secs, self._closed)

    def _server_state(self) -> str:
        return _text(self._address)


def batches(address: str, storage: Storage, num_replicas: int, timeout_secs: float) -> ServedDataset:
    """Returns the source of a feed's batches; each of this process's is those of one replica after the other.

    Args:
      address: the feed's, 'host:port'.
      num_replicas: the replicas of this process.
      timeout_secs: how long to wait for data.

    Raises:
      ValueError: if such experience cannot be fed.
    """
    blocks = Blocks(storage)
    specs = [tf.TensorSpec(spec.shape[1:], spec.dtype) for spec in blocks.specs]
    capacity = _AHEAD * max(blocks.num_steps, num_replicas)
    reader = FeedReader(address, storage, '', specs, capacity, timeout_secs)
    return ServedDataset(reader, blocks.divide, max(1, blocks.num_steps // num_replicas), num_replicas)
