"""Reads what a run has recorded, TensorBoard's event files of all its jobs;
and warns of a run while it trains.

Loads no TensorFlow.
"""

import os
import pathlib
import struct
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
from absl import logging
from google.protobuf.message import DecodeError
from tensorboard.compat.proto import event_pb2
from tensorboard.util import tensor_util

from tflearn.core.errors import UserValueError
from tflearn.extensions.experiments import checks, overview
from tflearn.extensions.experiments.checks import Points, Series
from tflearn.files.run_dir import RunDir

JOBS = ('train', 'collect', 'evaluate')
_HEADER_BYTES, _FOOTER_BYTES = 12, 4  # of a record of an event file


def read(run_dir: RunDir) -> Series:
    """Returns all scalar metrics of a run, by tag. Nothing is written;
    a line that is being written is left out.

    Raises:
      ValueError: if it is no run, or has no summaries.
    """
    if not run_dir.root.is_dir():
        raise UserValueError(f'got {run_dir.root}, which is no directory; need the --root_dir of a run')
    files = _files(run_dir)
    if not files:
        state = overview.cells(run_dir)[0]
        begun = run_dir.checkpoints.exists() and not state.startswith('failed')
        raise UserValueError(
            f'got {run_dir.root} ({state}) without event files in {run_dir.summaries(JOBS[0]).parent}; need the '
            '--root_dir of a run that has trained with summaries; '
            + ('set train.SummaryOptions.interval_steps' if begun else 'correct what ended it, and start it again')
        )
    found: dict[str, dict[int, tuple[float, float]]] = {}  # tag -> step -> (time, value)
    for tag, step, number, at in new_scalars(run_dir, files, {}):
        values = found.setdefault(tag, {})
        if step not in values or values[step][0] <= at:  # of several files the newest counts
            values[step] = at, number
    return {tag: points for tag, values in found.items() if len((points := _points(values)).steps)}


def new_scalars(
    run_dir: RunDir, files: Iterable[pathlib.Path], offsets: dict[str, int]
) -> Iterator[tuple[str, int, float, float]]:
    """Yields (tag, step, value, time [s]) of what was added to event files;
    what is in a writer's memory comes later.

    Args:
      run_dir: the run.
      files: its event files.
      offsets: how much of each file was read, by its path in the run [bytes]; it is updated.

    Raises:
      ValueError: if a file cannot be read.
    """
    for file in files:
        key = str(file.relative_to(run_dir.root))
        for event, end in _events(file, offsets.get(key, 0)):
            offsets[key] = end
            for tag, number in _scalars(event):
                yield tag, event.step, number, event.wall_time


def _events(path: pathlib.Path, offset: int) -> Iterator[tuple[event_pb2.Event, int]]:
    """Yields the complete records of an event file from an offset on,
    each with the offset of its end.
    """
    try:
        size = path.stat().st_size
        with path.open('rb') as file:
            file.seek(offset)
            while len(header := file.read(_HEADER_BYTES)) == _HEADER_BYTES:
                length = int(struct.unpack('<Q', header[:8])[0])
                if file.tell() + length + _FOOTER_BYTES > size:
                    return  # it is being written, or its writer was killed
                event = event_pb2.Event.FromString(file.read(length))
                file.seek(_FOOTER_BYTES, os.SEEK_CUR)
                yield event, file.tell()
    except (OSError, DecodeError) as error:
        raise UserValueError(f'got {path}, which cannot be read ({error}); need an event file; remove it') from error


def _scalars(event: event_pb2.Event) -> Iterator[tuple[str, float]]:
    """Yields the scalars of an event, each with its tag."""
    for value in event.summary.value:
        if value.HasField('simple_value'):
            yield value.tag, value.simple_value
        elif value.HasField('tensor') and not value.tensor.tensor_shape.dim:
            array = tensor_util.make_ndarray(value.tensor)
            if array.dtype.kind in 'fiu':
                yield value.tag, float(array)


def _points(values: dict[int, tuple[float, float]]) -> Points:
    """Returns a metric's course without the steps that were taken again after an older checkpoint was restored."""
    steps = np.array(sorted(values), np.int64)
    times, numbers = np.array([values[step] for step in steps.tolist()], np.float64).T
    # A step whose time is after that of a later step was taken again: the later one is of the old
    # course.
    newest = np.maximum.accumulate(times)
    kept = (times >= newest) & np.isfinite(numbers)
    return Points(steps[kept], numbers[kept])


def _files(run_dir: RunDir) -> list[pathlib.Path]:
    return [file for job in JOBS for file in sorted(run_dir.summaries(job).glob('events.out.tfevents.*'))]


_MOST_POINTS = 512  # of a metric; of a longer run every second one is kept
# A young run has not learned yet, or waits for its first data.
_ONLY_AT_THE_END = {'returns-flat', 'data-wait'}


class Watch:
    """Takes each summary's metrics, and logs what looks wrong, once until it looks right again.

    Metrics of gradients are in no summary's metrics, since the summary program writes them itself;
    those of collectors and of the evaluation have steps of their own. They are read from the run's
    event files.
    """

    def __init__(self, run_dir: RunDir) -> None:
        """Reads nothing yet; what an earlier session has recorded is left out."""
        self._run_dir, self._can_read = run_dir, True
        self._offsets = {str(file.relative_to(run_dir.root)): file.stat().st_size for file in _files(run_dir)}
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
        if not self._can_read:
            return
        try:
            for tag, step, value, _ in new_scalars(self._run_dir, _files(self._run_dir), self._offsets):
                # Those are given; unchecked.
                if not tag.startswith('train/') and not tag.endswith('/variable_norm'):
                    self._add(tag, step, value)
        except UserValueError as error:  # no reason to end the training
            logging.warning('no more warnings by metrics of gradients and collectors: %s', error)
            self._can_read = False

    def _add(self, tag: str, step: int, value: float) -> None:
        if not np.isfinite(value):
            return
        steps, values = self._steps.setdefault(tag, []), self._values.setdefault(tag, [])
        steps.append(step)
        values.append(value)
        if len(steps) > _MOST_POINTS:
            del steps[::2], values[::2]
