"""Sends credits from the learner to the collectors: a table holds the newest message."""

import threading
from collections.abc import Mapping

from absl import logging

from tflearn.coordinator import control
from tflearn.core import background
from tflearn.core.errors import UserValueError
from tflearn.core.table_counts import TableCounts
from tflearn.core.waiting import Jitter
from tflearn.replay import connection
from tflearn.replay.tables import TableSpec

CREDITS = 'credits'
_CLOSE_SECS = 2.0
_MOST_POLLS_PER_SEC = 1000  # of all collectors together


def table() -> TableSpec:
    """Returns the table that holds the newest credits."""
    return connection.text_table(CREDITS, 'credits', max_size=1, max_times_sampled=0)


def send(address: str, message: control.Credits) -> bool:
    """Replaces the message in the table. Returns whether the server has it."""
    return connection.send(address, CREDITS, 'credits', control.encode(message))


def newest(address: str) -> control.Credits | None:
    """Returns the newest message; None if there is none or the server does not answer.

    Raises:
      ValueError: if the server has no table for credits.
    """
    tables = connection.counts(address)
    _check(address, tables)
    return _fetch(address) if tables and tables[CREDITS].size else None


def _check(address: str, tables: Mapping[str, TableCounts] | None) -> None:
    if tables is not None and CREDITS not in tables:
        raise UserValueError(
            f'got a replay server at {address} with tables {sorted(tables)}; need {CREDITS!r} for '
            'Queue.versions_ahead; start all jobs with the same gin file'
        )


def _fetch(address: str) -> control.Credits | None:
    try:
        messages = [control.decode(text) for text in connection.receive(address, CREDITS, 1)]
    except ValueError as error:
        logging.error('%s', error)
        return None
    return next((message for message in messages if isinstance(message, control.Credits)), None)


class CreditReader:
    """The collector's side: polls for new credits on its own thread. `newest` is None before the first ones."""

    def __init__(self, address: str, name: str = 'collector', interval_secs: float = 0.1):
        """Starts to poll.

        Args:
          name: the collector's, from which the times of its polls follow.
          interval_secs: the mean time between two polls [s]; longer with more than 100 collectors.

        Raises:
          ValueError: if the server has no table for credits.
        """
        _check(address, connection.counts(address))
        self.newest: control.Credits | None = None
        self._address, self._interval_secs = address, interval_secs
        self._leases, self._jitter = control.Leases(), Jitter(f'{name}/credits')
        self._closed = threading.Event()
        self._thread = background.Thread(target=self._poll, name='credit_reader')
        self._thread.start()

    @property
    def interval_secs(self) -> float:
        """The mean time between two polls [s]: longer if the credits name many collectors."""
        shares = self.newest.shares if self.newest else ()
        return max(self._interval_secs, len(shares) / _MOST_POLLS_PER_SEC)

    def close(self) -> None:
        """Stops polling. A poll of a server that is shutting down may never return; its thread is abandoned."""
        self._closed.set()
        self._thread.join(_CLOSE_SECS)

    def _poll(self) -> None:
        seen, pause_secs = None, self._jitter.first(self.interval_secs)
        while not self._closed.wait(pause_secs):
            pause_secs = self._jitter.next(self.interval_secs)
            try:
                tables = connection.counts(self._address)
                if tables is None:
                    continue
                counts = tables[CREDITS].size, tables[CREDITS].inserts
                if counts == seen or not counts[0]:
                    continue
                message = _fetch(self._address)
                if message is not None:
                    seen = counts
                    self._take(message)
            except Exception:  # without this thread a collector would wait forever
                logging.exception('could not read credits from %s', self._address)

    def _take(self, message: control.Credits) -> None:
        """Accepts a message, unless another learner's lease with a greater epoch is valid."""
        held = self.newest
        if held is not None and message.lease.epoch < held.lease.epoch and self._leases.is_valid(held.lease.owner):
            logging.warning('refused credits of epoch %d: %d is valid', message.lease.epoch, held.lease.epoch)
            return
        self._leases.renew(message.lease)
        self.newest = message
