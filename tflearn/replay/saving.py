"""SaveTime: how long the next save of the replay will take, so that a stop does not begin one that it cannot end."""

import os
import pathlib
import tempfile
import time
from collections.abc import Callable

from absl import logging

_PROBE_BYTES = 8 << 20


class SaveTime:
    """The time of a save, in proportion to the bytes that the tables hold: as the last one took.

    Before the first save it is the time that the disk needs for as many bytes, by a small file; that is an upper bound
    where the content can be compressed, and a lower one on a machine that is short of processors.
    """

    def __init__(self, directory: pathlib.Path, clock: Callable[[], float] = time.monotonic):
        """Measures the disk.

        Args:
          directory: where saves are written; created if needed.
        """
        self._clock, self._secs_per_byte = clock, 0.0
        start = clock()
        try:
            directory.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=directory) as file:
                file.write(os.urandom(_PROBE_BYTES))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:  # a full disk; the saves will say so
            logging.warning('could not measure how fast %s is written: %s', directory, error.strerror)
            return
        self._secs_per_byte = (clock() - start) / _PROBE_BYTES

    def expected_secs(self, num_bytes: int) -> float:
        """Returns how long a save of tables with so many bytes will take."""
        return num_bytes * self._secs_per_byte

    def measure(self, save: Callable[[], str], num_bytes: int) -> str:
        """Saves, and measures it; returns what `save` returns.

        Args:
          num_bytes: what the tables hold now.
        """
        start = self._clock()
        saved = save()
        secs = self._clock() - start
        logging.info('saved the replay in %.1f s: %s', secs, saved)
        if num_bytes >= _PROBE_BYTES:  # with less the fixed costs count
            self._secs_per_byte = secs / num_bytes
        return saved
