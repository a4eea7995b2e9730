"""CreditLedger: what the learner wants collectors to make, and whom it has asked to make it."""

import dataclasses
import time
from collections.abc import Callable

from absl import logging

from tflearn.control import Credits, Lease, Leases, Report, Share, allocate


class CreditLedger:
    """Keeps the credits of all live collectors in balance with what the learner wants. Not for several threads.

    What the learner wants in all is what it has used, what it has dropped as too old, and what it takes next: the items
    between two publications, 1 + `versions_ahead` times. Each of these items has arrived in the replay, or is owed by a
    live collector, or is granted here to one of them. So what a lost collector owed is granted to the others.
    """

    def __init__(
        self,
        lease: Lease,
        items_per_version: int,
        versions_ahead: int,
        clock: Callable[[], float] = time.monotonic,
    ):
        """Knows no collector and wants nothing yet.

        Args:
          lease: the learner's.
          items_per_version: items that the learner takes between two publications, over all workers.
          versions_ahead: see `Experience.versions_ahead`.
          clock: returns the time [seconds].
        """
        self._ahead = (1 + versions_ahead) * items_per_version
        self._leases, self._served = Leases(clock), dict[str, int]()
        self._used = self._dropped = 0
        self._wants = False
        self.credits = Credits(lease, 0, 0, items_per_version)

    @property
    def wanted(self) -> int:
        """Items wanted so far, since the first version."""
        return self._used + self._dropped + self._ahead if self._wants else 0

    def publish(self, policy_version: int, used: int) -> None:
        """Grants what a new version of the weights adds.

        Args:
          policy_version: of the weights.
          used: items that all workers have taken for train steps until now.
        """
        before = self.wanted
        self._wants, self._used = True, used
        self._grant(self.credits.surplus - (self.wanted - before), policy_version)

    def renew(self, report: Report) -> None:
        """Takes in a report. A collector that is new gets credits with the next grant."""
        lease = report.lease
        if not report.items_at_once or not self._leases.renew(lease):
            return
        self._served[lease.owner] = report.served
        shares = self.credits.shares
        if any((share.owner, share.epoch) == (lease.owner, lease.epoch) for share in shares):
            return
        others = tuple(share for share in shares if share.owner != lease.owner)
        turn = min((share.turn for share in others), default=0)
        share = Share(lease.owner, lease.epoch, report.items_at_once, report.served, turn)
        self.credits = dataclasses.replace(self.credits, shares=(*others, share))
        if report.items_at_once > self._ahead:
            logging.warning(
                '%s makes %d items at a time; the learner takes %d with one version of the weights: fewer environments '
                'give newer data',
                *(lease.name, report.items_at_once, self.credits.items_per_version),
            )

    def reconcile(self, dropped: int, arrived: int) -> None:
        """Forgets collectors whose leases have ended, and grants what is missing.

        The reports have to be read before `arrived` is counted: what a report says was served is counted then.

        Args:
          dropped: items that all workers have dropped as too old until now.
          arrived: items that were in the replay when the ledger began, or came since.
        """
        for lease in self._leases.remove_expired():
            message = '%s (%s) has not reported for %.0f s: its credits go to the other collectors'
            logging.warning(message, lease.name, lease.owner, lease.ttl_secs)
            self._served.pop(lease.owner)
            shares = tuple(share for share in self.credits.shares if share.owner != lease.owner)
            self.credits = dataclasses.replace(self.credits, shares=shares)
        surplus = self.credits.surplus - (dropped - self._dropped) * self._wants
        self._dropped = dropped
        # Reports may be late, so that an item counts as owed though it has arrived: both are bounds.
        owed = sum(max(0, share.granted - self._served[share.owner]) for share in self.credits.shares)
        least = arrived - self.wanted
        self._grant(min(max(surplus, least), least + owed), self.credits.policy_version)

    def _grant(self, surplus: int, policy_version: int) -> None:
        shares, surplus = allocate(self.credits.shares, surplus)
        self.credits = dataclasses.replace(self.credits, policy_version=policy_version, surplus=surplus, shares=shares)
