"""The progress of jobs that a Python program calls, on its stderr. Programs of tflearn log by themselves."""

import contextlib
import logging as standard_logging
import pathlib
from collections.abc import Callable, Iterator

from absl import logging

from tflearn.core import waiting

_PACKAGE = str(pathlib.Path(__file__).resolve().parents[1])


@contextlib.contextmanager
def printed(unless: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Logs what jobs report to stderr during the block, unless the program has set up its own logging.
    Nothing of the block is logged before or after it: absl would set up logging of its own.

    Args:
      unless: returns whether something else shows it, such as a notebook's view.
    """
    root, verbosity = standard_logging.getLogger(), logging.get_verbosity()
    replaced = root.handlers[:]
    if any(not _is_absls(handler) for handler in replaced) or unless():
        yield
        return
    for own in replaced:
        root.removeHandler(own)
    handler = standard_logging.StreamHandler()
    handler.setFormatter(standard_logging.Formatter('%(asctime)s %(message)s', '%H:%M:%S'))
    handler.addFilter(_is_progress)
    root.addHandler(handler)
    logging.set_verbosity(logging.INFO)
    try:
        yield
    finally:
        root.removeHandler(handler)
        for own in replaced:
            root.addHandler(own)
        logging.set_verbosity(verbosity)


def _is_absls(handler: standard_logging.Handler) -> bool:
    """Returns whether a handler is as absl adds it at its first message, by `logging.basicConfig()`:
    TensorFlow reports by absl that it loads a policy.
    """
    form = getattr(handler.formatter, '_fmt', None)
    return type(handler) is standard_logging.StreamHandler and form == standard_logging.BASIC_FORMAT


def _is_progress(record: standard_logging.LogRecord) -> bool:
    """Returns whether a record is for the user:
    a warning, or a report of this package but for its waits.
    """
    own = record.pathname.startswith(_PACKAGE) and record.pathname != waiting.__file__
    # It prints its own.
    return own or (record.levelno > standard_logging.INFO and record.name != 'tensorflow')
