"""What a replay backend is, and where backends are found: each is a folder of this package. Shards of a run.

A backend has two halves. A *client* reaches the tables of one server: it writes, streams and scans items, and reports
counts. A *server* (`servers`) holds the tables, saves them and restores them. What they must get right is in
tests/replay/conformance_test.py.

`Shards` are the replay servers of a run, as one replay. Each holds what its writers send it, and is saved and restored
alone.
"""

import abc
import dataclasses
import hashlib
import importlib
import pathlib
import threading
from collections.abc import Generator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tflearn.core import waiting
from tflearn.core.errors import UserImportError, UserRuntimeError, UserValueError
from tflearn.core.table_counts import TableCounts
from tflearn.replay.storage import REPLAY, Storage, signature_text

REVERB, VALKEY = 'reverb', 'valkey'
VALKEY_FILE = 'items.bin'  # a file of its checkpoints, and of no others
_SCHEMES = {'valkey': VALKEY, 'valkeys': VALKEY}
_COUNTS_TIMEOUT_SECS = 2


class ItemInfo(NamedTuple):
    """What is known of a drawn item; `key` is what `Client.update` takes."""

    key: tf.Tensor
    probability: tf.Tensor
    table_size: tf.Tensor
    priority: tf.Tensor


class Sample(NamedTuple):
    """A drawn item, the element of a stream."""

    info: ItemInfo
    data: Mapping[str, tf.Tensor]


class Lost(ConnectionError):
    """The server of a connection is gone."""


class Writer(abc.ABC):
    """Sends items in order on one connection. For one thread."""

    @abc.abstractmethod
    def insert(self, items: Sequence[np.ndarray], tables: Sequence[Sequence[str]], priority: float) -> None:
        """Sends items to the tables that are named for each; never waits for the server to confirm them.

        The arrays must stay as they are until the server has them.
        """

    @abc.abstractmethod
    def flush(self, num_unconfirmed: int, timeout_secs: float) -> bool:
        """Waits until at most so many items are not in the tables; returns whether that was so in time.

        Raises:
          Lost: if they will never be, since the server is gone. (It may also be gone if nothing is raised.)
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Ends the connection."""


class Client(abc.ABC):
    """Reaches the server at one address. For many threads.

    Attributes:
      has_stream: whether queues are read by `stream`; otherwise by `samples`.
    """

    has_stream = False

    def __init__(self, address: str):
        """Connects with the first call."""
        self.address = address

    def is_listening(self) -> bool:
        """Returns whether anything listens at the address."""
        return waiting.is_listening(self.address)

    @abc.abstractmethod
    def counts(self, timeout_secs: int) -> dict[str, TableCounts] | None:
        """Returns the counts by table name; None if the server does not answer in time."""

    @abc.abstractmethod
    def writer(self) -> Writer:
        """Opens a connection for items."""

    def samples(self, table: str, item_shape: Sequence[int], in_flight: int, timeout_ms: int) -> tf.data.Dataset:
        """Returns the drawn items of a table, as `Sample`s, until none comes for `timeout_ms`; -1 waits without an end.

        Args:
          item_shape: the shape of an item's column 'chunk', of bytes.
          in_flight: the number of items that the server may send ahead. If it is 1, a timeout loses none.
        """
        raise UserRuntimeError(f'got draws from the table {table!r} at {self.address}; need a server that draws')

    def stream(self, table: str, item_shape: Sequence[int], at_most: int) -> Generator[np.ndarray, None, None]:
        """Yields the items of a queue, each once and in order, `at_most` so many at a time.

        Yields:
          uint8 [n, *item_shape]; n may be 0, and is so about once a second while there are none.

        Raises:
          Lost: if the server is gone.
        """
        raise NotImplementedError

    def scan(self, storage: Storage, table: str, timeout_secs: float, stop: threading.Event) -> list[np.ndarray]:
        """Returns the items of a table in arbitrary order, each owning its memory, and leaves them there.

        A few may be there twice, or be missing if they were inserted or removed meanwhile.

        Args:
          timeout_secs: how long to wait for the server's first or next answer.

        Raises:
          TimeoutError: if the server did not answer in time.
          Stopped: if `stop` is set.
        """
        raise NotImplementedError

    def update(self, table: str, priorities: Mapping[int, float]) -> None:
        """Sets priorities of items by key, and ignores items that are gone; raises RuntimeError if that fails."""
        raise UserRuntimeError(f'got priorities for the table {table!r} at {self.address}; need a server that draws')


def kind_of(address: str, otherwise: str) -> tuple[str, str]:
    """Returns the backend of a replay server's address, and the address if it is that of a server that runs already."""
    scheme, separator, _ = address.partition('://')
    return (_SCHEMES.get(scheme, otherwise), address) if separator else (otherwise, '')


def connect(address: str) -> Client:
    """Returns a client of the server at `address`; nothing is asked yet."""
    return module(kind_of(address, REVERB)[0], 'client').Client(address)


def stored_items(checkpoint: pathlib.Path, names: Sequence[str], at_most: int | None = None) -> list[np.ndarray]:
    """Returns items of a checkpoint's replay table once: all, the oldest first, or a number of them at random.

    Args:
      checkpoint: its directory. Nothing is written there.
      names: the names of all of its tables.

    Raises:
      DamagedCheckpoint: if it cannot be read.
    """
    kind = VALKEY if (checkpoint / VALKEY_FILE).exists() else REVERB
    return module(kind, 'server').stored_items(checkpoint, names, at_most)


def module(kind: str, name: str) -> Any:
    """Returns a module of a backend's folder, which is imported only where it is used."""
    try:
        return importlib.import_module(f'tflearn.replay.{kind}.{name}')
    except ModuleNotFoundError as error:
        raise UserImportError(
            f'got no backend {kind!r} of the replay ({error}); need tflearn/replay/{kind} for replay servers; install '
            f'all of tflearn, with its extra [{kind}] if it has one, or train in one process (tflearn synchronous, '
            'tflearn train-offline)'
        ) from error


def counts(address: str, timeout_secs: int = _COUNTS_TIMEOUT_SECS) -> dict[str, TableCounts] | None:
    """Returns the counts by table name; None if no server answers at `address` in time."""
    return connect(address).counts(timeout_secs)


def answers(address: str) -> bool:
    """Returns whether the server answers within a second."""
    return counts(address, 1) is not None


def first_answering(addresses: Sequence[str]) -> str | None:
    """Returns the first address at which a server answers; None if there is none."""
    return next((each for each in addresses if connect(each).is_listening() and counts(each)), None)


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
    found = waiting.wait_until(lambda: counts(address), f'the replay server at {address}', timeout_secs, stop)
    if table not in found:
        raise UserValueError(f'got a replay server at {address} with tables {sorted(found)}; need the table {table!r}')
    theirs = {key: signature_text(spec) for key, spec in found[table].signature.items()}
    ours = {key: signature_text(spec) for key, spec in signature.items()}
    if theirs != ours:
        raise UserValueError(
            f'got table {table!r} at {address} with {theirs}; this job needs {ours}; start both with the same gin file'
        )


@dataclasses.dataclass(frozen=True)
class Shards:
    """The addresses of a run's replay servers, 'host:port' each, by index; '' is one that is not known."""

    addresses: tuple[str, ...]

    def __post_init__(self) -> None:
        known = [address for address in self.addresses if address]
        if not known or len(set(known)) < len(known):
            raise UserValueError(f'got replay servers at {", ".join(self.addresses)!r}; need addresses that differ')

    def ranked(self, name: str) -> tuple[str, ...]:
        """Returns the addresses in the order in which the writer `name` prefers them.

        Rendezvous hashing (Thaler and Ravishankar 1998, "Using name-based mappings to increase hit rates"): each writer
        has a random order of its own. So the writers of a lost shard are divided among all others, and no other writer
        moves.
        """
        shards = sorted(range(len(self.addresses)), key=lambda i: _weight(name, i), reverse=True)
        return tuple(self.addresses[i] for i in shards if self.addresses[i])

    def of_pipeline(self, pipeline: int, num_pipelines: int) -> tuple[str, ...]:
        """Returns the addresses of the shards whose tables an input pipeline reads when its mirror is filled.

        Each shard belongs to one pipeline. Only if there are fewer shards than pipelines, several read the same one.
        """
        if len(self.addresses) < num_pipelines:
            return (self.addresses[pipeline % len(self.addresses)],)
        return self.addresses[pipeline::num_pipelines]

    def wait(self, storage: Storage, timeout_secs: float, stop: threading.Event | None = None) -> None:
        """Waits for all shards, see `backend.wait_for_table`."""
        for address in self.addresses:
            wait_for_table(address, REPLAY, storage.signature, timeout_secs, stop)


def check_shards(storage: Storage, num_shards: int) -> None:
    """Raises a ValueError if there are several shards, and their items cannot be drawn together."""
    replay = storage.experience.replay
    if num_shards > 1 and not storage.can_be_sharded:
        raise UserValueError(
            f'got {num_shards} replay servers with Experience.replay={replay!r}, from which the servers draw; need '
            "Prioritized, a Queue, or Uniform that the learner draws from (sampling='learner', and enough "
            'max_mirror_gb), or one server'
        )


def check_draws(storage: Storage, kind: str) -> None:
    """Raises a ValueError if servers of Valkey, which draw nothing, would have to."""
    replay = storage.experience.replay
    if kind != VALKEY or storage.mirrored or not replay.learns_from_old_items:
        return
    names = 'sampling', 'max_mirror_gb', 'max_times_sampled'
    settings = ', '.join(f'{name}={getattr(replay, name)!r}' for name in names)
    raise UserValueError(
        f'got {type(replay).__name__}({settings}) and a mirror of {storage.mirror_bytes / 1e9:.3g} GB, so that the '
        f"replay server draws, as Valkey cannot; need --replay_backend={REVERB} for that; or sampling='learner' with "
        'max_times_sampled=0, for which the learner has memory for the mirror; a smaller max_size makes it smaller'
    )


def _weight(name: str, shard: int) -> bytes:
    # By the index, since ports may differ after a restart of the run.
    return hashlib.blake2b(f'{name}/{shard}'.encode(), digest_size=8).digest()
