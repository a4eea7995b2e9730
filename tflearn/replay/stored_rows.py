"""Reads steps from a checkpoint of the replay, without any other file of the run."""

import pathlib
import re
from typing import Any

import numpy as np

from tflearn.core.errors import UserValueError
from tflearn.replay import backend
from tflearn.replay.checkpoints import CheckpointDirectory
from tflearn.replay.chunks import ID_BYTES
from tflearn.replay.storage import CHUNK_FORMAT, REPLAY, Storage
from tflearn.replay.tables import signature_text

_COLUMN = re.compile(r'(\S+):(\w+)\[([\d,]*)\]')


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
    chunks = backend.stored_items(newest, list(settings), num_rows)
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
    return backend.stored_items(newest, list(settings))


def _newest(checkpoints: pathlib.Path, otherwise: str) -> tuple[dict[str, Any], pathlib.Path]:
    """Returns the settings of the tables, and the newest checkpoint."""
    directory = CheckpointDirectory(checkpoints)
    settings, newest = directory.settings(), directory.newest()
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
