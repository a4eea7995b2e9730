"""Several workers that train together: how they agree on values, and where each of them writes.

Each worker runs the same program, and its collectives meet those of the others in the same order. So the number of next
train steps, or whether a checkpoint is saved, must be the same on every worker.
"""

import contextlib
import tempfile
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from tflearn.distribute import strategies
from tflearn.errors import UserValueError
from tflearn.run_dir import RunDir
from tflearn.waiting import PeerStopped


class Agreement:
    """Lets the workers of a strategy agree on values. Every worker must make the same calls in the same order.

    With one worker no collective runs.
    """

    def __init__(self, strategy: tf.distribute.Strategy):
        self._strategy = strategy
        self._alone = strategies.layout(strategy).workers == 1
        self._gather = tf.function(self._gathered, input_signature=[tf.TensorSpec((), tf.int64)])

    def on_any(self, flag: bool) -> bool:
        """Returns whether `flag` is set on any worker: a request to stop, data that ended, a timeout."""
        return flag if self._alone else bool(self.values(int(flag)).any())

    def least(self, value: int) -> int:
        """Returns the least `value` of all workers: for example train steps that each may take now."""
        return value if self._alone else int(self.values(value).min())

    def greatest(self, value: int) -> int:
        """Returns the greatest `value` of all workers."""
        return value if self._alone else int(self.values(value).max())

    def of_chief(self, value: int) -> int:
        """Returns the chief's `value`: for example a seed that it drew, or what it read from a server."""
        return value if self._alone else int(self.values(value)[0])

    def check_same(self, value: int, what: str) -> None:
        """Checks that `value` is the same on every worker. Raises ValueError on every worker, if any differs."""
        values = np.asarray([value]) if self._alone else self.values(value)
        if (values != value).any() or (values != values[0]).any():
            raise UserValueError(
                f'got different values of {what} on the workers: {values.tolist()} by replica; need one; use the same '
                '--root_dir, on a file system that all workers share, and the same configuration'
            )

    def values(self, value: int) -> np.ndarray:
        """Returns the `value` of each replica's worker: int64 [replicas]."""
        with self._strategy.scope():
            return self._gather(tf.constant(value, tf.int64)).numpy()

    def _gathered(self, value: tf.Tensor) -> tf.Tensor:
        return self._strategy.gather(self._strategy.run(lambda mine: mine[tf.newaxis], (value,)), axis=0)


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
    if layout.is_chief:
        yield run_dir
        return
    with tempfile.TemporaryDirectory(prefix=f'tflearn_worker_{layout.worker}_') as directory:
        mine = RunDir(directory)
        mine.checkpoints.mkdir(parents=True)
        for path in run_dir.checkpoints.glob('c*'):  # not unfinished files
            (mine.checkpoints / path.name).symlink_to(
                path
            )  # replacing or removing the link does not touch the chief's file
        mine.stop_request.symlink_to(run_dir.stop_request)  # so that each worker sees a later request
        yield mine


@contextlib.contextmanager
def peer_failures(strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Turns the error of a collective that another worker no longer takes part in into `PeerStopped`.

    Raises:
      PeerStopped: if there are several workers and one of them has died: all have to start again.
    """
    try:
        yield
    except (tf.errors.UnavailableError, tf.errors.AbortedError) as error:
        if strategies.layout(strategy).workers == 1:
            raise
        raise PeerStopped(
            f'lost another worker ({str(error).partition(chr(10))[0]}); start all workers again: they continue from '
            'the newest checkpoint'
        ) from error
