"""Reads steps from a checkpoint of the replay, without any other file of the run."""

import pathlib
import re
import sys
import tempfile
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf import message

from tflearn.core import extras, record_files, stderr
from tflearn.core.errors import UserValueError
from tflearn.files.run_dir import read_json
from tflearn.replay.chunks import ID_BYTES
from tflearn.replay.connection import signature_text
from tflearn.replay.server import READING, CheckpointDirectory, damaged, missing_files
from tflearn.replay.storage import CHUNK_FORMAT, REPLAY, Storage

try:
    import reverb
    from reverb.cc import schema_pb2
    from reverb.cc.checkpointing import checkpoint_pb2
except ImportError:  # a learner that a feed job feeds
    reverb = extras.Absent('reverb')

_COLUMN = re.compile(r'(\S+):(\w+)\[([\d,]*)\]')
_TIMEOUT_MS = 2000
_TABLES, _ITEMS, _COMPRESSION = 'tables.tfrecord', 'items.tfrecord', 'ZLIB'  # as Reverb writes them


def read(checkpoints: pathlib.Path, num_rows: int) -> list[tuple[str, np.ndarray]]:
    """Draws rows of the newest checkpoint in which sequences begin, each at most once, from as many items as there are.

    Args:
      checkpoints: the directory of the replay server's checkpoints. Nothing is written there.
      num_rows: the maximum number of rows.

    Returns:
      The columns of the rows in the order of `Storage.layout`: name and array [num_rows, ...].

    Raises:
      ValueError: if there is no checkpoint, or if it is empty or damaged.
    """
    settings, newest = _newest(checkpoints, 'pass recorded observations (tflearn-data record)')
    chunks = _draw_once(newest, list(settings), num_rows)
    if not chunks:
        raise UserValueError(f'got an empty replay in {checkpoints}; need steps in it')
    signature = settings[REPLAY]['signature']['chunk']
    layout = [
        (name, np.dtype(dtype), [int(size) for size in dims.split(',') if size])
        for name, dtype, dims in _COLUMN.findall(signature)
    ]
    widths = [dtype.itemsize * int(np.prod(shape)) for _, dtype, shape in layout]
    begin = ID_BYTES if CHUNK_FORMAT in signature else 0
    rows = np.concatenate([chunk.reshape(-1)[begin:].reshape(-1, sum(widths)) for chunk in chunks])
    # Where a sequence begins, as the first column marks: neither what fills a chunk up, nor what the next one repeats.
    rows = rows[rows[:, 0] != 0]
    rows = rows[np.sort(np.random.default_rng(0).permutation(len(rows))[:num_rows])]
    columns = np.split(rows, np.cumsum(widths)[:-1], axis=1)
    return [
        (name, np.ascontiguousarray(column).view(dtype).reshape(len(rows), *shape))
        for (name, dtype, shape), column in zip(layout, columns, strict=True)
    ]


def read_chunks(checkpoints: pathlib.Path, storage: Storage) -> list[np.ndarray]:
    """Returns each item of the newest checkpoint's replay table once, as `Storage.item_shape` says, the oldest first.

    Args:
      checkpoints: the directory of the replay server's checkpoints. Nothing is written there.
      storage: the layout of the run's tables.

    Raises:
      ValueError: if there is no checkpoint, or one with other tables, or a damaged one.
    """
    settings, newest = _newest(checkpoints, 'name the running server')
    theirs, ours = settings[REPLAY]['signature']['chunk'], signature_text(storage.signature['chunk'])
    if theirs != ours:
        raise UserValueError(
            f'got the replay checkpoint {newest} with {theirs}; need {ours}; use the gin file of its run'
        )
    return _draw_once(newest, list(settings))


def _draw_once(checkpoint: pathlib.Path, names: list[str], at_most: int | None = None) -> list[np.ndarray]:
    """Returns items of a checkpoint's replay table once: all, the oldest first, or a number of them at random."""
    if missing := missing_files(checkpoint):
        raise damaged(checkpoint, f'no {", ".join(missing)}')
    with tempfile.TemporaryDirectory() as scratch:
        queue = pathlib.Path(scratch) / checkpoint.name
        queue.mkdir()
        for path in checkpoint.iterdir():
            if path.name not in (_TABLES, _ITEMS):
                (queue / path.name).symlink_to(path.resolve())
        try:
            num_items = _write_as_queue(checkpoint, queue, is_random=at_most is not None)
            num_items = num_items if at_most is None else min(num_items, at_most)
            return _draw(queue, names, num_items) if num_items else []
        except (tf.errors.DataLossError, message.DecodeError, RuntimeError) as error:  # the last one is Reverb's
            raise damaged(checkpoint, ' '.join(str(error).split())) from error


def _newest(checkpoints: pathlib.Path, otherwise: str) -> tuple[dict[str, Any], pathlib.Path]:
    """Returns the settings of the tables, and the newest checkpoint."""
    settings = read_json(checkpoints.parent / 'tables.json')
    newest = CheckpointDirectory(checkpoints).newest()
    if settings is None or newest is None:
        raise UserValueError(
            f'got no checkpoint of the replay in {checkpoints}; need one, which the replay server writes when it is '
            f'stopped; or {otherwise}'
        )
    replay = settings.get(REPLAY)
    signature = replay.get('signature') if isinstance(replay, dict) else None
    if not isinstance(signature, dict) or not isinstance(signature.get('chunk'), str):
        raise UserValueError(
            f'got a damaged {checkpoints.parent / "tables.json"}, without the chunks of {REPLAY}; need the one that '
            f'the replay server wrote; or {otherwise}'
        )
    return settings, newest


def _write_as_queue(checkpoint: pathlib.Path, target: pathlib.Path, is_random: bool) -> int:
    """Writes a checkpoint's tables with settings by which each item of the replay table is drawn once.

    Returns:
      The number of its items.
    """
    num_items = 0
    with tf.io.TFRecordWriter(str(target / _ITEMS), _COMPRESSION) as file:
        for record in record_files.read(checkpoint / _ITEMS, compression=_COMPRESSION):
            item = schema_pb2.PrioritizedItem.FromString(record)
            num_items += item.table == REPLAY
            item.times_sampled = 0  # Reverb removes an item when this is equal to the maximum
            file.write(item.SerializeToString())
    with tf.io.TFRecordWriter(str(target / _TABLES), _COMPRESSION) as file:
        for record in record_files.read(checkpoint / _TABLES, compression=_COMPRESSION):
            table = checkpoint_pb2.PriorityTableCheckpoint.FromString(record)
            if table.table_name == REPLAY:
                limiter = table.rate_limiter
                limiter.samples_per_insert, limiter.min_size_to_sample = 1.0, 1
                limiter.min_diff, limiter.max_diff = -sys.float_info.max, sys.float_info.max
                table.max_times_sampled = 1
                order = {'uniform': True} if is_random else {'fifo': True}
                table.sampler.CopyFrom(schema_pb2.KeyDistributionOptions(**order, is_deterministic=not is_random))
            file.write(table.SerializeToString())
    return num_items


def _draw(checkpoint: pathlib.Path, names: list[str], num_items: int) -> list[np.ndarray]:
    """Returns items, uint8 arrays, which a temporary server draws."""
    # Reverb takes the tables' settings from the checkpoint; only the names must match.
    tables = [reverb.Table.queue(name, 1) for name in names]
    with tempfile.TemporaryDirectory() as scratch, stderr.without(READING):
        checkpointer = reverb.checkpointers.DefaultCheckpointer(scratch, fallback_checkpoint_path=str(checkpoint))
        server = reverb.Server(tables, checkpointer=checkpointer)
        try:
            dataset = reverb.TrajectoryDataset.from_table_signature(
                f'localhost:{server.port}',
                REPLAY,
                max_in_flight_samples_per_worker=1,
                max_samples=num_items,
                rate_limiter_timeout_ms=_TIMEOUT_MS,
            )
            return [sample.data['chunk'] for sample in dataset.as_numpy_iterator()]
        finally:
            server.stop()
