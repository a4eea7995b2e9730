"""The gate: whether a candidate is not worse than the incumbent, by the same held-out episodes of another policy.

It judges by `core.confidence_sequences`: what it claims holds for every number of episodes, and at every look. Rewards
are scaled to [0, 1] by a range that is stated, never taken from the data. `benchmarks/gate.py` simulates how often it
errs, and how many decisions it needs.

The values in its table are weighted per-decision estimates of `estimators`, which are more exact than what is proved.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from tflearn.core import confidence_sequences
from tflearn.core.confidence_sequences import Chain, Support, Variable, log_wealth
from tflearn.core.errors import UserValueError
from tflearn.extensions.product import estimators
from tflearn.extensions.product.estimators import Episodes
from tflearn.extensions.product.scaled_log import GateOptions, Limit, LoggedEpisodes, ScaledLog, Through, scale

_REFUTED = 0.05  # the level at which logged probabilities are refuted
_LAST_SHARE = 0.25
_CERTAIN = 1e-6  # of the logarithm of a probability that is 1
_LARGEST_LOG = 700.0  # of a weight
_NEIGHBOURS = 10  # of the bets, about, that grow nearly as fast as the best one


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
class Cost(Estimate):
    """What the data say of a cost of the candidate.

    Attributes:
      most: its limit.
      outcome: whether it is proved to be within the limit, or beyond it.
    """

    most: float
    outcome: Literal['within', 'beyond', 'not decided']


@dataclasses.dataclass(frozen=True)
class Claim:
    """What has to be proved of a candidate, and its opposite: a quantity is above -shift, or below it.

    Attributes:
      ours: variables whose means are at most the quantity.
      theirs: variables whose means are at most the quantity's negative.
      shift: in their unit.
      unit: that unit, in the one of the data.
      text: the opposite.
      chains: of other units, what proves it as `ours` do.
    """

    ours: Sequence[Variable]
    theirs: Sequence[Variable]
    shift: float
    unit: float
    text: str
    chains: Sequence[Chain] = ()

    def is_proved(self, threshold: float) -> bool:
        """Returns whether the log wealth against the opposite is as large as the threshold."""
        return log_wealth([*self._merged[0], *self.chains], self.shift) >= threshold

    def is_refuted(self, threshold: float) -> bool:
        """Returns whether the opposite is proved."""
        return log_wealth(self._merged[1], -self.shift) >= threshold

    def needed(self, threshold: float) -> tuple[float, float]:
        """Returns about how many more units prove it, and refute it; inf if that does not grow."""
        num, (ours, theirs) = len(self.ours[0].values), self._merged
        return (
            _more(ours, self.shift, threshold, num, self.chains),
            _more(theirs, -self.shift, threshold, num),
        )

    @functools.cached_property
    def _merged(self) -> tuple[list[Variable], list[Variable]]:
        """Each value once: where few are different, a wealth takes no time."""
        ours, theirs = ([each.merged() for each in of] for of in (self.ours, self.theirs))
        return ours, theirs

    def estimate(self, alpha: float, begin: int = 0) -> Estimate:
        """Returns the quantity in the units from `begin` on: the variable with the least spread, and both ends."""
        ours, theirs = ([each.part(slice(begin, None)) for each in of] for of in (self.ours, self.theirs))
        least = min(ours, key=lambda each: each.spread)
        proofs: list[Variable | Chain] = [each.merged() for each in ours]
        proofs += () if begin else self.chains
        low = confidence_sequences.lower_bound(proofs, alpha, -1.0, 1.0)
        high = confidence_sequences.lower_bound([each.merged() for each in theirs], alpha, -1.0, 1.0)
        return Estimate(*(self.unit * each for each in (least.mean, low, -high)))


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
      costs: what the data say of the costs that are limited, by their names.
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
    costs: dict[str, Cost] = dataclasses.field(default_factory=dict)

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
        for name, cost in self.costs.items():
            found_text = f'{cost.value:12.5g}  {_interval(cost):24}'
            lines.append(f'{name:12}{found_text} at most {cost.most:g}: {cost.outcome}')
        about = 'users' if self.units == 'clusters' else f'the {self.units} that came, not about new users'
        lines.append(f'each end holds at {options.level:.6g}, at every look, for the average over {about}')
        lines += [f'warning: {warning}' for warning in self.warnings]
        outcome = ': '.join([self.outcome, *self.reasons])
        bound = f'lower bound of the difference {self.difference.low:.5g}, margin {options.margin:g}'
        return '\n'.join([*lines, f'{bound}: {outcome}'])

    def json(self) -> dict[str, Any]:
        """Returns the same for a JSON file; what is not defined is None."""
        return {'passes': self.passes, **estimators.finite(dataclasses.asdict(self))}


def judge(log: LoggedEpisodes, options: GateOptions, through: Through | None = None) -> Verdict:
    """Compares two policies by the same episodes, and by others through a third policy.

    Raises:
      ValueError: if there are fewer than two episodes, no range is stated, or an episode is longer than stated.
    """
    scaled = scale(log, options)
    options, shift = scaled.options, options.margin / scaled.unit
    text = 'the difference is below -margin'
    chains = _chains(through, options) if through else []
    difference = Claim(scaled.difference, scaled.reverse, shift, scaled.unit, text, chains)
    limited = {limit.name: _limited(log, options, limit) for limit in options.limits}
    claims = [difference, *(claim for claim, _ in limited.values())]
    doubt = max(0.0, _log_doubt(log, scaled.known), _log_doubt(through.rest, through.rest.known) if through else 0.0)
    # Evidence that is no stronger than that against the log's probabilities does not count.
    threshold = doubt - math.log(options.alpha)
    outcome: Literal['passes', 'worse', 'not decided'] = 'not decided'
    reasons: tuple[str, ...] = ()
    needed = exploration = None
    if doubt >= -math.log(_REFUTED):
        reasons = ('the logged probabilities are refuted: mean weights, which are 1, are too large or too small',)
    elif all(each.is_proved(threshold) for each in claims):
        reasons = _clipped(scaled, [of for _, of in limited.values()])
        outcome = 'not decided' if reasons and not options.clips else 'passes'
        reasons = () if outcome == 'passes' else reasons
    elif refuted := [each.text for each in claims if each.is_refuted(threshold)]:
        outcome, reasons = 'worse', tuple(refuted)
    else:
        needed = _needed(claims, threshold)
        exploration = _exploration(scaled) if needed else None
        reasons = (_not_decided(scaled, needed, exploration),)
    candidate, incumbent = (
        _value(scaled, ratios, weights)
        for ratios, weights in zip((log.candidate, log.incumbent), scaled.weights, strict=True)
    )
    whole = difference.estimate(options.alpha)
    return Verdict(
        outcome=outcome,
        candidate=candidate,
        incumbent=incumbent,
        difference=dataclasses.replace(whole, value=candidate.value - incumbent.value),
        last_quarter=difference.estimate(options.alpha, round((1 - _LAST_SHARE) * scaled.num_units)),
        options=options,
        num_episodes=len(log.rewards),
        num_steps=int(np.count_nonzero(log.is_step)),
        num_units=scaled.num_units,
        units=scaled.name_of_units,
        needed=needed,
        exploration=exploration,
        reasons=reasons,
        warnings=_warnings(scaled),
        costs={limit.name: _cost(log, *limited[limit.name], limit, threshold) for limit in options.limits},
    )


def _chains(through: Through, options: GateOptions) -> list[Chain]:
    """Returns the comparisons through what serves, each with one control variate."""
    logs = through.rest, *([through.later] if through.later and len(through.later.rewards) > 1 else [])
    if any(log.shares is not None for log in (through.near, *logs)):
        return []  # How many decisions were dropped is not known, and so not the shares of the bets.
    near, *others = scale(through.near, options).difference, *(scale(log, options).controlled for log in logs)
    merged = [[each.merged() for each in of] for of in (near, *others)]
    # The first ones of each need no probabilities of other actions.
    return [Chain(one, rest, later) for one, rest, *later in zip(*merged, strict=False)]


def _limited(log: LoggedEpisodes, options: GateOptions, limit: Limit) -> tuple[Claim, ScaledLog]:
    """Returns that a cost is within its limit, and the log with the negative costs as rewards."""
    if limit.name not in log.costs:
        raise UserValueError(f'got a limit of {limit.name!r}; need a part of the rewards')
    if limit.low is None or limit.high is None or not limit.low < limit.high:
        raise UserValueError(f'got no range of {limit.name}; need low and high of it in `parts` of the column map')
    ranged = dataclasses.replace(options, low=-limit.high, high=-limit.low)
    scaled = scale(dataclasses.replace(log, rewards=-log.costs[limit.name]), ranged)
    # Less 1 the reward is the negative cost, scaled to [0, 1].
    above = scaled.above(scaled.rewards)
    ours = [dataclasses.replace(of, values=of.values - 1, bound=of.bound + 1) for of in above]
    shift = (limit.most - limit.low * float(scaled.discounts.sum())) / scaled.unit
    text = f'{limit.name} is above {limit.most:g}'
    return Claim(ours, scaled.above(1 - scaled.rewards), shift, scaled.unit, text), scaled


def _cost(log: LoggedEpisodes, claim: Claim, scaled: ScaledLog, limit: Limit, threshold: float) -> Cost:
    found, least = claim.estimate(scaled.options.alpha), float(limit.low or 0.0)
    least *= float(scaled.discounts.sum())
    outcome: Literal['within', 'beyond', 'not decided'] = 'not decided'
    if claim.is_proved(threshold):
        outcome = 'within'
    elif claim.is_refuted(threshold):
        outcome = 'beyond'
    value = _mean(log.costs[limit.name], log.candidate, scaled)
    return Cost(value, least - found.high, least - found.low, limit.most, outcome)


def _clipped(scaled: ScaledLog, costs: Sequence[ScaledLog]) -> tuple[str, ...]:
    """Returns why a candidate does not pass: what is worse than stated would count too little."""
    found = (
        (scaled.is_below, f'rewards are below {scaled.options.low:g}, the least that is stated'),
        *((of.is_below, f'costs are above {-(of.options.low or 0.0):g}, the greatest that is stated') for of in costs),
    )
    return tuple(f'{text}: --clip_rewards' for is_below, text in found if is_below)


def _log_doubt(log: LoggedEpisodes, known: Support | None) -> float:
    """Returns the log wealth against the logged probabilities. Each step is a decision, whatever came before it."""
    ours, theirs = (np.exp(np.minimum(each[log.is_step], _LARGEST_LOG)) for each in (log.candidate, log.incumbent))
    shares = None if log.shares is None else _by_step(log, log.shares)
    found = confidence_sequences.refuters(ours, theirs, known)
    wealths = [log_wealth([dataclasses.replace(each, shares=shares).merged()], 0.0) for each in found]
    if log.actions is not None and log.log_behaviour is not None:
        logged = np.exp(log.log_behaviour[log.is_step])
        actions = log.actions[log.is_step]
        wealths.append(confidence_sequences.log_wealth_of_actions(actions, logged, 1.0 if shares is None else shares))
    return confidence_sequences.log_mean(np.array(wealths))


def _by_step(log: LoggedEpisodes, values: np.ndarray) -> np.ndarray:
    """Returns the value of its episode [N] for each step [S]."""
    return np.broadcast_to(values[:, np.newaxis], log.is_step.shape)[log.is_step]


def _needed(claims: Sequence[Claim], threshold: float) -> int | None:
    """Returns about how many more units decide, if the best bet grows as before; None if none grows."""
    proofs, refutations = zip(*(each.needed(threshold) for each in claims), strict=True)
    least = min(max(proofs), *refutations)
    return math.ceil(least) if math.isfinite(least) else None


def _more(
    variables: Sequence[Variable], shift: float, threshold: float, num_units: int, chains: Sequence[Chain] = ()
) -> float:
    """Returns about how many more units refute a mean of -shift or less; inf if no bet grows."""
    growth = max(float(each.log_wealths(shift).max()) for each in variables)
    wealth = log_wealth([*variables, *chains], shift)
    if growth <= 0 or wealth >= threshold:
        return 0.0 if wealth >= threshold else math.inf
    # The mixture lags behind its best bet, in the end by the share of the bets that grow nearly as fast.
    lag = math.log((len(variables) + len(chains)) * len(confidence_sequences.BETS) / _NEIGHBOURS)
    rest = threshold - wealth + max(0.0, lag - (growth - wealth))
    return rest / growth * num_units


def _exploration(scaled: ScaledLog) -> float | None:
    """Returns the share of random actions that halves the mean square of the variable with the least spread."""
    log = scaled.log
    if scaled.known is None or log.log_even is None or log.log_behaviour is None:
        return None
    variables = confidence_sequences.difference(*scaled.weights, scaled.rewards, scaled.discounts, scaled.known)
    least = min(variables, key=lambda each: float(each.values.std())).values
    squares = (least * _shares(log)) ** 2
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
    log, untried = scaled.log, 0
    unknown = int(np.count_nonzero(np.isnan(scaled.rewards)))
    if log.log_behaviour is not None:
        # Without any draw the weight is the candidate's probability of what was done, and the rest was never tried.
        is_certain = log.is_step & (log.log_behaviour > -_CERTAIN)
        untried = int(np.count_nonzero(is_certain & (log.candidate < -_CERTAIN)))
    found = (
        (
            untried,
            'actions were logged with probability 1, where the candidate may take others: the log lacks support, and '
            'what was never tried counts as the worst for it',
        ),
        (unknown, 'rewards are unknown: they count as the worst for the candidate and the best for the incumbent'),
        (scaled.outside, 'rewards are outside of the range: the verdict is of the clipped reward'),
    )
    return tuple(f'{count} {text}' for count, text in found if count)


def _value(scaled: ScaledLog, ratios: np.ndarray, weights: np.ndarray) -> Value:
    """Returns the weighted per-decision estimate of a policy's value, and what it rests on."""
    log = scaled.log
    episodes = Episodes(np.nan_to_num(log.rewards), ratios, scaled.options.gamma)
    log_weights, shares = episodes.log_weights[:, -1], _shares(log)
    alpha = scaled.options.alpha / 2
    lower_end = lambda variable: confidence_sequences.lower_bound([variable], alpha, 0.0, 1.0)  # noqa: E731
    return Value(
        _mean(log.rewards, ratios, scaled),
        *scaled.bounds(weights, lower_end),
        float(np.average(np.exp(log_weights), weights=shares)),
        estimators.effective_sample_size(log_weights + np.log(shares)),
        float(np.average(np.exp(np.minimum(episodes.log_ratios, 0.0))[log.is_step], weights=_by_step(log, shares))),
    )


def _shares(log: LoggedEpisodes) -> np.ndarray:
    return np.ones(len(log.rewards)) if log.shares is None else log.shares


def _mean(rewards: np.ndarray, ratios: np.ndarray, scaled: ScaledLog) -> float:
    """Returns the weighted per-decision estimate, without what is unknown."""
    known = ~np.isnan(rewards).any(axis=1)
    episodes = Episodes(np.nan_to_num(rewards), ratios, scaled.options.gamma)
    return float(estimators.weighted_per_decision(episodes)((known * _shares(scaled.log))[np.newaxis])[0])


def _interval(found: Estimate) -> str:
    # A log that is refuted may refute every value.
    is_defined = math.isfinite(found.value) and found.low <= found.high
    return f'[{found.low:.5g}, {found.high:.5g}]' if is_defined else 'not defined'
