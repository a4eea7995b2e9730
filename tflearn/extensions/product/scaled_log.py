"""Logged episodes with rewards in [0, 1], as confidence sequences take them, and what the gate asks of them."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import numpy as np

from tflearn.core import confidence_sequences
from tflearn.core.confidence_sequences import Support, Variable
from tflearn.core.errors import UserValueError
from tflearn.core.settings import Fraction, NonNegativeFloat, PositiveFloat, PositiveInt, Range, checked_dataclass
from tflearn.extensions.product.estimators import Episodes


@checked_dataclass(frozen=True)
class Limit:
    """What a candidate may cost.

    Attributes:
      name: that of a part of the reward, see `parts` of a column map.
      most: the greatest mean cost of an episode, in the unit of the part.
      low: the least cost of a step, or, as of the reward, of an episode; None is what the data set
        states.
      high: the greatest one.
    """

    name: str
    most: Annotated[float, Range()]
    low: Annotated[float, Range()] | None = None
    high: Annotated[float, Range()] | None = None

    @classmethod
    def parse(cls, text: str) -> 'Limit':
        """Returns the limit of a flag, NAME=MOST; raises ValueError for anything else."""
        name, _, most = text.partition('=')
        try:
            return cls(name, float(most))
        except ValueError as error:
            raise UserValueError(f'got the limit {text!r}; need a name and a number, such as latency=120') from error


@checked_dataclass(frozen=True)
class GateOptions:
    """What a candidate has to prove.

    Attributes:
      margin: how much less than the incumbent's its value may be, in the unit of the value.
      level: the confidence level of each claim: a candidate that is worse by the margin passes with a probability of
        at most 1 - level, however often it is looked at.
      low: the least reward; None is what the data set states.
      high: the greatest one.
      longest: the most steps of an episode; None is what the data set states, else 1.
      greatest_weight: of a decision of a log that was subsampled; None is what the data set states.
      whole: whether the range is that of an episode's sum of rewards, which has the weight of the whole episode then:
        better where only few steps have a reward. `longest` plays no part.
      clips: whether a candidate may pass although rewards are below `low`, and count as `low`.
      gamma: the discount of the value; 1 is the sum of an episode's rewards.
      limits: what a candidate may cost; it passes only if it is proved to be within each of them.
    """

    margin: NonNegativeFloat = 0.0
    level: Annotated[float, Range(least=0.5, below=1)] = 0.95
    low: Annotated[float, Range()] | None = None
    high: Annotated[float, Range()] | None = None
    longest: PositiveInt | None = None
    greatest_weight: PositiveFloat | None = None
    whole: bool = False
    clips: bool = False
    gamma: Fraction = 1.0
    limits: Sequence[Limit] = ()

    def __post_init__(self) -> None:
        if None not in (self.low, self.high) and not self.low < self.high:  # type: ignore[operator]
            raise UserValueError(f'got rewards from {self.low} to {self.high}; need a range, the least one first')

    @property
    def alpha(self) -> float:
        """The probability of a wrong claim."""
        return 1 - self.level


@dataclasses.dataclass(frozen=True)
class LoggedEpisodes:
    """Episodes in the order of their times, padded at their ends, and what two policies make of them.

    Attributes:
      rewards: [N, T]; 0 in the padding. NaN is an unknown one, which counts as the worst for the candidate and the
        best for the incumbent.
      is_step: whether it is a step, not padding, [N, T].
      candidate: log rho_t, the candidate's log-probabilities of the actions less the logged ones, [N, T]; 0 in the
        padding.
      incumbent: the same of the incumbent.
      known: of single decisions, if the log's probabilities of all actions are known.
      actions: the indices of the actions, [N, T]; None if they are not choices.
      log_behaviour: the logged log-probabilities, [N, T]; None as `actions`.
      log_even: log-probabilities of the actions if they were drawn evenly, [N, T]; None as `actions`.
      clusters: whose episodes these are, such as hashes of users, [N]; None: the claim is about the decisions.
      shares: of a log that was subsampled, the weight of each episode divided by the greatest possible one, [N].
      costs: parts of the rewards by their names, each [N, T]; NaN is an unknown one, which counts as the worst.
      greatest: the greatest incumbent's weight of all actions of a step, [N, T], any number in the padding; None if it
        is not known, or the log does not take all that the incumbent takes.
    """

    rewards: np.ndarray
    is_step: np.ndarray
    candidate: np.ndarray
    incumbent: np.ndarray
    known: Support | None = None
    actions: np.ndarray | None = None
    log_behaviour: np.ndarray | None = None
    log_even: np.ndarray | None = None
    clusters: np.ndarray | None = None
    shares: np.ndarray | None = None
    costs: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    greatest: np.ndarray | None = None


@dataclasses.dataclass(frozen=True)
class Through:
    """Episodes that compare a candidate with the incumbent through what serves, see `core.confidence_sequences`.

    Attributes:
      near: the candidate beside what serves, which none of them has trained.
      rest: what serves, as the candidate, beside the incumbent, which these have not trained either; others may be
        trained on them. They are of the same time as `near`.
      later: those that came later: the candidate beside the incumbent; None if there are none.
    """

    near: LoggedEpisodes
    rest: LoggedEpisodes
    later: LoggedEpisodes | None = None


@dataclasses.dataclass(frozen=True)
class ScaledLog:
    """A log whose rewards are scaled to [0, 1], and whose episodes have all H steps.

    Attributes:
      log: as it was given.
      options: with a range and the longest episode.
      is_below: whether a reward is below the range.
      outside: the number of rewards outside of it.
      rewards: [N, H]; NaN if unknown.
      weights: of the candidate and of the incumbent, the products up to each step, each [N, H].
      discounts: gamma^t, [H].
      known: see `LoggedEpisodes`; None if an episode has several decisions.
    """

    log: LoggedEpisodes
    options: GateOptions
    is_below: bool
    outside: int
    rewards: np.ndarray
    weights: tuple[np.ndarray, np.ndarray]
    discounts: np.ndarray
    known: Support | None

    @property
    def unit(self) -> float:
        """The unit of the variables in that of the value."""
        options: Any = self.options
        return float((options.high - options.low) * self.discounts.sum())

    @functools.cached_property
    def difference(self) -> list[Variable]:
        """Of the candidate's value less the incumbent's, in the order of the units."""
        found = confidence_sequences.difference(*self.weights, self.rewards, self.discounts, self.known)
        return [self._by_unit(each) for each in found]

    @property
    def controlled(self) -> list[Variable]:
        """The same as `difference`; of sessions with a control variate, if the greatest weights are known."""
        log, steps = self.log, self.weights[1].shape[1]
        if log.greatest is None or self.known is not None:
            return self.difference
        known = confidence_sequences.control(np.exp(log.incumbent), log.greatest)
        # Of a session that has ended, or is weighed as a whole, that of its last step.
        known = np.pad(known, ((0, 0), (0, max(0, steps - known.shape[1]))), 'edge')[:, -steps:]
        (found,) = confidence_sequences.difference(*self.weights, self.rewards, self.discounts, None)
        values = found.values + 1 - known @ self.discounts / self.discounts.sum()
        bound = max(confidence_sequences.GREATEST_CONTROL, float(known.max()))
        return [self._by_unit(Variable(values, bound))]

    @functools.cached_property
    def reverse(self) -> list[Variable]:
        """Of the incumbent's value less the candidate's."""
        known = None if self.known is None else self.known.swapped
        found = confidence_sequences.difference(*self.weights[::-1], self.rewards, self.discounts, known)
        return [self._by_unit(each) for each in found]

    def above(self, rewards: np.ndarray) -> list[Variable]:
        """Returns variables of the candidate's value of rewards [N, H], which is at least their mean."""
        found = confidence_sequences.value(self.weights[0], rewards, self.discounts, self.known)
        return [self._by_unit(each) for each in found]

    @property
    def num_units(self) -> int:
        """The number of clusters, else of episodes."""
        return len(self.difference[0].values)

    @property
    def name_of_units(self) -> str:
        """What the units are."""
        if self.log.clusters is not None:
            return 'clusters'
        return 'decisions' if self.log.rewards.shape[1] == 1 else 'sessions'

    def _by_unit(self, variable: Variable) -> Variable:
        if self.log.clusters is not None:
            return variable.mean_by(self.log.clusters)
        return dataclasses.replace(variable, shares=self.log.shares)

    def bounds(self, weights: np.ndarray, lower_end: Callable[[Variable], float]) -> tuple[float, float]:
        """Returns both ends for the value of the policy with these weights.

        Args:
          weights: the products up to each step, [N, H].
          lower_end: of a variable that is at least 0, and whose mean is in [0, 1].
        """
        total, low, ends = float(self.discounts.sum()), float(self.options.low or 0.0), []
        for rewards in np.nan_to_num([self.rewards, 1 - self.rewards]):  # of an unknown one each end is the worst
            variable = self._by_unit(Variable((weights * rewards) @ self.discounts / total, 0.0))
            ends.append(lower_end(variable.merged()))
        return low * total + self.unit * ends[0], low * total + self.unit * (1 - ends[1])


def scale(log: LoggedEpisodes, options: GateOptions) -> ScaledLog:
    """Returns the log with scaled rewards; raises ValueError if that is not possible."""
    low, high = options.low, options.high
    if len(log.rewards) < 2:
        raise UserValueError(f'got {len(log.rewards)} episodes; need at least two')
    if low is None or high is None:
        raise UserValueError(
            'got no range of the rewards; need reward_range = [least, greatest] in the column map, or --reward_low and '
            '--reward_high'
        )
    steps = log.rewards.shape[1]
    longest = options.longest or 1
    discounts = options.gamma ** np.arange(steps if options.whole else longest)
    if options.whole:
        rewards, inside = (log.rewards @ discounts)[:, np.newaxis], np.ones((len(log.rewards), 1), bool)
        ratios = [each.sum(axis=1, keepdims=True) for each in (log.candidate, log.incumbent)]
        discounts = np.ones(1)
    else:
        _check_sessions(steps, longest, low, high)
        # After its end an episode has the reward 0, and the weight of its last step.
        pad = (0, 0), (0, longest - steps)
        rewards, inside = np.pad(log.rewards, pad), np.pad(log.is_step, pad)
        ratios = [np.pad(each, pad) for each in (log.candidate, log.incumbent)]
    candidate, incumbent = (np.exp(Episodes(rewards, each, 1.0).log_weights) for each in ratios)
    # Rewards are stored as float32: those that are an end of the range, such as -0.2, are within it.
    least, most = min(low, float(np.float32(low))), max(high, float(np.float32(high)))
    below, above = inside & (rewards < least), inside & (rewards > most)
    return ScaledLog(
        log,
        dataclasses.replace(options, longest=longest),
        bool(below.any()),
        int(np.count_nonzero(below | above)),
        np.clip((rewards - low) / (high - low), 0.0, 1.0),
        (candidate, incumbent),
        discounts,
        log.known if len(discounts) == steps == 1 else None,
    )


def _check_sessions(steps: int, longest: int, low: float, high: float) -> None:
    """Raises ValueError if the weights of single steps need another statement of the data."""
    if steps > longest:
        raise UserValueError(
            f'got an episode of {steps} steps, and {longest} as the longest; need `longest` or `return_range` in the '
            'column map, or --longest or --whole_sessions'
        )
    if longest > 1 and not low <= 0 <= high:
        raise UserValueError(
            f'got sessions with rewards from {low:g} to {high:g}; need a range with 0, the reward after their ends'
        )
