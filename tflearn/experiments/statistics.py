"""Statistics of several runs: interquartile means, bootstrap intervals, the probability of improvement.

The measures are those of Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice"
(arXiv 2108.13264). The runs of one problem are drawn again; nothing else is random.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

_DRAWS = 2_000
_LEVEL = 0.95
_CUT = 0.25  # of the values, at each end

Interval = tuple[Any, Any]  # lower and upper end


def interquartile_mean(values: np.ndarray) -> Any:
    """Returns the mean of the middle half of float `values` [runs, ...] over the runs [...].

    A quarter of the values, rounded down, is left out at each end, so up to three runs it is the mean.
    """
    cut = int(_CUT * len(values))
    return np.sort(values, axis=0)[cut : len(values) - cut].mean(axis=0)


def interval(values: np.ndarray, measure: Callable[[np.ndarray], Any] = interquartile_mean) -> Interval:
    """Returns the ends [...] of the 95% percentile bootstrap interval of a measure of `values` [runs, ...]."""
    rng = np.random.default_rng(0)
    return _ends([measure(values[rng.integers(len(values), size=len(values))]) for _ in range(_DRAWS)])


def probability_of_improvement(values: np.ndarray, others: np.ndarray) -> tuple[float, float, float]:
    """Returns how often a run of `values` [runs] is better than one of `others` [runs], and that number's 95% interval.

    Each pair of runs counts 1, or 1/2 where they are equal: the Mann-Whitney statistic U divided by the pairs.
    """
    rng = np.random.default_rng(0)

    def drawn(of: np.ndarray) -> np.ndarray:
        return of[rng.integers(len(of), size=len(of))]

    low, high = _ends([_improvement(drawn(values), drawn(others)) for _ in range(_DRAWS)])
    return float(_improvement(values, others)), float(low), float(high)


def _improvement(values: np.ndarray, others: np.ndarray) -> np.ndarray:
    return 0.5 + 0.5 * np.sign(values[:, None] - others).mean()


def _ends(drawn: list[np.ndarray]) -> Interval:
    low, high = np.quantile(np.stack(drawn), [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2], axis=0)
    return low, high
