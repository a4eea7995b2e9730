"""The feed's elements: what a worker sends at a time. Workers and learners derive them from the run's configuration."""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tflearn.core.errors import UserValueError
from tflearn.core.experience import Prioritized, Queue
from tflearn.core.layout import ColumnLayout
from tflearn.replay.chunks import with_version
from tflearn.replay.storage import Storage
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
        """Computes the layout; raises ValueError if such experience cannot be fed, see `check`."""
        experience = storage.experience
        check(experience.replay)
        self.is_queue = isinstance(experience.replay, Queue)
        self.signature = storage.layout.text
        length = experience.slicing.num_rows
        row = {'policy_version': tf.TensorSpec((), tf.int64), 'trajectory': storage.data_spec}
        self.columns = ColumnLayout(row)
        batch_size = 1 if self.is_queue else experience.per_replica_batch_size
        self.num_steps = max(1, min(_MAX_STEPS, _MAX_BYTES // (batch_size * length * storage.layout.num_bytes)))
        if self.is_queue:
            self.specs = [tf.TensorSpec((None, length, storage.layout.num_bytes), tf.uint8)]
        else:
            outer = (self.num_steps, batch_size, length)
            self.specs = [tf.TensorSpec((*outer, *spec.shape), spec.dtype) for spec in self.columns.specs]

    @property
    def num_bytes(self) -> int:
        """The size of an element [bytes]; of items, of the largest one."""
        known = ([self.num_steps if size is None else size for size in spec.shape] for spec in self.specs)
        return sum(math.prod(shape) * spec.dtype.size for shape, spec in zip(known, self.specs, strict=True))

    def contract(self, token: str) -> dict[str, Any]:
        """Returns what a worker announces.

        Args:
          token: what else the workers' programs must have in common.
        """
        element = {'protocol': PROTOCOL, 'element': [_text(spec) for spec in self.specs], 'row': self.signature}
        digest = hashlib.blake2b(json.dumps([element, token]).encode(), digest_size=8).hexdigest()
        return {**element, 'dataset_id': f'replay_{digest}'}

    def check(self, contract: Mapping[str, Any], where: str) -> None:
        """Checks that a feed's elements are those that this learner reads.

        Args:
          where: which feed, for the error.

        Raises:
          ValueError: if they differ; it names how.
        """
        ours = self.contract('')
        for name in ('protocol', 'row', 'element'):
            if contract.get(name) != ours[name]:
                raise UserValueError(
                    f'got {where} for other data: its {name} is {contract.get(name)}; need {ours[name]}; start all '
                    'jobs with the same gin file and version of tflearn'
                )


def check(replay: Any) -> None:
    """Checks that experience of this kind can be fed.

    Raises:
      ValueError: if its priorities, or credits, would need every item to arrive and an answer for it.
    """
    if isinstance(replay, Prioritized):
        raise UserValueError(
            'got a feed with Experience.replay=Prioritized(...), whose priorities would have to go back to the '
            'servers; need Uniform, or Queue; or a learner that reads the servers itself (no --feed_address)'
        )
    if isinstance(replay, Queue) and replay.versions_ahead is not None:
        raise UserValueError(
            f'got a feed with Queue.versions_ahead={replay.versions_ahead}, whose credits count every item; a feed '
            'delivers items at most once, and loses some with a worker; need Queue.versions_ahead=None'
        )


def to_columns(blocks: Blocks, data: Any, info: Mapping[str, tf.Tensor]) -> list[tf.Tensor]:
    """Returns the tensors of an element: of batches [num_steps, B, T, ...] as a `Source` returns them."""
    return blocks.columns.join({'policy_version': info['policy_version'], 'trajectory': data})


def from_columns(blocks: Blocks, columns: Sequence[tf.Tensor]) -> Batch:
    """Returns data and info of batches, whatever their outer dimensions are."""
    return with_version(blocks.columns.divide(list(columns)))


def _text(spec: tf.TensorSpec) -> str:
    return f'{spec.dtype.name}{list(spec.shape)}'
