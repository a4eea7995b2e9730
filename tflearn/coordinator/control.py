"""The control protocol: leases, collectors' reports, and the credits that the learner grants.

Messages are frozen dataclasses with one encoding for every transport; pure functions compute what
follows from them. A message of another version of the protocol is refused.

A lease is a claim of one process that expires by itself. Its owner renews it by sending any message
with it. The receiver measures the lease's duration from the receipt, by its own monotonic clock, so
that no two machines' clocks are ever compared. An owner that returns after its lease has expired
takes a new one with the next epoch.
"""

import bisect
import dataclasses
import json
import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypeVar

from tflearn.core import settings
from tflearn.core.errors import UserValueError
from tflearn.core.settings import Range
from tflearn.core.texts import check_text
from tflearn.core.waiting import LEASE_SECS

PROTOCOL = 3
# In a report's counts; `CollectOptions.max_env_steps`.
ENV_STEPS, ENV_STEPS_LIMIT = 'env_steps', 'env_steps_limit'
FORGET_SECS = 600.0  # a sender that was silent for that long, and for two leases, is forgotten
_MAX_BYTES = 1 << 20  # of a message: far beyond those of any run
_MAX_VERSIONS_AHEAD = 10_000  # of the newest credits
_MAX_ITEMS_AT_ONCE = 1 << 20
_MAX_NAMES = 2_000  # of counts, and of an episode's metrics
MAX_METRIC = 1e300  # of which a sum over many episodes is finite too
# Nobody publishes so often; the learner's own counters hold a million times as many.
MAX_VERSION = 1 << 40


@dataclasses.dataclass(frozen=True)
class Lease:
    """A claim that expires by itself unless it is renewed.

    Attributes:
      owner: the process that holds the lease: host, process id and a random number.
      epoch: counts the leases of one claim; messages of an older epoch are refused.
      ttl_secs: how long the lease is valid after the receipt of its newest message [seconds].
    """

    name: str
    owner: str
    epoch: int = 1
    ttl_secs: float = LEASE_SECS

    @property
    def forget_secs(self) -> float:
        """The silence after which its owner is forgotten [seconds]."""
        return max(FORGET_SECS, 2 * self.ttl_secs)


@dataclasses.dataclass(frozen=True)
class Report:
    """A report of a collector (or of a worker of the learner); it renews the sender's lease.

    Attributes:
      counts: counts since the sender's start, to be summed over senders: 'env_steps', and more.
      episodes: ended episodes that the receiver does not have, each as metrics by name: 'return',
        and more.
      delivered: items made under this lease that are in the replay.
      items_at_once: items that the sender makes at a time (its environments); 0 makes none and gets
        no credits.
      first_episode: the number of the first of these episodes; a sender counts its own from 0 on.
      policy_version: the version of the weights that the sender acts with.
    """

    lease: Lease
    counts: Mapping[str, float]
    episodes: Sequence[Mapping[str, float]] = ()
    delivered: int = 0
    items_at_once: int = 0
    first_episode: int = 0
    policy_version: int = 0


@dataclasses.dataclass(frozen=True)
class Share:
    """A collector's credits.

    Attributes:
      items_at_once: items that the collector makes at a time.
      allowed: items that the collector may make, counted since its lease began.
      order: the position in round-robin order: the items allowed so far; the smallest is next.
    """

    owner: str
    epoch: int
    items_at_once: int
    allowed: int
    order: int

    def plus(self, items: int) -> 'Share':
        """Returns the share with `items` more."""
        return dataclasses.replace(self, allowed=self.allowed + items, order=self.order + items)


@dataclasses.dataclass(frozen=True)
class Credits:
    """The items that all collectors together may make.

    The message holds the shares at `policy_version` and the items that each later version adds, so
    that learner and collectors compute the same shares without a message for each version (see
    `at`).

    Attributes:
      policy_version: the version of the weights up to which the shares' `allowed` counts.
      items_per_version: items that each later version adds, over all collectors.
      surplus: items allowed beyond what was wanted; negative while there is no collector to make
        them.
    """

    policy_version: int
    items_per_version: int
    surplus: int = 0
    shares: tuple[Share, ...] = ()

    def at(self, policy_version: int) -> 'Credits':
        """Returns the credits at a later version; itself for an earlier one."""
        version = max(self.policy_version, policy_version)
        # The same collectors are next, whether versions are added one by one or at once. Newer
        # credits come long before the bound, unless somebody reported a version that nobody
        # published.
        num_versions = min(version - self.policy_version, _MAX_VERSIONS_AHEAD)
        shares, surplus = allocate(self.shares, self.surplus - num_versions * self.items_per_version)
        return dataclasses.replace(self, policy_version=version, surplus=surplus, shares=shares)

    def allowed(self, lease: Lease) -> int:
        """Returns how many items the holder of a collector's lease may make in all;
        0 if it has no share.
        """
        own = (share.allowed for share in self.shares if (share.owner, share.epoch) == (lease.owner, lease.epoch))
        return next(own, 0)


def allocate(shares: tuple[Share, ...], surplus: int) -> tuple[tuple[Share, ...], int]:
    """Divides the wanted items among collectors, in round-robin order.

    Each round allows as many items as the collector makes at a time: a collector whose environments
    end their items together cannot make fewer. Items beyond what was wanted are the surplus, by
    which the next time fewer are allowed. So over several versions no more items are allowed than
    wanted, whatever the number of collectors and environments.

    Args:
      surplus: items allowed beyond what was wanted; if negative, this many items are wanted.

    Returns:
      The new shares, in the same order, and the new surplus: if there are collectors, at least 0
      and less than the items of one round.
    """
    if surplus >= 0 or not shares:
        return shares, surplus
    # All turns below an order come before any at it, so most of them are counted at once: however
    # many are wanted.
    first = min(share.order for share in shares)
    orders = range(first, first - surplus + 1)
    order = orders[bisect.bisect_left(orders, -surplus, key=lambda each: sum(_items_below(shares, each))) - 1]
    allowed = _items_below(shares, order)
    surplus += sum(allowed)
    for i, share in enumerate(shares):
        if surplus < 0 and share.order + allowed[i] == order:
            allowed[i] += share.items_at_once
            surplus += share.items_at_once
    return tuple(share.plus(items) for share, items in zip(shares, allowed, strict=True)), surplus


def _items_below(shares: tuple[Share, ...], order: int) -> list[int]:
    """Returns the items of each collector's turns before all are at `order` or beyond."""
    return [max(0, -(-(order - share.order) // share.items_at_once)) * share.items_at_once for share in shares]


def new_owner() -> str:
    """Returns a name of this process that no other one has:
    host, process id and a random number.
    """
    return f'{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(8)}'


def new_lease(name: str, ttl_secs: float = LEASE_SECS) -> Lease:
    """Returns a new lease of this process; see `Lease` for the arguments."""
    return Lease(name, new_owner(), ttl_secs=ttl_secs)


class AcquiredLease:
    """The holder's side: a lease, and the holder's count of items when it began."""

    def __init__(self, lease: Lease, clock: Callable[[], float] = time.monotonic):
        self.lease, self.began_at = lease, 0
        self._clock, self._renewed_at = clock, clock()

    @property
    def expired(self) -> bool:
        """Whether the lease has expired, as far as the holder knows."""
        return self._clock() - self._renewed_at > self.lease.ttl_secs

    def begin_if_expired(self, count: int) -> None:
        """Takes the next epoch if the lease has expired,
        for example because the process was suspended.
        """
        if self.expired:
            self.lease = dataclasses.replace(self.lease, epoch=self.lease.epoch + 1)
            self.began_at = count
            self._renewed_at = self._clock()

    def restart(self) -> None:
        """Takes a lease of a new owner: the receiver may have forgotten the old one."""
        self.lease = new_lease(self.lease.name, self.lease.ttl_secs)

    def renew(self) -> None:
        """Records that a message with the lease was sent."""
        self._renewed_at = self._clock()


class Leases:
    """The receiver's side: which leases are valid."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._seen: dict[str, tuple[Lease, float]] = {}

    def renew(self, lease: Lease) -> bool:
        """Records the receipt of a message. Returns False, and records nothing,
        if its epoch is an old one.
        """
        known = self._seen.get(lease.owner)
        if known is not None and lease.epoch < known[0].epoch:
            return False
        self._seen[lease.owner] = (lease, self._clock())
        return True

    def is_valid(self, owner: str) -> bool:
        """Returns whether the owner's newest lease is still valid."""
        if owner not in self._seen:
            return False
        lease, seen_at = self._seen[owner]
        return self._clock() - seen_at <= lease.ttl_secs

    def remove_expired(self) -> list[Lease]:
        """Removes the expired leases, and returns them."""
        expired = [lease for owner, (lease, _) in self._seen.items() if not self.is_valid(owner)]
        for lease in expired:
            del self._seen[lease.owner]
        return expired


Message = TypeVar('Message', Report, Credits)


def encode(message: Report | Credits) -> str:
    """Returns a message as a JSON object."""
    return json.dumps({'protocol': PROTOCOL, 'kind': type(message).__name__, **dataclasses.asdict(message)})


def decode(text: str | bytes, kind: type[Message], max_bytes: int = _MAX_BYTES) -> Message:
    """Returns the message that `encode` encoded.

    Args:
      max_bytes: more are refused unread; a coordinator's reports of many episodes have more than a
        sender's.

    Raises:
      ValueError: if the text is not a message of this kind and version of the protocol.
    """
    if len(text) > max_bytes:
        raise UserValueError(f'got a control message of {len(text)} bytes; need at most {max_bytes}')
    try:
        return _decode(json.loads(text), kind)
    except UserValueError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise UserValueError(f'got {text[:80]!r} ({error}); need a control message') from error


def _decode(fields: dict[str, Any], kind: Any) -> Any:
    protocol, name = fields.pop('protocol', None), fields.pop('kind', None)
    if protocol != PROTOCOL:
        raise UserValueError(
            f'got a control message of protocol {protocol!r}; need {PROTOCOL}; start all jobs with the same version of '
            'tflearn'
        )
    if name != kind.__name__:
        raise UserValueError(f'got a control message of the kind {name!r}; need {kind.__name__}')
    if kind is Credits:
        given = fields['shares']
        if not isinstance(given, list) or not all(isinstance(each, dict) for each in given):
            raise UserValueError(f'got a control message with shares={given!r:.40}; need a list of objects')
        try:
            shares = tuple(Share(**share) for share in given)
        except TypeError as error:
            raise UserValueError(f'got a control message with other shares ({error}); need Share each') from error
        return _checked(Credits(**fields | {'shares': shares}), *map(_checked, shares))
    report = Report(_checked(Lease(**fields.pop('lease'))), **fields)
    if not isinstance(report.episodes, list | tuple):
        raise UserValueError(f'got a control message with episodes={report.episodes!r:.40}; need a list')
    check_numbers('counts', report.counts, TOTAL)
    for episode in report.episodes:
        check_numbers('episodes', episode, _METRIC)
    return _checked(report)


def _checked(message: Any, *_: Any) -> Any:
    """Returns a message, or a part of one, whose own fields are as they are declared."""
    owner = f'a control message with {type(message).__name__}.'
    settings.check(_RULES[type(message)], owner, vars(message))
    for name in ('name', 'owner'):
        if name in vars(message):
            check_text(owner + name, getattr(message, name))
    return message


def check_numbers(what: str, numbers: Any, rule: settings.Rule, most: int = _MAX_NAMES) -> None:
    """Raises ValueError unless these are numbers by name, as `rule` needs each,
    and at most so many.
    """
    if not isinstance(numbers, Mapping):
        raise UserValueError(f'got a control message with {what}={numbers!r:.40}; need numbers by name')
    if len(numbers) > most:
        raise UserValueError(f'got a control message with {len(numbers)} names in {what}; need at most {most}')
    for name, number in numbers.items():
        check_text(f'a control message with a name in {what}', name)
        if error := rule.error(f'a control message with {what}.{name}', number):
            raise error


# What a message may hold, checked where it is read: the divisions of credits make too many to check
# each. A number outside of it would not fail here, but where messages are summed, compared or
# waited for: in the learner, and again in each one that is started after it.
COUNT = Annotated[int, Range(least=0, most=1 << 53)]
_EPOCH = Annotated[int, Range(least=1, most=1 << 53)]
_VERSION = Annotated[int, Range(least=-1, most=MAX_VERSION)]
_SHARED = Annotated[int, Range(least=1, most=_MAX_ITEMS_AT_ONCE)]
_RULES = {
    Lease: settings.rules({'epoch': _EPOCH, 'ttl_secs': Annotated[float, Range(above=0, most=86_400)]}),
    Report: settings.rules(
        {
            # A share's `allowed` counts on from it.
            'delivered': Annotated[int, Range(least=0, most=1 << 50)],
            'items_at_once': Annotated[int, Range(least=0, most=_MAX_ITEMS_AT_ONCE)],
            'first_episode': COUNT,
            'policy_version': _VERSION,
        }
    ),
    Share: settings.rules({'epoch': _EPOCH, 'items_at_once': _SHARED, 'allowed': COUNT, 'order': COUNT}),
    Credits: settings.rules(
        {
            'policy_version': _VERSION,
            'items_per_version': Annotated[int, Range(least=0, most=1 << 40)],
            'surplus': Annotated[int, Range(least=-(1 << 53), most=1 << 53)],
        }
    ),
}
TOTAL = settings.Rule(Annotated[float, Range(least=0, most=1 << 53)])
_METRIC = settings.Rule(Annotated[float, Range(least=-MAX_METRIC, most=MAX_METRIC)])
