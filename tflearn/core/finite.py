"""FiniteCheck: keeps weights that are not finite from being saved, published or exported."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf


class FiniteCheck:
    """Names values that are not finite. Values that were infinite at the start (in a mask, for example) may stay so."""

    def __init__(self, values: Mapping[str, Any]):
        """
        Args:
          values: arrays or tensors by name, as they are at the start.
        """
        self._allowed = {name for name in _not_finite(values) if not np.isnan(np.asarray(values[name])).any()}

    def __call__(self, values: Mapping[str, Any], what: str) -> None:
        """Checks the values as they are now.

        Args:
          what: what the values are, for the message: 'the weights of train step 100'.

        Raises:
          FloatingPointError: if any value that was finite at the start is not.
        """
        names = [name for name in _not_finite(values) if name not in self._allowed]
        if names:
            more = f' and {len(names) - 1} more' if len(names) > 1 else ''
            raise FloatingPointError(f'got {what} that are not finite, in {names[0]}{more}; need finite values')


def _not_finite(values: Mapping[str, Any]) -> Iterable[str]:
    for name, value in values.items():
        if tf.as_dtype(value.dtype).is_floating and not np.isfinite(np.asarray(value)).all():
            yield name
