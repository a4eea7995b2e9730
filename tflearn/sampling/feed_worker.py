"""The servers of a feed, which are those of tf.data service: a dispatcher, and workers.

A worker feeds what a source in its own process draws. The graph that tf.data service distributes can only call Python
where the function was registered, under the same name, in the worker's process. So each worker makes the same function
first, and the run's coordinator refuses a worker whose name of it differs.
"""

import contextlib
import functools
import itertools
import pathlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tflearn.core.errors import UserValueError
from tflearn.core.waiting import is_listening
from tflearn.replay.item_reader import Readers, one_by_one
from tflearn.replay.reader import TableReader
from tflearn.sampling.feed_source import Blocks
from tflearn.sampling.source import Source

_POLL_SECS = 0.002
_HEARTBEAT_MS = 1_000
_DISPATCHER_TIMEOUT_MS = 60 * 60 * 1_000  # it waits for a dispatcher that is started again
_BUFFERED = 2  # elements that wait for the learner
_WORKER_TIMEOUT_MS = 5_000
_GC_CHECK_MS = 2_000
_GC_TIMEOUT_MS = 30_000  # after that the readers of a learner that is gone are ended

NextElement = Callable[[], list[np.ndarray]]


class Elements:
    """Elements that a worker feeds. A function without arguments, for many threads.

    Attributes:
      given: what the elements are of; to close it ends a wait.
      count: how many there were.
    """

    def __init__(self, given: Source | Readers, next_element: Callable[[], list[np.ndarray] | None]):
        """Takes what the elements are of, and what returns the next one, None at the end."""
        self.given, self._next, self._lock, self.count = given, next_element, threading.Lock(), 0

    def __call__(self) -> list[np.ndarray]:
        """Returns the next element; waits for it. Raises RuntimeError if there is none, since it was closed."""
        with self._lock:
            element = self._next()
            if element is None:
                raise RuntimeError(str(self.given.error or 'the feed worker is stopped'))
            self.count += 1
            return element


def of_batches(source: Source, blocks: Blocks) -> Elements:
    """Returns elements of a source's batches, which are those of one replica: the columns of `num_steps` of them."""

    def draw(count: tf.Tensor, seed: tf.Tensor) -> list[tf.Tensor]:
        drawn, indices = source.draw(count, seed), tf.range(count)
        if source.takes_indices:
            return blocks.join(*source.batch(drawn, indices))
        spec = tf.nest.map_structure(tf.type_spec_from_value, source.batch(drawn, tf.constant(0, tf.int64)))
        one = functools.partial(source.batch, drawn)
        return blocks.join(*tf.map_fn(one, indices, fn_output_signature=spec))

    scalar, seeds = tf.TensorSpec((), tf.int64), itertools.count(1)
    compiled = tf.function(draw, autograph=False).get_concrete_function(scalar, scalar)

    def element() -> list[np.ndarray] | None:
        parts: list[list[tf.Tensor]] = []
        missing = blocks.num_steps
        while missing:
            granted = source.grant(min(missing, source.max_draw_steps))
            if not granted:
                return None
            parts.append(compiled(tf.constant(granted, tf.int64), tf.constant(next(seeds), tf.int64)))
            missing -= granted
        columns = zip(*parts, strict=True)
        return [part[0].numpy() if len(part) == 1 else np.concatenate(part) for part in columns]

    return Elements(source, element)


def of_items(readers: Sequence[TableReader], blocks: Blocks) -> Elements:
    """Returns elements of the items of queues, as many as there are: rows uint8 [n, T, bytes]. Begins to read."""
    together = Readers(readers)
    for reader in readers:
        reader.start(one_by_one, in_flight=1)

    def element() -> list[np.ndarray] | None:
        while not together.closed:
            items: list[np.ndarray] = []
            for reader in readers:
                count = min(reader.size(), blocks.num_steps - sum(len(item) for item in items))
                if count:
                    items.append(np.asarray(reader.take(count)[0]))
                    reader.resume()
            if items:
                return [np.concatenate(items)]
            readers[0].sleep(_POLL_SECS)
        return None

    return Elements(together, element)


class FeedDataset:
    """An endless dataset of elements that a function returns.

    Attributes:
      function: the name of the function in this process, which must be equal in all workers.
    """

    def __init__(self, blocks: Blocks, next_element: NextElement):
        """Makes the dataset, and reads nothing."""

        def element(index: tf.Tensor) -> Any:
            tensors = tf.numpy_function(lambda _: next_element(), [index], [spec.dtype for spec in blocks.specs])
            return tuple(
                tf.ensure_shape(tensor, spec.shape) for tensor, spec in zip(tensors, blocks.specs, strict=True)
            )

        self._function = tf.function(element, autograph=False).get_concrete_function(tf.TensorSpec((), tf.int64))
        tokens = [op.get_attr('token') for op in self._function.graph.get_operations() if op.type == 'PyFunc']
        self.function, self._id = b' '.join(tokens).decode(), blocks.dataset_id
        options = tf.data.Options()
        options.autotune.enabled = False  # it would add buffers
        options.deterministic = True
        self._dataset = tf.data.Dataset.counter().map(self._function).prefetch(_BUFFERED).with_options(options)

    def register(self, dispatcher: str) -> None:
        """Registers the dataset at a dispatcher, 'host:port'. Again is no error."""
        tf.data.experimental.service.register_dataset(
            f'grpc://{dispatcher}', self._dataset, compression=None, dataset_id=self._id
        )


def start_server(dispatcher: str, host: str, port: int) -> Any:
    """Starts a worker of tf.data service in this process.

    Args:
      dispatcher: the dispatcher's address, 'host:port'.
      host: the name by which learners reach this machine.
      port: 0 takes a free one.
    """
    config = tf.data.experimental.service.WorkerConfig(
        dispatcher_address=dispatcher,
        worker_address=f'{host}:{port}' if port else f'{host}:%port%',
        port=port,
        heartbeat_interval_ms=_HEARTBEAT_MS,
        dispatcher_timeout_ms=_DISPATCHER_TIMEOUT_MS,
    )
    return tf.data.experimental.service.WorkerServer(config)


@contextlib.contextmanager
def dispatching(work_dir: pathlib.Path, port: int) -> Iterator[int]:
    """Runs a dispatcher for the time of the block; gives its port.

    Args:
      work_dir: where it keeps its journal.
      port: 0 takes a free one. After a restart it must be the same.

    Raises:
      ValueError: if it cannot listen there.
    """
    if port and is_listening(f'localhost:{port}'):  # gRPC would share the port with another run's
        raise UserValueError(f'got port {port} for a feed, where a server listens already; need a free port')
    work_dir.mkdir(parents=True, exist_ok=True)
    config = tf.data.experimental.service.DispatcherConfig(
        port=port,
        work_dir=str(work_dir),
        fault_tolerant_mode=True,
        worker_timeout_ms=_WORKER_TIMEOUT_MS,
        job_gc_check_interval_ms=_GC_CHECK_MS,
        job_gc_timeout_ms=_GC_TIMEOUT_MS,
    )
    try:
        server = tf.data.experimental.service.DispatchServer(config)
    except tf.errors.OpError as error:
        raise UserValueError(
            f'got port {port} and the directory {work_dir} for the dispatcher of tf.data service, which does not start '
            f'({error.message}); need a free port, and a journal of this version of TensorFlow; remove the directory'
        ) from error
    try:
        yield int(server.target.rpartition(':')[2])
    finally:
        del server  # which stops it
