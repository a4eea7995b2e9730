"""Arrays of bytes that are compressed if they are large and become smaller: the only module that imports zstandard."""

import math
from collections.abc import Sequence

import numpy as np

from tflearn.core import extras
from tflearn.core.errors import UserValueError

_COMPRESSED_BYTES, _LEVEL = 1 << 13, -1  # of zstd; small items are rows of numbers, which hardly shrink


def packed(item: np.ndarray) -> memoryview:
    """Returns the bytes of an array as they are sent and stored: compressed, but if they are few or noise."""
    data = np.ascontiguousarray(item).data.cast('B')
    # Without the package nothing is compressed: environments that were made for an older version go on.
    if len(data) < _COMPRESSED_BYTES or extras.is_missing('zstandard'):
        return data
    import zstandard

    compressed = zstandard.compress(data, _LEVEL)
    return memoryview(compressed) if len(compressed) < len(data) else data


def plain(item: bytes, num_bytes: int) -> bytes:
    """Returns the `num_bytes` bytes of an array: those of `packed`."""
    if len(item) == num_bytes:
        return item
    with extras.needed_by('a replay whose writers compress'):
        import zstandard
    # The size that the bytes claim is what would be allocated.
    if zstandard.frame_content_size(item) != num_bytes:
        raise UserValueError(f'got an item of another size than {num_bytes} bytes; need those of one run on a server')
    return zstandard.decompress(item)


def unpacked(item: bytes, shape: Sequence[int]) -> np.ndarray:
    """Returns the array, uint8, of the bytes of `packed`."""
    return np.frombuffer(plain(item, math.prod(shape)), np.uint8).reshape(shape)
