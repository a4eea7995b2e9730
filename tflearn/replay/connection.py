"""Finding the replay server, which may not have started yet or may belong to another run."""

import threading
from typing import Any

import reverb
import tensorflow as tf

from tflearn.errors import UserValueError
from tflearn.waiting import wait_until

_INFO_TIMEOUT_SECS = 2


def own_address(address: str) -> str:
    """Returns another spelling of `address`, so that its connection is not shared with the rest of the process.

    gRPC shares connections by the spelling, and with them the reconnect delay, which grows up to two minutes while any
    thread tries to reach a server that is down.
    """
    host, _, port = address.rpartition(':')
    return f'{host}:0{port}'


def server_info(address: str) -> dict[str, Any] | None:
    """Returns `reverb.TableInfo` by table name; None if no server answers at `address`."""
    try:
        return reverb.Client(own_address(address)).server_info(timeout=_INFO_TIMEOUT_SECS)
    except (reverb.errors.DeadlineExceededError, RuntimeError):
        return None


def wait_for_table(
    address: str,
    table: str,
    signature: dict[str, tf.TensorSpec],
    timeout_secs: float,
    stop: threading.Event | None = None,
) -> None:
    """Waits until the replay server answers, and checks its table's signature.

    Args:
      address: the replay server's address, 'host:port'.
      table: the table's name.
      signature: the signature that this job writes or reads.
      timeout_secs: how long to wait.
      stop: ends the wait when set.

    Raises:
      TimeoutError: if no server answers in time.
      ValueError: if the server has no such table, or its signature differs: the two jobs use different configurations.
    """
    info = wait_until(lambda: server_info(address), f'the replay server at {address}', timeout_secs, stop)
    if table not in info:
        raise UserValueError(f'got a replay server at {address} with tables {sorted(info)}; need the table {table!r}')
    theirs = {key: _text(spec) for key, spec in info[table].signature.items()}
    ours = {key: _text(spec) for key, spec in signature.items()}
    if theirs != ours:
        raise UserValueError(
            f'got table {table!r} at {address} with {theirs}; this job needs {ours}; start both with the same gin file'
        )


def _text(spec: tf.TensorSpec) -> str:
    return f'{spec.dtype.name}{list(spec.shape)} {spec.name or ""}'.strip()
