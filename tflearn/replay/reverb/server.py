"""ReplayServer: a Reverb server with the run's tables, checkpointed and restored."""

import pathlib
import re
import socket
from typing import Any

from tflearn.core import stderr
from tflearn.core.errors import UserTimeoutError
from tflearn.core.table_counts import TableCounts
from tflearn.core.waiting import is_listening
from tflearn.replay import backend
from tflearn.replay.checkpoints import damaged
from tflearn.replay.reverb import library

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
        raise backend.port_error(port, error.strerror) from error
    if port and is_listening(f'localhost:{port}'):
        holder.close()
        raise backend.port_error(port, 'Address already in use')
    return holder


def missing_files(checkpoint: pathlib.Path) -> list[str]:
    """Returns the files that a complete checkpoint lacks. Without them Reverb would restore an empty replay."""
    return [name for name in library.CHECKPOINT_FILES if not (checkpoint / name).exists()]


class ReplayServer(backend.Server):
    """The run's Reverb server. Listens on all interfaces, without authentication: keep it in a trusted network.

    See `backend.Server`.
    """

    def _describe(self) -> dict[str, Any]:
        self._made = [library.make_table(table) for table in self._tables]
        return {table.name: library.describe(table) for table in self._made}

    def _prepare(self, port: int, found: pathlib.Path | None) -> None:
        if found and (missing := missing_files(found)):
            raise damaged(found, f'no {", ".join(missing)}')
        self._port_holder = _hold_port(port)

    def _start(self, port: int, address: str) -> bool:
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
