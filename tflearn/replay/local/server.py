"""ReplayServer: tables in this process, saved to and restored from checkpoints."""

import contextlib
import itertools
import pathlib
import zipfile
from collections.abc import Iterator, Sequence

import numpy as np

from tflearn.core.errors import UserValueError
from tflearn.core.table_counts import TableCounts
from tflearn.replay import backend
from tflearn.replay.checkpoints import damaged
from tflearn.replay.local.tables import SERVERS, Table
from tflearn.replay.tables import TableSpec

_numbers = itertools.count(1)


class ReplayServer(backend.Server):
    """See `backend.Server` and `backend.serve`. Its port is only a number, the same one after a restart."""

    def _start(self, port: int, address: str) -> bool:
        self._made = {table.name: Table(table) for table in self._tables}
        if self.restored:
            for table in self._made.values():
                _load(table, self.restored)
        self.port = port or next(_numbers)
        self.address = f'{backend.IN_PROCESS}{self.port}'
        if not SERVERS.add(self.address, self._made):
            raise UserValueError(f'got {self.address}, at which a server of this process listens; need another number')
        return True

    def counts(self) -> dict[str, TableCounts]:
        return {name: table.counts() for name, table in self._made.items()}

    def _write(self, folder: pathlib.Path) -> None:
        for name, table in self._made.items():
            np.savez(folder / f'{name}.npz', **table.state())

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


def _load(table: Table, checkpoint: pathlib.Path) -> None:
    try:
        with (checkpoint / f'{table.spec.name}.npz').open('rb') as file, np.load(file) as content:
            table.restore(dict(content))
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise damaged(checkpoint, str(error)) from error
