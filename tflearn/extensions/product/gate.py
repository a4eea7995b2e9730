"""The gate: whether a candidate is not worse than the incumbent, by the same held-out episodes of another policy.

It judges by `core.confidence_sequences`: what it claims holds for every number of episodes, and at every look. Rewards
are scaled to [0, 1] by a range that is stated, never taken from the data. `benchmarks/gate.py` simulates how often it
errs, and how many decisions it needs.

The values in its table are weighted per-decision estimates of `estimators`, which are more exact than what is proved.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Annotated, Any, Literal

import numpy as np

from tflearn.core import confidence_sequences
from tflearn.core.confidence_sequences import Support, Variable, log_wealth
from tflearn.core.errors import UserValueError
from tflearn.core.settings import Fraction, NonNegativeFloat, PositiveInt, Range, checked_dataclass
from tflearn.extensions.product import estimators
from tflearn.extensions.product.estimators import Episodes

_REFUTED = 0.05  # the level at which logged probabilities are refuted
_LAST_SHARE = 0.25
_LARGEST_LOG = 700.0  # of a weight
_NEIGHBOURS = 10  # of the bets, about, that grow nearly as fast as the best one


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
      whole: whether the range is that of an episode's sum of rewards, which has the weight of the whole episode then:
        better where only few steps have a reward. `longest` plays no part.
      clips: whether a candidate may pass although rewards are below `low`, and count as `low`.
      gamma: the discount of the value; 1 is the sum of an episode's rewards.
    """

    margin: NonNegativeFloat = 0.0
    level: Annotated[float, Range(least=0.5, below=1)] = 0.95
    low: Annotated[float, Range()] | None = None
    high: Annotated[float, Range()] | None = None
    longest: PositiveInt | None = None
    whole: bool = False
    clips: bool = False
    gamma: Fraction = 1.0

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


@dataclasses.dataclass(frozen=True)
class Estimate:
    """An estimate and its confidence interval.

    Attributes:
      value: the estimate; NaN if it is not defined.
      low: the interval's lower end.
      high: its upper end.
    """

    value: float
    low: float
    high: float


@dataclasses.dataclass(frozen=True)
class Value(Estimate):
    """What the data say of one policy.

    Attributes:
      mean_weight: the mean weight of the episodes; about 1, if the log takes all actions that the policy takes.
      effective_sample_size: how many episodes of the policy itself the data are worth.
      overlap: the mean of min(1, rho) over the steps: the probability that the policy and the log have in common.
    """

    mean_weight: float
    effective_sample_size: float
    overlap: float


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Whether a candidate passes, and why.

    Attributes:
      outcome: what is proved.
      candidate: what the data say of the candidate.
      incumbent: and of the incumbent.
      difference: the candidate's value less the incumbent's, with its confidence sequence: each end holds at `level`.
      last_quarter: the same of the last quarter of the episodes.
      options: what was to be proved.
      num_episodes: the number of episodes.
      num_steps: the number of steps.
      num_units: the number of clusters, else of episodes.
      units: what they are: 'clusters', 'sessions' or 'decisions'.
      needed: about how many more units decide, at the rate of these; None if the data do not say, or it is decided.
      exploration: the share of random actions, besides the log's own, with which about half as many do.
      reasons: why it does not pass; () if it does.
      warnings: what is to be doubted.
    """

    outcome: Literal['passes', 'worse', 'not decided']
    candidate: Value
    incumbent: Value
    difference: Estimate
    last_quarter: Estimate
    options: GateOptions
    num_episodes: int
    num_steps: int
    num_units: int
    units: str
    needed: int | None
    exploration: float | None
    reasons: tuple[str, ...]
    warnings: tuple[str, ...] = ()

    @property
    def passes(self) -> bool:
        """Whether the candidate passes."""
        return self.outcome == 'passes'

    def text(self) -> str:
        """Returns the table."""
        options = self.options
        lines = [
            f'{self.num_episodes} episodes, {self.num_steps} steps, rewards from {options.low:g} to {options.high:g}',
            f'{"":12}{"value":>12}  {"interval":24}{"mean weight":>12}{"sample size":>12}{"overlap":>9}',
        ]
        for name in ('candidate', 'incumbent'):
            of: Value = getattr(self, name)
            lines.append(
                f'{name:12}{of.value:12.5g}  {_interval(of):24}{of.mean_weight:12.4f}'
                f'{of.effective_sample_size:12.1f}{of.overlap:9.3f}'
            )
        for label, found in (('difference', self.difference), ('last quarter', self.last_quarter)):
            lines.append(f'{label:12}{found.value:12.5g}  {_interval(found)}')
        about = 'users' if self.units == 'clusters' else f'the {self.units} that came, not about new users'
        lines.append(f'each end holds at {options.level:.6g}, at every look, for the average over {about}')
        lines += [f'warning: {warning}' for warning in self.warnings]
        outcome = ': '.join([self.outcome, *self.reasons])
        bound = f'lower bound of the difference {self.difference.low:.5g}, margin {options.margin:g}'
        return '\n'.join([*lines, f'{bound}: {outcome}'])

    def json(self) -> dict[str, Any]:
        """Returns the same for a JSON file; what is not defined is None."""
        return {'passes': self.passes, **estimators.finite(dataclasses.asdict(self))}


@dataclasses.dataclass(frozen=True)
class ScaledLog:
    """A log whose rewards are scaled to [0, 1], and whose episodes have all H steps.

    Attributes:
      options: with a range and the longest episode.
      is_single: whether an episode is one decision.
      is_below: whether a reward is below the range.
      outside: the number of rewards outside of it.
      rewards: [N, H]; NaN if unknown.
      weights: of the candidate and of the incumbent, the products up to each step, each [N, H].
      discounts: gamma^t, [H].
      known: see `LoggedEpisodes`; None if an episode has several decisions.
      clusters: see `LoggedEpisodes`.
    """

    options: GateOptions
    is_single: bool
    is_below: bool
    outside: int
    rewards: np.ndarray
    weights: tuple[np.ndarray, np.ndarray]
    discounts: np.ndarray
    known: Support | None
    clusters: np.ndarray | None

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

    @functools.cached_property
    def reverse(self) -> list[Variable]:
        """Of the incumbent's value less the candidate's."""
        known = None if self.known is None else self.known.swapped
        found = confidence_sequences.difference(*self.weights[::-1], self.rewards, self.discounts, known)
        return [self._by_unit(each) for each in found]

    @functools.cached_property
    def merged(self) -> tuple[list[Variable], list[Variable]]:
        """Of both differences each value once: where few are different, a wealth takes no time."""
        ours, theirs = ([each.merged() for each in of] for of in (self.difference, self.reverse))
        return ours, theirs

    @property
    def num_units(self) -> int:
        """The number of clusters, else of episodes."""
        return len(self.difference[0].values)

    @property
    def name_of_units(self) -> str:
        """What the units are."""
        if self.clusters is not None:
            return 'clusters'
        return 'decisions' if self.is_single else 'sessions'

    def _by_unit(self, variable: Variable) -> Variable:
        return variable if self.clusters is None else variable.mean_by(self.clusters)

    def estimate(self, alpha: float, begin: int = 0) -> Estimate:
        """Returns the difference of the units from `begin` on: the variable with the least spread, and both ends."""
        ours, theirs = (
            [Variable(each.values[begin:], each.bound) for each in of] for of in (self.difference, self.reverse)
        )
        least = min(ours, key=lambda each: float(each.values.std()))
        low, high = (
            confidence_sequences.lower_bound([each.merged() for each in of], alpha, -1.0, 1.0) for of in (ours, theirs)
        )
        return Estimate(*(self.unit * each for each in (float(least.values.mean()), low, -high)))

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


def judge(log: LoggedEpisodes, options: GateOptions) -> Verdict:
    """Compares two policies by the same episodes.

    Raises:
      ValueError: if there are fewer than two episodes, no range is stated, or an episode is longer than stated.
    """
    scaled = scale(log, options)
    options, shift = scaled.options, options.margin / scaled.unit
    ours, theirs = scaled.merged
    doubt = max(0.0, _log_doubt(log, scaled.known))
    # Evidence that is no stronger than that against the log's probabilities does not count.
    threshold = doubt - math.log(options.alpha)
    outcome: Literal['passes', 'worse', 'not decided'] = 'not decided'
    reasons: tuple[str, ...] = ()
    needed = exploration = None
    if doubt >= -math.log(_REFUTED):
        reasons = ('the logged probabilities are refuted: mean weights, which are 1, are too large or too small',)
    elif log_wealth(ours, shift) >= threshold:
        outcome = 'not decided' if scaled.is_below and not options.clips else 'passes'
        if outcome == 'not decided':
            reasons = (f'rewards are below {options.low:g}, the least that is stated: --clip_rewards',)
    elif log_wealth(theirs, -shift) >= threshold:
        outcome, reasons = 'worse', ('the difference is below -margin',)
    else:
        needed = _needed(scaled, shift, threshold)
        exploration = _exploration(log, scaled) if needed else None
        reasons = (_not_decided(scaled, needed, exploration),)
    candidate, incumbent = (
        _value(log, scaled, ratios, weights)
        for ratios, weights in zip((log.candidate, log.incumbent), scaled.weights, strict=True)
    )
    whole = scaled.estimate(options.alpha)
    return Verdict(
        outcome=outcome,
        candidate=candidate,
        incumbent=incumbent,
        difference=dataclasses.replace(whole, value=candidate.value - incumbent.value),
        last_quarter=scaled.estimate(options.alpha, round((1 - _LAST_SHARE) * scaled.num_units)),
        options=options,
        num_episodes=len(log.rewards),
        num_steps=int(np.count_nonzero(log.is_step)),
        num_units=scaled.num_units,
        units=scaled.name_of_units,
        needed=needed,
        exploration=exploration,
        reasons=reasons,
        warnings=_warnings(scaled),
    )


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
    below, above = inside & (rewards < low), inside & (rewards > high)
    return ScaledLog(
        dataclasses.replace(options, longest=longest),
        steps == 1,
        bool(below.any()),
        int(np.count_nonzero(below | above)),
        np.clip((rewards - low) / (high - low), 0.0, 1.0),
        (candidate, incumbent),
        discounts,
        log.known if len(discounts) == steps == 1 else None,
        log.clusters,
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


def _log_doubt(log: LoggedEpisodes, known: Support | None) -> float:
    """Returns the log wealth against the logged probabilities. Each step is a decision, whatever came before it."""
    ours, theirs = (np.exp(np.minimum(each[log.is_step], _LARGEST_LOG)) for each in (log.candidate, log.incumbent))
    wealths = [log_wealth([each.merged()], 0.0) for each in confidence_sequences.refuters(ours, theirs, known)]
    if log.actions is not None and log.log_behaviour is not None:
        logged = np.exp(log.log_behaviour[log.is_step])
        wealths.append(confidence_sequences.log_wealth_of_actions(log.actions[log.is_step], logged))
    return confidence_sequences.log_mean(np.array(wealths))


def _needed(scaled: ScaledLog, shift: float, threshold: float) -> int | None:
    """Returns about how many more units decide, if the best bet grows as before; None if none grows."""
    least = math.inf
    for variables, own in zip(scaled.merged, (shift, -shift), strict=True):
        growth = max(float(each.log_wealths(own).max()) for each in variables)
        if growth > 0:
            # The mixture lags behind its best bet, in the end by the share of the bets that grow nearly as fast.
            wealth = log_wealth(variables, own)
            lag = math.log(len(variables) * len(confidence_sequences.BETS) / _NEIGHBOURS)
            rest = threshold - wealth + max(0.0, lag - (growth - wealth))
            least = min(least, rest / growth * scaled.num_units)
    return math.ceil(least) if math.isfinite(least) else None


def _exploration(log: LoggedEpisodes, scaled: ScaledLog) -> float | None:
    """Returns the share of random actions that halves the mean square of the variable with the least spread."""
    if scaled.known is None or log.log_even is None or log.log_behaviour is None:
        return None
    variables = confidence_sequences.difference(*scaled.weights, scaled.rewards, scaled.discounts, scaled.known)
    squares = min(variables, key=lambda each: float(each.values.std())).values ** 2
    odds = np.exp((log.log_even - log.log_behaviour)[:, 0])
    for share in np.linspace(0.01, 1.0, 100).tolist():
        # A log with the probabilities mu' has the mean of the squares times mu / mu'.
        if (squares / (1 - share + share * odds)).mean() <= squares.mean() / 2:
            return share
    return None


def _not_decided(scaled: ScaledLog, needed: int | None, exploration: float | None) -> str:
    if needed is None:
        return 'the data do not say how many more decide'
    text = f'about {needed:,} more {scaled.name_of_units} at this rate'
    return text if exploration is None else f'{text}, half as many with {exploration:.0%} more random ones'


def _warnings(scaled: ScaledLog) -> tuple[str, ...]:
    unknown = int(np.count_nonzero(np.isnan(scaled.rewards)))
    found = (
        (unknown, 'rewards are unknown: they count as the worst for the candidate and the best for the incumbent'),
        (scaled.outside, 'rewards are outside of the range: the verdict is of the clipped reward'),
    )
    return tuple(f'{count} {text}' for count, text in found if count)


def _value(log: LoggedEpisodes, scaled: ScaledLog, ratios: np.ndarray, weights: np.ndarray) -> Value:
    """Returns the weighted per-decision estimate of a policy's value, and what it rests on."""
    known = ~np.isnan(log.rewards).any(axis=1)
    episodes = Episodes(np.nan_to_num(log.rewards), ratios, scaled.options.gamma)
    alpha = scaled.options.alpha / 2
    lower_end = lambda variable: confidence_sequences.lower_bound([variable], alpha, 0.0, 1.0)  # noqa: E731
    return Value(
        float(estimators.weighted_per_decision(episodes)(known[np.newaxis].astype(float))[0]),
        *scaled.bounds(weights, lower_end),
        float(np.exp(episodes.log_weights[:, -1]).mean()),
        estimators.effective_sample_size(episodes.log_weights[:, -1]),
        float(np.exp(np.minimum(episodes.log_ratios, 0.0))[log.is_step].mean()),
    )


def _interval(found: Estimate) -> str:
    # A log that is refuted may refute every value.
    is_defined = math.isfinite(found.value) and found.low <= found.high
    return f'[{found.low:.5g}, {found.high:.5g}]' if is_defined else 'not defined'
