"""Credits: the items that the learner wants, the collectors that were asked to make them, and how they are notified."""

import dataclasses
import threading
import time
from collections.abc import Callable

from absl import logging

from tflearn.coordinator.client import Coordinator
from tflearn.coordinator.control import Credits, Leases, Report, Share, allocate
from tflearn.coordinator.weights_reader import Lost, Refused
from tflearn.core import background

_WAIT_SECS = 2.0
_RETRY_SECS = 0.5


class CreditLedger:
    """Keeps the credits of all live collectors in balance with the items that the learner wants. Not thread-safe.

    In all the learner wants the items that it has used, those that it has dropped as too old, and those that it takes
    next: the items between two publications, 1 + `versions_ahead` times. Each of these items has arrived in the replay,
    or is owed by a live collector, or is allowed here to one of them. So items owed by a lost collector are allowed to
    the others.
    """

    def __init__(
        self,
        items_per_version: int,
        versions_ahead: int,
        clock: Callable[[], float] = time.monotonic,
    ):
        """
        Args:
          items_per_version: items that the learner takes between two publications, over all workers.
          versions_ahead: see `Queue.versions_ahead`.
          clock: returns the time [seconds].
        """
        self._ahead = (1 + versions_ahead) * items_per_version
        self._leases, self._delivered = Leases(clock), dict[str, int]()
        self._used = self._dropped = 0
        self._wants = False
        self.credits = Credits(0, items_per_version)

    @property
    def wanted(self) -> int:
        """The number of items wanted since the first version."""
        return self._used + self._dropped + self._ahead if self._wants else 0

    def publish(self, policy_version: int, used: int) -> None:
        """Grants the items that a new version of the weights adds.

        Args:
          policy_version: the weights' version.
          used: the items that all workers have used for train steps so far.
        """
        before = self.wanted
        self._wants, self._used = True, used
        self._grant(self.credits.surplus - (self.wanted - before), policy_version)

    def renew(self, report: Report) -> None:
        """Processes a report. A new collector gets credits with the next grant."""
        lease = report.lease
        if not report.items_at_once or not self._leases.renew(lease):
            return
        self._delivered[lease.owner] = report.delivered
        shares = self.credits.shares
        if any((share.owner, share.epoch) == (lease.owner, lease.epoch) for share in shares):
            return
        others = tuple(share for share in shares if share.owner != lease.owner)
        order = min((share.order for share in others), default=0)
        share = Share(lease.owner, lease.epoch, report.items_at_once, report.delivered, order)
        self.credits = dataclasses.replace(self.credits, shares=(*others, share))
        if report.items_at_once > self._ahead:
            logging.warning(
                '%s makes %d items at a time; the learner takes %d with one version of the weights: fewer environments '
                'give newer data',
                *(lease.name, report.items_at_once, self.credits.items_per_version),
            )

    def reconcile(self, dropped: int, arrived: int) -> None:
        """Removes collectors whose leases have expired, and grants the missing items.

        Read the reports before counting `arrived`, so that items that a report counts as delivered are included.

        Args:
          dropped: the items that all workers have dropped as too old so far.
          arrived: the items that were in the replay when the ledger began, or arrived since.
        """
        for lease in self._leases.remove_expired():
            message = '%s (%s) has not reported for %.0f s: its credits go to the other collectors'
            logging.warning(message, lease.name, lease.owner, lease.ttl_secs)
            self._delivered.pop(lease.owner)
            shares = tuple(share for share in self.credits.shares if share.owner != lease.owner)
            self.credits = dataclasses.replace(self.credits, shares=shares)
        surplus = self.credits.surplus - (dropped - self._dropped) * self._wants
        self._dropped = dropped
        # Reports may be late, so an item that has arrived may still count as owed: both values are bounds.
        owed = sum(max(0, share.allowed - self._delivered[share.owner]) for share in self.credits.shares)
        least = arrived - self.wanted
        self._grant(min(max(surplus, least), least + owed), self.credits.policy_version)

    def _grant(self, surplus: int, policy_version: int) -> None:
        shares, surplus = allocate(self.credits.shares, surplus)
        self.credits = dataclasses.replace(self.credits, policy_version=policy_version, surplus=surplus, shares=shares)


class CreditReader:
    """Waits for a collector's new credits, on a thread of its own.

    `newest` is None before the first ones; those of a lost coordinator stay.
    """

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
