"""ReplayServer: a Reverb server with the run's tables, checkpointed and restored.

Reverb silently takes a table's settings and signature from its checkpoint. Here a checkpoint with other settings than
the run's is refused, and left unchanged; the error names the differences.
"""

import json
import pathlib
import re
import shutil
import socket
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

from absl import logging

from tflearn.core import extras, stderr
from tflearn.core.errors import UserTimeoutError, UserValueError
from tflearn.core.table_counts import TableCounts
from tflearn.core.waiting import is_listening
from tflearn.files.numbered import Numbered, remove_leftovers
from tflearn.files.run_dir import read_json, write_json
from tflearn.replay import connection

try:
    import reverb
except ImportError:  # a learner that a feed job feeds
    reverb = extras.Absent('reverb')

_UNFINISHED = '.unfinished'
_FILES = ('tables.tfrecord', 'items.tfrecord', 'chunks.tfrecord')

# Reverb's log of a checkpoint that it reads, a line for every hundred chunks. (Reverb has no log level.)
READING = re.compile(r'tfrecord_checkpointer\.cc:\d+\] +(Initializ|Load|Metadata|Success|Still read|Complet|Table )')


class CheckpointDirectory:
    """The checkpoints of one replay server. A checkpoint is complete when it holds Reverb's file DONE.

    Reverb names a checkpoint by the local time, and keeps only the one with the greatest name. After a change of the
    time zone or of the clock that may be an older one, or one that was never completed. So Reverb saves into an empty
    directory, and a completed checkpoint is renamed to the next number.
    """

    def __init__(self, path: pathlib.Path, needed: Callable[[], Collection[str]] = tuple):
        """
        Args:
          needed: returns the names of the checkpoints that are kept besides the newest one.
        """
        self._numbered, self._needed = Numbered(path, '{:08}', needs=('DONE',)), needed
        self.reverb_root = path / _UNFINISHED  # exists only while Reverb saves to it

    def newest(self) -> pathlib.Path | None:
        """Returns the newest complete checkpoint; None if there is none."""
        if saved := self._saved():
            return saved[-1]
        number = self._numbered.newest
        return None if number is None else self._numbered.path(number)

    def _saved(self) -> list[pathlib.Path]:
        """Returns the complete checkpoints that Reverb has saved and that have no number yet, by age."""
        done = sorted(self.reverb_root.glob('*/DONE'), key=lambda path: path.stat().st_mtime_ns)
        return [path.parent for path in done]

    def clean(self) -> None:
        """Takes over what Reverb has saved; call it before Reverb starts and after it has saved.

        A complete checkpoint becomes the newest one and replaces all others that are not needed, also if an earlier
        process left it. Incomplete ones are removed.

        Raises:
          OSError: if the directory cannot be written to.
        """
        self._numbered.directory.mkdir(parents=True, exist_ok=True)
        remove_leftovers(self._numbered.directory, shared=False)
        for path in self._saved():
            path.rename(self._numbered.next_path())
            self.prune()
        if self.reverb_root.exists():
            shutil.rmtree(self.reverb_root)

    def prune(self) -> None:
        """Removes all checkpoints but the newest one with a number and those that are needed."""
        if (newest := self._numbered.newest) is not None:
            self._numbered.prune({newest, *map(int, self._needed())})


def missing_files(checkpoint: pathlib.Path) -> list[str]:
    """Returns the files that a complete checkpoint lacks. Without them Reverb would restore an empty replay."""
    return [name for name in _FILES if not (checkpoint / name).exists()]


def _describe(table: Any) -> dict[str, Any]:
    """Returns the settings of a table (a `reverb.TableInfo`) as JSON values."""
    limiter = table.rate_limiter_info
    signature = {
        name: f'{spec.dtype.name}{list(spec.shape)} {spec.name or ""}'.strip() for name, spec in table.signature.items()
    }
    described = {
        'sampler': str(table.sampler_options).strip(),
        'remover': str(table.remover_options).strip(),
        'max_size': table.max_size,
        'max_times_sampled': table.max_times_sampled,
        'samples_per_insert': limiter.samples_per_insert,
        'min_size': limiter.min_size_to_sample,
        'min_diff': limiter.min_diff,
        'max_diff': limiter.max_diff,
        'signature': signature,
    }
    return json.loads(json.dumps(described))


def _differences(saved: dict[str, Any], wanted: dict[str, Any], name: str) -> list[str]:
    """Returns a line for each difference between two descriptions, depth first."""
    found = []
    for key in sorted(saved.keys() | wanted.keys()):
        before, now = saved.get(key), wanted.get(key)
        if isinstance(before, dict) and isinstance(now, dict):
            found += _differences(before, now, f'{name}.{key}')
        elif before != now:
            found.append(f'{name}.{key} is {before} in the checkpoint, {now} in this run')
    return found


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


class DamagedCheckpoint(UserValueError):
    """A checkpoint that cannot be read."""


def damaged(checkpoint: pathlib.Path, reason: str) -> DamagedCheckpoint:
    """Returns the error for a checkpoint that cannot be read."""
    return DamagedCheckpoint(
        f'got the replay checkpoint {checkpoint}, which cannot be read ({reason}); need a complete one; remove this '
        'directory to continue with an older one, or with an empty replay if there is none'
    )


class ReplayServer:
    """The run's Reverb server. Listens on all interfaces, without authentication: keep it in a trusted network.

    Attributes:
      port: the TCP port.
      restored: the checkpoint that it began with, or None.
    """

    def __init__(
        self,
        tables: Sequence[reverb.Table],
        port: int,
        checkpoints: pathlib.Path,
        fresh: Sequence[str] = (),
        restore: str | None = None,
        needed: Callable[[], Collection[str]] = tuple,
    ):
        """Starts the server, with the content of a complete checkpoint if there is one.

        Args:
          port: the TCP port; 0 picks a free one.
          checkpoints: the checkpoints' directory.
          fresh: names of tables that start empty whatever the checkpoint holds. It may lack them.
          restore: the name of the checkpoint, one of those that are needed; None is the newest.
          needed: returns the names of the checkpoints that are kept besides the newest one.

        Raises:
          DamagedCheckpoint: if it cannot be read.
          ValueError: if its tables differ from `tables`, or if the port is in use.
        """
        self._checkpoints, start = CheckpointDirectory(checkpoints, needed), time.monotonic()
        chosen = lambda: checkpoints / restore if restore else self._checkpoints.newest()  # noqa: E731
        self._settings = checkpoints.parent / 'tables.json'
        self._wanted = {table.name: _describe(table.info) for table in tables}
        if restored := chosen():
            self._refuse_differences(restored, fresh)
        self._port_holder = _hold_port(port)
        self._checkpoints.clean()
        restored = self.restored = chosen()
        self._server = self._start(tables, port, restored)
        self.port: int = self._server.port
        for name in fresh:
            self._client().reset(name)
        if restored:
            sizes = {name: table.size for name, table in self.counts().items()}
            secs = time.monotonic() - start
            logging.info('restored the replay from %s in %.1f s: items %s', restored, secs, sizes)

    def _refuse_differences(self, checkpoint: pathlib.Path, fresh: Sequence[str]) -> None:
        saved = read_json(self._settings) or {}
        wanted = {name: table for name, table in self._wanted.items() if name in saved or name not in fresh}
        found = _differences(saved, wanted, 'table')
        if found:
            raise UserValueError(
                f'got the replay checkpoint {checkpoint}, made with other tables: {"; ".join(found[:4])}; need the '
                'same settings; change them back, or start another --root_dir'
            )
        if missing := missing_files(checkpoint):
            raise damaged(checkpoint, f'no {", ".join(missing)}')

    def _start(self, tables: Sequence[reverb.Table], port: int, restored: pathlib.Path | None) -> reverb.Server:
        try:
            with stderr.without(READING):
                checkpointer = reverb.checkpointers.DefaultCheckpointer(
                    str(self._checkpoints.reverb_root), fallback_checkpoint_path=str(restored) if restored else None
                )
                return reverb.Server(list(tables), port=port or None, checkpointer=checkpointer)
        except (RuntimeError, IndexError) as error:
            self._port_holder.close()
            if restored is None:
                raise
            raise damaged(restored, str(error)) from error

    def _client(self) -> reverb.Client:
        # A new one each time: a client of an earlier server on the same port would have a dead connection.
        return reverb.Client(f'localhost:{self.port}')

    def counts(self) -> dict[str, TableCounts]:
        """Returns the counts by table name; raises TimeoutError if the server is too busy to answer."""
        try:
            return connection.counts_of(self._client().server_info(timeout=10))
        except reverb.DeadlineExceededError as error:
            raise UserTimeoutError('timed out after 10 s waiting for the replay server to report its tables') from error

    @property
    def has_checkpoint(self) -> bool:
        """Whether there is a complete checkpoint."""
        return self._checkpoints.newest() is not None

    def prune(self) -> None:
        """Removes the checkpoints that are no longer needed."""
        self._checkpoints.prune()

    def checkpoint(self) -> str:
        """Writes all tables to disk atomically, and returns the path.

        Reverb answers, inserts and draws meanwhile: 0.04 s at most in the 41 s of saving 1.5 GB (measured).

        Raises:
          RuntimeError, IndexError, OSError: if it cannot be written; for a full disk Reverb raises an IndexError.
        """
        # First, since a checkpoint without its settings would be refused. An older one has the same settings.
        write_json(self._settings, self._wanted)
        self._checkpoints.clean()  # Reverb would keep only the checkpoint with the greatest name.
        try:
            self._client().checkpoint()
        finally:
            self._checkpoints.clean()  # The rest of a failed checkpoint would take disk space.
        return str(self._checkpoints.newest())

    def close(self) -> None:
        """Stops the server without a checkpoint."""
        self._server.stop()
        self._port_holder.close()
