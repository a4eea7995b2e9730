"""What jobs ask replay servers, which may not have started yet or may belong to another run."""

import threading
from collections.abc import Sequence

import tensorflow as tf

from tflearn.core.errors import UserValueError
from tflearn.core.table_counts import TableCounts
from tflearn.core.waiting import wait_until
from tflearn.replay import backend
from tflearn.replay.tables import signature_text

_COUNTS_TIMEOUT_SECS = 2


def counts(address: str, timeout_secs: int = _COUNTS_TIMEOUT_SECS) -> dict[str, TableCounts] | None:
    """Returns the counts by table name; None if no server answers at `address` in time."""
    return backend.connect(address).counts(timeout_secs)


def answers(address: str) -> bool:
    """Returns whether the server answers within a second."""
    return counts(address, 1) is not None


def first_answering(addresses: Sequence[str]) -> str | None:
    """Returns the first address at which a server answers; None if there is none."""
    return next((each for each in addresses if backend.connect(each).is_listening() and counts(each)), None)


def wait_for_table(
    address: str,
    table: str,
    signature: dict[str, tf.TensorSpec],
    timeout_secs: float,
    stop: threading.Event | None = None,
) -> None:
    """Waits until the replay server answers, and checks its table's signature.

    Args:
      signature: the signature that this job writes or reads.

    Raises:
      TimeoutError: if no server answers in time.
      ValueError: if the server has no such table, or its signature differs: the two jobs use different configurations.
    """
    found = wait_until(lambda: counts(address), f'the replay server at {address}', timeout_secs, stop)
    if table not in found:
        raise UserValueError(f'got a replay server at {address} with tables {sorted(found)}; need the table {table!r}')
    theirs = {key: signature_text(spec) for key, spec in found[table].signature.items()}
    ours = {key: signature_text(spec) for key, spec in signature.items()}
    if theirs != ours:
        raise UserValueError(
            f'got table {table!r} at {address} with {theirs}; this job needs {ours}; start both with the same gin file'
        )
