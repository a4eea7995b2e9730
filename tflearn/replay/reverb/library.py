"""The only module that imports Reverb: its tables, counts, clients, streams and servers in the words of `backend`."""

import json
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from tflearn.core import extras
from tflearn.core.table_counts import TableCounts
from tflearn.replay.storage import TableSpec, signature_text

try:
    import reverb
    from reverb.cc import schema_pb2
    from reverb.cc.checkpointing import checkpoint_pb2
except ImportError:  # a learner that a feed job feeds
    reverb = schema_pb2 = checkpoint_pb2 = extras.Absent('reverb')

Client = reverb.Client
DeadlineExceededError = reverb.DeadlineExceededError
# What a call of a client raises if its server is lost or slow. TypeError: a name that is not UTF-8.
LOST_ERRORS = (reverb.DeadlineExceededError, reverb.errors.DeadlineExceededError, RuntimeError, TypeError)
TABLES_FILE, ITEMS_FILE, COMPRESSION = 'tables.tfrecord', 'items.tfrecord', 'ZLIB'  # as Reverb writes checkpoints
CHECKPOINT_FILES = (TABLES_FILE, ITEMS_FILE, 'chunks.tfrecord')
PrioritizedItem = schema_pb2.PrioritizedItem
KeyDistributionOptions = schema_pb2.KeyDistributionOptions
PriorityTableCheckpoint = checkpoint_pb2.PriorityTableCheckpoint


def make_table(spec: TableSpec) -> Any:
    """Returns the `reverb.Table` of a spec."""
    signature = dict(spec.signature)
    if spec.order == 'queue':
        return reverb.Table.queue(spec.name, spec.max_size, signature=signature)
    selectors = reverb.selectors
    # Of a table that is scanned, a priority of 0 means that the item was read, see client.py.
    sampler = selectors.Uniform() if spec.order == 'uniform' else selectors.Prioritized(1.0)
    limiter = reverb.rate_limiters.MinSize(spec.min_size)
    if spec.samples_per_insert is not None:
        limiter = reverb.rate_limiters.SampleToInsertRatio(
            samples_per_insert=spec.samples_per_insert,
            min_size_to_sample=spec.min_size,
            error_buffer=spec.error_buffer,
        )
    return reverb.Table(
        spec.name,
        sampler=sampler,
        remover=selectors.Fifo(),
        max_size=spec.max_size,
        max_times_sampled=spec.max_times_sampled,
        rate_limiter=limiter,
        signature=signature,
    )


def describe(table: Any) -> dict[str, Any]:
    """Returns the settings of a `reverb.Table` as JSON values."""
    info = table.info
    limiter = info.rate_limiter_info
    described = {
        'sampler': str(info.sampler_options).strip(),
        'remover': str(info.remover_options).strip(),
        'max_size': info.max_size,
        'max_times_sampled': info.max_times_sampled,
        'samples_per_insert': limiter.samples_per_insert,
        'min_size': limiter.min_size_to_sample,
        'min_diff': limiter.min_diff,
        'max_diff': limiter.max_diff,
        'signature': {name: signature_text(spec) for name, spec in info.signature.items()},
    }
    return json.loads(json.dumps(described))


def counts(client: Any, timeout_secs: int) -> dict[str, TableCounts]:
    """Returns the counts of a server's tables by name; raises one of `LOST_ERRORS`."""
    found = {}
    for name, info in client.server_info(timeout=timeout_secs).items():
        limiter = info.rate_limiter_info
        found[name] = TableCounts(
            size=info.current_size,
            max_size=info.max_size,
            inserts=limiter.insert_stats.completed,
            samples=limiter.sample_stats.completed,
            samples_per_insert=limiter.samples_per_insert,
            min_diff=limiter.min_diff,
            max_diff=limiter.max_diff,
            signature=info.signature,
        )
    return found


def samples(address: str, table: str, item_shape: Sequence[int], in_flight: int, timeout_ms: int) -> tf.data.Dataset:
    """Returns a stream of a table's items, see `backend.Client.samples`."""
    return reverb.TrajectoryDataset(
        server_address=address,
        table=table,
        dtypes={'chunk': tf.uint8},
        shapes={'chunk': tf.TensorShape(item_shape)},
        max_in_flight_samples_per_worker=in_flight,
        num_workers_per_iterator=1,
        rate_limiter_timeout_ms=timeout_ms,
    )


def all_samples(address: str, table: str, num_items: int, timeout_ms: int) -> tf.data.Dataset:
    """Returns the first items of a table, in order."""
    return reverb.TrajectoryDataset.from_table_signature(
        address,
        table,
        max_in_flight_samples_per_worker=1,
        max_samples=num_items,
        rate_limiter_timeout_ms=timeout_ms,
    )


def start_server(
    tables: Iterable[Any], port: int | None, directory: pathlib.Path, restored: pathlib.Path | None
) -> reverb.Server:
    """Starts a server that saves to a directory.

    Args:
      tables: `reverb.Table`s; their settings are taken from the checkpoint, if there is one, and only names must match.
      restored: the checkpoint that it begins with, or None.

    Raises:
      RuntimeError, IndexError: if it cannot be started.
    """
    checkpointer = reverb.checkpointers.DefaultCheckpointer(
        str(directory), fallback_checkpoint_path=None if restored is None else str(restored)
    )
    return reverb.Server(list(tables), port=port or None, checkpointer=checkpointer)
