"""ReplayServer: a Reverb server with the run's tables, checkpointed and restored."""

import pathlib
import re
import socket
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

from absl import logging

from tflearn.core import stderr
from tflearn.core.errors import UserTimeoutError, UserValueError
from tflearn.core.table_counts import TableCounts
from tflearn.core.waiting import is_listening
from tflearn.replay import backend
from tflearn.replay.checkpoints import CheckpointDirectory, damaged
from tflearn.replay.reverb import library
from tflearn.replay.tables import TableSpec

# Reverb's log of a checkpoint that it reads, a line for every hundred chunks. (Reverb has no log level.)
READING = re.compile(r'tfrecord_checkpointer\.cc:\d+\] +(Initializ|Load|Metadata|Success|Still read|Complet|Table )')


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
        raise _port_error(port, error.strerror) from error
    if port and is_listening(f'localhost:{port}'):
        holder.close()
        raise _port_error(port, 'Address already in use')
    return holder


def _port_error(port: int, reason: str) -> UserValueError:
    return UserValueError(
        f'got port {port}, on which no replay server can listen ({reason}); need a free port; stop what uses it, or '
        'choose another --replay_address'
    )


def missing_files(checkpoint: pathlib.Path) -> list[str]:
    """Returns the files that a complete checkpoint lacks. Without them Reverb would restore an empty replay."""
    return [name for name in library.CHECKPOINT_FILES if not (checkpoint / name).exists()]


class ReplayServer(backend.Server):
    """The run's Reverb server. Listens on all interfaces, without authentication: keep it in a trusted network.

    See `backend.Server`.
    """

    def __init__(
        self,
        tables: Sequence[TableSpec],
        port: int,
        checkpoints: pathlib.Path,
        restore: str | None = None,
        needed: Callable[[], Collection[str]] = tuple,
    ):
        super().__init__(CheckpointDirectory(checkpoints, needed))
        start = time.monotonic()
        made = [library.make_table(table) for table in tables]
        self._settings = {table.name: library.describe(table) for table in made}
        if restored := self._checkpoints.chosen(restore):
            self._checkpoints.refuse_differences(restored, self._settings)
            if missing := missing_files(restored):
                raise damaged(restored, f'no {", ".join(missing)}')
        self._port_holder = _hold_port(port)
        self._checkpoints.clean()
        restored = self.restored = self._checkpoints.chosen(restore)
        self._server = self._start(made, port, restored)
        self.port = self._server.port
        self.address = f'localhost:{self.port}'
        if restored:
            sizes = {name: table.size for name, table in self.counts().items()}
            secs = time.monotonic() - start
            logging.info('restored the replay from %s in %.1f s: items %s', restored, secs, sizes)

    def _start(self, tables: Sequence[Any], port: int, restored: pathlib.Path | None) -> Any:
        try:
            with stderr.without(READING):
                return library.start_server(tables, port, self._checkpoints.unfinished, restored)
        except (RuntimeError, IndexError) as error:
            self._port_holder.close()
            if restored is None:
                raise
            raise damaged(restored, str(error)) from error

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
        """See `backend.Server`. `folder` is empty: Reverb would keep only the checkpoint with the greatest name.

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
