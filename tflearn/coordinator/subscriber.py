"""Subscriber: pulls published weights into live variables."""

import dataclasses
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from tflearn.coordinator import weights_channels, weights_contract
from tflearn.coordinator.weights_channels import Plane
from tflearn.core import background
from tflearn.core.errors import UserValueError
from tflearn.core.waiting import wait_until

_CLOSE_SECS = 2.0
_RETRY_SECS = 1.0


@dataclasses.dataclass(frozen=True)
class Publication:
    """The counters of a publication; before the first one all are zero.

    Attributes:
      policy_version: counts the run's publications.
      published_at: the time of the publication [microseconds since 1970].
    """

    train_step: int = 0
    policy_version: int = 0
    env_steps: int = 0
    finished: bool = False
    published_at: int = 0


class Subscriber:
    """Keeps a policy's variables at the newest published version.

    A thread waits for new publications. The acting thread assigns them between two steps.
    """

    def __init__(
        self,
        address: str,
        variables: Sequence[tf.Variable],
        train_step: tf.Variable,
        interval_secs: float = 0.5,
        plane: Plane = Plane(),
        name: str = '',
    ):
        """Checks the contract, and starts to wait.

        Args:
          variables: the acting policy's variables, in the publisher's order.
          train_step: the variable that is set to the published train step, for schedules.
          interval_secs: the mean time between two questions to a replay server for new weights [s].
          plane: where weights travel, if not through the replay server.
          name: the job's, by which it chooses one of several relays, and when it asks a replay server.

        Raises:
          ValueError: if what the server has is made for other variables.
        """
        self._variables = [*variables]
        self._train_step = train_step
        self._channel = weights_channels.connect(address, self._variables, plane, name, interval_secs=interval_secs)
        self._error: UserValueError | None = None
        self.newest = Publication()
        self._found: list[Mapping[str, Any]] = []
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
        data = self._found.pop()
        counters = {name: np.asarray(data[name]).item() for name in weights_contract.COUNTERS}
        for i, variable in enumerate(self._variables):
            variable.assign(data[weights_contract.column(i)])
        self._train_step.assign(counters['train_step'])
        self.newest = Publication(**counters)
        return True

    def wait(self, timeout_secs: float, stop: threading.Event | None = None) -> None:
        """Waits for the first publication of a learner that is still training, and whose policy should act.

        Each publication of a learner that trains on demonstrations first begins the time limit again. If training ends
        meanwhile, it returns too.

        Raises:
          TimeoutError: if no learner publishes in time.
          Stopped: if `stop` is set.
        """
        what = f'weights from a learner that trains, through {self._channel.what}'
        wait_until(lambda: self.pull() and not self.newest.finished, what, timeout_secs, stop)
        while self.newest.policy_version == weights_contract.PRETRAINING and not self.newest.finished:
            wait_until(self.pull, what, timeout_secs, stop)

    def wait_for_next(self, secs: float) -> None:
        """Waits until there is a publication to pull, for at most `secs`."""
        self._news.wait(secs)

    def close(self) -> None:
        """Stops waiting. A poll of a server that is shutting down may never return; its thread is abandoned."""
        self._closed.set()
        self._channel.close()
        self._thread.join(_CLOSE_SECS)

    def _receive(self) -> None:
        published_at = None
        while not self._closed.is_set():
            try:
                data = self._channel.next()
            except UserValueError as error:
                self._error = error
                self._news.set()
                return
            except Exception:  # without this thread a collector would use old weights forever
                if not self._closed.is_set():
                    logging.exception('could not read weights from %s', self._channel.what)
                self._closed.wait(_RETRY_SECS)
                continue
            if data is not None and int(data['published_at']) != published_at:
                published_at = int(data['published_at'])
                self._found[:] = [data]
                self._news.set()
