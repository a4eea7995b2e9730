"""Reads what a run has recorded: TensorBoard's event files of all its jobs."""

import pathlib

import numpy as np
import tensorflow as tf
from google.protobuf import message

from tflearn.errors import UserValueError
from tflearn.run_dir import RunDir
from tflearn.tools.checks import Points, Series

JOBS = ('train', 'collect', 'evaluate')


def read(run_dir: RunDir) -> Series:
    """Returns all scalar metrics of a run, by tag. Nothing is written; a line that is being written is left out.

    Raises:
      ValueError: if it is no run, or has no summaries.
    """
    if not run_dir.root.is_dir():
        raise UserValueError(f'got {run_dir.root}, which is no directory; need the --root_dir of a run')
    files = [file for job in JOBS for file in sorted(run_dir.summaries(job).glob('events.out.tfevents.*'))]
    if not files:
        raise UserValueError(
            f'got {run_dir.root} without event files in {run_dir.summaries(JOBS[0]).parent}; need the --root_dir of a '
            'run with summaries; set train.Intervals.summary_interval_steps'
        )
    found: dict[str, dict[int, tuple[float, float]]] = {}
    for file in files:
        _read_file(file, found)
    return {tag: points for tag, values in found.items() if len((points := _points(values)).steps)}


def _read_file(file: pathlib.Path, found: dict[str, dict[int, tuple[float, float]]]) -> None:
    """Adds a file's scalars, tag -> step -> (time, value); of several at one step the newest counts."""
    try:
        for record in tf.data.TFRecordDataset(str(file)).as_numpy_iterator():
            event = tf.compat.v1.Event.FromString(record)
            for value in event.summary.value:
                if value.WhichOneof('value') == 'tensor' and not value.tensor.tensor_shape.dim:
                    array = tf.make_ndarray(value.tensor)
                    if array.dtype.kind in 'fiu':
                        at = found.setdefault(value.tag, {})
                        if event.step not in at or at[event.step][0] <= event.wall_time:
                            at[event.step] = event.wall_time, float(array)
    except tf.errors.DataLossError:
        return  # the end of a file that is being written, or whose writer was killed
    except (tf.errors.OpError, message.DecodeError) as error:
        raise UserValueError(f'got {file}, which cannot be read ({error}); need an event file; remove it') from error


def _points(values: dict[int, tuple[float, float]]) -> Points:
    """Returns a metric's course without the steps that were taken again after an older checkpoint was restored."""
    steps = np.array(sorted(values), np.int64)
    times, numbers = np.array([values[step] for step in steps.tolist()], np.float64).T
    # A step whose time is after that of a later step was taken again: the later one is of the old course.
    newest = np.maximum.accumulate(times)
    kept = (times >= newest) & np.isfinite(numbers)
    return Points(steps[kept], numbers[kept])
