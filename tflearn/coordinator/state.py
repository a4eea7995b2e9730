"""A coordinator's state. Nothing of it is on disk: after a restart every job sends its part again.

One learner at a time writes weights and credits and reads reports: who registered with the greatest
epoch. Policy versions never go back: collectors report the version that they act with, and older
weights are refused.
"""

import collections
import dataclasses
import itertools
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from tflearn.coordinator import request_fields
from tflearn.coordinator.control import ENV_STEPS, ENV_STEPS_LIMIT, Report
from tflearn.coordinator.request_fields import ENDED, WORKING
from tflearn.coordinator.weights_transport import Message
from tflearn.core.errors import UserValueError
from tflearn.core.waiting import LEASE_SECS

REPLAY, TRAIN, RELAY, FEED_WORKER = 'replay', 'train', 'relay', 'feed_worker'  # roles
MAX_WAIT_SECS = 30.0
_MAKERS = (REPLAY, TRAIN, FEED_WORKER)  # of the contract
_KEPT = 4  # publications to which a difference can be made
_MAX_EPOCHS_AHEAD, _EPOCH_SECS = 1000, 60.0  # of the first one, and more by the time since then
_MAX_SENDERS, _MAX_EPISODES, _MOST_REPORTS = 10_000, 1000, 1000
_MAX_ADDRESSES, _MAX_PARTS = 20_000, 32  # of all roles; of the contract
_MAX_REPORT_BYTES = 400 << 20  # of all senders' reports and episodes
_MAX_ANSWER_BYTES = 40 << 20  # of an answer with reports, half as large as JSON


class Conflict(Exception):
    """A request is refused; `facts` are more than the error's text."""

    def __init__(self, error: str, **facts: Any):
        super().__init__(error)
        self.facts = facts


class Newest:
    """The newest publication, for many threads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._message: Message | None = None
        self._kept: collections.deque[Message] = collections.deque(maxlen=_KEPT)
        self._closed = False

    @property
    def message(self) -> Message | None:
        """The newest publication; None if there is none yet."""
        return self._message

    def put(self, message: Message) -> None:
        """Takes a publication with all its data."""
        with self._changed:
            if self._message:  # only its digests are needed
                self._kept.append(dataclasses.replace(self._message, data=(None,) * len(self._message.data)))
            self._message = message
            self._changed.notify_all()

    def other(self, tag: str | None, secs: float) -> Message | None:
        """Returns the newest publication as soon as it is not the one with `tag`;
        None after `secs`.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._closed or (self._message and self._message.tag != tag), secs)
            return self._message if self._message and self._message.tag != tag else None

    def kept(self, tag: str | None) -> Message | None:
        """Returns an earlier publication without its data; None if it is no longer known."""
        with self._changed:
            return next((message for message in self._kept if message.tag == tag), None)

    def close(self) -> None:
        """Ends all waiting."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


@dataclasses.dataclass(frozen=True)
class Claim:
    """A learner's right to the run; an older epoch has none."""

    epoch: int
    owner: str


@dataclasses.dataclass
class _Sender:
    """What one sender has reported: its newest report,
    and the episodes that no learner has acknowledged.

    Attributes:
      first: the number of the first of these episodes; a sender counts its own.
      number: of the report, among all; to tell new ones.
      allowed: environment steps that it may take in all, of a limit for all collectors.
    """

    report: Report
    first: int
    seen_at: float
    number: int = 0
    allowed: int = 0
    episodes: list[Mapping[str, float]] = dataclasses.field(default_factory=list)

    @property
    def size(self) -> int:
        """About how many bytes are kept of it."""
        return _size(self.report.counts, self.episodes)

    @property
    def env_steps(self) -> int:
        """The environment steps that it has reported."""
        return int(self.report.counts.get(ENV_STEPS, 0))

    def used_steps(self, now: float) -> int:
        """Returns those that nobody else can take:
        what was allowed to one that is silent is free again.
        """
        lives = now - self.seen_at <= self.report.lease.ttl_secs
        return max(self.env_steps, self.allowed) if lives else self.env_steps


class State:
    """What a coordinator knows, for many threads.

    Attributes:
      incarnation: tells it from the one before a restart.
      run_id: the run's; '' if it is not known.
      phase: what the replay server beside it does, such as 'restoring'.
      newest: the newest weights.
    """

    def __init__(self, run_id: str = '', trusts: bool = False, clock: Callable[[], float] = time.monotonic):
        """`trusts`: clients show a token, so that a learner may have any epoch."""
        self.incarnation, self.run_id, self.phase = secrets.token_hex(8), run_id, 'running'
        self.newest = Newest()
        self._trusts, self._clock = trusts, clock
        self._changed, self._closed = threading.Condition(), False
        self._contract: dict[str, Any] = {}
        self._addresses: dict[str, dict[int, str]] = {}
        self._learner: Claim | None = None
        self._first_epoch = 0, clock()  # and when it came
        self._learner_state, self._learner_at, self._beats = ENDED, 0.0, 0
        self._credits, self._credits_number = '', 0
        self._senders: dict[str, _Sender] = {}
        # The environment steps of each sender the learner knows.
        self._known_steps: Mapping[str, int] | None = None
        self._counts: dict[int, tuple[dict[str, Any], float]] = {}
        self._number = self._newest_version = self._num_bytes = 0

    def register(
        self, role: str, index: int, address: str, contract: Mapping[str, Any], claim: Claim | None, had_epoch: bool
    ) -> dict[str, Any]:
        """Takes a job in.

        Args:
          address: where others reach it; '' if they do not.
          contract: what it needs to be equal in all jobs, by name.
          claim: a learner's.
          had_epoch: whether it had this epoch before.

        Returns:
          What it has to know; 'contract' is empty while nobody has made it, and the job has to ask
          again.

        Raises:
          Conflict: if it belongs to another run, or another learner has this one.
        """
        with self._changed:
            self._check_contract(role, contract)
            known = self._addresses.get(role, {})
            if address and index not in known and sum(map(len, self._addresses.values())) >= _MAX_ADDRESSES:
                raise Conflict(f'got the address of a job beyond {_MAX_ADDRESSES}; need fewer')
            if claim:
                self._learner = self._taken(claim, had_epoch)
                self._learner_state, self._learner_at = WORKING, self._clock()
            if role in _MAKERS:
                self._contract = {**contract, **self._contract}
            if address:
                self._addresses.setdefault(role, {})[index] = address
            return {
                'incarnation': self.incarnation,
                'run_id': self.run_id,
                'contract': self._contract,
                'phase': self.phase,
                'epoch': self._learner.epoch if claim and self._learner else 0,
            }

    def _check_contract(self, role: str, contract: Mapping[str, Any]) -> None:
        """Raises Conflict for a contract that differs from the run's, or makes it too large."""
        known = self._contract
        compared = {name for name in known.keys() & contract.keys() if not name.startswith('_')}
        if any(known[name] != contract[name] for name in compared):
            raise Conflict('got another contract; need that of the run', contract=known)
        if role in _MAKERS and len({*known, *contract}) > _MAX_PARTS:
            limit = f'more than {_MAX_PARTS} with those of the run'
            raise Conflict(f'got a contract whose parts are {limit}; need fewer')

    def _taken(self, claim: Claim, had_epoch: bool) -> Claim:
        """Returns the claim that a learner gets."""
        known = self._learner
        if known is None and claim.epoch <= _MAX_EPOCHS_AHEAD:
            self._first_epoch = claim.epoch, self._clock()
        # Not of the newest one: whoever claims again and again would push the run's epochs on
        # without an end.
        first, at = self._first_epoch
        most = first + _MAX_EPOCHS_AHEAD + int((self._clock() - at) / _EPOCH_SECS)
        if not self._trusts and claim.epoch > most:  # it would lock other learners out
            raise Conflict(f'got epoch {claim.epoch}; need at most {most} without --coordinator_token')
        if known is None or claim.epoch > known.epoch:
            self._credits = ''
            return claim
        if known.owner == claim.owner:
            return known
        lives = self._learner_state == WORKING and self._clock() - self._learner_at <= LEASE_SECS
        if had_epoch or lives:
            raise Conflict(
                f'got a learner of epoch {claim.epoch} ({claim.owner}); need a greater epoch than {known.epoch} of '
                f'{known.owner}: another learner has taken over this run',
                lives=not had_epoch,
            )
        self._credits = ''
        return Claim(known.epoch + 1, claim.owner)

    @property
    def _num_shards(self) -> int:
        return int(self._contract.get('shards', {}).get('number', 0))

    def addresses(self, role: str) -> dict[str, Any]:
        """Returns the addresses of a role by index,
        and how many replay servers there are (0: not known).
        """
        with self._changed:
            return {'addresses': self._addresses.get(role, {}), 'shards': self._num_shards}

    def check(self, claim: Claim | None) -> None:
        """Records that the learner lives; raises Conflict if it is not this one."""
        with self._changed:
            if claim is None or claim != self._learner:
                known = self._learner
                raise Conflict(f'got {claim}; need {known}: another learner has taken over this run')
            self._learner_at, self._beats = self._clock(), self._beats + 1

    def beat(self, claim: Claim | None, state: str) -> None:
        """Records that the learner works, or has ended."""
        self.check(claim)
        self._learner_state = state

    def put_weights(self, claim: Claim | None, message: Message) -> None:
        """Takes a publication; raises Conflict if another learner has the run,
        or its policy version is an old one.
        """
        self.check(claim)
        version = message.counters.get('policy_version', 0)
        if 0 <= version < self._newest_version:
            newest = self._newest_version
            raise Conflict(f'got policy version {version}; need at least {newest}', newest_version=newest)
        self._newest_version = max(self._newest_version, version)
        self.newest.put(message)

    def put_report(self, report: Report) -> dict[str, Any]:
        """Takes a report.

        Returns:
          'received' and 'acknowledged': the numbers of the next episode to be sent, and of the
          first one to be kept. Of a sender with a limit of the run's environment steps also
          'allowed_env_steps', how many it may take in all, and 'env_steps_left', how many are not
          taken yet by anybody.
        """
        with self._changed:
            self._make_place(report)
            known = self._senders.get(report.lease.owner)
            if known is None:
                known = self._senders[report.lease.owner] = _Sender(report, report.first_episode, 0.0)
            before = known.size
            received = known.first + len(known.episodes)
            if report.first_episode > received:  # the sender could not keep those between
                known.first, known.episodes, received = report.first_episode, [], report.first_episode
            known.episodes += report.episodes[received - report.first_episode :]
            if (beyond := len(known.episodes) - _MAX_EPISODES) > 0:
                del known.episodes[:beyond]
                known.first += beyond
            self._number += 1
            known.report = dataclasses.replace(report, episodes=())
            known.number, known.seen_at = self._number, self._clock()
            self._num_bytes += known.size - before
            self._newest_version = max(self._newest_version, report.policy_version)
            answer = {'received': known.first + len(known.episodes), 'acknowledged': known.first}
            return answer | self._allow(known)

    def _allow(self, sender: _Sender) -> dict[str, int]:
        """Divides what is left of a limit of environment steps among the collectors that live.

        Each report of one gives it half of its share of the rest, at least a step for each of its
        environments: so none waits for long, and none takes what others could not know of.
        """
        limit, now = sender.report.counts.get(ENV_STEPS_LIMIT), self._clock()
        if limit is None:
            sender.allowed = 0
            return {}
        # A resumed run has taken some: the learner has not said how many.
        if self._known_steps is None:
            return {'allowed_env_steps': sender.env_steps, 'env_steps_left': int(limit)}
        earlier = sum(steps for owner, steps in self._known_steps.items() if owner not in self._senders)
        others = [other for other in self._senders.values() if other is not sender]
        taken = earlier + sender.env_steps
        rest = max(0, int(limit) - taken - sum(other.used_steps(now) for other in others))
        sharing = 1 + sum(ENV_STEPS_LIMIT in other.report.counts for other in others)
        sender.allowed = sender.env_steps + min(rest, max(sender.report.items_at_once, rest // (2 * sharing)))
        left = int(limit) - taken - sum(other.env_steps for other in others)
        return {'allowed_env_steps': sender.allowed, 'env_steps_left': max(0, left)}

    def _make_place(self, report: Report) -> None:
        """Raises Conflict if there are too many senders, or too much that no learner has read."""
        is_new, size = report.lease.owner not in self._senders, _size(report.counts, report.episodes)
        if (is_new and len(self._senders) >= _MAX_SENDERS) or self._num_bytes + size > _MAX_REPORT_BYTES:
            self._forget()
        if is_new and len(self._senders) >= _MAX_SENDERS:
            raise Conflict(f'got more than {_MAX_SENDERS} senders of reports; need fewer')
        if self._num_bytes + size > _MAX_REPORT_BYTES:
            raise Conflict(
                f'got reports of more than {_MAX_REPORT_BYTES} bytes that no learner has read; need fewer; try '
                'again when it has'
            )

    def reports(
        self,
        claim: Claim | None,
        after: int,
        acknowledged: Mapping[str, int],
        env_steps: Mapping[str, int] = MappingProxyType({}),
    ) -> tuple[int, list[Report]]:
        """Returns the reports after number `after`, and the number of the last one.

        Args:
          acknowledged: the number of the next episode that the learner has not got, by sender.
          env_steps: the environment steps that the learner knows of, by sender, also of earlier
            sessions.
        """
        self.check(claim)
        with self._changed:
            self._known_steps = env_steps
            for owner, number in acknowledged.items():
                if sender := self._senders.get(owner):
                    count, before = min(max(0, number - sender.first), len(sender.episodes)), sender.size
                    del sender.episodes[:count]
                    sender.first += count
                    self._num_bytes -= before - sender.size
            self._forget()
            new = sorted(
                (sender for sender in self._senders.values() if sender.number > after), key=lambda each: each.number
            )[:_MOST_REPORTS]
            sizes = itertools.accumulate(sender.size for sender in new)
            new = new[: max(1, sum(size <= _MAX_ANSWER_BYTES for size in sizes))]
            found = [
                dataclasses.replace(each.report, episodes=[*each.episodes], first_episode=each.first) for each in new
            ]
            return (new[-1].number if new else self._number), found

    def _forget(self) -> None:
        now = self._clock()
        for owner, sender in list(self._senders.items()):
            if now - sender.seen_at > sender.report.lease.forget_secs:
                self._num_bytes -= sender.size
                del self._senders[owner]

    def put_credits(self, claim: Claim | None, text: str) -> None:
        """Takes the newest credits."""
        self.check(claim)
        with self._changed:
            self._credits, self._credits_number = text, self._credits_number + 1
            self._changed.notify_all()

    def credits(self, number: int, secs: float) -> tuple[int, str]:
        """Returns the newest credits, and their number, as soon as it is not `number`;
        ('' as text) after `secs`.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._closed or (self._credits and self._credits_number != number), secs)
            return self._credits_number, self._credits if self._credits_number != number else ''

    def put_counts(self, index: int, tables: dict[str, Any]) -> dict[str, Any]:
        """Takes the counts of a replay server's tables. Returns how the learner is."""
        with self._changed:
            self._counts[index] = tables, self._clock()
            return {'beats': self._beats, 'learner': self._learner_state}

    def counts(self) -> dict[str, Any]:
        """Returns the counts of each replay server's tables, by its index,
        and how old they are [s].
        """
        with self._changed:
            now = self._clock()
            return {str(index): {'tables': tables, 'secs': now - at} for index, (tables, at) in self._counts.items()}

    def status(self) -> dict[str, Any]:
        """Returns what it knows, in short."""
        message = self.newest.message
        served = {**message.counters, 'bytes': message.num_bytes, 'tag': message.tag} if message else {}
        with self._changed:
            return {
                **served,
                'incarnation': self.incarnation,
                'run_id': self.run_id,
                'phase': self.phase,
                'epoch': self._learner.epoch if self._learner else 0,
                'newest_version': self._newest_version,
                'senders': len(self._senders),
            }

    def close(self) -> None:
        """Ends all waiting."""
        self.newest.close()
        with self._changed:
            self._closed = True
            self._changed.notify_all()


def _size(counts: Mapping[str, float], episodes: Sequence[Mapping[str, float]]) -> int:
    """Returns about how many bytes they take: an object has 64,
    a name and its number 100 beside the letters.
    """
    return sum(64 + 100 * len(numbers) + len(''.join(numbers)) for numbers in (counts, *episodes))


def claim_of(text: str | None) -> Claim | None:
    """Returns the claim in a header, 'EPOCH/OWNER'; None for no header."""
    if not text:
        return None
    epoch, _, owner = text.partition('/')
    if not epoch.isdecimal() or len(epoch) > 20 or not owner.isprintable() or not owner:
        raise UserValueError(f'got the claim {text[:80]!r}; need EPOCH/OWNER')
    request_fields.check({'epoch': int(epoch)})
    return Claim(int(epoch), owner)
