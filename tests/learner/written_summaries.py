"""Reads summaries back, with their train steps."""

import pathlib
from collections.abc import Iterator

import tensorflow as tf


def _values(directory: pathlib.Path, plugin: str) -> Iterator[tuple[int, str, tf.Tensor]]:
    plugins = {}  # told with the first value of each tag only
    for path in sorted(directory.glob('events.*')):
        for record in tf.data.TFRecordDataset(str(path)):
            event = tf.compat.v1.Event.FromString(record.numpy())
            for value in event.summary.value:
                name = value.metadata.plugin_data.plugin_name or plugins[value.tag]
                plugins[value.tag] = name
                if name == plugin:
                    yield event.step, value.tag, tf.make_ndarray(value.tensor)


def scalars(directory: pathlib.Path) -> dict[str, dict[int, float]]:
    """Returns {tag: {train step: value}}; a train step that was written twice is an error."""
    found = {}
    for step, tag, value in _values(directory, 'scalars'):
        assert step not in found.setdefault(tag, {}), f'{tag} was written twice for train step {step}'
        found[tag][step] = float(value)
    return found


def histograms(directory: pathlib.Path) -> dict[str, dict[int, tuple[float, float, float]]]:
    """Returns {tag: {train step: (least, greatest, count)}}."""
    found = {}
    for step, tag, buckets in _values(directory, 'histograms'):
        filled = buckets[buckets[:, 2] > 0]
        found.setdefault(tag, {})[step] = (filled[0, 0], filled[-1, 1], filled[:, 2].sum())
    return found


def texts(directory: pathlib.Path) -> dict[str, str]:
    """Returns the last text of each tag."""
    return {tag: value.item().decode() for _, tag, value in _values(directory, 'text')}
