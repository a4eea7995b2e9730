"""ItemReader: what reads the items at an address. Readers: several of them."""

import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import ClassVar

import tensorflow as tf
from absl import logging

from tflearn.core import background
from tflearn.core.errors import UserTimeoutError
from tflearn.core.waiting import LOG_EVERY_SECS

_CLOSE_SECS = 1.0

Prepare = Callable[[tf.data.Dataset], tf.data.Dataset]
# For functions of datasets: AutoGraph would read their source in its file, where another one may stand by then.
unconverted = tf.autograph.experimental.do_not_convert


class ItemReader:
    """Hands out the items of a table, in their order.

    Attributes:
      reads_ahead: whether items are read on threads before anybody asks for them.
      takes_in_graphs: whether `take` is also for a graph.
      error: why there are no more data; None if there are, or if it was closed.
    """

    reads_ahead: ClassVar[bool] = True
    takes_in_graphs = False

    def __init__(self, address: str, table: str, timeout_secs: float = math.inf):
        """Reads nothing before `start`; gives up when a caller has waited so long for data."""
        self._address, self._table, self._timeout_secs = address, table, timeout_secs
        self._closed = threading.Event()
        self._threads: list[background.Thread] = []
        self._waits_since: float | None = None
        self._next_log_secs = LOG_EVERY_SECS
        self.error: Exception | None = None

    def start(self, prepare: Prepare, in_flight: int, num_streams: int = 1) -> None:
        """Begins to read.

        Args:
          prepare: converts the table's `backend.Sample`s to elements.
          in_flight: the number of items that the server may send ahead on each stream.
          num_streams: streams that are read at the same time and divide the items among them.
        """
        raise NotImplementedError

    def size(self) -> int:
        """Returns the number of items that can be taken at once."""
        raise NotImplementedError

    def take(self, count: tf.Tensor | int) -> list[tf.Tensor]:
        """Returns the next `count` items, stacked; there must be as many."""
        raise NotImplementedError

    @property
    def closed(self) -> bool:
        """Whether the reader was closed."""
        return self._closed.is_set()

    def wait(self, secs: float) -> None:
        """Waits for `secs`, as a caller that cannot continue without data: the deadline counts until `resume`.

        Logs every ten seconds what it waits for. At the deadline it sets `error`, and closes the reader.
        """
        if (since := self._waits_since) is None:
            self._waits_since = since = time.monotonic()
            self._next_log_secs = LOG_EVERY_SECS
        waited_secs = time.monotonic() - since
        try:
            if waited_secs >= self._timeout_secs:
                what = f'data from {self._server_state()}'
                raise UserTimeoutError(f'timed out after {waited_secs:.0f} s waiting for {what}')
            if waited_secs >= self._next_log_secs:
                self._next_log_secs += LOG_EVERY_SECS
                logging.info('waiting for data (%.0f s) from %s', waited_secs, self._server_state())
        except Exception as error:  # whoever waits finds it there
            self.error = error
            self.close()
        self._closed.wait(secs)

    def _server_state(self) -> str:
        """Returns what it waits for, and how that is."""
        return self._address

    @property
    def is_waited_for(self) -> bool:
        """Whether a caller cannot continue without data."""
        return self._waits_since is not None

    def sleep(self, secs: float) -> None:
        """Waits for `secs`, or until the reader is closed."""
        self._closed.wait(secs)

    def resume(self) -> None:
        """Records that data arrived, which ends the wait that `wait` began."""
        self._waits_since = None

    def stop(self) -> None:
        """Ends all waits. May be called from any thread."""
        self._closed.set()

    def close(self) -> None:
        """Stops reading at the next item, and waits a little for that. May be called from any thread."""
        Readers([self]).close()


class Readers:
    """Readers of several servers, which are waited for and closed together."""

    def __init__(self, readers: Sequence[ItemReader]):
        """Takes readers that have not begun, or have."""
        self.each = tuple(readers)

    @property
    def error(self) -> Exception | None:
        """Why there are no more data; None if there are, or if they were closed."""
        return next((reader.error for reader in self.each if reader.error), None)

    @property
    def closed(self) -> bool:
        """Whether one was closed, or its server gave no data in time."""
        return any(reader.closed for reader in self.each)

    def wait(self, secs: float) -> None:
        """See `ItemReader.wait`."""
        for reader in self.each:
            reader.wait(secs / len(self.each))

    def resume(self) -> None:
        """See `ItemReader.resume`."""
        for reader in self.each:
            reader.resume()

    def close(self) -> None:
        """Closes all, and waits for them together, while their servers are still up: see `ItemReader.close`."""
        closing = [reader for reader in self.each if not reader.closed]
        for reader in closing:
            reader.stop()
        deadline = time.monotonic() + _CLOSE_SECS
        for reader in closing:
            if reader._threads and threading.current_thread() not in reader._threads:
                for thread in reader._threads[:]:  # a stream would wait for a lost server forever
                    thread.join(max(0.0, deadline - time.monotonic()))


def one_by_one(samples: tf.data.Dataset) -> tf.data.Dataset:
    """Returns single items, without additional buffers; see `ItemReader.start`."""
    return unbuffered(samples.map(unconverted(lambda sample: sample.data['chunk'])))


def unbuffered(elements: tf.data.Dataset) -> tf.data.Dataset:
    """Returns a dataset that reads no further ahead than it says: TensorFlow would add buffers."""
    options = tf.data.Options()
    options.autotune.enabled = False
    return elements.with_options(options)
