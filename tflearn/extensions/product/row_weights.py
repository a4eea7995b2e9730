"""Weights: for how many decisions a row of a log stands, such as one that was kept while others were dropped."""

import numpy as np

from tflearn.core.errors import UserValueError

NAMES = WEIGHT, DROPPED = 'weight', 'drop_probability'  # fields of rows
NEED = {WEIGHT: 'a weight from 1e-09 to 1e+09', DROPPED: 'a probability of at least 0, and below 1'}
_MOST = 1e9


def are_wrong(name: str, values: np.ndarray) -> np.ndarray:
    """Returns which values [N] of one of `NAMES` are none."""
    low, high = (1 / _MOST, _MOST) if name == WEIGHT else (0.0, np.nextafter(1.0, 0.0))
    return ~((values >= low) & (values <= high))


def of_rows(rows: np.ndarray) -> np.ndarray | None:
    """Returns how many decisions each row stands for, float32 [N]; None if the log does not say."""
    names = [name for name in NAMES if name in (rows.dtype.names or ())]
    if not names:
        return None
    weights = rows[WEIGHT] if WEIGHT in names else np.ones(len(rows))
    kept = 1 - rows[DROPPED] if DROPPED in names else np.ones(len(rows))
    # Of a bad row it may be 0.
    return np.divide(weights, kept, out=np.ones(len(rows)), where=kept > 0).astype(np.float32)


def shares(weights: np.ndarray, greatest: float | None, has_clusters: bool) -> np.ndarray | None:
    """Returns the weights of episodes divided by the greatest possible one, which no data say; None if all are 1."""
    if (weights == 1).all():
        return None
    if has_clusters:
        raise UserValueError(
            'got decisions with weights and a cluster; need one of them: how many decisions of a cluster were dropped '
            'nobody knows; subsample clusters as a whole, and import them without weights, or leave out the cluster'
        )
    if greatest is None or weights.max() > np.float32(greatest):
        raise UserValueError(
            f'got decisions with weights from {weights.min():g} to {weights.max():g}, and {greatest or "no number"} as '
            'the greatest possible one; need greatest_weight in the column map, or --greatest_weight: bounds hold for '
            'no greater one'
        )
    return weights.astype(np.float64) / greatest
