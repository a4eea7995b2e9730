"""Reads what a run has recorded, TensorBoard's event files of all its jobs; and warns of a run while it trains."""

import contextlib
import pathlib
from collections.abc import Iterator, Mapping

import numpy as np
import tensorflow as tf
from absl import logging
from google.protobuf import message

from tflearn.core import record_files
from tflearn.core.errors import UserValueError
from tflearn.files.run_dir import RunDir
from tflearn.tools import checks
from tflearn.tools.checks import Points, Series

JOBS = ('train', 'collect', 'evaluate')


def read(run_dir: RunDir) -> Series:
    """Returns all scalar metrics of a run, by tag. Nothing is written; a line that is being written is left out.

    Raises:
      ValueError: if it is no run, or has no summaries.
    """
    if not run_dir.root.is_dir():
        raise UserValueError(f'got {run_dir.root}, which is no directory; need the --root_dir of a run')
    files = _files(run_dir)
    if not files:
        raise UserValueError(
            f'got {run_dir.root} without event files in {run_dir.summaries(JOBS[0]).parent}; need the --root_dir of a '
            'run with summaries; set train.SummaryOptions.interval_steps'
        )
    found: dict[str, dict[int, tuple[float, float]]] = {}
    for file in files:
        _read_file(file, found)
    return {tag: points for tag, values in found.items() if len((points := _points(values)).steps)}


def _read_file(file: pathlib.Path, found: dict[str, dict[int, tuple[float, float]]]) -> None:
    """Adds a file's scalars, tag -> step -> (time, value); of several at one step the newest counts."""
    try:
        for record in record_files.read(file):
            event = tf.compat.v1.Event.FromString(record)
            for tag, number in _scalars(event):
                at = found.setdefault(tag, {})
                if event.step not in at or at[event.step][0] <= event.wall_time:
                    at[event.step] = event.wall_time, number
    except tf.errors.DataLossError:
        return  # the end of a file that is being written, or whose writer was killed
    except (OSError, tf.errors.OpError, message.DecodeError) as error:
        raise UserValueError(f'got {file}, which cannot be read ({error}); need an event file; remove it') from error


def _points(values: dict[int, tuple[float, float]]) -> Points:
    """Returns a metric's course without the steps that were taken again after an older checkpoint was restored."""
    steps = np.array(sorted(values), np.int64)
    times, numbers = np.array([values[step] for step in steps.tolist()], np.float64).T
    # A step whose time is after that of a later step was taken again: the later one is of the old course.
    newest = np.maximum.accumulate(times)
    kept = (times >= newest) & np.isfinite(numbers)
    return Points(steps[kept], numbers[kept])


def _files(run_dir: RunDir) -> list[pathlib.Path]:
    return [file for job in JOBS for file in sorted(run_dir.summaries(job).glob('events.out.tfevents.*'))]


def _scalars(event: tf.compat.v1.Event) -> Iterator[tuple[str, float]]:
    for value in event.summary.value:
        if value.WhichOneof('value') == 'tensor' and not value.tensor.tensor_shape.dim:
            array = tf.make_ndarray(value.tensor)
            if array.dtype.kind in 'fiu':
                yield value.tag, float(array)


class NewScalars:
    """Reads what was added to a run's event files since the last call, or since it was made."""

    def __init__(self, run_dir: RunDir):
        """Reads nothing yet; what is in the files now is left out."""
        self._run_dir = run_dir
        self._offsets = {file: file.stat().st_size for file in _files(run_dir)}

    def __call__(self) -> Iterator[tuple[str, int, float]]:
        """Yields (tag, step, value), in each file's order; what is still in its writer's memory comes later."""
        for file in _files(self._run_dir):
            for record in self._records(file):
                event = tf.compat.v1.Event.FromString(record)
                for tag, number in _scalars(event):
                    yield tag, event.step, number

    def _records(self, file: pathlib.Path) -> Iterator[bytes]:
        """Yields a file's new records."""
        at = self._offsets.get(file, 0)
        if file.stat().st_size == at:
            return
        with contextlib.suppress(tf.errors.DataLossError):  # the end of it is being written
            for record in record_files.read(file, at):
                self._offsets[file] = at = at + len(record) + record_files.FRAME_BYTES
                yield record


_MOST_POINTS = 512  # of a metric; of a longer run every second one is kept
_ONLY_AT_THE_END = {'returns-flat', 'data-wait'}  # a young run has not learned yet, or waits for its first data


class Watch:
    """Takes each summary's metrics, and logs what looks wrong, once until it looks right again.

    Metrics of gradients are in no summary's metrics, since the summary program writes them itself; those of collectors
    and of the evaluation have steps of their own. They are read from the run's event files.
    """

    def __init__(self, run_dir: RunDir) -> None:
        """Reads nothing yet; what an earlier session has recorded is left out."""
        self._recorded: NewScalars | None = NewScalars(run_dir)
        self._steps: dict[str, list[int]] = {}
        self._values: dict[str, list[float]] = {}
        self._wrong: set[str] = set()

    def __call__(self, step: int, metrics: Mapping[str, float | None]) -> None:
        """Adds the metrics of a train step; those that are None or not finite are left out."""
        for name, value in metrics.items():
            if value is not None:
                self._add(f'train/{name}', step, float(value))
        self._add_recorded()
        series = {
            tag: Points(np.array(steps, np.int64), np.array(self._values[tag])) for tag, steps in self._steps.items()
        }
        wrong = {finding.check: finding for finding in checks.run_all(series) if finding.wrong}
        for check in wrong.keys() - self._wrong - _ONLY_AT_THE_END:
            logging.warning('train step %d: %s: %s; see %s', step, check, wrong[check].text, wrong[check].link)
        self._wrong = set(wrong)

    def _add_recorded(self) -> None:
        if self._recorded is None:
            return
        try:
            for tag, step, value in self._recorded():
                if not tag.startswith('train/') and not tag.endswith('/variable_norm'):  # those are given; unchecked
                    self._add(tag, step, value)
        except (OSError, message.DecodeError) as error:  # no reason to end the training
            logging.warning('no more warnings by metrics of gradients and collectors: %s', error)
            self._recorded = None

    def _add(self, tag: str, step: int, value: float) -> None:
        if not np.isfinite(value):
            return
        steps, values = self._steps.setdefault(tag, []), self._values.setdefault(tag, [])
        steps.append(step)
        values.append(value)
        if len(steps) > _MOST_POINTS:
            del steps[::2], values[::2]
