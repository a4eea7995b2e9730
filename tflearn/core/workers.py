"""Several workers that train together: how they agree on values.

Each worker runs the same program, and its collectives meet those of the others in the same order.
So the number of next train steps, or whether a checkpoint is saved, must be the same on every
worker.

Replicas diverge when something is done on some of them only: weights set by hand, a random draw in
an update, different checkpoints restored, a device that computes wrongly. Nothing else shows it:
the loss still falls. So `ReplicaConsistency` compares their variables. (ALF's
`ddp_paras_check_interval` compares the same four statistics.)
"""

import contextlib
import enum
import json
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging
from numpy.typing import ArrayLike

from tflearn.core import strategies
from tflearn.core.errors import UserValueError
from tflearn.core.waiting import PeerStopped

_WORKERS = 'workers'


class StopReason(enum.IntEnum):
    """Why training stops; of several workers the greatest value counts."""

    NONE = 0
    REQUEST = 1
    NO_DATA = 2
    CONDITION = 3  # one of the stop conditions


def check_own_stop(reason: StopReason, stop: threading.Event, train_step: int) -> None:
    """Raises PeerStopped if training was stopped, by a request to another worker:
    this one cannot go on alone.
    """
    if reason == StopReason.REQUEST and not stop.is_set():
        raise PeerStopped(
            f'stopped at train step {train_step}, because another worker was asked to stop; start all workers again: '
            'they continue from the checkpoint'
        )


class Agreement:
    """Makes the workers of a strategy agree on values.
    Every worker must make the same calls in the same order.

    With one worker no collective runs.

    Attributes:
      layout: the strategy's replicas and workers.
    """

    def __init__(self, strategy: tf.distribute.Strategy):
        self._strategy, self.layout = strategy, strategies.layout(strategy)
        self._alone = self.layout.workers == 1
        self._gather = tf.function(self._gathered, input_signature=[tf.TensorSpec([None], tf.int64)], autograph=False)

    def on_any(self, flag: bool) -> bool:
        """Returns whether `flag` is set on any worker: a request to stop, data that ended,
        a timeout.
        """
        return flag if self._alone else bool(self.values(int(flag)).any())

    def least(self, value: int) -> int:
        """Returns the least `value` of all workers:
        for example train steps that each may take now.
        """
        return value if self._alone else int(self.values(value).min())

    def greatest(self, value: int) -> int:
        """Returns the greatest `value` of all workers."""
        return value if self._alone else int(self.values(value).max())

    def of_chief(self, value: int) -> int:
        """Returns the chief's `value`: for example a seed that it drew,
        or what it read from a server.
        """
        return value if self._alone else int(self.values(value)[0])

    def check_same(self, value: int, what: str) -> None:
        """Checks that `value` is the same on every worker.
        Raises ValueError on every worker, if any differs.
        """
        values = np.asarray([value]) if self._alone else self.values(value)
        if (values != value).any() or (values != values[0]).any():
            raise UserValueError(
                f'got different values of {what} on the workers: {values.tolist()} by replica; need one; use the same '
                '--root_dir, on a file system that all workers share, and the same configuration'
            )

    @contextlib.contextmanager
    def together(self, what: str) -> Iterator[None]:
        """Makes a `with` block without collectives, such as reading files,
        fail on all workers if it fails on any.

        Raises:
          PeerStopped: if it failed on other workers only.
        """
        try:
            yield
        except Exception:
            self.on_any(True)
            raise
        if self.on_any(False):
            raise PeerStopped(f'got an error of another worker in {what}; see its log; fix it, and start all again')

    def values(self, value: int) -> np.ndarray:
        """Returns the `value` of each replica's worker: int64 [replicas]."""
        return self._rows([value])[:, 0]

    def texts(self, text: str) -> list[str]:
        """Returns the `text` of each worker, such as its position in its part of the data."""
        if self._alone:
            return [text]
        data = np.frombuffer(text.encode(), np.uint8)
        lengths = self.values(len(data))
        rows = self._rows(np.pad(data, (0, int(lengths.max()) - len(data))))
        firsts = range(0, self.layout.replicas, self.layout.replicas // self.layout.workers)
        return [rows[i, : lengths[i]].astype(np.uint8).tobytes().decode() for i in firsts]

    def _rows(self, values: ArrayLike) -> np.ndarray:
        """Returns the integers [n] of each replica's worker: int64 [replicas, n]."""
        with self._strategy.scope():
            return self._gather(tf.constant(values, tf.int64)).numpy()

    def _gathered(self, value: tf.Tensor) -> tf.Tensor:
        return self._strategy.gather(self._strategy.run(lambda mine: mine[tf.newaxis], (value,)), axis=0)


class StateOfWorkers(tf.train.experimental.PythonState):
    """A Python state that is another one on each worker,
    such as a position in its part of the data.

    The chief's checkpoint holds all of them, and each worker restores its own. All workers save at
    the same train step.
    """

    def __init__(self, state: tf.train.experimental.PythonState, agreement: Agreement):
        """Takes this worker's state, whose text is JSON."""
        self._state, self._agreement = state, agreement

    def serialize(self) -> str:
        """Returns the state; of several workers a JSON object with all of them."""
        texts = self._agreement.texts(self._state.serialize())
        return texts[0] if len(texts) == 1 else json.dumps({_WORKERS: texts})

    def deserialize(self, string_value: str) -> None:
        """Restores this worker's state; logs it if the checkpoint is of another number of workers."""
        texts = json.loads(string_value).get(_WORKERS, [string_value])
        layout = self._agreement.layout
        if len(texts) != layout.workers:
            logging.warning(
                'the checkpoint has the positions of %d workers, now there are %d, which divide the data in another '
                'way: the batches are not those that an undisturbed run would have had',
                len(texts),
                layout.workers,
            )
        self._state.deserialize(texts[layout.worker % len(texts)])


@contextlib.contextmanager
def peer_failures(strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Turns the error of a collective that another worker no longer takes part in into `PeerStopped`.

    Raises:
      PeerStopped: if there are several workers, or those of a TPU, and one of them has died: all
        have to start again.
    """
    try:
        yield
    except (tf.errors.UnavailableError, tf.errors.AbortedError) as error:
        if strategies.layout(strategy).workers == 1 and not isinstance(strategy, tf.distribute.TPUStrategy):
            raise
        raise PeerStopped(
            f'lost another worker ({str(error).partition(chr(10))[0]}); start all workers again: they continue from '
            'the newest checkpoint'
        ) from error


_STATISTICS = ('mean', 'std', 'L1', 'L2')
_TOLERANCE = 1e-6


class ReplicaConsistency:
    """Compares every variable across replicas; the action of a `PeriodicAction`.

    Attributes:
      difference: the greatest difference of a statistic between two replicas at the last check,
        relative to its size where that is above 1; for the summaries, as `replica_difference`. None
        before the first check.
    """

    def __init__(self, strategy: tf.distribute.Strategy, root: Any):
        """Finds the variables; those that are summed over replicas when they are read may differ and are left out.

        Args:
          root: the trackable object whose variables are compared: the agent. They must exist
            already.

        Raises:
          ValueError: if `root` has no variables.
        """
        on_read = tf.VariableSynchronization.ON_READ
        self._variables = {
            name: variable
            for name, variable in named_variables(root).items()
            if variable.synchronization != on_read and (variable.dtype.is_floating or variable.dtype.is_integer)
        }
        if not self._variables:
            raise UserValueError(f'got {type(root).__name__} without variables; need an agent whose networks are built')
        self._strategy = strategy
        self._statistics = tf.function(self._gathered, autograph=False)
        self.difference: float | None = None

    def __call__(self, step: int) -> float:
        """Compares now. Every worker must call it at the same train step.

        Raises:
          RuntimeError: on every worker, if a variable differs by more than the tolerance; names the
            worst one.
        """
        with self._strategy.scope():
            statistics = self._statistics().numpy()  # [replicas, variables, statistics]
        differences = _differences(statistics)
        self.difference = float(differences.max())
        if self.difference > _TOLERANCE:
            raise RuntimeError(self._text(step, statistics, differences))
        return self.difference

    def _text(self, step: int, statistics: np.ndarray, differences: np.ndarray) -> str:
        worst, statistic = np.unravel_index(differences.argmax(), differences.shape)
        count = int((differences.max(axis=1) > _TOLERANCE).sum())
        return (
            f'got replicas that differ at train step {step} in {count} of {len(self._variables)} variable(s), most in '
            f'{list(self._variables)[worst]}: {_STATISTICS[statistic]} {statistics[:, worst, statistic].tolist()} by '
            f'replica; need a difference of at most {_TOLERANCE:g}; restart all workers from a '
            'checkpoint, and change variables only in the same way on every replica'
        )

    def _gathered(self) -> tf.Tensor:
        per_replica = self._strategy.run(lambda: _all_statistics(self._variables.values())[tf.newaxis])
        return self._strategy.gather(per_replica, axis=0)


def named_variables(root: Any) -> dict[str, tf.Variable]:
    """Returns all variables below a trackable object by their paths in a checkpoint, each once."""
    view = tf.train.TrackableView(root)
    found: dict[str, tf.Variable] = {}
    seen, waiting = {id(root)}, [('', root)]
    while waiting:
        path, node = waiting.pop(0)
        if isinstance(node, tf.Variable):
            found[path or node.name] = node
            continue
        for name, child in view.children(node).items():
            if id(child) not in seen:
                seen.add(id(child))
                waiting.append((f'{path}/{name}' if path else name, child))
    return found


def _all_statistics(variables: Any) -> tf.Tensor:
    """Returns mean, standard deviation, L1 and L2 norm of each variable of this replica:
    float64 [variables, 4].
    """
    rows = []
    for variable in variables:
        value = tf.cast(tf.reshape(variable, (-1,)), tf.float64)
        l1, l2 = tf.reduce_sum(tf.abs(value)), tf.norm(value)
        rows.append(tf.stack([tf.reduce_mean(value), tf.math.reduce_std(value), l1, l2]))
    return tf.stack(rows)


def _differences(statistics: np.ndarray) -> np.ndarray:
    """Returns the greatest difference from the first replica,
    relative where statistics are above 1: [variables, 4].
    """
    first = statistics[:1]
    with np.errstate(invalid='ignore'):
        relative = np.abs(statistics - first) / np.maximum(np.abs(first), 1.0)
    # A NaN or an infinite value on one replica must be the same on the others.
    same = (statistics == first) | (np.isnan(statistics) & np.isnan(first))
    return np.where(same, 0.0, np.where(np.isnan(relative), np.inf, relative)).max(axis=0)
