"""Reads summaries back, with their train steps."""

import pathlib
from collections.abc import Iterator

import tensorflow as tf


def _events(directory: pathlib.Path) -> Iterator[tf.compat.v1.Event]:
    for path in sorted(directory.glob('events.*')):
        for record in tf.data.TFRecordDataset(str(path)):
            yield tf.compat.v1.Event.FromString(record.numpy())


def _values(directory: pathlib.Path, plugin: str) -> Iterator[tuple[int, str, tf.Tensor]]:
    plugins = {}  # written with the first value of each tag only
    for event in _events(directory):
        for value in event.summary.value:
            name = value.metadata.plugin_data.plugin_name or plugins.get(value.tag)
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
    for event in _events(directory):
        for value in event.summary.value:
            if value.HasField('histo'):
                found.setdefault(value.tag, {})[event.step] = (value.histo.min, value.histo.max, value.histo.num)
    return found


def texts(directory: pathlib.Path) -> dict[str, str]:
    """Returns the last text of each tag."""
    return {tag: value.item().decode() for _, tag, value in _values(directory, 'text')}


def tags(directory: pathlib.Path) -> set[str]:
    """Returns all tags."""
    return {value.tag for event in _events(directory) for value in event.summary.value}
