"""Is one group of seeds better than another? An exact p, the level that it really has,
and what would have been seen.

The statistic is Mann and Whitney's U: how many pairs of runs, one of each group, the first group
wins. Its distribution is counted over all ways to split these scores into two groups of these
sizes, so the p is exact for any distribution, and for tied and two-valued scores. Of paired runs it
is Wilcoxon's sum of signed ranks, over all flips of the signs.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

LEVEL = 0.05  # of a verdict, unadjusted for the number of verdicts
# Of each group: three against three have no p below 10%, and their range covers 75%.
_FEWEST_RUNS = 4
_FEWEST_PAIRS = 6  # five have none below 6.25%
_POWER = 0.8
_DRAWS = 4_000

Word = Literal['better', 'worse', 'equal', 'not told apart', 'no verdict attainable']


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What the scores of two groups say.

    Attributes:
      word: 'better' or 'worse' if `p` is at most `LEVEL`; 'equal' if `difference` lies within the
        stated band; 'no verdict attainable' if no split of these scores has such a p.
      probability: that a run of the group has a higher score than one of the other; a tie counts
        1/2.
      p: two-sided and exact.
      level: the probability of 'better' or 'worse' if the groups do not differ: the greatest p up
        to `LEVEL`.
      difference: the ends of the interval of the difference (Hodges and Lehmann's), whose error is
        at most `LEVEL`.
      visible: the difference that as many runs show in 80%, if their scores are normal with these
        deviations.
      deviations: the same in pooled standard deviations; of pairs, in standard deviations of the
        pairs' differences.
      holm: the p adjusted for all verdicts of a table, see `adjusted`.
    """

    word: Word
    probability: float
    p: float
    level: float
    difference: tuple[float, float]
    visible: float
    deviations: float
    holm: float = math.nan

    @property
    def significance(self) -> str:
        """The p with its level."""
        return f'{self.p:.2g} (level {self.level:.1%})'

    def __str__(self) -> str:
        if self.word != 'not told apart':
            return self.word
        visible = f'{self.visible:.4g} ({self.deviations:.1f} deviations)'
        return f'{self.word}: a difference of {visible} would show in {_POWER:.0%}'


def judge(
    values: np.ndarray, others: np.ndarray, paired: bool = False, equal_within: float | None = None
) -> Verdict | None:
    """Compares the scores `values` [runs] with `others` [runs], of which higher ones are better.

    Args:
      paired: whether the runs of one index had the same starts.
      equal_within: the difference up to which the groups count as equal; None: they never do.

    Returns:
      The verdict; None for fewer than four runs in a group, or six pairs: too few to tell.
    """
    if min(len(values), len(others)) < (_FEWEST_PAIRS if paired else _FEWEST_RUNS):
        return None
    if paired:
        # Signed ranks (Wilcoxon): if the sides do not differ, each pair may have either sign.
        each = values - others
        differences, deviation = _differences(each), each.std(ddof=1)
        each = each[each != 0]  # a flipped 0 is the same
        ranks, is_first, size = _twice_ranks(np.abs(each)), each > 0, None
        wins, (cut, deviations) = values - others, _untied(len(values), None)
    else:
        # Rank sums (Wilcoxon; Mann and Whitney): if they do not differ, any runs may be the group's.
        wins = differences = _differences(values, others)
        weights = len(values) - 1, len(others) - 1
        deviation = np.sqrt(np.average([values.var(ddof=1), others.var(ddof=1)], weights=weights))
        ranks, size = _twice_ranks(np.concatenate([values, others])), len(values)
        is_first = np.arange(len(ranks)) < size
        cut, deviations = _untied(len(values), len(others))
    counts = _counts(ranks, size)
    twice_mean = int(ranks.sum()) if size is None else 2 * size * (len(ranks) + 1)
    distance = 2 * int(ranks[is_first].sum()) - twice_mean
    # Tail probabilities by the distance from the mean, which both tails share.
    tails = np.bincount(np.abs(2 * np.arange(len(counts)) - twice_mean), counts / counts.sum())[::-1].cumsum()[::-1]
    p, level = float(tails[abs(distance)]), float(max(tails[tails <= LEVEL], default=0.0))
    # The interval of the differences that the same test would not refuse: its ends are two of them.
    low, high = float(differences[cut - 1]), float(differences[-cut])
    word: Word = 'not told apart' if level else 'no verdict attainable'
    if equal_within is not None and max(-low, high) <= equal_within:
        word = 'equal'
    if p <= LEVEL:
        word = 'better' if distance > 0 else 'worse'
    probability = float(0.5 + 0.5 * np.sign(wins).mean())
    return Verdict(word, probability, p, level, (low, high), float(deviations * deviation), deviations)


def _twice_ranks(values: np.ndarray) -> np.ndarray:
    """Returns the doubled ranks of `values`, int [runs]: tied values share the mean of their ranks,
    maybe a half.
    """
    return 2 * (values[:, None] > values).sum(axis=1) + (values[:, None] == values).sum(axis=1) + 1


def _counts(ranks: np.ndarray, size: int | None) -> np.ndarray:
    """Returns how many subsets of `ranks` have the sum 0, 1, ...:
    those of `size` ranks, or (None) all of them.
    """
    counts = np.zeros(((size or len(ranks)) + 1, int(ranks.sum()) + 1))
    counts[0, 0] = 1
    for rank in ranks:
        counts[1:, rank:] += counts[:-1, : counts.shape[1] - rank]
    return counts.sum(axis=0) if size is None else counts[size]


def _differences(values: np.ndarray, others: np.ndarray | None = None) -> np.ndarray:
    """Returns the sorted differences of which the statistic counts the positive ones.

    Those of each pair of runs; without `others` the means of each two of the pairs' differences
    `values`.
    """
    if others is None:
        return np.sort((values[:, None] + values)[np.triu_indices(len(values))] / 2)
    return np.sort((values[:, None] - others).ravel())


@functools.cache
def _untied(num_runs: int, num_others: int | None) -> tuple[int, float]:
    """Returns what holds for scores without ties; without others for pairs.

    Returns:
      How many values of the statistic, from each end, have a p of at most `LEVEL`; and the
      difference of normal scores that has such a p in 80%, in standard deviations.
    """
    counts = _counts(np.arange(1, num_runs + (num_others or 0) + 1), num_runs if num_others else None)
    lowest = num_runs * (num_runs + 1) // 2 if num_others else 0
    cut = int((counts.cumsum() / counts.sum() <= LEVEL / 2).sum()) - lowest
    rng = np.random.default_rng(0)
    # A difference shows from where the pairs below 0 are so few that they are within the lower
    # tail.
    needed = [
        -_differences(rng.normal(size=num_runs), rng.normal(size=num_others) if num_others else None)[cut - 1]
        for _ in range(_DRAWS)
    ]
    return cut, float(np.quantile(needed, _POWER))


def median_interval(values: np.ndarray) -> tuple[Any, Any, float]:
    """Returns the interval of the median of `values` [runs, ...] by order statistics,
    for any distribution.

    Returns:
      Its ends [...], and its coverage: the narrowest with at least 95%, or from the lowest to the
      highest value. NaN for fewer than four runs.
    """
    num_runs = len(values)
    if num_runs < _FEWEST_RUNS:
        nothing = np.full(values.shape[1:], np.nan)
        return nothing, nothing, np.nan
    below = np.cumsum([math.comb(num_runs, k) for k in range(num_runs)]) / 2**num_runs
    cut = max(1, int((below <= LEVEL / 2).sum()))
    ordered = np.sort(values, axis=0)
    return ordered[cut - 1], ordered[-cut], float(1 - 2 * below[cut - 1])


def adjusted(found: Sequence[Verdict]) -> list[Verdict]:
    """Returns verdicts with Holm's p: if it is below 5% for some of them,
    none of these is false in 95%.
    """
    ps, last = [0.0] * len(found), 0.0
    for i, index in enumerate(np.argsort([each.p for each in found])):
        ps[index] = last = max(last, min(1.0, (len(found) - i) * found[index].p))
    return [dataclasses.replace(each, holm=p) for each, p in zip(found, ps, strict=True)]


def false_verdicts(found: Sequence[Verdict]) -> str:
    """Returns the sentence that stands beside verdicts."""
    expected = sum(each.level for each in found)
    return (
        f'Verdicts are at {LEVEL:.0%} each, unadjusted; by their levels, {expected:.2g} false ones '
        f'are to be expected of {len(found)} if no two sides differ.'
    )
