"""What the server of a replay backend is, and how one is started, see `backend`."""

import abc
import contextlib
import dataclasses
import json
import pathlib
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

from absl import logging

from tflearn.core import extras
from tflearn.core.errors import UserValueError
from tflearn.core.table_counts import TableCounts
from tflearn.replay import backend
from tflearn.replay.checkpoints import CheckpointDirectory
from tflearn.replay.storage import TableSpec, signature_text


class Server(abc.ABC):
    """The tables of a run. Serves from its construction until `close`.

    Attributes:
      address: where clients of this machine reach it.
      port: its TCP port; 0 if it has none.
      restored: the checkpoint that it began with, or None.
    """

    address: str
    port: int

    def __init__(
        self,
        tables: Sequence[TableSpec],
        port: int,
        checkpoints: pathlib.Path,
        restore: str | None = None,
        needed: Callable[[], Collection[str]] = tuple,
        address: str = '',
    ):
        """Starts to serve; see `serve`."""
        self._tables, start = tables, time.monotonic()
        self._checkpoints, self._settings = CheckpointDirectory(checkpoints, needed), self._describe()
        if found := self._checkpoints.chosen(restore):
            self._checkpoints.refuse_differences(found, self._settings)
        self._prepare(port, found)
        self._checkpoints.clean()
        self.restored: pathlib.Path | None = self._checkpoints.chosen(restore)
        if self._start(port, address) and self.restored:
            logging.info('restored the replay from %s in %.1f s', self.restored, time.monotonic() - start)
            with contextlib.suppress(TimeoutError):  # it serves, and is busy
                logging.info('restored items: %s', {name: table.size for name, table in self.counts().items()})

    def _describe(self) -> dict[str, Any]:
        """Returns the settings of the tables by name, as JSON values."""
        described = {}
        for table in self._tables:
            settings = {field.name: getattr(table, field.name) for field in dataclasses.fields(table)}
            signature = {name: signature_text(spec) for name, spec in table.signature.items()}
            described[table.name] = settings | {'signature': signature}
        return dict(json.loads(json.dumps(described)))

    def _prepare(self, port: int, found: pathlib.Path | None) -> None:
        """Takes the port and checks the checkpoint to restore, before checkpoints are touched; see `serve`."""
        del port, found

    @abc.abstractmethod
    def _start(self, port: int, address: str) -> bool:
        """Serves the tables, at `address` if there is one; returns whether they have the content of `restored`."""

    @abc.abstractmethod
    def counts(self) -> dict[str, TableCounts]:
        """Returns the counts by table name; raises TimeoutError if the server is too busy to answer."""

    @property
    def has_checkpoint(self) -> bool:
        """Whether there is a complete checkpoint."""
        return self._checkpoints.newest() is not None

    def checkpoint(self) -> str:
        """Writes all tables to disk atomically, and returns the path.

        Raises:
          RuntimeError, IndexError, OSError: if it cannot be written.
        """
        # First, since a checkpoint without its settings would be refused. An older one has the same settings.
        self._checkpoints.write_settings(self._settings)
        self._checkpoints.clean()
        try:
            self._save(self._checkpoints.unfinished)
        finally:
            self._checkpoints.clean()  # The rest of a failed checkpoint would take disk space.
        return str(self._checkpoints.newest())

    @abc.abstractmethod
    def _save(self, folder: pathlib.Path) -> None:
        """Writes all tables into a directory of `folder`, which is empty, and last the file `COMPLETE` there."""

    def prune(self) -> None:
        """Removes the checkpoints that are no longer needed."""
        self._checkpoints.prune()

    @abc.abstractmethod
    def close(self) -> None:
        """Stops the server without a checkpoint."""


def port_error(port: int, reason: str) -> UserValueError:
    """Returns the error for a port on which a server cannot listen."""
    return UserValueError(
        f'got port {port}, on which no replay server can listen ({reason}); need a free port; stop what uses it, or '
        'choose another --replay_address'
    )


def serve(
    tables: Sequence[TableSpec],
    port: int,
    checkpoints: pathlib.Path,
    restore: str | None = None,
    needed: Callable[[], Collection[str]] = tuple,
    kind: str | None = None,
    address: str = '',
) -> Server:
    """Starts a server, with the content of a complete checkpoint if there is one.

    Args:
      port: the TCP port; 0 picks a free one.
      checkpoints: the checkpoints' directory.
      restore: the name of the checkpoint, one of those that are needed; None is the newest.
      needed: returns the names of the checkpoints that are kept besides the newest one.
      kind: the backend's folder; None: Reverb's where it is installed, else Valkey's.
      address: of a server of that kind that runs already, which gets the tables; '' starts one.

    Raises:
      DamagedCheckpoint: if it cannot be read.
      ValueError: if its tables differ from `tables`, or if the port is in use.
    """
    kind = kind or extras.default_replay_backend()
    return backend.module(kind, 'server').ReplayServer(tables, port, checkpoints, restore, needed, address)
