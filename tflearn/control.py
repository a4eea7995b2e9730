"""The control protocol: leases, what collectors report, and the credits that the learner hands out.

Messages are frozen dataclasses with one encoding, whatever carries them; what follows from them is computed by pure
functions. A message of another version of the protocol is refused.

A lease is a claim of one process that ends by itself. Its owner renews it by sending any message with it; whoever
receives that measures the lease's duration from the receipt, by its own monotonic clock, so that no two machines'
clocks are ever compared. An owner that comes back after its lease has ended takes a new one with the next epoch.
"""

import dataclasses
import heapq
import json
import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tflearn.errors import UserValueError

PROTOCOL = 1
LEASE_SECS = 5.0


@dataclasses.dataclass(frozen=True)
class Lease:
    """A claim that ends by itself unless it is renewed.

    Attributes:
      name: the job's name, for people.
      owner: the process that holds it: host, process id and a random number.
      epoch: counts the leases of one claim; messages of an older epoch are refused.
      ttl_secs: how long it holds after the receipt of its newest message [seconds].
    """

    name: str
    owner: str
    epoch: int = 1
    ttl_secs: float = LEASE_SECS


@dataclasses.dataclass(frozen=True)
class Report:
    """What a collector (or a worker of the learner) reports; it renews the sender's lease.

    Attributes:
      lease: the sender's.
      counts: to be added up over senders, each since the sender's start: 'env_steps', and more.
      episodes: those that ended since the last report, each its metrics by name: 'return', and more.
      served: items made under this lease that are in the replay.
      items_at_once: items that the sender makes at a time (its environments); 0 makes none and gets no credits.
    """

    lease: Lease
    counts: Mapping[str, int]
    episodes: Sequence[Mapping[str, float]] = ()
    served: int = 0
    items_at_once: int = 0


@dataclasses.dataclass(frozen=True)
class Share:
    """A collector's credits.

    Attributes:
      owner: the owner of the collector's lease.
      epoch: the epoch of that lease.
      items_at_once: items that it makes at a time.
      granted: items that it may make, counted since its lease began.
      turn: items for which it has had its turn; the least is the next.
    """

    owner: str
    epoch: int
    items_at_once: int
    granted: int
    turn: int

    def plus(self, items: int) -> 'Share':
        """Returns the share with so many items more."""
        return dataclasses.replace(self, granted=self.granted + items, turn=self.turn + items)


@dataclasses.dataclass(frozen=True)
class Credits:
    """What collectors may make, all of them together. It renews the learner's lease.

    A standing order: the message says what holds at `policy_version`, and what each later version adds, so that
    learner and collectors compute the same shares without a message for each version (see `at`).

    Attributes:
      lease: the learner's.
      number: counts the messages of the lease's epoch.
      policy_version: the version of the weights up to which `granted` of the shares counts.
      items_per_version: items that each later version adds, over all collectors.
      surplus: items granted beyond what was wanted; negative while there is nobody to make them.
      shares: one for each live collector.
    """

    lease: Lease
    number: int
    policy_version: int
    items_per_version: int
    surplus: int = 0
    shares: tuple[Share, ...] = ()

    def at(self, policy_version: int) -> 'Credits':
        """Returns what holds at a later version; itself for an earlier one."""
        shares, surplus = self.shares, self.surplus
        for _ in range(self.policy_version, policy_version):
            shares, surplus = allocate(shares, surplus - self.items_per_version)
        version = max(self.policy_version, policy_version)
        return dataclasses.replace(self, policy_version=version, surplus=surplus, shares=shares)

    def granted(self, lease: Lease) -> int:
        """Returns what the holder of a collector's lease may make since it began [items]; 0 if it has no share."""
        own = (share.granted for share in self.shares if (share.owner, share.epoch) == (lease.owner, lease.epoch))
        return next(own, 0)


def allocate(shares: tuple[Share, ...], surplus: int) -> tuple[tuple[Share, ...], int]:
    """Divides what is wanted among collectors, which take turns.

    Each turn grants as many items as its collector makes at a time: a collector whose environments end their items
    together cannot make fewer. What that is more than was wanted is the surplus, and wanted less the next time, so that
    over several versions no more is granted than wanted, whatever the number of collectors and of their environments.

    Args:
      shares: the live collectors'.
      surplus: items granted beyond what was wanted; below 0, so many are wanted.

    Returns:
      The new shares, in the same order, and the new surplus: at least 0 if there is anybody, and less than the items
      of one turn above what was wanted.
    """
    if surplus >= 0 or not shares:
        return shares, surplus
    granted = [0] * len(shares)
    turns = [(share.turn, i) for i, share in enumerate(shares)]
    heapq.heapify(turns)
    while surplus < 0:
        turn, i = turns[0]
        items = shares[i].items_at_once
        heapq.heapreplace(turns, (turn + items, i))
        granted[i] += items
        surplus += items
    return tuple(share.plus(items) for share, items in zip(shares, granted, strict=True)), surplus


def new_lease(name: str, ttl_secs: float = LEASE_SECS, epoch: int = 1) -> Lease:
    """Returns a lease of this process that nobody had before.

    Args:
      name: the job's name.
      ttl_secs: see `Lease`.
      epoch: see `Lease`.
    """
    return Lease(name, f'{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(8)}', epoch, ttl_secs)


class HeldLease:
    """The holder's side: a lease, and the count of items since it began.

    Attributes:
      lease: to be sent with each message.
      began_at: the holder's count of items when this lease began.
    """

    def __init__(self, lease: Lease, clock: Callable[[], float] = time.monotonic):
        self.lease, self.began_at = lease, 0
        self._clock, self._renewed_at = clock, clock()

    @property
    def ended(self) -> bool:
        """Whether the lease has ended, as far as the holder knows."""
        return self._clock() - self._renewed_at > self.lease.ttl_secs

    def begin_again(self, count: int) -> None:
        """Takes the next epoch if the lease has ended since it was last renewed: the process was stopped, say.

        Args:
          count: the holder's count of items now.
        """
        if self.ended:
            self.lease = dataclasses.replace(self.lease, epoch=self.lease.epoch + 1)
            self.began_at = count
            self._renewed_at = self._clock()

    def renewed(self) -> None:
        """Notes that a message with the lease was sent."""
        self._renewed_at = self._clock()


class Leases:
    """The receiver's side: which leases hold."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._seen: dict[str, tuple[Lease, float]] = {}

    def renew(self, lease: Lease) -> bool:
        """Notes the receipt of a message. Returns False, and notes nothing, if its epoch is an old one."""
        known = self._seen.get(lease.owner)
        if known is not None and lease.epoch < known[0].epoch:
            return False
        self._seen[lease.owner] = (lease, self._clock())
        return True

    def holds(self, owner: str) -> bool:
        """Returns whether the owner's newest lease has not ended."""
        if owner not in self._seen:
            return False
        lease, seen_at = self._seen[owner]
        return self._clock() - seen_at <= lease.ttl_secs

    def remove_ended(self) -> list[Lease]:
        """Forgets the leases that have ended, and returns them."""
        ended = [lease for owner, (lease, _) in self._seen.items() if not self.holds(owner)]
        for lease in ended:
            del self._seen[lease.owner]
        return ended


def encode(message: Report | Credits) -> str:
    """Returns a message as a JSON object."""
    return json.dumps({'protocol': PROTOCOL, 'kind': type(message).__name__, **dataclasses.asdict(message)})


def decode(text: str | bytes) -> Report | Credits:
    """Returns the message that `encode` encoded.

    Raises:
      ValueError: if the text is no message of this version of the protocol.
    """
    try:
        return _decode(json.loads(text))
    except (TypeError, KeyError, AttributeError, json.JSONDecodeError) as error:
        raise UserValueError(f'got {text[:80]!r} ({error}); need a control message') from error


def _decode(fields: dict[str, Any]) -> Report | Credits:
    protocol, kind = fields.pop('protocol', None), fields.pop('kind', None)
    if protocol != PROTOCOL:
        raise UserValueError(
            f'got a control message of protocol {protocol!r}; need {PROTOCOL}; start all jobs with the same version of '
            'tflearn'
        )
    lease = Lease(**fields.pop('lease'))
    if kind == 'Report':
        return Report(lease, **fields)
    if kind != 'Credits':
        raise UserValueError(f'got a control message of the kind {kind!r}; need Report or Credits')
    shares = tuple(Share(**share) for share in fields.pop('shares'))
    return Credits(lease, **fields, shares=shares)
