"""InfoMetrics: the numbers in the environments' info, over their episodes."""

from collections.abc import Mapping

import numpy as np

EXECUTED_ACTION = 'executed_action'  # see `types.BatchedEnvironment.info`; it is data, not a metric


class InfoMetrics:
    """The mean and the last value of each number in every environment's current episode. NaN is a missing value."""

    def __init__(self, num_environments: int):
        """Starts without numbers."""
        self._num_environments = num_environments
        self._seen: frozenset[str] = frozenset()
        self._keys: list[str] = []  # K
        self._sums, self._counts, self._last = np.zeros((3, 0, num_environments))  # [K, B] each

    def add(self, info: Mapping[str, np.ndarray], taken: np.ndarray) -> None:
        """Adds the info of a step.

        Args:
          info: arrays [B, ...], of which numbers [B] are used.
          taken: bool [B], whether the environment made a step.
        """
        if not self._seen.issuperset(info):
            self._add_keys(info)
        if not self._keys:
            return
        values = np.stack([info[key] for key in self._keys]).astype(np.float64)
        valid = taken & ~np.isnan(values)
        np.add(self._sums, values, out=self._sums, where=valid)
        self._counts += valid
        np.copyto(self._last, values, where=valid)

    def begin(self, first: np.ndarray) -> None:
        """Starts a new episode in the environments where `first`, bool [B], is true."""
        if self._keys:
            self._sums[:, first], self._counts[:, first], self._last[:, first] = 0.0, 0.0, np.nan

    def of(self, i: int) -> dict[str, float]:
        """Returns the metrics of environment i's episode: means as 'info/<key>', last values as 'info_end/<key>'."""
        metrics = {}
        for key, total, count, last in zip(
            self._keys, self._sums[:, i].tolist(), self._counts[:, i].tolist(), self._last[:, i].tolist(), strict=True
        ):
            if count:
                metrics[f'info/{key}'], metrics[f'info_end/{key}'] = total / count, last
        return metrics

    def _add_keys(self, info: Mapping[str, np.ndarray]) -> None:
        """Adds rows for new numbers."""
        shape = (self._num_environments,)
        new = [key for key in info if key not in self._seen and key != EXECUTED_ACTION]
        new = [key for key in new if info[key].shape == shape and info[key].dtype.kind in 'biuf']
        self._seen = self._seen.union(info)
        self._keys += new
        zeros = np.zeros((len(new), *shape))
        self._sums, self._counts = np.concatenate([self._sums, zeros]), np.concatenate([self._counts, zeros])
        self._last = np.concatenate([self._last, np.full_like(zeros, np.nan)])
