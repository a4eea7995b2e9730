"""Where each of several workers that train together writes its files."""

import contextlib
import tempfile
from collections.abc import Iterator

import tensorflow as tf

from tflearn.core import strategies
from tflearn.core.errors import UserValueError
from tflearn.files.run_dir import RunDir


@contextlib.contextmanager
def writable_run_dir(strategy: tf.distribute.Strategy, run_dir: RunDir) -> Iterator[RunDir]:
    """Provides each worker with its own run directory to write to.

    Every worker must save, since saving a variable may need all of them, but only the chief's files are kept.

    Args:
      run_dir: the run directory, on a file system that all workers share.

    Yields:
      `run_dir` on the chief. On every other worker a temporary one on its own machine, which is removed in the end; it
      links to the checkpoints that are in `run_dir` now, so that all workers restore the same one, and to the stop
      request.
    """
    layout = strategies.layout(strategy)
    if layout.workers > 1 and run_dir.location != str(run_dir.root):
        raise UserValueError(
            f'got {layout.workers} workers that train as one with --root_dir={run_dir.location}; need a directory that '
            'all machines share; mount one'
        )
    if layout.is_chief:
        yield run_dir
        return
    with tempfile.TemporaryDirectory(prefix=f'tflearn_worker_{layout.worker}_') as directory:
        mine = RunDir(directory)
        mine.checkpoints.mkdir(parents=True)
        for path in run_dir.checkpoints.glob('c*'):  # not unfinished files
            # Replacing or removing the link does not touch the chief's file.
            (mine.checkpoints / path.name).symlink_to(path)
        mine.manifests.symlink_to(run_dir.manifests)
        mine.stop_request.symlink_to(run_dir.stop_request)  # so that each worker sees a later request
        yield mine
