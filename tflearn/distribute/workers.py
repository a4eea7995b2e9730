"""Several workers that train as one: agreeing on things, and who writes where.

Each worker runs the same program, and its collectives meet those of the others in the same order. So whatever decides
how many train steps come next, or whether a checkpoint is saved, must be decided alike on every worker.
"""

import contextlib
import tempfile
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from tflearn.distribute import strategies
from tflearn.errors import UserValueError
from tflearn.run_dir import RunDir


class Agreement:
    """Lets the workers of a strategy decide alike. Every worker must ask the same questions in the same order.

    With one process there is nothing to agree on, and nothing runs.
    """

    def __init__(self, strategy: tf.distribute.Strategy):
        self._strategy = strategy
        self._alone = strategies.layout(strategy).workers == 1
        self._gather = tf.function(self._gathered, input_signature=[tf.TensorSpec((), tf.int64)])

    def on_any(self, flag: bool) -> bool:
        """Says whether `flag` is set on any worker: a request to stop, data that ended, a time that is over.

        Args:
          flag: this worker's.

        Returns:
          The same on every worker.
        """
        return flag if self._alone else bool(self.values(int(flag)).any())

    def least(self, value: int) -> int:
        """Returns the least `value` of all workers: train steps that each may take now, say."""
        return value if self._alone else int(self.values(value).min())

    def greatest(self, value: int) -> int:
        """Returns the greatest `value` of all workers."""
        return value if self._alone else int(self.values(value).max())

    def of_chief(self, value: int) -> int:
        """Returns the chief's `value`: of a seed that it drew, or of what it read from a server that goes on."""
        return value if self._alone else int(self.values(value)[0])

    def check_same(self, value: int, what: str) -> None:
        """Checks that `value` is the same on every worker.

        Args:
          value: this worker's: the train step that it restored, say.
          what: it is, for the error.

        Raises:
          ValueError: on every worker, if any differs.
        """
        values = np.asarray([value]) if self._alone else self.values(value)
        if (values != value).any() or (values != values[0]).any():
            raise UserValueError(
                f'got different values of {what} on the workers: {values.tolist()} by replica; need one; let all '
                'workers have the same --root_dir on a file system that they share, and the same configuration'
            )

    def values(self, value: int) -> np.ndarray:
        """Returns the `value` of each replica's worker: int64 [replicas]."""
        with self._strategy.scope():
            return self._gather(tf.constant(value, tf.int64)).numpy()

    def _gathered(self, value: tf.Tensor) -> tf.Tensor:
        return self._strategy.gather(self._strategy.run(lambda mine: mine[tf.newaxis], (value,)), axis=0)


@contextlib.contextmanager
def writable_run_dir(strategy: tf.distribute.Strategy, run_dir: RunDir) -> Iterator[RunDir]:
    """Gives each worker a run directory of its own to write to.

    Every worker must save, since saving a variable may need all of them, but only the chief's files are for keeps.

    Args:
      strategy: of the learner.
      run_dir: of the run, on a file system that all workers share.

    Yields:
      `run_dir` on the chief. On every other worker a temporary one on its own machine, removed in the end; it shows the
      checkpoints that are in `run_dir` now, so that all workers restore the same one, and requests to stop.
    """
    place = strategies.layout(strategy)
    if place.is_chief:
        yield run_dir
        return
    with tempfile.TemporaryDirectory(prefix=f'tflearn_worker_{place.worker}_') as directory:
        mine = RunDir(directory)
        mine.checkpoints.mkdir(parents=True)
        for path in run_dir.checkpoints.glob('c*'):  # not what is half written
            (mine.checkpoints / path.name).symlink_to(path)  # whoever replaces or removes it leaves the chief's alone
        mine.stop_request.symlink_to(run_dir.stop_request)  # so that each worker sees one that comes
        yield mine
