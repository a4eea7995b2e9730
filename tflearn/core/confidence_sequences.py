"""Confidence sequences by betting: claims about two policies from a log of another one,
which hold at every look.

With the logged probability mu(a), w_c = pi_c(a) / mu(a) of a candidate, w_i = pi_i(a) / mu(a) of
the incumbent, and rewards r in [0, 1], each variable has an expectation of at most the candidate's
value less the incumbent's:

    X   = w_c r + w_i (1 - r) - 1                       at least -1, for any weights
    Y_c = (w_c - w_i) (r - c) - c u_c - (1 - c) u_i     c in {0, 1/2, 1}; needs mu of all actions

u_c is how much likelier the candidate than the incumbent takes an action that the log never takes,
summed over such actions, and u_i the other way round: they count as the worst for the candidate and
the best for the incumbent. X counts all that was never taken so by itself. (Karampatziakis, Mineiro
and Ramdas 2021, "Off-policy Confidence Sequences", arXiv 2102.09540: X is their variable of gated
deployment, c is a control variate.) Of a session of H steps X is the mean over them, with products
of weights; H is stated, not taken from the data.

That the mean of Z is at most -margin is refuted by the wealth of a gambler who bets against it,
each time the share lambda of what he owns (Waudby-Smith and Ramdas 2024, "Estimating means of
bounded random variables by betting", arXiv 2010.09686):

    K_n(lambda) = prod over i <= n of (1 + lambda (Z_i + margin))        0 <= lambda < 1 / (b - margin),  Z_i >= -b

While the claim is true the expectation of K_n is at most 1, and K_n ever reaches 1 / alpha with a
probability of at most alpha (Ville). The mean of several wealths is a wealth. The bets are
constants, a mixture that is fixed before the data. So the claim may also be about the average over
the decisions that were logged, while values drift and the logging policy changes; bets that follow
the past do not have this property. A bet that b, which may grow with the contexts that are seen, no
longer allows is lost from then on: that only lowers the wealth.

A candidate p that some units have trained is compared with q through s (`Chain`), neither of which
these units have trained. On n other units the bets are on p less s, on the N that trained it, times
n / N, on s less q:

    K(lambda) = prod over i <= n of (1 + lambda (Z_i(p, s) + margin))
                x prod over j <= N of (1 + lambda n / N Z_j(s, q))

Whatever p has become, the expectation of the first product, given the N units, is at most
exp(lambda n (v_p - v_s + margin)), with v the means over the units. While the claim about p and q
is true, that is at most exp(lambda n (v_q - v_s)), which does not depend on what came of the N
units; and the expectation of the second product is at most exp(lambda n (v_s - v_q)). So that of
both is at most 1 (a product of sequential e-values, as of Vovk and Wang 2021, arXiv 1912.06116).
The claim is about v_p - v_s over the n units plus v_s - v_q over the N units.

Wealths are logarithms. N is the number of units: decisions, sessions, or clusters of them.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

# The best constant bet is about margin / variance, whatever that is: hence a geometric grid.
BETS = np.geomspace(3e-5, 1.0, 60)
_PART_BETS = BETS[BETS < 1]
CONTROLS = (0.0, 0.5, 1.0)
GREATEST_CONTROL = 4.0
_BISECTIONS = 20
# The log likelihood ratio at which one look refutes a mean. 1.92 would do for many values alike;
# with rare and large ones 2.3 keeps the value in 90% of the intervals or more: in 96 to 99% in
# nearly all of `benchmarks.value_intervals`.
LIKELIHOOD_RATIO = 2.3
_BLOCK = 1 << 14  # units whose bets are computed together


@dataclasses.dataclass(frozen=True)
class Variable:
    """A variable with one value for each unit.

    Attributes:
      values: Z, [N].
      bound: b: no unit could have had a value below -b.
      counts: how many units have each value, [N]; None: one each.
      shares: q_min / q, from 0 (dropped) to 1, [N]; None: 1 each.
    """

    values: np.ndarray
    bound: float
    counts: np.ndarray | None = None
    shares: np.ndarray | None = None

    @property
    def num_units(self) -> float:
        """How many units there are."""
        return float(len(self.values) if self.counts is None else self.counts.sum())

    @property
    def mean(self) -> float:
        """The mean of the values, each weighed by its share."""
        return float(np.average(self.values, weights=self.shares))

    @property
    def spread(self) -> float:
        """The standard deviation of what is bet on."""
        return float(self.values.std() if self.shares is None else (self.shares * (self.values - self.mean)).std())

    def part(self, index: slice) -> 'Variable':
        """Returns some of the units."""
        counts, shares = (None if each is None else each[index] for each in (self.counts, self.shares))
        return Variable(self.values[index], self.bound, counts, shares)

    def is_lost(self, shift: float, scale: float = 1.0) -> np.ndarray:
        """Returns whether a value of -b would take all that a gambler owns, for each of `BETS`."""
        return scale * BETS * (self.bound - shift) >= 1

    def log_factors(self, shift: float, scale: float = 1.0) -> np.ndarray:
        """Returns log(1 + lambda (Z + shift)), [N, bets]; 0 for lost bets."""
        stakes = self.values + shift if self.shares is None else self.shares * (self.values + shift)
        return np.log1p(np.where(self.is_lost(shift, scale), 0.0, scale * BETS) * stakes[:, np.newaxis])

    def log_wealths(self, shift: float, scale: float = 1.0) -> np.ndarray:
        """Returns log K of each of `BETS`, times `scale`, against a mean of at most -shift; -inf for lost ones."""
        total = np.zeros(len(BETS))
        for begin in range(0, len(self.values), _BLOCK):
            block = self.part(slice(begin, begin + _BLOCK))
            factors = block.log_factors(shift, scale)
            total += factors.sum(axis=0) if block.counts is None else block.counts @ factors
        return np.where(self.is_lost(shift, scale), -math.inf, total)

    def merged(self) -> 'Variable':
        """Returns each value once, with its count: a log often has few."""
        # A complex number is a pair of a value and a share.
        pairs = self.values if self.shares is None else self.values + 1j * self.shares
        found, counts = np.unique(pairs, return_counts=True)
        shares = None if self.shares is None else found.imag
        return Variable(found.real, self.bound, counts.astype(np.float64), shares)

    def mean_by(self, clusters: np.ndarray) -> 'Variable':
        """Returns the mean over each cluster, in the order in which they begin;
        `clusters` are their names, [N].
        """
        _, first, index = np.unique(clusters, return_index=True, return_inverse=True)
        means = np.bincount(index, self.values) / np.bincount(index)
        return Variable(means[np.argsort(first)], self.bound)


@dataclasses.dataclass(frozen=True)
class Chain:
    """A comparison of p with q through s, which begins as the module says and goes on with p less q.

    Attributes:
      near: of p less s, of units that have trained none of them.
      rest: of s less q, of units that have trained neither.
      later: of p less q, of units that come after these.
    """

    near: Variable
    rest: Variable
    later: Sequence[Variable] = ()

    def log_wealths(self, shift: float) -> np.ndarray:
        """Returns log K of each of `BETS` against a mean of p less q of at most -shift; -inf for lost ones."""
        ratio = self.near.num_units / self.rest.num_units
        of_near = [each.log_wealths(shift) for each in (self.near, *self.later)]
        return np.sum([*of_near, self.rest.log_wealths(0.0, ratio)], axis=0)


@dataclasses.dataclass(frozen=True)
class Support:
    """What the probabilities of all actions say of each decision.

    Attributes:
      candidate: u_c, [N].
      incumbent: u_i, [N].
      above: the greatest w_c - w_i of an action that the log takes, at least 0, [N].
      below: the greatest w_i - w_c, at least 0, [N].
      greatest_candidate: the greatest w_c, [N].
      greatest_incumbent: the greatest w_i, [N].
      candidate_untaken: the probability with which the candidate takes what the log never takes,
        [N].
      incumbent_untaken: the same of the incumbent, [N].
    """

    candidate: np.ndarray
    incumbent: np.ndarray
    above: np.ndarray
    below: np.ndarray
    greatest_candidate: np.ndarray
    greatest_incumbent: np.ndarray
    candidate_untaken: np.ndarray
    incumbent_untaken: np.ndarray

    @property
    def swapped(self) -> 'Support':
        """The same with the candidate and the incumbent exchanged."""
        return Support(
            self.incumbent,
            self.candidate,
            self.below,
            self.above,
            self.greatest_incumbent,
            self.greatest_candidate,
            self.incumbent_untaken,
            self.candidate_untaken,
        )

    @property
    def is_full(self) -> bool:
        """Whether the log takes every action for which the policies differ."""
        return not (self.candidate.any() or self.incumbent.any())


def support(candidate: np.ndarray, incumbent: np.ndarray, logged: np.ndarray) -> Support:
    """Returns the support of decisions from the probabilities of all actions, each [N, A]."""
    taken = logged > 0
    both = candidate, incumbent
    weights, others = (np.where(taken, policy / np.where(taken, logged, 1.0), 0.0) for policy in both)
    untaken = np.where(taken, 0.0, candidate - incumbent)
    missing, others_missing = (np.maximum(sign * untaken, 0.0).sum(axis=1) for sign in (1, -1))
    above, below = (np.maximum((sign * (weights - others)).max(axis=1), 0.0) for sign in (1, -1))
    greatest = (each.max(axis=1) for each in (weights, others))
    alone = (np.where(taken, 0.0, policy).sum(axis=1) for policy in both)
    return Support(missing, others_missing, above, below, *greatest, *alone)


def difference(
    candidate: np.ndarray, incumbent: np.ndarray, rewards: np.ndarray, discounts: np.ndarray, known: Support | None
) -> list[Variable]:
    """Returns the variables whose means are at most the candidate's value less the incumbent's,
    divided by H steps.

    Args:
      candidate: w_c, the product of the weights of a session up to each step, [N, H].
      incumbent: w_i, [N, H].
      rewards: in [0, 1], [N, H]; an unknown one is NaN, and counts as what is the worst for the
        difference.
      discounts: gamma^t, [H]; they weigh the steps.
      known: the support of single decisions; None if the probabilities of all actions are not
        known.
    """
    shares = discounts / discounts.sum()
    # Where both policies are as likely to do what was done, its reward makes no difference.
    rewards = np.where(np.isnan(rewards), incumbent > candidate, rewards)
    found = [Variable((candidate * rewards + incumbent * (1 - rewards)) @ shares - 1, 1.0)]
    if known is None:
        return found
    weights, reward = (candidate - incumbent)[:, 0], rewards[:, 0]
    for c in CONTROLS:
        missing = c * known.candidate + (1 - c) * known.incumbent
        least = np.maximum(c * known.above, (1 - c) * known.below) + missing
        found.append(Variable(weights * (reward - c) - missing, float(least.max())))
    return found


def control(ratios: np.ndarray, greatest: np.ndarray) -> np.ndarray:
    """Returns a control variate of sessions: numbers with the mean 1 that are near the products of the weights of the
    steps, and at most `GREATEST_CONTROL`, [N, T].

    Each step adds of what the product grows by the share that leaves it below the limit, whatever the action.

    Args:
      ratios: the weight of each step, [N, T]; 1 after the end.
      greatest: the greatest one of all actions of the step, each of which the log takes, [N, T].
    """
    product, found = np.ones(len(ratios)), [np.ones(len(ratios))]
    for ratio, most in zip(ratios.T, greatest.T, strict=True):
        growth = np.maximum(product * (most - 1), 1e-9)
        share = np.minimum(np.maximum(GREATEST_CONTROL - found[-1], 0) / growth, 1)
        found.append(found[-1] + share * product * (ratio - 1))
        product = product * ratio
    return np.stack(found[1:], axis=1)


def value(weights: np.ndarray, rewards: np.ndarray, discounts: np.ndarray, known: Support | None) -> list[Variable]:
    """Returns variables whose means are at most a policy's value, divided by H steps.

        V_c = w (r - c) + c (1 - u)      c in {0, 1/2, 1}; above 0 it needs mu of all actions

    u is the probability with which the policy takes what the log never takes: that has the reward
    0.

    Args:
      weights: w, the product of the weights of a session up to each step, [N, H].
      rewards: in [0, 1], [N, H]; an unknown one is NaN, and counts as 0.
      discounts: gamma^t, [H]; they weigh the steps.
      known: as of `difference`; the policy is its candidate.
    """
    rewards = np.nan_to_num(rewards)
    found = [Variable((weights * rewards) @ (discounts / discounts.sum()), 0.0)]
    if known is None:
        return found
    for c in CONTROLS[1:]:
        rest = c * (1 - known.candidate_untaken)
        least = (rest - c * known.greatest_candidate).min()
        found.append(Variable(weights[:, 0] * (rewards[:, 0] - c) + rest, float(max(0.0, -least))))
    return found


def refuters(candidate: np.ndarray, incumbent: np.ndarray, known: Support | None) -> list[Variable]:
    """Returns variables whose means are at most 0 if the logged probabilities are right:
    weights less 1.

    Args:
      candidate: pi_c(a) / mu(a) of each decision, a step of a session being one, [N].
      incumbent: pi_i(a) / mu(a), [N].
      known: as of `difference`; where the log takes all actions of the policies the means are not
        below 0 either.
    """
    found = [Variable(candidate - 1, 1.0), Variable(incumbent - 1, 1.0)]
    if known is not None and known.is_full:
        found.append(Variable(1 - candidate, float(known.greatest_candidate.max()) - 1))
        found.append(Variable(1 - incumbent, float(known.greatest_incumbent.max()) - 1))
    return found


def log_wealth_of_actions(actions: np.ndarray, logged: np.ndarray, shares: np.ndarray | float = 1.0) -> float:
    """Returns the log wealth against right probabilities by 1{a} / mu(a) - 1,
    of a mean of at most 0 for each action a.

    Args:
      actions: the index of each decision's action, [N].
      logged: mu of it, [N].
      shares: as of `Variable`, [N].

    Returns:
      The mean over the actions that occur, and the bets.
    """
    found, index = np.unique(actions, return_inverse=True)
    shares = np.broadcast_to(shares, len(actions))
    wealths = []
    for bet in BETS[BETS < 1]:
        others = np.log1p(-bet * shares)  # of all decisions for another action
        own = np.log1p(bet * shares * (1 / logged - 1)) - others
        wealths.append(np.bincount(index, own, len(found)) + others.sum())
    return log_mean(np.concatenate(wealths))


def log_wealth(variables: Sequence[Variable | Chain], shift: float) -> float:
    """Returns the log of the mean wealth, over variables and bets,
    against a mean of at most -shift.
    """
    return log_mean(np.concatenate([each.log_wealths(shift) for each in variables]))


def log_mean(logs: np.ndarray) -> float:
    """Returns the log of the mean of exponentials."""
    return float(np.logaddexp.reduce(logs)) - math.log(len(logs))


def lower_bound(variables: Sequence[Variable | Chain], alpha: float, low: float, high: float) -> float:
    """Returns the lower end of the confidence sequence:
    the least mean in [low, high] that is not refuted.
    """
    threshold = -math.log(alpha)
    if log_wealth(variables, -low) < threshold:
        return low
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if log_wealth(variables, -middle) >= threshold else (low, middle)
    return low


def likelihood_bound(variable: Variable) -> float:
    """Returns the lower end of an interval of the mean, for one look;
    the mean is in [0, 1], the values at least 0.

    It is the least mean that no bet refutes, the best one chosen after the fact: the interval by
    empirical likelihood (Owen 2001; Karampatziakis, Langford and Mineiro 2020, "Empirical
    Likelihood for Contextual Bandits", arXiv 1906.03323, without a greatest weight). Values that
    are rare, large and not among these only lower it. Of a log that was subsampled `shares` bound the
    bets, as in a sequence; what was dropped is a bet of nothing.
    """
    counts = np.ones(len(variable.values)) if variable.counts is None else variable.counts
    low, high = 0.0, 1.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        refuted = likelihood_ratios(variable, counts[np.newaxis], middle)[0] >= LIKELIHOOD_RATIO
        low, high = (middle, high) if refuted else (low, middle)
    return low


def likelihood_ratios(variable: Variable, counts: np.ndarray, mean: float) -> np.ndarray:
    """Returns the log wealth of the best bet against a mean of at most `mean`,
    of values that are at least 0.

    Args:
      variable: the values [N], each once.
      counts: how often each of them is in a log, [logs, N].
      mean: above 0.

    Returns:
      [logs].
    """
    stakes = variable.values / mean - 1
    if variable.shares is not None:
        stakes = variable.shares * stakes
    total = np.zeros((len(counts), len(_PART_BETS)))
    for begin in range(0, len(stakes), _BLOCK):
        block = slice(begin, begin + _BLOCK)
        total += counts[:, block] @ np.log1p(_PART_BETS * stakes[block, np.newaxis])
    return total.max(axis=1)
