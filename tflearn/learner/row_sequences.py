"""Sequences of rows as nests of numpy arrays [T, ...]: completed, padded, joined."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tflearn.replay.sequence_rule import FIRST, LAST, boundary_row


def with_boundary(sequence: Any) -> Any:
    """Returns a sequence that has a row after the last step of its episode, as collectors write it."""
    if sequence.next_step_type[-1] != LAST:
        return sequence
    return concatenated([sequence, boundary_row(sequence)])


def padded(sequences: Sequence[Any], multiple: int) -> Any:
    """Returns sequences [T, ...] as one batch [B', T', ...], filled up with boundary rows.

    B' and T' are powers of two (times `multiple`), so that few programs are compiled.
    """
    length = _power_of_two(max(len(sequence.step_type) for sequence in sequences))
    number = multiple * _power_of_two(-(-len(sequences) // multiple))

    def fill(sequence: Any) -> Any:
        missing = length - len(sequence.step_type)
        if not missing:
            return sequence
        boundary = boundary_row(sequence)
        if sequence.next_step_type[-1] != FIRST:  # it is not ended: only the last observation counts
            last = boundary._replace(step_type=sequence.step_type[-1:])
            sequence = concatenated([select(sequence, slice(-1)), last])
        return concatenated([sequence, *[boundary] * missing])

    filled = [fill(sequence) for sequence in sequences]
    if number > len(filled):
        nothing = concatenated([boundary_row(sequences[0])] * length)
        filled += [nothing] * (number - len(filled))
    return tf.nest.map_structure(lambda *columns: np.stack(columns), *filled)


def of_equal_length(sequences: Sequence[Any]) -> list[Any]:
    """Returns sequences [T, ...] as batches [B, T, ...], one for each length."""
    by_length: dict[int, list[Any]] = {}
    for sequence in sequences:
        by_length.setdefault(len(sequence.step_type), []).append(sequence)
    return [tf.nest.map_structure(lambda *columns: np.stack(columns), *group) for group in by_length.values()]


def _power_of_two(number: int) -> int:
    return 1 << max(0, number - 1).bit_length()


def select(nest: Any, rows: Any) -> Any:
    """Returns the same rows of each array, by an index or a mask."""
    return tf.nest.map_structure(lambda column: column[rows], nest)


def concatenated(nests: Sequence[Any]) -> Any:
    """Returns the rows of several nests, one after the other."""
    return tf.nest.map_structure(lambda *columns: np.concatenate(columns), *nests)
