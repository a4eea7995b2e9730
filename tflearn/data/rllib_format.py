"""Samples that RLlib has written as JSON (`output='DIR'`, `JsonWriter`); they are only read.

A line is a batch of rows. Episodes are in pieces, since fragments end where they are full, and in
any order. A piece whose next one is missing was cut off, and so was an episode whose end is not
there. JSON has no dtypes: numbers with a point are float32, others int64, images of bytes uint8.

What RLlib has compressed is a pickle, which could run any code when it is read: it is refused.
"""

import json
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from tf_agents.trajectories import trajectory

from tflearn.core.errors import UserValueError
from tflearn.core.types import EnvironmentSpecs, named_leaves
from tflearn.data import arrays, columns
from tflearn.data.columns import Column

_NEEDED = ('obs', 'new_obs', 'actions', 'rewards', 'eps_id')
_OTHERS = ('t', 'terminateds', 'dones', 'action_logp')
_TYPES = ('"SampleBatch"', '"MultiAgentBatch"')
_FIRST_BYTES = 200


def directory_of(path: pathlib.Path) -> pathlib.Path | None:
    """Returns `path` if it is a directory of files that RLlib has written; else None."""
    for file in path.glob('*.json'):
        with file.open(encoding='utf-8', errors='replace') as opened:
            begin = opened.read(_FIRST_BYTES)
        if '"type": ' in begin and any(kind in begin for kind in _TYPES):
            return path
    return None


def read(path: pathlib.Path) -> tuple[EnvironmentSpecs, tuple[Column, ...], dict[str, Any], Iterator[list[np.ndarray]]]:
    """Returns the environment's specs, as far as data show them, the columns, the metadata,
    and an iterator over the leaves of the episodes.

    Raises:
      ValueError: if a line is damaged, compressed or of several policies, or lacks a column.
    """
    rows = _rows(path)
    number = np.arange(len(rows['rewards']))
    _, first, episode = np.unique(rows['eps_id'], return_index=True, return_inverse=True)
    begun = first[episode.reshape(-1)]  # so that episodes stay in the order of the files
    time = rows.get('t', number)
    order = np.lexsort((number, time, begun))
    rows, begun, time = {name: column[order] for name, column in rows.items()}, begun[order], time[order]
    goes_on = (begun[1:] == begun[:-1]) & ((time[1:] == time[:-1] + 1) | ('t' not in rows))
    begins = np.flatnonzero(np.r_[True, ~goes_on])
    specs = EnvironmentSpecs(arrays.spec(rows['obs']), arrays.action_spec(rows['actions']))
    info = {'log_probability': rows['action_logp']} if 'action_logp' in rows else ()
    stored = columns.columns_of(columns.data_spec(specs, arrays.spec(info)))
    return specs, stored, {'rllib': str(path)}, _episodes(rows, info, stored, begins)


def _episodes(
    rows: Mapping[str, np.ndarray], info: Any, stored: tuple[Column, ...], begins: np.ndarray
) -> Iterator[list[np.ndarray]]:
    ended = rows.get('terminateds', rows.get('dones'))  # its name until 2022
    for begin, end in zip(begins, [*begins[1:], len(rows['rewards'])], strict=True):
        with_zeros = lambda column: np.concatenate([column[begin:end], np.zeros_like(column[:1])])  # noqa: B023, E731
        parts = {
            'observation': np.concatenate([rows['obs'][begin:end], rows['new_obs'][end - 1 : end]]),
            'action': with_zeros(rows['actions']),
            'reward': with_zeros(rows['rewards']),
            'policy_info': {name: with_zeros(column) for name, column in info.items()} if info else (),
        }
        terminated = ended is not None and bool(ended[end - 1])
        named = named_leaves(trajectory.Trajectory(**parts, **columns.boundaries(end - begin + 1, terminated)))
        yield [np.asarray(named[column.name], column.dtype) for column in stored]


def _rows(path: pathlib.Path) -> dict[str, np.ndarray]:
    """Returns the columns [N, ...] of all batches, in the order of the files."""
    found: list[dict[str, np.ndarray]] = []
    for file in sorted(path.glob('*.json')):
        with file.open(encoding='utf-8') as lines:
            for i, line in enumerate(lines, 1):
                if line.strip():
                    found.append(_batch(line, f'{file}, line {i}'))
    names = [name for name in found[0] if all(name in batch for batch in found)]
    try:
        return {name: _typed(np.concatenate([batch[name] for batch in found])) for name in names}
    except ValueError as error:
        raise UserValueError(f'got batches in {path} of different shapes ({error}); need those of one task') from error


def _batch(line: str, where: str) -> dict[str, np.ndarray]:
    """Returns the columns of a batch that are of use; raises ValueError if one is not as it must be."""
    try:
        batch = json.loads(line)
        if batch.get('type') == 'MultiAgentBatch':
            batch, *others = batch['policy_batches'].values()
            if others:
                raise UserValueError(f'got {where}, with the rows of {1 + len(others)} policies; need those of one')
        if packed := [name for name in (*_NEEDED, *_OTHERS) if isinstance(batch.get(name), str)]:
            raise UserValueError(
                f'got {where}, with compressed columns ({", ".join(packed)}): pickles, which could run any code; need '
                'numbers; write them with config.offline_data(output_compress_columns=[]) in RLlib, or '
                'JsonWriter(path, compress_columns=[])'
            )
        if missing := [name for name in _NEEDED if name not in batch]:
            raise UserValueError(f'got {where}, without {", ".join(missing)}; need {", ".join(_NEEDED)}')
        found = {name: np.asarray(batch[name]) for name in (*_NEEDED, *_OTHERS) if name in batch}
    except UserValueError:
        raise
    except (ValueError, AttributeError, KeyError) as error:
        raise UserValueError(f'got {where}, which is no batch of RLlib ({error!s:.100}); remove it') from error
    sizes = {name: len(column) if column.ndim else 0 for name, column in found.items()}
    if len(set(sizes.values())) > 1 or any(column.dtype.kind not in 'biuf' for column in found.values()):
        raise UserValueError(f'got {where}, with columns of {sizes} rows; need arrays of numbers, of as many rows')
    return found


def _typed(column: np.ndarray) -> np.ndarray:
    if column.dtype.kind == 'f':
        return column.astype(np.float32)
    is_image = column.ndim == 4 and column.size and column.min() >= 0 and column.max() <= 255
    return column.astype(np.uint8) if is_image and column.dtype.kind != 'b' else column
