"""A process with a replay server, or one that writes to it, as lines on its standard input say."""

import json
import os
import pathlib
import select
import sys
import tempfile

import numpy as np

from benchmarks import shard_process
from tflearn.replay import backend, servers
from tflearn.replay.chunks import ID_BYTES, chunk_rows
from tflearn.replay.storage import REPLAY, STREAM, Storage

_AT_ONCE = 16  # chunks that become full together: one of each environment
_FLUSH_SECS = 0.2


def main() -> None:
    """Answers each line by one, until the input ends."""
    print('ready', flush=True)
    server: servers.Server | None = None
    for line in sys.stdin:
        command = json.loads(line)
        answer: object = None
        if command['do'] == 'serve':
            folder = pathlib.Path(tempfile.mkdtemp()) / 'replay' / 'checkpoints'
            tables = shard_process.storage(*command['layout']).make_tables()
            server = servers.serve(tables, 0, folder, kind=command['kind'])
            process = getattr(server, '_process', None)
            answer = server.address, process._process.pid if process else os.getpid()
        elif command['do'] == 'write':
            answer = _write(command['address'], shard_process.storage(*command['layout']))
        elif server:
            server.close()
        print(json.dumps(answer), flush=True)


def _write(address: str, layout: Storage) -> int:
    """Writes until there is another line, and returns how many chunks it sent."""
    writer = backend.connect(address).writer()
    chunks = np.random.default_rng().integers(0, 256, (_AT_ONCE, *layout.item_shape), np.uint8)
    rows = chunk_rows(chunks, layout.layout.num_bytes)
    rows[..., 0] = np.arange(rows.shape[1]) < layout.num_starts
    pending, count = max(_AT_ONCE, 256 // layout.num_starts), 0
    while not _has_line():
        copied = chunks.copy()
        ids = np.random.default_rng().integers(1 << 62) + np.arange(_AT_ONCE)
        copied[:, :ID_BYTES] = ids[:, None].view(np.uint8)
        writer.insert([*copied], [(REPLAY, STREAM)] * _AT_ONCE, 1.0)
        count += _AT_ONCE
        while not writer.flush(pending, _FLUSH_SECS) and not _has_line():
            pass
    writer.close()
    return count


def _has_line() -> bool:
    return bool(select.select([sys.stdin], [], [], 0)[0])


if __name__ == '__main__':
    main()
