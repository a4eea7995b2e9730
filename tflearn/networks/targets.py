"""Targets: networks whose variables follow slowly those of others, for the targets of values."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tflearn.core.errors import UserValueError


class Targets(tf.Module):
    """Pairs of networks with equal variables, of which the second follows the first."""

    def __init__(self, pairs: Sequence[tuple[Any, Any]], tau: float, period: int = 1):
        """
        Args:
          pairs: the trained networks, and those that follow.
          tau: the weight of the trained ones in an update, in (0, 1]; 1 copies them.
          period: train steps between two updates.

        Raises:
          ValueError: if a number is out of its bounds.
        """
        super().__init__('targets')
        if not isinstance(period, int) or period < 1 or not 0 < tau <= 1:
            raise UserValueError(
                f'got target_update_period={period!r}, target_update_tau={tau!r}; need at least 1 train step, and a '
                'number above 0, at most 1'
            )
        self._trained, self._following = (tuple(networks) for networks in zip(*pairs, strict=True))
        self._tau, self._period = tau, period

    def copy(self) -> None:
        """Makes the targets equal to the trained networks."""
        self._assign(1.0)

    def update(self, train_step: tf.Variable) -> None:
        """Moves the targets towards the trained networks if it is time; in replica context, after a train step."""
        parts = () if self._period == 1 else (tf.equal(train_step % self._period, 0),)

        # Only in cross-replica context may variables be assigned what all replicas share, also in a branch.
        def update(strategy: tf.distribute.Strategy, *due: tf.Tensor) -> None:
            if due:
                first = strategy.experimental_local_results(due[0])[0]
                tf.cond(first, lambda: self._assign(self._tau), lambda: None)
            else:
                self._assign(self._tau)

        tf.distribute.get_replica_context().merge_call(update, parts)

    def _assign(self, tau: float) -> None:
        for trained, target in zip(self._trained, self._following, strict=True):
            for new, old in zip(trained.variables, target.variables, strict=True):
                old.assign((1 - tau) * old + tau * new if tau < 1 else new)
