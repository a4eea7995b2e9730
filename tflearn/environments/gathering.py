"""Gathers observations of environments to a batch. Importable without TensorFlow, as worker processes need it."""

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import concatenate

_DTYPE = operator.attrgetter('dtype')

Gather = Callable[[Sequence[Any]], None]


def gatherer(space: spaces.Space, batch: Any) -> Gather:
    """Returns a function that writes elements of `space` to `batch`, their batched form.

    It does what gymnasium's `concatenate` does, in a third of the time where a nest has many parts.
    """
    if isinstance(space, spaces.Dict | spaces.Tuple):
        keys = list(space.keys()) if isinstance(space, spaces.Dict) else list(range(len(space)))
        parts = [(operator.itemgetter(key), gatherer(space[key], batch[key])) for key in keys]

        def gather_parts(items: Sequence[Any]) -> None:
            for get, gather_part in parts:
                gather_part(list(map(get, items)))

        return gather_parts
    if isinstance(batch, np.ndarray):
        return _array_gatherer(space, batch)

    def gather_any(items: Sequence[Any]) -> None:
        concatenate(space, items, batch)  # of a kind that `spaces` refuses

    return gather_any


def _array_gatherer(space: spaces.Space, batch: np.ndarray) -> Gather:
    shape: Any = space.shape
    flat, sizes, dtypes = batch.reshape(-1, *shape[1:]), set(shape[:1]), {batch.dtype}

    def gather(items: Sequence[Any]) -> None:
        try:
            if not shape:
                array = np.array(items)
                if array.shape == batch.shape:
                    np.copyto(batch, array, casting='same_kind')
                    return
            elif set(map(len, items)) == sizes:
                if len(shape) == 1 and set(map(_DTYPE, items)) == dtypes:
                    flat[:] = np.frombuffer(b''.join(items), batch.dtype)
                else:
                    np.concatenate(items, out=flat)
                return
        except (TypeError, ValueError, AttributeError, BufferError):
            pass
        concatenate(space, items, batch)  # its error says what is wrong

    return gather
