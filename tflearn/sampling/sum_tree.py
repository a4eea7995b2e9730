"""SumTree: numbers whose indices are drawn in proportion to them. Only numpy."""

import numpy as np

_BRANCHES = 16  # fewer levels than a binary tree, each of which is a few calls of numpy for all draws


class SumTree:
    """Priorities and their sums, level by level (Schaul et al. 2016, arXiv 1511.05952, appendix B.2.1).

    Each sum is computed from the numbers below it, so that rounding errors do not accumulate.

    It differs from the paper in two ways: nodes have 16 children, and draws are independent of each other, not one from
    each of several equal ranges.
    """

    def __init__(self, size: int):
        """Makes a tree of `size` zeros."""
        self._levels: list[np.ndarray] = []  # float64 [n, 16], leaves first
        while True:
            size = -(-size // _BRANCHES)
            self._levels.append(np.zeros((size, _BRANCHES)))
            if size == 1:
                break

    @property
    def total(self) -> float:
        """The sum of all numbers."""
        return float(self._levels[-1].sum())

    def get(self, indices: np.ndarray) -> np.ndarray:
        """Returns the numbers float64 [n] at `indices` int64 [n]."""
        return self._levels[0].reshape(-1)[indices]

    def set(self, indices: np.ndarray, values: np.ndarray | float) -> None:
        """Sets the numbers at `indices` int64 [n], each finite and at least 0; of equal indices the last one counts."""
        self._levels[0].reshape(-1)[indices] = values
        for below, above in zip(self._levels, self._levels[1:], strict=False):
            indices = indices // _BRANCHES  # equal ones get the same sum
            above.reshape(-1)[indices] = below[indices].sum(axis=1)

    def find(self, shares: np.ndarray) -> np.ndarray:
        """Returns indices int64 [n] with numbers above 0, at given shares of the total, which is above 0.

        Args:
          shares: float64 [n], in [0, 1); uniform ones draw indices in proportion to their numbers.
        """
        indices, rest = np.zeros(len(shares), np.int64), shares * self.total
        rows = np.arange(len(shares))
        for level in reversed(self._levels):
            sums = level[indices]
            ends = np.cumsum(sums, axis=1)
            # Not behind the last child above 0, where rounding would lead.
            last = _BRANCHES - 1 - np.argmax(sums[:, ::-1] > 0, axis=1)
            child = np.minimum((ends <= rest[:, None]).sum(axis=1), last)
            rest = rest - np.where(child > 0, ends[rows, child - 1], 0.0)
            indices = indices * _BRANCHES + child
        return indices
