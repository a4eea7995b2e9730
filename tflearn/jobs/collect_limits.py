"""What makes a collector wait for newer weights: a limit of episodes with each version,
or the learner's credits.
"""

import time
from collections.abc import Callable

from tflearn.coordinator.control import AcquiredLease, Credits


class VersionLimit:
    """Limits the episodes with each version of the policy;
    then allows one more at fixed intervals.
    """

    def __init__(
        self,
        per_version: int,
        at_least_every_secs: float | None = None,
        versions_ahead: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ):
        """
        Args:
          per_version: episodes with each version.
          at_least_every_secs: the wait after which one more episode is allowed [seconds]; None
            allows none.
          versions_ahead: the number of versions that the collector need not wait for.
          clock: returns the time [seconds].
        """
        self._per_version, self._ahead, self._at_least_every_secs = per_version, versions_ahead, at_least_every_secs
        self._clock = clock
        self._version: int | None = None
        self._allowed = 0
        self._since: float | None = None

    def update(self, version: int, count: int) -> bool:
        """Updates the limit. Returns whether to wait for a newer version.

        Args:
          version: the acting policy's version.
          count: the number of episodes so far.
        """
        if version != self._version:
            most = count + (1 + self._ahead) * self._per_version
            # Missed versions add their episodes too, but never more than one version allows.
            newer = 1 + self._ahead if self._version is None else max(1, version - self._version)
            self._allowed = min(max(self._allowed, count) + newer * self._per_version, most)
            self._version = version
        if count < self._allowed:
            self._since = None
            return False
        now = self._clock()
        self._since = now if self._since is None else self._since
        if self._at_least_every_secs is None or now - self._since < self._at_least_every_secs:
            return True
        self._allowed, self._since = count + 1, None
        return False


class CreditLimit:
    """Limits a collector to the items that the learner allows."""

    def __init__(self, acquired_lease: AcquiredLease, newest: Callable[[], Credits | None]):
        """
        Args:
          acquired_lease: the collector's lease.
          newest: returns the newest credits received; None before the first ones.
        """
        self._acquired_lease, self._newest = acquired_lease, newest
        self._received: Credits | None = None
        self._credits: Credits | None = None  # the credits at the acting weights' version

    def update(self, version: int, count: int) -> bool:
        """Updates the limit. Returns whether to wait for newer weights or for more credits.

        Args:
          version: the acting policy's version.
          count: the number of items made so far.
        """
        newest = self._newest()
        if newest is not None and newest is not self._received and newest.policy_version <= version:
            # (credits of newer weights apply once these weights act)
            self._received = self._credits = newest
        if self._credits is None or self._acquired_lease.expired:
            return True
        if self._credits.policy_version < version:
            self._credits = self._credits.at(version)
        return count - self._acquired_lease.began_at >= self._credits.allowed(self._acquired_lease.lease)
