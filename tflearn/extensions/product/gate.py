"""The gate: whether a candidate is not worse than the incumbent, by the same held-out episodes of another policy.

Of each policy it takes the weighted per-decision estimate of `data.estimators`, with one step weighted importance
sampling. An episode's part in the estimate's error (its influence, the delta method) is

    psi_n = sum_t gamma^t w_nt / mean(w_t) (r_nt - v_t)        v_t = sum_n w_nt r_nt / sum_n w_nt

The error of the difference is that of the differences psi_n(candidate) - psi_n(incumbent), so that what both policies
owe to the same episodes cancels. Its intervals are normal. They hold for the many episodes that the gate asks for:
`benchmarks/gate.py` measures their coverage.
"""

import dataclasses
import math
import statistics
from typing import Annotated, Any

import numpy as np

from tflearn.core.errors import UserValueError
from tflearn.core.settings import Fraction, NonNegativeFloat, PositiveFloat, Range, checked_dataclass
from tflearn.extensions.product import estimators
from tflearn.extensions.product.estimators import Episodes, Estimate


@checked_dataclass(frozen=True)
class GateOptions:
    """What a candidate has to prove.

    Attributes:
      margin: how much less than the incumbent's its value may be, in the unit of the value.
      level: the confidence level of the lower bound, which is one-sided, and of the intervals, which are two-sided.
      min_effective_sample_size: how many episodes the data have to be worth for each policy; with fewer the intervals
        are not to be trusted, and the candidate does not pass.
      gamma: the discount of the value; 1 is the sum of an episode's rewards.
    """

    margin: NonNegativeFloat = 0.0
    level: Annotated[float, Range(least=0.5, below=1)] = 0.95
    min_effective_sample_size: PositiveFloat = 100.0
    gamma: Fraction = 1.0


@dataclasses.dataclass(frozen=True)
class Value:
    """What the data say of one policy.

    Attributes:
      value: the estimate of its value; NaN if it is not defined.
      low: the lower end of its interval.
      high: the upper end.
      mean_weight: the mean weight of the episodes; about 1, if the log takes all actions that the policy takes.
      effective_sample_size: how many episodes of the policy itself the data are worth.
      overlap: the mean of min(1, rho) over the steps: the probability that the policy and the log have in common.
    """

    value: float
    low: float
    high: float
    mean_weight: float
    effective_sample_size: float
    overlap: float


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Whether a candidate passes, and why.

    Attributes:
      candidate: what the data say of the candidate.
      incumbent: and of the incumbent.
      difference: the candidate's value less the incumbent's, with its two-sided interval.
      lower_bound: its one-sided lower bound, which has to be above -margin.
      options: what was to be proved.
      num_episodes: the number of episodes.
      num_steps: the number of steps.
      reasons: why it does not pass; () if it does.
      warnings: what is to be doubted.
    """

    candidate: Value
    incumbent: Value
    difference: Estimate
    lower_bound: float
    options: GateOptions
    num_episodes: int
    num_steps: int
    reasons: tuple[str, ...]
    warnings: tuple[str, ...] = ()

    @property
    def passes(self) -> bool:
        """Whether the candidate passes."""
        return not self.reasons

    def text(self) -> str:
        """Returns the table."""
        options = self.options
        interval = f'{options.level:.0%} interval'
        lines = [
            f'{self.num_episodes} episodes, {self.num_steps} steps',
            f'{"":12}{"value":>12}  {interval:24}{"mean weight":>12}{"sample size":>12}{"overlap":>9}',
        ]
        for name in ('candidate', 'incumbent'):
            of: Value = getattr(self, name)
            lines.append(
                f'{name:12}{of.value:12.5g}  {_interval(of.low, of.high):24}{of.mean_weight:12.4f}'
                f'{of.effective_sample_size:12.1f}{of.overlap:9.3f}'
            )
        difference = self.difference
        lines.append(f'{"difference":12}{difference.value:12.5g}  {_interval(difference.low, difference.high)}')
        lines += [f'warning: {warning}' for warning in self.warnings]
        outcome = 'passes' if self.passes else f'does not pass: {"; ".join(self.reasons)}'
        bound = f'lower bound of the difference {self.lower_bound:.5g} ({options.level:.0%}, one-sided)'
        return '\n'.join([*lines, f'{bound}, margin {options.margin:g}: {outcome}'])

    def json(self) -> dict[str, Any]:
        """Returns the same for a JSON file; what is not defined is None."""
        return {'passes': self.passes, **estimators.finite(dataclasses.asdict(self))}


def judge(
    rewards: np.ndarray,
    is_step: np.ndarray,
    candidate: np.ndarray,
    incumbent: np.ndarray,
    options: GateOptions,
) -> Verdict:
    """Compares two policies by the same episodes, padded at their ends.

    Args:
      rewards: [N, T]; 0 in the padding.
      is_step: whether it is a step, not padding, [N, T].
      candidate: log rho_t, the candidate's log-probabilities of the actions less the logged ones, [N, T]; 0 in the
        padding.
      incumbent: the same of the incumbent.
      options: what the candidate has to prove.

    Raises:
      ValueError: if there are fewer than two episodes.
    """
    if len(rewards) < 2:
        raise UserValueError(f'got {len(rewards)} episodes; need at least two')
    logged = {'candidate': candidate, 'incumbent': incumbent}
    both = {name: Episodes(rewards, ratios, options.gamma) for name, ratios in logged.items()}
    found = {name: _influence(episodes) for name, episodes in both.items()}
    two_sided = statistics.NormalDist().inv_cdf((1 + options.level) / 2)
    one_sided = statistics.NormalDist().inv_cdf(options.level)
    values = {name: _value(both[name], is_step, *found[name], two_sided) for name in both}
    difference = found['candidate'][0] - found['incumbent'][0]
    error = estimators.standard_error(found['candidate'][1] - found['incumbent'][1])
    lower_bound = difference - one_sided * error
    reasons = []
    for name, episodes in both.items():
        size = values[name].effective_sample_size
        if size < options.min_effective_sample_size:
            reasons.append(
                f'the data are worth {size:.1f} episodes of the {name}, fewer than '
                f'{options.min_effective_sample_size:g}'
            )
        if not estimators.mean_weight_is_one(episodes):
            reasons.append(
                f'the mean weight of the {name} is {values[name].mean_weight:.3g}, not 1: it takes actions that the '
                'log never takes, or the logged probabilities are wrong'
            )
    if not lower_bound > -options.margin:
        reasons.append('the lower bound is not above -margin')
    return Verdict(
        candidate=values['candidate'],
        incumbent=values['incumbent'],
        difference=Estimate(difference, difference - two_sided * error, difference + two_sided * error),
        lower_bound=lower_bound,
        options=options,
        num_episodes=len(rewards),
        num_steps=int(np.count_nonzero(is_step)),
        reasons=tuple(reasons),
    )


def _influence(episodes: Episodes) -> tuple[float, np.ndarray]:
    """Returns the estimate of the value, and psi of each episode [N]; NaN where no action of the policy was logged."""
    weights = estimators.scaled(episodes.log_weights)
    with np.errstate(divide='ignore', invalid='ignore'):
        shares = weights / weights.mean(axis=0)
        values = (shares * episodes.rewards).mean(axis=0)
    return float(values @ episodes.discounts), (shares * (episodes.rewards - values)) @ episodes.discounts


def _value(episodes: Episodes, is_step: np.ndarray, value: float, influence: np.ndarray, quantile: float) -> Value:
    spread = quantile * estimators.standard_error(influence)
    return Value(
        value,
        value - spread,
        value + spread,
        float(np.exp(episodes.log_weights[:, -1]).mean()),
        estimators.effective_sample_size(episodes.log_weights[:, -1]),
        float(np.exp(np.minimum(episodes.log_ratios, 0.0))[is_step].mean()),
    )


def _interval(low: float, high: float) -> str:
    return f'[{low:.5g}, {high:.5g}]' if math.isfinite(low) else 'not defined'
