"""Trials: metrics of versions that were just promoted, by which a bad one is taken back; and requests to shadows.

Requests are counted in blocks, each of which is judged by itself, so that a version that goes bad after a long while is
found as fast. All but `check` and `close` is called on the thread of the requests.
"""

import asyncio
import collections
import contextlib
import math
import pathlib
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, NamedTuple

from absl import logging

from tflearn.core import side_tasks
from tflearn.core.errors import UserError
from tflearn.core.settings import Fraction, NonNegativeFloat, PositiveFloat, PositiveInt, Range, checked_dataclass
from tflearn.extensions.serving import decision_files
from tflearn.extensions.serving.decision_log import DecisionLog
from tflearn.extensions.serving.models import ModelHolder
from tflearn.extensions.serving.request_queue import Arrays, RequestQueue
from tflearn.extensions.serving.served_version import InvalidRequest
from tflearn.net.grpc_server import GrpcRefusal
from tflearn.policies import signatures, states

_MAX_OPEN, _MAX_SHADOWS = 200_000, 64  # decisions that wait for outcomes; requests of shadows at the same time
_SLOW_SHARE = 0.01
WHO = 'tflearn-serve'


@checked_dataclass(frozen=True)
class TrialOptions:
    """When a canary, or a stable version that was promoted last, is taken back.

    Attributes:
      num_requests: the requests of a block.
      max_error_share: the share of them that may fail by an error that is not the client's; None is any.
      max_latency_secs: the time within which 99 % of them have to be computed; None is any.
      outcome_margin: how much less than the stable version's the mean reward of the canary's decisions may be, at the
        lower bound of `level`; None does not look at outcomes.
      num_decisions: the decisions of both with which their rewards are compared, and after as many more again.
      outcome_secs: seconds after a decision in which its outcomes count; their sum is its reward, 0 without any.
      level: the level of the lower bound, one-sided.
    """

    num_requests: PositiveInt = 200
    max_error_share: Fraction | None = 0.05
    max_latency_secs: PositiveFloat | None = None
    outcome_margin: NonNegativeFloat | None = None
    num_decisions: Annotated[int, Range(least=2)] = 1_000
    outcome_secs: PositiveFloat = 60.0
    level: Annotated[float, Range(least=0.5, below=1)] = 0.95


class _Rewards(NamedTuple):
    """The rewards of a version's decisions."""

    number: int = 0
    total: float = 0.0
    squares: float = 0.0

    def add(self, reward: float) -> '_Rewards':
        return _Rewards(self.number + 1, self.total + reward, self.squares + reward * reward)

    @property
    def mean(self) -> float:
        return self.total / self.number

    @property
    def variance(self) -> float:
        """The variance of the mean."""
        return max(0.0, self.squares / self.number - self.mean**2) / (self.number - 1)


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
        self._open: dict[str, tuple[_Key, float]] = {}  # the decisions whose outcomes count still, and their rewards
        self._order: collections.deque[tuple[float, str]] = collections.deque()
        self._rewards: dict[_Key, _Rewards] = {}
        self._canaries: dict[str, tuple[int | None, int]] = {}  # of each policy, and how often it was compared
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

    def decided(self, name: str, version: int, event_id: str, rows: int) -> None:
        """Takes the ids of decisions, to which outcomes may come."""
        if self._options.outcome_margin is None or self._canaries.get(name, (None, 0))[0] is None:
            return
        now = self._clock()
        for each in decision_files.ids(event_id, rows):
            self._open[each] = ((name, version), 0.0)
            self._order.append((now, each))
        self._close_decisions(now)

    def outcomes(self, message: Mapping[str, Any]) -> None:
        """Takes outcomes that the server has accepted."""
        for outcome in message.get('outcomes', [message]) if self._open else ():
            if found := self._open.get(outcome['event_id']):
                self._open[outcome['event_id']] = (found[0], found[1] + float(outcome['reward']))
        self._close_decisions(self._clock())

    def _close_decisions(self, now: float) -> None:
        while self._order and (self._order[0][0] < now - self._options.outcome_secs or len(self._order) > _MAX_OPEN):
            found = self._open.pop(self._order.popleft()[1], None)
            if found:
                self._rewards[found[0]] = self._rewards.get(found[0], _Rewards()).add(found[1])

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
            self._log.record(
                holder.name, version.version, inputs, outputs, version.chooser.mask, event_id, states.SHADOW
            )
        except Exception as error:  # the request itself was answered
            self._count('shadows', 'failed', rows)
            side_tasks.record_failure(f'ask the shadow of {holder.name}', error)

    def check(self, holder: ModelHolder, directory: pathlib.Path) -> None:
        """Takes a version back that has fallen short; makes the log of the shadows when there is one."""
        if holder.shadow and self._make_log and self._log is None:
            with side_tasks.guarded('begin the log of shadows'):
                self._log = self._make_log()
        found = holder.states
        if found is None:
            return
        if self._canaries.get(holder.name, (-1, 0))[0] != found.canary:
            self._canaries[holder.name] = (found.canary, 0)
            self._rewards = {key: each for key, each in self._rewards.items() if key[0] != holder.name}
        version = found.on_trial
        reasons = {key: self._short.pop(key) for key in list(self._short) if key[0] == holder.name}
        reason = reasons.get((holder.name, version or 0)) or self._worse(holder.name, found)
        if version is None or not reason:
            return
        logging.error('%s: takes version %d back: %s', holder.name, version, reason)
        try:
            states.rollback(directory, reason, WHO, only=version)
        except (UserError, OSError) as error:
            logging.error('%s: version %d stays: %s', holder.name, version, error)

    def _worse(self, name: str, found: states.States) -> str:
        """Returns why the outcomes of the canary's decisions fall short of the stable version's; '' if not."""
        options, (canary, compared) = self._options, self._canaries[name]
        if options.outcome_margin is None or canary is None:
            return ''
        ours, theirs = (self._rewards.get((name, version), _Rewards()) for version in (canary, found.stable))
        rounds = min(ours.number, theirs.number) // options.num_decisions
        if rounds <= compared:
            return ''
        self._canaries[name] = (canary, rounds)
        difference = ours.mean - theirs.mean
        quantile = statistics.NormalDist().inv_cdf(options.level)
        bound = difference - quantile * math.sqrt(ours.variance + theirs.variance)
        if bound > -options.outcome_margin:
            return ''
        return (
            f'mean reward {ours.mean:.4g} of {ours.number} decisions, stable {theirs.mean:.4g} of {theirs.number}: '
            f'lower bound of the difference {bound:.4g}, margin {options.outcome_margin:g}'
        )

    def close(self) -> None:
        """Writes what the shadows have answered."""
        if self._log:
            self._log.close()
