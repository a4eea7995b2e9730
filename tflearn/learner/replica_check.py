"""Replica consistency: replicas that train together must hold the same variables.

They diverge when something is done on some of them only: weights set by hand, a random draw in an update, different
checkpoints restored, a device that computes wrongly. Nothing else shows it: the loss still falls.
(ALF's `ddp_paras_check_interval` compares the same four statistics.)
"""

from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from tflearn.core.errors import UserValueError

_STATISTICS = ('mean', 'std', 'L1', 'L2')


class ReplicaConsistency:
    """Compares every variable across replicas; the action of an `IntervalTrigger`.

    Attributes:
      difference: the greatest difference of a statistic between two replicas at the last check, relative to its size
        where that is above 1; for the summaries, as `replica_difference`. None before the first check.
    """

    def __init__(self, strategy: tf.distribute.Strategy, root: Any, tolerance: float = 1e-6, strict: bool = True):
        """Finds the variables; those that are summed over replicas when they are read may differ and are left out.

        Args:
          root: the trackable object whose variables are compared: the agent. They must exist already.
          strict: raise an error on a difference; otherwise only log it.

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
        self._strategy, self._tolerance, self._strict = strategy, tolerance, strict
        self._statistics = tf.function(self._gathered, autograph=False)
        self.difference: float | None = None

    def __call__(self, step: int) -> float:
        """Compares now. Every worker must call it at the same train step.

        Raises:
          RuntimeError: on every worker, if a variable differs by more than the tolerance; names the worst one.
        """
        with self._strategy.scope():
            statistics = self._statistics().numpy()  # [replicas, variables, statistics]
        differences = _differences(statistics)
        self.difference = float(differences.max())
        if self.difference > self._tolerance:
            self._report(step, statistics, differences)
        return self.difference

    def _report(self, step: int, statistics: np.ndarray, differences: np.ndarray) -> None:
        worst, statistic = np.unravel_index(differences.argmax(), differences.shape)
        count = int((differences.max(axis=1) > self._tolerance).sum())
        message = (
            f'got replicas that differ at train step {step} in {count} of {len(self._variables)} variable(s), most in '
            f'{list(self._variables)[worst]}: {_STATISTICS[statistic]} {statistics[:, worst, statistic].tolist()} by '
            f'replica; need a difference of at most {self._tolerance:g}; restart all workers from a '
            'checkpoint, and change variables only in the same way on every replica'
        )
        if self._strict:
            raise RuntimeError(message)
        logging.error(message)

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
    """Returns mean, standard deviation, L1 and L2 norm of each variable of this replica: float64 [variables, 4]."""
    rows = []
    for variable in variables:
        value = tf.cast(tf.reshape(variable, (-1,)), tf.float64)
        l1, l2 = tf.reduce_sum(tf.abs(value)), tf.norm(value)
        rows.append(tf.stack([tf.reduce_mean(value), tf.math.reduce_std(value), l1, l2]))
    return tf.stack(rows)


def _differences(statistics: np.ndarray) -> np.ndarray:
    """Returns the greatest difference from the first replica, relative where statistics are above 1: [variables, 4]."""
    first = statistics[:1]
    with np.errstate(invalid='ignore'):
        relative = np.abs(statistics - first) / np.maximum(np.abs(first), 1.0)
    # A NaN or an infinite value on one replica must be the same on the others.
    same = (statistics == first) | (np.isnan(statistics) & np.isnan(first))
    return np.where(same, 0.0, np.where(np.isnan(relative), np.inf, relative)).max(axis=0)
