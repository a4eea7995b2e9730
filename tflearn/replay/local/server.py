"""ReplayServer: tables in this process, saved to and restored from checkpoints."""

import contextlib
import dataclasses
import itertools
import json
import pathlib
import zipfile
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import numpy as np

from tflearn.core.errors import UserValueError
from tflearn.core.table_counts import TableCounts
from tflearn.replay import backend
from tflearn.replay.checkpoints import COMPLETE, CheckpointDirectory, damaged
from tflearn.replay.local.tables import SERVERS, Table
from tflearn.replay.tables import TableSpec, signature_text

_numbers = itertools.count(1)


class ReplayServer(backend.Server):
    """See `backend.Server` and `backend.serve`. Its port is only a number, the same one after a restart."""

    def __init__(
        self,
        tables: Sequence[TableSpec],
        port: int,
        checkpoints: pathlib.Path,
        restore: str | None = None,
        needed: Callable[[], Collection[str]] = tuple,
    ):
        super().__init__(CheckpointDirectory(checkpoints, needed))
        self._settings = {table.name: _describe(table) for table in tables}
        if found := self._checkpoints.chosen(restore):
            self._checkpoints.refuse_differences(found, self._settings)
        self._checkpoints.clean()
        self.restored = self._checkpoints.chosen(restore)
        self._tables = {table.name: Table(table) for table in tables}
        if self.restored:
            for table in self._tables.values():
                _load(table, self.restored)
        self.port = port or next(_numbers)
        self.address = f'{backend.IN_PROCESS}{self.port}'
        if not SERVERS.add(self.address, self._tables):
            raise UserValueError(f'got {self.address}, at which a server of this process listens; need another number')

    def counts(self) -> dict[str, TableCounts]:
        return {name: table.counts() for name, table in self._tables.items()}

    def _save(self, folder: pathlib.Path) -> None:
        saved = folder / 'saved'
        saved.mkdir(parents=True)
        for name, table in self._tables.items():
            np.savez(saved / f'{name}.npz', **table.state())
        (saved / COMPLETE).touch()

    def close(self) -> None:
        SERVERS.remove(self.address)


@contextlib.contextmanager
def serving(tables: Sequence[TableSpec]) -> Iterator[str]:
    """Serves tables to this process for the time of the block, without files, and gives their address."""
    address = f'{backend.IN_PROCESS}own-{next(_numbers)}'
    SERVERS.add(address, {table.name: Table(table) for table in tables})
    try:
        yield address
    finally:
        SERVERS.remove(address)


def _describe(table: TableSpec) -> dict[str, Any]:
    """Returns the settings of a table as JSON values."""
    settings = {field.name: getattr(table, field.name) for field in dataclasses.fields(table)}
    signature = {name: signature_text(spec) for name, spec in table.signature.items()}
    return json.loads(json.dumps(settings | {'signature': signature}))


def _load(table: Table, checkpoint: pathlib.Path) -> None:
    try:
        with (checkpoint / f'{table.spec.name}.npz').open('rb') as file, np.load(file) as content:
            table.restore(dict(content))
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise damaged(checkpoint, str(error)) from error
