"""The checkpoint of a server: its counts, and its items in a file that can be read without a server."""

import json
import os
import pathlib
import random
import struct
from collections.abc import Iterator, Sequence

import numpy as np

from tflearn.replay.backend import VALKEY_FILE
from tflearn.replay.checkpoints import damaged
from tflearn.replay.storage import REPLAY
from tflearn.replay.valkey import functions, library

STATUS_FILE, ITEMS_FILE = 'status.json', VALKEY_FILE
_SIZES = struct.Struct('<HHI')  # of an entry's id, the names of its tables, and its item [bytes]
_MAX_BYTES, _AT_ONCE = 4 << 20, 64


def write(connection: library.Connection, directory: pathlib.Path) -> None:
    """Writes what the server holds now. It serves its clients meanwhile; what they remove meanwhile may be missing."""
    status = library.Status.read(connection)
    count = 0
    with (directory / ITEMS_FILE).open('wb') as file:
        for entries in library.entries(connection, status, _AT_ONCE):
            for entry in entries:
                file.write(_SIZES.pack(*map(len, entry)) + entry.id + entry.tables)
                file.write(entry.item)
            count += len(entries)
        file.flush()
        os.fsync(file.fileno())
    tables = library.dump_tables([*status.tables.values()])
    saved = {**status._asdict(), 'tables': tables, 'count': count}
    (directory / STATUS_FILE).write_text(json.dumps(saved), encoding='utf-8')


def read_status(checkpoint: pathlib.Path) -> tuple[library.Status, int]:
    """Returns the counts, and the number of entries. Raises DamagedCheckpoint."""
    try:
        saved = json.loads((checkpoint / STATUS_FILE).read_text(encoding='utf-8'))
        count, tables = saved.pop('count'), library.parse_tables(saved.pop('tables'))
        return library.Status(tables, **saved), count
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise damaged(checkpoint, str(error)) from error


def entries(checkpoint: pathlib.Path) -> Iterator[library.Entry]:
    """Reads all entries, oldest first. Raises DamagedCheckpoint."""
    _, count = read_status(checkpoint)
    try:
        with (checkpoint / ITEMS_FILE).open('rb') as file:
            for _ in range(count):
                sizes = _SIZES.unpack(file.read(_SIZES.size))
                parts = [file.read(size) for size in sizes]
                if any(len(part) != size for part, size in zip(parts, sizes, strict=True)):
                    raise EOFError('its file is too short')
                yield library.Entry(*parts)
    except (OSError, EOFError, struct.error) as error:
        raise damaged(checkpoint, str(error)) from error


def restore(connection: library.Connection, checkpoint: pathlib.Path) -> None:
    """Fills an empty server; its tables are there already."""
    status, _ = read_status(checkpoint)
    newest = f'{status.scanned}-{status.queued}'
    calls: list[tuple[object, ...]] = []
    num_bytes, base = 0, status.scanned

    def send() -> None:
        connection.send(*calls)
        for _ in calls:
            connection.receive()
        calls.clear()

    for entry in entries(checkpoint):
        base = min(base, entry.numbers[0] - 1)
        calls.append(('XADD', functions.ITEMS, entry.id, entry.tables, entry.item))
        num_bytes += len(entry.item)
        if len(calls) == _AT_ONCE or num_bytes >= _MAX_BYTES:
            send()
            num_bytes = 0
    drawn = f'{status.past}-{status.drawn}'
    counts = {'scanned': status.scanned, 'queued': status.queued, 'base': max(status.base, base)}
    calls += [
        ('XSETID', functions.ITEMS, newest),
        ('XGROUP', 'SETID', functions.ITEMS, functions.GROUP, drawn),
        ('HSET', functions.STATE, *(part for pair in counts.items() for part in pair)),
    ]
    send()


def draw_once(checkpoint: pathlib.Path, names: Sequence[str], at_most: int | None = None) -> list[np.ndarray]:
    """See `backend.stored_items`."""
    del names  # the checkpoint has them
    status, _ = read_status(checkpoint)
    table = status.tables[REPLAY]
    columns = [*table.signature.values()]
    is_there = (lambda entry: entry.numbers[0] >= status.oldest) if table.order == 'scan' else lambda entry: True
    items = [entry for entry in entries(checkpoint) if entry.is_in(REPLAY) and is_there(entry)]
    if at_most is not None and at_most < len(items):
        items = random.sample(items, at_most)
    return [entry.array(columns[0].shape.as_list()) for entry in items]
