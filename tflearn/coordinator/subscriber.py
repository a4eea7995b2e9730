"""Subscriber: pulls published weights into live variables."""

import dataclasses
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from tflearn.coordinator import weights_contract, weights_messages
from tflearn.coordinator.client import Coordinator, differences
from tflearn.coordinator.weights_contract import Publication
from tflearn.coordinator.weights_messages import Message
from tflearn.coordinator.weights_reader import Lost
from tflearn.core import background
from tflearn.core.errors import UserValueError
from tflearn.core.waiting import wait_until

_CLOSE_SECS = 2.0
_RETRY_SECS = 1.0
_COUNTERS = [field.name for field in dataclasses.fields(Publication)]


class Subscriber:
    """Keeps a policy's variables at the newest published version.

    A thread waits for new publications. The acting thread assigns them between two steps.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        variables: Sequence[tf.Variable],
        train_step: tf.Variable,
        stop: threading.Event | None = None,
    ):
        """Starts to wait.

        Args:
          variables: the acting policy's variables, in the publisher's order.
          train_step: the variable that is set to the published train step, for schedules.
          stop: ends all waiting when set.
        """
        self._variables, self._train_step, self._stop = [*variables], train_step, stop
        self._contract = weights_contract.of_variables(weights_contract.specs(self._variables))
        self._reader, self._what = coordinator.weights(), coordinator.what
        self._error: UserValueError | None = None
        self.newest = Publication()
        self._found: list[tuple[dict[str, Any], list[np.ndarray]]] = []
        self._closed, self._news = threading.Event(), threading.Event()
        self._thread = background.Thread(target=self._receive, name='subscriber')
        self._thread.start()

    def pull(self) -> bool:
        """Assigns the newest publication, if it is a new one. Never waits.

        Raises:
          ValueError: if it is made for other variables.
        """
        self._news.clear()  # before the check: a publication found after it sets the event again
        if self._error:
            raise self._error
        if not self._found:
            return False
        counters, values = self._found.pop()
        for variable, value in zip(self._variables, values, strict=True):
            variable.assign(value)
        self._train_step.assign(counters['train_step'])
        self.newest = Publication(**counters)
        return True

    def wait(self, timeout_secs: float) -> None:
        """Waits for the first publication of a learner that is still training, and whose policy should act.

        Each publication of a learner that trains on demonstrations first begins the time limit again. If training ends
        meanwhile, it returns too.

        Raises:
          TimeoutError: if no learner publishes in time.
          Stopped: if the job is asked to stop.
        """
        what = f'weights from a learner that trains, through {self._what}'
        wait_until(lambda: self.pull() and not self.newest.finished, what, timeout_secs, self._stop)
        while self.newest.policy_version == weights_contract.PRETRAINING and not self.newest.finished:
            wait_until(self.pull, what, timeout_secs, self._stop)

    def wait_for_next(self, secs: float) -> None:
        """Waits until there is a publication to pull, for at most `secs`."""
        self._news.wait(secs)

    def close(self) -> None:
        """Stops waiting."""
        self._closed.set()
        self._reader.close()
        self._thread.join(_CLOSE_SECS)

    def _receive(self) -> None:
        known, published_at, version = None, None, 0
        while not self._closed.is_set():
            try:
                message = self._reader.get(known)
                if message is None:
                    continue
                known = message
                counters = {name: message.counters[name] for name in _COUNTERS}
                is_old = 0 <= counters['policy_version'] < version  # of a learner that does not know ours yet
                if is_old or counters['published_at'] == published_at:  # or sent again
                    continue
                published_at, version = counters['published_at'], max(version, counters['policy_version'])
                self._found[:] = [(counters, self._values(message))]
                self._news.set()
            except Lost:
                self._reader.pause()
            except UserValueError as error:
                self._error = error
                self._news.set()
                return
            except Exception:  # without this thread a collector would use old weights forever
                if not self._closed.is_set():
                    logging.exception('could not read weights from %s', self._what)
                self._closed.wait(_RETRY_SECS)

    def _values(self, message: Message) -> list[np.ndarray]:
        """Returns the variables of a message; raises ValueError if they are not those of our variables."""
        try:
            theirs = [tf.TensorSpec(each.shape, tf.as_dtype(each.dtype), each.name) for each in message.variables]
            contract = weights_contract.of_variables(theirs)
            if contract['variables'] != self._contract['variables']:
                raise UserValueError(differences(self._contract, contract, self._what))
            return weights_messages.values(message, lambda name: np.dtype(tf.as_dtype(name).as_numpy_dtype))
        except (TypeError, ValueError) as error:
            raise UserValueError(str(error)) from error
