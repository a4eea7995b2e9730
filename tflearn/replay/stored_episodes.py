"""Steps of a checkpoint of the replay, without any other file of the run; and complete episodes from a table's chunks.

A chunk begins with the last rows of the one before it from the same environment, but says neither which environment
that is nor which chunk came before. So chunks are joined where the rows of one, policy versions included, end as those
of exactly one other begin. What several could continue is not joined.
"""

import collections
import pathlib
import re
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tflearn.core.errors import UserValueError
from tflearn.replay import backend
from tflearn.replay.checkpoints import CheckpointDirectory
from tflearn.replay.chunks import ID_BYTES, chunk_id, chunk_rows
from tflearn.replay.sequence_rule import FIRST, LAST, ends_episode
from tflearn.replay.storage import CHUNK_FORMAT, REPLAY, Storage, signature_text

_COLUMN = re.compile(r'(\S+):(\w+)\[([\d,]*)\]')


def join(chunks: Iterable[np.ndarray], storage: Storage) -> tuple[list[list[np.ndarray]], int]:
    """Joins chunks to episodes.

    Where two environments can have equal rows at once, the end of an episode may be another one's that went on from an
    equal row.

    Args:
      chunks: the items of the table, uint8 of `Storage.item_shape`, in any order.
      storage: the layout of the table.

    Returns:
      The complete episodes, by the version of the policy that began them: the leaves of a Trajectory [T, ...], with the
      boundary row; and how many rows are of episodes without a beginning or an end in the table.
    """
    parts = _rows_of(chunks, storage)
    slices = storage.layout.slices
    episodes, incomplete_rows = [], 0
    for rows in _streams(parts, storage.experience.slicing.num_rows - 1):
        step_type, next_step_type = (
            _column(rows, getattr(slices['trajectory'], name), tf.int32)[:, 0]
            for name in ('step_type', 'next_step_type')
        )
        for begin, end, is_complete in _split(step_type, next_step_type):
            if is_complete:
                episodes.append(rows[begin:end])
            else:
                incomplete_rows += end - begin
    versions = [int(_column(rows[:1], slices['policy_version'], tf.int64)[0, 0]) for rows in episodes]
    leaves = list(zip(tf.nest.flatten(slices['trajectory']), tf.nest.flatten(storage.data_spec), strict=True))
    sorted_episodes = (episodes[i] for i in np.argsort(versions, kind='stable'))
    return [
        [_column(rows, where, spec.dtype).reshape(-1, *spec.shape) for where, spec in leaves]
        for rows in sorted_episodes
    ], incomplete_rows


def _rows_of(chunks: Iterable[np.ndarray], storage: Storage) -> list[np.ndarray]:
    """Returns the rows of each chunk, uint8 [rows, bytes], without flags and padding; of one sent twice only once."""
    row_bytes = storage.layout.num_bytes
    if storage.mirrored:
        by_id = {chunk_id(chunk): chunk for chunk in chunks}
        parts = [chunk_rows(by_id[key], row_bytes) for key in sorted(by_id)]
    else:
        parts = [chunk.reshape(-1, row_bytes) for chunk in chunks]
    rows = []
    for part in parts:
        used = np.flatnonzero(part.any(axis=1))
        taken = part[: used[-1] + 1 if used.size else 0].copy()
        taken[:, 0] = 0
        if len(taken):
            rows.append(taken)
    return rows


def _streams(parts: list[np.ndarray], most: int) -> Iterator[np.ndarray]:
    """Yields the joined rows of chunks that follow each other, which share at most `most` rows."""
    by_first_row = collections.defaultdict(list)
    for j, rows in enumerate(parts):
        by_first_row[rows[0].tobytes()].append(j)
    shared = np.zeros(len(parts), int)  # the first rows of a chunk that another one has too
    following: dict[int, int] = {}
    preceding = collections.Counter[int]()
    for i, rows in enumerate(parts):
        for begin in range(max(1, len(rows) - most), len(rows)):
            num_shared = len(rows) - begin
            continued = [
                j
                for j in by_first_row.get(rows[begin].tobytes(), ())
                if j != i and len(parts[j]) > num_shared and np.array_equal(rows[begin:], parts[j][:num_shared])
            ]
            for j in continued:
                shared[j] = max(shared[j], num_shared)
                preceding[j] += 1
            if len(continued) == 1:
                following[i] = continued[0]
            if continued:
                break
    joined = {i: j for i, j in following.items() if preceding[j] == 1}
    yield from _chains(parts, shared, joined)


def _chains(parts: list[np.ndarray], shared: np.ndarray, joined: dict[int, int]) -> Iterator[np.ndarray]:
    later = set(joined.values())
    left = set(range(len(parts)))
    # Those that begin no chain are in one, or in a circle of equal rows, which is cut anywhere.
    for start in [*(i for i in range(len(parts)) if i not in later), *sorted(later)]:
        chain, i = [], start
        while i in left:
            left.remove(i)
            chain.append(parts[i][shared[i] :])
            i = joined.get(i, -1)
        if chain:
            yield np.concatenate(chain)


def _split(step_type: np.ndarray, next_step_type: np.ndarray) -> Iterator[tuple[int, int, bool]]:
    """Yields the parts of consecutive rows that are of one episode: begin, end, and whether it is complete."""
    begin, started, is_end = 0, False, ends_episode(step_type, next_step_type)
    t = 0
    while t < len(step_type):
        if step_type[t] == FIRST:
            if t > begin and not (started and (step_type[begin:t] == FIRST).all()):
                yield begin, t, False
            begin, started = t, True  # the first row may be there several times, as history
        if is_end[t]:
            if begin < t or step_type[t] != FIRST:  # FIRST -> FIRST is no step
                yield begin, t + 1, started and step_type[t] == LAST
            begin, started = t + 1, False
            while begin < len(step_type) and step_type[begin] == LAST:
                begin += 1  # the boundary row may be repeated
            t = begin
        else:
            t += 1
    if begin < len(step_type):
        yield begin, len(step_type), False


def _column(rows: np.ndarray, where: slice, dtype: tf.DType) -> np.ndarray:
    """Returns one column of packed rows, [T, numbers of it in a row]."""
    return np.ascontiguousarray(rows[:, where]).view(dtype.as_numpy_dtype)


def read_rows(checkpoints: pathlib.Path, num_rows: int) -> list[tuple[str, np.ndarray]]:
    """Draws rows of the newest checkpoint in which sequences begin, each at most once, from as many items as there are.

    Args:
      checkpoints: the directory of the replay server's checkpoints. Nothing is written there.
      num_rows: the maximum number of rows.

    Returns:
      The columns of the rows in the order of `Storage.layout`: name and array [num_rows, ...].

    Raises:
      ValueError: if there is no checkpoint, or if it is empty or damaged.
    """
    settings, newest = _newest(checkpoints, 'pass recorded observations (tflearn data record)')
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
    if (newest := directory.newest()) is None:
        raise UserValueError(
            f'got no checkpoint of the replay in {checkpoints}; need one, which the replay server writes when it is '
            f'stopped; or {otherwise}'
        )
    settings = directory.settings(newest)
    replay = settings.get(REPLAY)
    signature = replay.get('signature') if isinstance(replay, dict) else None
    if not isinstance(signature, dict) or not isinstance(signature.get('chunk'), str):
        raise UserValueError(
            f'got a damaged {checkpoints.parent / "tables.json"}, without the chunks of {REPLAY}; need the one that '
            f'the replay server wrote; or {otherwise}'
        )
    return settings, newest
