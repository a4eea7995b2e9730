"""CollectSummaries: what collectors report, in TensorBoard against environment steps."""

import pathlib
from collections.abc import Mapping

import tensorflow as tf


class CollectSummaries:
    """Writes collectors' metrics to TensorBoard with the run's environment steps as the step."""

    def __init__(self, directory: pathlib.Path):
        """The event file is made with the first episode.

        Args:
          directory: the event files' directory, used for no others.
        """
        self._directory = str(directory)
        self._written_at = -1
        self._writer: tf.summary.SummaryWriter | None = None

    def write(self, metrics: Mapping[str, float | None]) -> None:
        """Writes the `metrics` of `reports.ReportReader` that are not None, if there are new environment steps."""
        env_steps = int(metrics.get('env_steps') or 0)
        if env_steps <= self._written_at or metrics.get('mean_return') is None:
            return
        self._written_at = env_steps
        if self._writer is None:
            self._writer = tf.summary.create_file_writer(self._directory)
        with self._writer.as_default(step=env_steps):
            for name, value in metrics.items():
                if value is not None:
                    tf.summary.scalar(f'collect/{name}', value)

    def close(self) -> None:
        """Closes the event file."""
        if self._writer:
            self._writer.close()
