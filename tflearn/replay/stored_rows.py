"""Reads steps from a checkpoint of the replay, without any other file of the run."""

import pathlib
import re
import tempfile

import numpy as np
import reverb

from tflearn import stderr
from tflearn.errors import UserValueError
from tflearn.replay.chunks import ID_BYTES
from tflearn.replay.server import READING, CheckpointDirectory
from tflearn.replay.storage import CHUNK_FORMAT, REPLAY
from tflearn.run_dir import read_json

_COLUMN = re.compile(r'(\S+):(\w+)\[([\d,]*)\]')
_TIMEOUT_MS = 2000


def read(checkpoints: pathlib.Path, num_rows: int) -> list[tuple[str, np.ndarray]]:
    """Draws items of the newest checkpoint, as its table draws them, and returns the first row of each.

    Args:
      checkpoints: the directory of the replay server's checkpoints. Nothing is written there.
      num_rows: the maximum number of rows; there are fewer if the table's limits allow no more.

    Returns:
      The columns of the rows in the order of `Storage.layout`: name and array [num_rows, ...].

    Raises:
      ValueError: if there is no checkpoint, or if it is empty.
    """
    settings = read_json(checkpoints.parent / 'tables.json')
    newest = CheckpointDirectory(checkpoints).newest()
    if settings is None or newest is None:
        raise UserValueError(
            f'got no checkpoint of the replay in {checkpoints}; need one, which the replay server writes when it is '
            'stopped; or pass your own observations'
        )
    chunks = _draw(newest, list(settings), num_rows)
    if not chunks:
        raise UserValueError(f'got an empty replay in {checkpoints}; need steps in it')
    begin = ID_BYTES if CHUNK_FORMAT in settings[REPLAY]['signature']['chunk'] else 0
    rows, columns, offset = np.stack([chunk.reshape(-1) for chunk in chunks]), [], begin
    for name, dtype_name, dims in _COLUMN.findall(settings[REPLAY]['signature']['chunk']):
        dtype = np.dtype(dtype_name)
        shape = [int(size) for size in dims.split(',') if size]
        size = dtype.itemsize * int(np.prod(shape))
        column = np.ascontiguousarray(rows[:, offset : offset + size]).view(dtype)
        columns.append((name, column.reshape(len(rows), *shape)))
        offset += size
    return columns


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
