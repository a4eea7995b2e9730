"""ReplayServer: a Reverb server with the run's tables, checkpointed and restored."""

import pathlib
import re
import socket
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf import message

from tflearn.core import record_files, stderr
from tflearn.core.errors import UserTimeoutError
from tflearn.core.table_counts import TableCounts
from tflearn.core.waiting import is_listening
from tflearn.replay import servers
from tflearn.replay.checkpoints import damaged
from tflearn.replay.reverb import library
from tflearn.replay.storage import REPLAY, TableSpec

# Reverb's log of a checkpoint that it reads, a line for every hundred chunks. (Reverb has no log level.)
READING = re.compile(r'tfrecord_checkpointer\.cc:\d+\] +(Initializ|Load|Metadata|Success|Still read|Complet|Table )')
_TIMEOUT_MS = 2000


def _hold_port(port: int) -> socket.socket:
    """Takes a port, without listening: from now on only a gRPC server of this user can listen there.

    Refuses a port in use: gRPC would share it, and each job would reach one of two servers at random.
    """
    try:
        holder = socket.socket(socket.AF_INET6)
    except OSError:  # Python has IPv6, this kernel has not
        holder = socket.socket(socket.AF_INET)
    try:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind(('', port))
    except OSError as error:
        holder.close()
        raise servers.port_error(port, error.strerror) from error
    if port and is_listening(f'localhost:{port}'):
        holder.close()
        raise servers.port_error(port, 'Address already in use')
    return holder


def missing_files(checkpoint: pathlib.Path) -> list[str]:
    """Returns the files that a complete checkpoint lacks. Without them Reverb would restore an empty replay."""
    return [name for name in library.CHECKPOINT_FILES if not (checkpoint / name).exists()]


class ReplayServer(servers.Server):
    """The run's Reverb server. Listens on all interfaces, without authentication: keep it in a trusted network.

    See `servers.Server`.
    """

    def _describe(self) -> dict[str, Any]:
        self._made = [library.make_table(table) for table in self._tables]
        return {table.name: library.describe(table) for table in self._made}

    def _prepare(self, port: int, found: pathlib.Path | None) -> None:
        if found and (missing := missing_files(found)):
            raise damaged(found, f'no {", ".join(missing)}')
        self._port_holder = _hold_port(port)

    def _start(self, port: int, address: str) -> bool:
        port = self._port_holder.getsockname()[1]  # Reverb itself would take one that another server may take, too
        try:
            with stderr.without(READING):
                self._server = library.start_server(self._made, port, self._checkpoints.unfinished, self.restored)
        except (RuntimeError, IndexError) as error:
            self._port_holder.close()
            if self.restored is None:
                raise
            raise damaged(self.restored, str(error)) from error
        self.port = self._server.port
        self.address = f'localhost:{self.port}'
        return True

    def _client(self) -> Any:
        # A new one each time: a client of an earlier server on the same port would have a dead connection.
        return library.Client(self.address)

    def counts(self) -> dict[str, TableCounts]:
        """Returns the counts by table name; raises TimeoutError if the server is too busy to answer."""
        try:
            return library.counts(self._client(), 10)
        except library.DeadlineExceededError as error:
            raise UserTimeoutError('timed out after 10 s waiting for the replay server to report its tables') from error

    def _save(self, folder: pathlib.Path) -> None:
        """See `servers.Server`. `folder` is empty: Reverb would keep only the checkpoint with the greatest name.

        Reverb answers, inserts and draws meanwhile: 0.04 s at most in the 41 s of saving 1.5 GB (measured).

        Raises:
          RuntimeError, IndexError: if it cannot be written; for a full disk Reverb raises an IndexError.
        """
        del folder  # which the server was started with
        self._client().checkpoint()

    def close(self) -> None:
        """Stops the server without a checkpoint."""
        self._server.stop()
        self._port_holder.close()


def stored_items(checkpoint: pathlib.Path, names: Sequence[str], at_most: int | None = None) -> list[np.ndarray]:
    """See `backend.stored_items`. A temporary server draws them, which has the checkpoint's items as a queue."""
    if missing := missing_files(checkpoint):
        raise damaged(checkpoint, f'no {", ".join(missing)}')
    with tempfile.TemporaryDirectory() as scratch:
        queue = pathlib.Path(scratch) / checkpoint.name
        queue.mkdir()
        for path in checkpoint.iterdir():
            if path.name not in (library.TABLES_FILE, library.ITEMS_FILE):
                (queue / path.name).symlink_to(path.resolve())
        try:
            num_items = _write_as_queue(checkpoint, queue, is_random=at_most is not None)
            num_items = num_items if at_most is None else min(num_items, at_most)
            return _draw(queue, names, num_items) if num_items else []
        except (tf.errors.DataLossError, message.DecodeError, RuntimeError) as error:  # the last one is Reverb's
            raise damaged(checkpoint, ' '.join(str(error).split())) from error


def _write_as_queue(checkpoint: pathlib.Path, target: pathlib.Path, is_random: bool) -> int:
    """Writes a checkpoint's tables with settings by which each item of the replay table is drawn once.

    Returns:
      The number of its items.
    """
    num_items = 0
    with tf.io.TFRecordWriter(str(target / library.ITEMS_FILE), library.COMPRESSION) as file:
        for record in record_files.read(checkpoint / library.ITEMS_FILE, compression=library.COMPRESSION):
            item = library.PrioritizedItem.FromString(record)
            num_items += item.table == REPLAY
            item.times_sampled = 0  # Reverb removes an item when this is equal to the maximum
            file.write(item.SerializeToString())
    with tf.io.TFRecordWriter(str(target / library.TABLES_FILE), library.COMPRESSION) as file:
        for record in record_files.read(checkpoint / library.TABLES_FILE, compression=library.COMPRESSION):
            table = library.PriorityTableCheckpoint.FromString(record)
            if table.table_name == REPLAY:
                limiter = table.rate_limiter
                limiter.samples_per_insert, limiter.min_size_to_sample = 1.0, 1
                limiter.min_diff, limiter.max_diff = -sys.float_info.max, sys.float_info.max
                table.max_times_sampled = 1
                order = {'uniform': True} if is_random else {'fifo': True}
                table.sampler.CopyFrom(library.KeyDistributionOptions(**order, is_deterministic=not is_random))
            file.write(table.SerializeToString())
    return num_items


def _draw(checkpoint: pathlib.Path, names: Sequence[str], num_items: int) -> list[np.ndarray]:
    """Returns items, uint8 arrays, which a temporary server draws."""
    tables = [library.make_table(TableSpec(name, 1, {})) for name in names]
    with tempfile.TemporaryDirectory() as scratch, stderr.without(READING):
        server = library.start_server(tables, None, pathlib.Path(scratch), checkpoint)
        try:
            dataset = library.all_samples(f'localhost:{server.port}', REPLAY, num_items, _TIMEOUT_MS)
            return [sample.data['chunk'] for sample in dataset.as_numpy_iterator()]
        finally:
            server.stop()
