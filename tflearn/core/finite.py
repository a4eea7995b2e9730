"""finite_check: keeps weights that are not finite from being saved, published or exported."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf


def finite_check(start: Mapping[str, Any]) -> Callable[[Mapping[str, Any], str], None]:
    """Returns a check of values. Those that were infinite at the start (in a mask, for example) may stay so.

    Args:
      start: arrays or tensors by name, as they are at the start.

    Returns:
      A function of the values as they are now, and of what they are ('the weights of train step
      100'), which raises FloatingPointError if any value that was finite at the start is not.
    """
    allowed = {name for name in _not_finite(start) if not np.isnan(np.asarray(start[name])).any()}

    def check(values: Mapping[str, Any], what: str) -> None:
        names = [name for name in _not_finite(values) if name not in allowed]
        if names:
            more = f' and {len(names) - 1} more' if len(names) > 1 else ''
            raise FloatingPointError(f'got {what} that are not finite, in {names[0]}{more}; need finite values')

    return check


def _not_finite(values: Mapping[str, Any]) -> Iterable[str]:
    for name, value in values.items():
        if tf.as_dtype(value.dtype).is_floating and not np.isfinite(np.asarray(value)).all():
            yield name
