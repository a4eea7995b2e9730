"""CreditReader: the collector's newest credits, on a thread of its own."""

import threading

from absl import logging

from tflearn.coordinator.client import Coordinator
from tflearn.coordinator.control import Credits
from tflearn.coordinator.weights_reader import Lost, Refused
from tflearn.core import background

_WAIT_SECS = 2.0
_RETRY_SECS = 0.5


class CreditReader:
    """Waits for new credits. `newest` is None before the first ones; those of a lost coordinator stay."""

    def __init__(self, coordinator: Coordinator):
        """Starts to wait."""
        self.newest: Credits | None = None
        self._coordinator, self._closed = coordinator, threading.Event()
        self._thread = background.Thread(target=self._run, name='credit_reader')
        self._thread.start()

    def close(self) -> None:
        """Stops waiting."""
        self._closed.set()
        self._thread.join(2 * _WAIT_SECS)

    def _run(self) -> None:
        number, read_from = 0, ''
        while not self._closed.is_set():
            if read_from != self._coordinator.incarnation:
                read_from, number = self._coordinator.incarnation, 0
            try:
                number, newest = self._coordinator.credits(number, _WAIT_SECS)
                self.newest = newest or self.newest
            except (Lost, Refused):
                self._closed.wait(_RETRY_SECS)
            except Exception:  # without this thread a collector would wait forever
                logging.exception('could not read credits from %s', self._coordinator.what)
                self._closed.wait(_RETRY_SECS)
