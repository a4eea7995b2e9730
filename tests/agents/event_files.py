"""Reads summaries back."""

import pathlib

import tensorflow as tf


def _values(directory: pathlib.Path):
    for path in directory.glob('events.*'):
        for record in tf.data.TFRecordDataset(str(path)):
            yield from tf.compat.v1.Event.FromString(record.numpy()).summary.value


def scalars(directory: pathlib.Path) -> dict[str, float]:
    """Returns the last value of each scalar, by tag."""
    return {
        value.tag: float(tf.make_ndarray(value.tensor))
        for value in _values(directory)
        if value.metadata.plugin_data.plugin_name == 'scalars'
    }


def tags(directory: pathlib.Path) -> set[str]:
    """Returns all tags."""
    return {value.tag for value in _values(directory)}
