"""Trials: metrics of versions that were just promoted, by which a bad one is taken back;
and requests to shadows.

Requests are counted in blocks, each of which is judged by itself, so that a version that goes bad
after a long while is found as fast. All but `check` and `close` is called on the thread of the
requests.

Outcomes are compared by `core.confidence_sequences`, whose log is the draw of the arms: a key is
the canary's with the probability of its share. So a canary that is worse by exactly the margin is
ever taken back with a probability of at most 1 - level, however often it is looked at.
"""

import asyncio
import collections
import contextlib
import dataclasses
import math
import pathlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any

import numpy as np
from absl import logging

from tflearn.core import confidence_sequences, side_tasks
from tflearn.core.errors import UserError, UserValueError
from tflearn.core.settings import Fraction, NonNegativeFloat, PositiveFloat, PositiveInt, Range, checked_dataclass
from tflearn.extensions.serving import decision_files
from tflearn.extensions.serving.decision_log import DecisionLog
from tflearn.extensions.serving.models import ModelHolder
from tflearn.extensions.serving.request_queue import Arrays, RequestQueue
from tflearn.extensions.serving.served_version import InvalidRequest
from tflearn.net.grpc_server import GrpcRefusal
from tflearn.policies import signatures, states

# Decisions that wait for outcomes; requests of shadows at the same time.
_MAX_OPEN, _MAX_SHADOWS = 200_000, 64
_MAX_KEYS = 500_000  # of a trial; later ones are left out
_SLOW_SHARE = 0.01
WHO = 'tflearn-serve'


@checked_dataclass(frozen=True)
class TrialOptions:
    """When a canary, or a stable version that was promoted last, is taken back.

    Attributes:
      num_requests: the requests of a block.
      max_error_share: the share of them that may fail by an error that is not the client's; None is
        any.
      max_latency_secs: the time within which 99 % of them have to be computed; None is any.
      outcome_margin: how much less than the stable version's the mean reward of the canary's keys
        may be; it is taken back when more is proved. None does not look at outcomes.
      outcome_low: the least reward of a decision, or of a slate; less counts as that.
      outcome_high: the greatest one; more counts as that.
      outcome_secs: seconds after a decision, or a slate's first one, in which its outcomes count;
        their sum is its reward, 0 without any.
      level: 1 - level is the probability with which a canary that is worse by the margin is ever
        taken back.
    """

    num_requests: PositiveInt = 200
    max_error_share: Fraction | None = 0.05
    max_latency_secs: PositiveFloat | None = None
    outcome_margin: NonNegativeFloat | None = None
    outcome_low: Annotated[float, Range()] = 0.0
    outcome_high: Annotated[float, Range()] = 1.0
    outcome_secs: PositiveFloat = 60.0
    level: Annotated[float, Range(least=0.5, below=1)] = 0.95

    def __post_init__(self) -> None:
        if self.outcome_low >= self.outcome_high:
            raise UserValueError(f'got outcomes from {self.outcome_low} to {self.outcome_high}; need the least first')


@dataclasses.dataclass
class _First:
    """The decisions of the first request of a key, or of all of a slate, whose outcomes still count,
    and how the key was drawn.

    Attributes:
      comparison: where they are compared.
      is_canary: whether the canary answered.
      share: the probability of that.
      slate: the hash of the key that is a slate; None if it is none.
      rewards: by the decisions' ids.
      reported: what tells an outcome that comes again: its id, else its time and reward.
      at: when the decisions were made [s since 1970].
      is_unknown: whether an outcome has a time before that, so that a clock is wrong, or a slot of
        the slate is not known; the key is left out.
      hidden: those of the decisions that were deferred, until an outcome says that they were shown.
    """

    comparison: '_Comparison'
    is_canary: bool
    share: float
    slate: int | None
    rewards: dict[str, float] = dataclasses.field(default_factory=dict)
    reported: set[tuple[Any, ...]] = dataclasses.field(default_factory=set)
    at: float = dataclasses.field(default_factory=time.time)
    is_unknown: bool = False
    hidden: set[str] = dataclasses.field(default_factory=set)

    def reward(self, low: float, high: float) -> float | None:
        """Returns the reward, scaled from [low, high] to [0, 1]; None if it is no evidence, since
        nothing was shown or something is not known.

        It is the mean over the decisions; of a slate the sum over its slots.
        """
        shown = [reward for each, reward in self.rewards.items() if each not in self.hidden]
        if not shown or self.is_unknown:
            return None
        rewards = shown if self.slate is None else [sum(shown)]
        return sum((min(max(each, low), high) - low) / (high - low) for each in rewards) / len(rewards)


class _Comparison:
    """The evidence that a canary is worse than the stable version by more than the margin,
    key by key.

    Attributes:
      canary: its version; None if there is none.
      stable: the version that it is compared with.
      keys: hashes of the keys that were drawn.
      slates: those of them that are slates which may have more slots.
      closed: share, whether the canary answered, and reward in [0, 1], of keys that are not
        compared yet.
    """

    def __init__(self, canary: int | None, stable: int, margin: float):
        """Takes the margin in the unit of the scaled rewards."""
        self.canary, self.stable, self._margin = canary, stable, margin
        self.keys: set[int] = set()
        self.slates: dict[int, _First] = {}
        self.closed: collections.deque[tuple[float, bool, float]] = collections.deque()
        size = len(confidence_sequences.BETS) * (1 + len(confidence_sequences.CONTROLS))
        self._logs, self._lost = np.zeros(size), np.zeros(size, bool)
        # Of the stable version and of the canary.
        self.numbers, self._totals = np.zeros(2, int), np.zeros(2)

    @property
    def means(self) -> np.ndarray:
        """The mean scaled rewards of both, [2]."""
        return np.asarray(self._totals / np.maximum(self.numbers, 1))

    def log_wealth(self) -> float:
        """Compares what is closed; returns the log wealth against a canary that is worse by at most the margin."""
        waiting = [self.closed.popleft() for _ in range(len(self.closed))]
        for share in {each[0] for each in waiting}:
            drawn = [each[1:] for each in waiting if each[0] == share]
            arms, rewards = (np.array(values) for values in zip(*drawn, strict=True))
            self._add(share, arms.astype(int), rewards)
        return confidence_sequences.log_mean(np.where(self._lost, -math.inf, self._logs))

    def _add(self, share: float, arms: np.ndarray, rewards: np.ndarray) -> None:
        self.numbers += np.bincount(arms, minlength=2)
        self._totals += np.bincount(arms, rewards, 2)
        # Two policies: the one always takes the stable version, the other one the canary.
        stable, canary, drawn = (np.tile(each, (len(arms), 1)) for each in ([1.0, 0.0], [0.0, 1.0], [1 - share, share]))
        known = confidence_sequences.support(stable, canary, drawn)
        rows = np.arange(len(arms)), arms
        ours, theirs = ((policy / drawn)[rows][:, np.newaxis] for policy in (stable, canary))
        found = confidence_sequences.difference(ours, theirs, rewards[:, np.newaxis], np.ones(1), known)
        self._logs += np.concatenate([each.log_factors(-self._margin).sum(axis=0) for each in found])
        self._lost |= np.concatenate([each.is_lost(-self._margin) for each in found])


_Key = tuple[str, int]  # a policy and a version


class Trials:
    """The trials of a server's policies."""

    def __init__(
        self,
        options: TrialOptions,
        make_log: Callable[[], DecisionLog] | None = None,
        count: Callable[[str, str, int], object] = lambda kind, result, number: None,
        clock: Callable[[], float] = time.monotonic,
    ):
        """
        Args:
          options: what a version has to fulfil.
          make_log: makes the log of the shadows' answers; None asks no shadow.
          count: called with 'shadows', what became of answers, and their number.
          clock: returns the time [s].
        """
        self._options, self._make_log, self._count, self._clock = options, make_log, count, clock
        self._blocks: dict[_Key, list[int]] = {}  # requests, errors, slow ones
        self._short: dict[_Key, str] = {}  # what fell short, and why
        self._open: dict[str, _First] = {}  # by the ids of their decisions
        self._order: collections.deque[tuple[float, _First]] = collections.deque()
        self._comparisons: dict[str, _Comparison] = {}  # by policy
        self._log: DecisionLog | None = None
        self._shadows: set[asyncio.Task[None]] = set()

    @contextlib.contextmanager
    def measured(self, name: str, version: int) -> Iterator[None]:
        """Counts a request, its time and its error; not those that are refused or wrong."""
        begun, failed, counts = self._clock(), False, True
        try:
            yield
        except (InvalidRequest, GrpcRefusal):
            counts = False
            raise
        except Exception:  # not a deadline that has passed, which cancels the request
            failed = True
            raise
        finally:
            if counts:
                self._request((name, version), self._clock() - begun, failed)

    def _request(self, key: _Key, secs: float, failed: bool) -> None:
        options, block = self._options, self._blocks.setdefault(key, [0, 0, 0])
        block[0] += 1
        block[1] += failed
        block[2] += options.max_latency_secs is not None and secs > options.max_latency_secs
        if block[0] < options.num_requests:
            return
        del self._blocks[key]
        requests, errors, slow = block
        if options.max_error_share is not None and errors > options.max_error_share * requests:
            self._short[key] = f'{errors} errors in {requests} requests'
        elif slow > _SLOW_SHARE * requests:
            self._short[key] = f'{slow} of {requests} requests took more than {options.max_latency_secs:g} s'

    def decided(
        self,
        holder: ModelHolder,
        version: int,
        event_id: str,
        rows: int,
        key: str,
        is_deferred: bool = False,
        is_slot: bool = False,
    ) -> None:
        """Takes the ids of decisions, to which outcomes may come,
        and the key by which the version was chosen.

        With `is_slot` the key is a slate, and each of its requests, for one slot after the other,
        counts.
        """
        comparison, found = self._comparisons.get(holder.name), holder.states
        self._close_decisions(self._clock())
        if comparison is None or comparison.canary is None or found is None or found.canary != comparison.canary:
            return
        hashed, ids = hash(key or event_id), decision_files.ids(event_id, rows)
        # A version that the request named was not drawn.
        drawn = version in (found.canary, found.stable) and not (key and found.labels[found.arm(key)] != version)
        is_counted = drawn and len(self._open) + rows <= _MAX_OPEN
        first = comparison.slates.get(hashed) if is_slot else None
        if first:
            first.is_unknown |= not is_counted
        else:
            is_new = hashed not in comparison.keys and len(comparison.keys) < _MAX_KEYS
            if not (is_counted and is_new and 0 < found.share < 1):
                return
            comparison.keys.add(hashed)
            first = _First(comparison, version == found.canary, found.share, hashed if is_slot else None)
            self._order.append((self._clock(), first))
            comparison.slates |= {hashed: first} if is_slot else {}
        if not first.is_unknown:
            new = [each for each in ids if each not in first.rewards]  # a slot may be asked for again
            first.rewards |= dict.fromkeys(new, 0.0)
            first.hidden |= set(new) if is_deferred else set()
            self._open |= dict.fromkeys(new, first)

    def outcomes(self, message: Mapping[str, Any]) -> None:
        """Takes outcomes that the server has accepted."""
        for outcome in message.get('outcomes', [message]) if self._open else ():
            event_id, reward = outcome['event_id'], float(outcome.get('reward', 0))
            if not (found := self._open.get(event_id)):
                continue
            if outcome.get('activated'):
                found.hidden.discard(event_id)
            found.is_unknown |= outcome.get('time', found.at) < found.at
            own = outcome.get('outcome_id')
            key = (event_id, own) if own else (event_id, outcome.get('time'), reward)
            if key not in found.reported:
                found.rewards[event_id] += reward
                # Without an id and a time nothing tells it from another one.
                found.reported |= {key} if own or 'time' in outcome else set()
        self._close_decisions(self._clock())

    def _close_decisions(self, now: float) -> None:
        options = self._options
        while self._order and self._order[0][0] < now - options.outcome_secs:
            first = self._order.popleft()[1]
            for each in first.rewards:
                self._open.pop(each, None)
            if first.slate is not None:
                del first.comparison.slates[first.slate]
            if (reward := first.reward(options.outcome_low, options.outcome_high)) is not None:
                first.comparison.closed.append((first.share, first.is_canary, reward))

    def shadow(self, holder: ModelHolder, inputs: Arrays, event_id: str, requests: RequestQueue) -> None:
        """Asks the shadow of a policy what it would have answered; nothing waits for it."""
        if self._make_log is None or holder.shadow is None:
            return
        rows = len(next(iter(inputs.values())))
        if self._log is None or len(self._shadows) >= _MAX_SHADOWS:
            self._count('shadows', 'dropped', rows)
            return
        task = asyncio.get_running_loop().create_task(self._ask(holder, inputs, event_id, requests, rows))
        self._shadows.add(task)
        task.add_done_callback(self._shadows.discard)

    async def _ask(self, holder: ModelHolder, inputs: Arrays, event_id: str, requests: RequestQueue, rows: int) -> None:
        version = holder.shadow
        if version is None or self._log is None:
            return
        try:
            signature = version.decisions or version.signature(signatures.DEFAULT)
            outputs = await requests.run(signature, inputs)
            given = holder.name, version.version, inputs, outputs, version.chooser.mask, event_id, states.SHADOW
            self._log.record(*given, texts=version.texts)
        except Exception as error:  # the request itself was answered
            self._count('shadows', 'failed', rows)
            side_tasks.record_failure(f'ask the shadow of {holder.name}', error)

    def check(self, holder: ModelHolder, directory: pathlib.Path) -> None:
        """Takes a version back that has fallen short;
        makes the log of the shadows when there is one.
        """
        if holder.shadow and self._make_log and self._log is None:
            with side_tasks.guarded('begin the log of shadows'):
                self._log = self._make_log()
        found = holder.states
        if found is None:
            return
        comparison = self._comparisons.get(holder.name)
        margin, compared = self._options.outcome_margin, (found.canary, found.stable)
        if margin is not None and (comparison is None or (comparison.canary, comparison.stable) != compared):
            self._comparisons[holder.name] = _Comparison(*compared, margin / self._unit)
        version = found.on_trial
        reasons = {key: self._short.pop(key) for key in list(self._short) if key[0] == holder.name}
        reason = reasons.get((holder.name, version or 0)) or self._worse(holder.name)
        if version is None or not reason:
            return
        logging.error('%s: takes version %d back: %s', holder.name, version, reason)
        try:
            states.rollback(directory, reason, WHO, only=version)
        except (UserError, OSError) as error:
            logging.error('%s: version %d stays: %s', holder.name, version, error)

    def _worse(self, name: str) -> str:
        """Returns why the outcomes of the canary's keys fall short of the stable version's;
        '' if not.
        """
        options, comparison = self._options, self._comparisons.get(name)
        if comparison is None or comparison.canary is None or comparison.log_wealth() < -math.log(1 - options.level):
            return ''
        theirs, ours = options.outcome_low + self._unit * comparison.means
        return (
            f'mean reward {ours:.4g} of {comparison.numbers[1]} keys, stable {theirs:.4g} of {comparison.numbers[0]}: '
            f'worse by more than {options.outcome_margin:g} ({options.level:g})'
        )

    @property
    def _unit(self) -> float:
        return self._options.outcome_high - self._options.outcome_low

    def close(self) -> None:
        """Writes what the shadows have answered."""
        if self._log:
            self._log.close()
