"""Training and evaluation side by side in this process, with their progress on stderr."""

import concurrent.futures
import contextlib
import logging as standard_logging
import pathlib
import threading
from collections.abc import Callable, Iterator

from absl import logging

from tflearn import waiting

_PACKAGE = str(pathlib.Path(waiting.__file__).parent)


def run(
    training: Callable[[threading.Event, Callable[[], None]], None], evaluation: Callable[[threading.Event], None]
) -> None:
    """Runs both in threads and waits until they have ended. An error of one stops the other, and is raised.

    So does Ctrl-C: training saves a checkpoint before it ends.

    Args:
      training: gets an event that stops it when set, and a function to call once evaluation can begin.
      evaluation: gets the same event.
    """
    stop = threading.Event()
    evaluations: list[concurrent.futures.Future[None]] = []

    def evaluate() -> None:
        try:
            evaluation(stop)
        except BaseException:
            stop.set()
            raise

    with progress_shown(), concurrent.futures.ThreadPoolExecutor(2, 'tflearn') as pool:
        try:
            pool.submit(training, stop, lambda: evaluations.append(pool.submit(evaluate))).result()
            for future in evaluations:
                future.result()
        except BaseException:
            stop.set()
            raise


@contextlib.contextmanager
def progress_shown() -> Iterator[None]:
    """Logs what jobs report to stderr during the block, unless the program has set up its own logging."""
    root, verbosity = standard_logging.getLogger(), logging.get_verbosity()
    if root.handlers:
        yield
        return
    handler = standard_logging.StreamHandler()
    handler.setFormatter(standard_logging.Formatter('%(asctime)s %(message)s', '%H:%M:%S'))
    handler.addFilter(_is_progress)
    root.addHandler(handler)
    logging.set_verbosity(logging.INFO)
    try:
        yield
    finally:
        root.removeHandler(handler)
        logging.set_verbosity(verbosity)


def _is_progress(record: standard_logging.LogRecord) -> bool:
    """Returns whether a record is for the user: a warning, or a report of this package but for its waits."""
    own = record.pathname.startswith(_PACKAGE) and record.pathname != waiting.__file__
    return own or record.levelno > standard_logging.INFO
