"""Summaries: the learner's figures for TensorBoard, by train step."""

import pathlib
from collections.abc import Mapping
from typing import Any

import tensorflow as tf


class Summaries:
    """Writes scalars; the event file is made with the first of them."""

    def __init__(self, directory: pathlib.Path):
        self._directory = str(directory)
        self._writer: tf.summary.SummaryWriter | None = None

    def write(self, step: int, result: Any) -> None:
        """Writes a `TrainResult`: loss, extra, rates."""
        rates = {'steps_per_sec': result.steps_per_sec, 'data_wait_share': result.data_wait_share}
        extra = {f'extra/{name}': value for name, value in result.extra.items()}
        self.write_values(step, {'loss': result.loss, **extra, **rates})

    def write_values(self, step: int, values: Mapping[str, float]) -> None:
        """Writes scalars under the tag `train/<name>`."""
        self._writer = self._writer or tf.summary.create_file_writer(self._directory)
        with self._writer.as_default(step=step):
            for name, value in values.items():
                tf.summary.scalar(f'train/{name}', value)

    def close(self) -> None:
        """Writes everything out."""
        if self._writer:
            self._writer.close()
