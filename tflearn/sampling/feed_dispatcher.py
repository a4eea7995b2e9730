"""The feed's dispatcher: that of tf.data service, and the HTTP server beside it.

It keeps what it knows in a directory, so that after a restart workers and learners go on where they were.
"""

import contextlib
import pathlib
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow as tf
from absl import logging

from tflearn.core.errors import UserValueError
from tflearn.sampling.feed_server import FeedServer

_REPORT_SECS = 1.0
_WORKER_TIMEOUT_MS = 5_000
_GC_CHECK_MS = 2_000
_GC_TIMEOUT_MS = 30_000  # after that the readers of a learner that is gone are ended


@contextlib.contextmanager
def dispatching(work_dir: pathlib.Path, port: int) -> Iterator[int]:
    """Runs a dispatcher for the time of the block; gives its port.

    Args:
      work_dir: where it keeps its journal.
      port: 0 takes a free one. After a restart it must be the same.

    Raises:
      ValueError: if it cannot listen there.
    """
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


def serve(
    address: tuple[str, int],
    dispatcher: str,
    report: Callable[[Mapping[str, Any]], object],
    stop: threading.Event,
) -> None:
    """Serves the contract until `stop` is set.

    Args:
      address: the host to listen at, '' for all networks, and the port.
      dispatcher: the address of the dispatcher for workers and learners, 'host:port'.
      report: called every second with what GET /v1/feed answers.

    Raises:
      ValueError: if it cannot listen there.
    """
    with contextlib.closing(FeedServer(*address, dispatcher)) as server:
        logging.info('feeds learners at port %d, by the dispatcher at %s', server.port, dispatcher)
        while not stop.wait(_REPORT_SECS):
            report(server.state())
