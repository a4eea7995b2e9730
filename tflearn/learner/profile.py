"""Profile: a trace of some train steps for TensorBoard's profiler."""

import pathlib

import tensorflow as tf
from absl import logging


class Profile:
    """Traces the train steps first..last once. A run that is resumed between them traces the rest."""

    def __init__(self, directory: pathlib.Path, steps: tuple[int, int] | None):
        """Traces nothing yet.

        Args:
          directory: the directory of the event files; the trace is written to its `plugins/profile`.
          steps: first and last train step, both in the trace; None never traces.
        """
        self._directory, self._steps = str(directory), steps
        self._running = False

    def boundary(self, before: int) -> int | None:
        """Returns the next train step at which the trace begins or ends; no program may run across it."""
        if not self._steps:
            return None
        first, last = self._steps
        return next((step for step in (first - 1, last) if step > before), None)

    def at(self, step: int) -> None:
        """Begins or ends the trace, if that is due when `step` train steps are done."""
        if not self._steps:
            return
        first, last = self._steps
        if self._running and step >= last:
            self.stop()
        elif not self._running and first <= step + 1 <= last:
            self._start()

    def stop(self) -> None:
        """Ends the trace if it runs, and writes it."""
        if self._running:
            self._running = False
            tf.profiler.experimental.stop()
            logging.info('wrote the trace of train steps %s to %s', self._steps, self._directory)

    def _start(self) -> None:
        try:
            tf.profiler.experimental.start(self._directory)
        except tf.errors.OpError as error:  # training continues without a trace
            logging.warning('could not trace train steps %s: %s', self._steps, error)
            self._steps = None
            return
        self._running = True
