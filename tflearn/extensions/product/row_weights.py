"""Weights: for how many decisions a row of a log stands, such as one that was kept while others were dropped."""

import numpy as np

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
    weights, kept = np.ones((2, len(rows)))
    if WEIGHT in names:
        weights = rows[WEIGHT]
    if DROPPED in names:
        kept = 1 - rows[DROPPED]
    # Of a bad row it may be 0.
    return np.divide(weights, kept, out=np.ones(len(rows)), where=kept > 0).astype(np.float32)
