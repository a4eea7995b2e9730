"""Draws each item of a checkpoint of Reverb once, by a temporary server that has its items as a queue."""

import pathlib
import sys
import tempfile
from collections.abc import Sequence

import numpy as np
import tensorflow as tf
from google.protobuf import message

from tflearn.core import record_files, stderr
from tflearn.replay.checkpoints import damaged
from tflearn.replay.reverb import library
from tflearn.replay.reverb.server import READING, missing_files
from tflearn.replay.storage import REPLAY
from tflearn.replay.tables import TableSpec

_TIMEOUT_MS = 2000


def draw_once(checkpoint: pathlib.Path, names: Sequence[str], at_most: int | None = None) -> list[np.ndarray]:
    """Returns items of a checkpoint's replay table once: all, the oldest first, or a number of them at random."""
    if missing := missing_files(checkpoint):
        raise damaged(checkpoint, f'no {", ".join(missing)}')
    with tempfile.TemporaryDirectory() as scratch:
        queue = pathlib.Path(scratch) / checkpoint.name
        queue.mkdir()
        for path in checkpoint.iterdir():
            if path.name not in (library.TABLES_FILE, library.ITEMS_FILE):
                (queue / path.name).symlink_to(path.resolve())
        try:
            num_items = _write_as_queue(checkpoint, queue, is_random=at_most is not None)
            num_items = num_items if at_most is None else min(num_items, at_most)
            return _draw(queue, names, num_items) if num_items else []
        except (tf.errors.DataLossError, message.DecodeError, RuntimeError) as error:  # the last one is Reverb's
            raise damaged(checkpoint, ' '.join(str(error).split())) from error


def _write_as_queue(checkpoint: pathlib.Path, target: pathlib.Path, is_random: bool) -> int:
    """Writes a checkpoint's tables with settings by which each item of the replay table is drawn once.

    Returns:
      The number of its items.
    """
    num_items = 0
    with tf.io.TFRecordWriter(str(target / library.ITEMS_FILE), library.COMPRESSION) as file:
        for record in record_files.read(checkpoint / library.ITEMS_FILE, compression=library.COMPRESSION):
            item = library.PrioritizedItem.FromString(record)
            num_items += item.table == REPLAY
            item.times_sampled = 0  # Reverb removes an item when this is equal to the maximum
            file.write(item.SerializeToString())
    with tf.io.TFRecordWriter(str(target / library.TABLES_FILE), library.COMPRESSION) as file:
        for record in record_files.read(checkpoint / library.TABLES_FILE, compression=library.COMPRESSION):
            table = library.PriorityTableCheckpoint.FromString(record)
            if table.table_name == REPLAY:
                limiter = table.rate_limiter
                limiter.samples_per_insert, limiter.min_size_to_sample = 1.0, 1
                limiter.min_diff, limiter.max_diff = -sys.float_info.max, sys.float_info.max
                table.max_times_sampled = 1
                order = {'uniform': True} if is_random else {'fifo': True}
                table.sampler.CopyFrom(library.KeyDistributionOptions(**order, is_deterministic=not is_random))
            file.write(table.SerializeToString())
    return num_items


def _draw(checkpoint: pathlib.Path, names: Sequence[str], num_items: int) -> list[np.ndarray]:
    """Returns items, uint8 arrays, which a temporary server draws."""
    tables = [library.make_table(TableSpec(name, 1, {})) for name in names]
    with tempfile.TemporaryDirectory() as scratch, stderr.without(READING):
        server = library.start_server(tables, None, pathlib.Path(scratch), checkpoint)
        try:
            dataset = library.all_samples(f'localhost:{server.port}', REPLAY, num_items, _TIMEOUT_MS)
            return [sample.data['chunk'] for sample in dataset.as_numpy_iterator()]
        finally:
            server.stop()
