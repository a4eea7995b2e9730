"""TFRecord files: their records, one by one.

A record has its length and a checksum of that, its content and a checksum of that.
"""

import gzip
import inspect
import os
import pathlib
import shutil
import struct
import tempfile
import zlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

_HEADER_BYTES, _FOOTER_BYTES = 12, 4
FRAME_BYTES = _HEADER_BYTES + _FOOTER_BYTES  # of a record, besides its content
# Of a record in a compressed file, of which a thousandth may be on disk.
MAX_COMPRESSED_RECORD_BYTES = 1 << 30

# A tf.data.TFRecordDataset takes several times as long. The function itself logs nothing, its
# wrapper that it is old.
_read_records = inspect.unwrap(tf.compat.v1.io.tf_record_iterator)


def read(path: pathlib.Path, offset: int = 0, compression: str = '') -> Iterator[bytes]:
    """Yields the records of a file.

    Args:
      path: the file.
      offset: where the first record begins [bytes]; 0 for a compressed file.
      compression: '', 'GZIP' or 'ZLIB'.

    Raises:
      OpError, OSError: at a damaged record, and for a file that cannot be read.
    """
    if offset:  # TensorFlow reads from the beginning of a file only
        with tempfile.TemporaryDirectory() as folder:
            rest = pathlib.Path(folder, path.name)
            with path.open('rb') as file, rest.open('wb') as copy:
                file.seek(offset)
                shutil.copyfileobj(file, copy)
            yield from read(rest)
        return
    records: Any = _read_records(str(path), tf.io.TFRecordOptions(compression))
    if compression != 'ZLIB':  # that of Reverb's own checkpoints
        for _, record in zip(lengths(path, compressed=bool(compression)), records, strict=False):
            yield record
    yield from records


def lengths(path: pathlib.Path, offset: int = 0, compressed: bool = False) -> Iterator[int]:
    """Yields the lengths of a file's records, by their headers.

    Args:
      path: the file.
      offset: where the first record begins [bytes]; 0 for a compressed file.
      compressed: whether gzip has compressed the file.

    Raises:
      DataLossError: for more than the file has, or than a compressed one may have: TensorFlow would
        make room for it before it looks at a checksum, and end the process.
      OSError: if the file cannot be read.
    """
    size = path.stat().st_size
    with gzip.open(path) if compressed else path.open('rb') as file:
        file.seek(offset)
        try:
            while len(header := file.read(_HEADER_BYTES)) == _HEADER_BYTES:
                length = int(struct.unpack('<Q', header[:8])[0])
                if compressed and length > MAX_COMPRESSED_RECORD_BYTES:
                    raise _damage(f'a record of {length} bytes; need at most {MAX_COMPRESSED_RECORD_BYTES}')
                if not compressed and file.tell() + length > size:
                    raise _damage(f'a record of {length} bytes in a file of {size}')
                yield length
                file.seek(length + _FOOTER_BYTES, os.SEEK_CUR)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise _damage(str(error)) from error


def _damage(what: str) -> tf.errors.DataLossError:
    return tf.errors.DataLossError(None, None, f'corrupted: {what}')
