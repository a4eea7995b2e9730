"""ReplayMirror: a copy of the replay table in the learner's memory, from which a compiled loop draws its batches.

The replay server remains the durable store: every chunk is sent there first, and after a restart of the learner the
mirror is filled from it. New chunks arrive by the server's stream. A separate thread writes them to memory that is not
drawn from; the training thread makes them visible to draws, between two calls of the compiled loop.

The replay may be divided among several servers. There is one mirror of them all, and one ratio of samples to inserts.
"""

import collections
import functools
import json
import math
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from tflearn.core import background
from tflearn.core.waiting import Stopped, wait_until
from tflearn.replay import backend
from tflearn.replay.chunks import chunk_id, chunk_rows
from tflearn.replay.item_reader import ItemReader, Readers, one_by_one
from tflearn.replay.reader import TableReader
from tflearn.replay.storage import REPLAY, STREAM, Storage, error_buffer
from tflearn.sampling.ring_source import RingSource

_MAX_CHUNKS_AT_ONCE = 16
_POLL_SECS = 0.002
_INGEST_POLL_SECS = 0.03
_MAX_STREAMS = 8  # read at the same time, to hide the time of a round trip


class ReplayMirror(RingSource, tf.train.experimental.PythonState):
    """A `Source` that draws from the learner's memory. Its counts belong in the checkpoint."""

    def __init__(
        self,
        addresses: str | Sequence[str],
        storage: Storage,
        batch_size: int,
        timeout_secs: float,
        seed: int = 0,
        begins_filled: bool = False,
        filled_from: Sequence[str] | None = None,
    ):
        """Allocates the memory; nothing is read before the first `grant`.

        Args:
          addresses: the address of the replay server, 'host:port'; several if they share the replay.
          batch_size: sequences in a train step, over all replicas of this process.
          timeout_secs: how long to wait for data before `grant` returns 0 with `error` set.
          begins_filled: whether what the table holds before the run's first train step counts for `min_size`.
          filled_from: the addresses of the servers whose tables fill this mirror after a restart; None is all. (Other
            workers may be filled from the others.)
        """
        self._addresses = (addresses,) if isinstance(addresses, str) else tuple(addresses)
        self._filled_from = self._addresses if filled_from is None else tuple(filled_from)
        super().__init__(storage, batch_size, seed)
        self._storage = storage
        self._counts_content = begins_filled  # until counts are restored
        self._timeout_secs = timeout_secs
        # Each stream has one chunk in flight, which is not lost when a wait ends (see `TableReader`), and one that is
        # to enter the queue. All chunks that were read ahead are ahead of the samples per insert too.
        ahead = max(4, storage.stream_chunks // len(self._addresses))
        if backend.connect(self._addresses[0]).has_stream:
            self._in_flight, self._num_streams, capacity = ahead // 2, 1, ahead - ahead // 2
        else:
            self._in_flight, self._num_streams = 1, min(math.ceil(_MAX_STREAMS / len(self._addresses)), ahead // 2)
            capacity = ahead + 2 - 2 * self._num_streams
        spec = [storage.signature['chunk']]
        self._given = self._readers = Readers(
            [TableReader(address, storage, STREAM, spec, capacity, timeout_secs) for address in self._addresses]
        )
        self._inserts_before = 0  # inserts before this mirror, minus those it was filled with
        self._started = False
        self._programs = functools.cache(self._program)
        self._closing = threading.Event()
        self._error_buffer = error_buffer(storage.experience, storage.sequences_per_chunk)
        self._error_buffer = max(self._error_buffer, float(batch_size))

    @property
    def _inserts(self) -> int:
        return self._inserts_before + self._ring.num_published

    @property
    def _inserts_beyond(self) -> int:
        return self._inserts - self._min_size

    def serialize(self) -> str:
        """Returns the counts of inserts and samples as JSON."""
        return json.dumps({'inserts': self._inserts, 'samples': self._samples})

    def deserialize(self, string_value: str) -> None:
        """Restores the counts of a checkpoint."""
        saved = json.loads(string_value)
        self._inserts_before, self._samples = saved['inserts'] - self._ring.num_published, saved['samples']
        self._counts_content = False

    def close(self) -> None:
        """See `Source`."""
        self._closing.set()
        self._readers.close()

    def grant(self, num_steps: int) -> int:
        """See `Source`. Waits for data, and for the inserts that the samples per insert require."""
        if not self._started:
            self._started = True
            self._start()
        while not self._readers.closed:
            self._ring.publish()
            allowed = self._allowed_steps(min(num_steps, self._max_grant))
            if allowed:
                self._readers.resume()
                self._samples += allowed * self.batch_size
                return allowed
            self._readers.wait(_POLL_SECS)
        return 0

    def state(self) -> dict[str, Any]:
        """See `Source`."""
        return {'replay': self}

    def _start(self) -> None:
        try:
            self._open_streams()
            self._rebuild()
        except Exception as error:
            self._error = None if isinstance(error, Stopped) else error
            self.close()
            return
        self._inserts_before -= self._ring.num_published
        if self._counts_content:
            self._inserts_before += min(self._ring.size, self._storage.experience.replay.min_size)
        background.Thread(target=self._ingest, name='replay_ingest').start()

    def _open_streams(self) -> None:
        for address in self._addresses:
            what = f'the replay server at {address}'
            wait_until(functools.partial(backend.counts, address), what, self._timeout_secs, self._closing)
        for reader in self._readers.each:
            reader.start(one_by_one, self._in_flight, self._num_streams)

    def _rebuild(self) -> None:
        """Fills the mirror with the replay servers' content, oldest first."""
        chunks: list[np.ndarray] = []
        for address in self._filled_from:
            chunks += backend.connect(address).scan(self._storage, REPLAY, self._timeout_secs, self._closing)
        if not chunks:
            return
        first_rows = np.stack([chunk_rows(chunk, self._storage.layout.num_bytes)[0] for chunk in chunks])
        versions = self._storage.layout.column(first_rows, 'policy_version')
        newest_first = np.lexsort((np.array([chunk_id(chunk) for chunk in chunks]), versions))[::-1]
        chunks = [chunks[i] for i in newest_first]
        while chunks:  # each is freed once it is in the ring
            self._ring.add([chunks.pop() for _ in range(min(len(chunks), _MAX_CHUNKS_AT_ONCE))])
        logging.info('filled the mirror with %d sequences from %s', self._ring.size, ', '.join(self._filled_from))

    def _ingest(self) -> None:
        """Writes new chunks to the ring, unless they are too far ahead of the samples: then the writers are blocked."""
        readers, pause_secs = collections.deque(self._readers.each), _POLL_SECS
        try:
            while not self._readers.closed:
                if sum(map(self._ingest_from, readers)):
                    pause_secs = _POLL_SECS
                else:
                    self._readers.each[0].sleep(pause_secs)
                    is_short = self._readers.each[0].is_waited_for
                    pause_secs = _POLL_SECS if is_short else min(2 * pause_secs, _INGEST_POLL_SECS)
                readers.rotate()  # if only some chunks are wanted, another server comes first each time
        except Exception as error:  # the training thread raises it
            if not self._readers.closed:
                self._error = error
                self.close()

    def _ingest_from(self, reader: ItemReader) -> int:
        """Writes chunks of one server. Returns their number."""
        count = min(reader.size(), self._wanted_chunks(), _MAX_CHUNKS_AT_ONCE)
        if count:
            chunks = self._take(reader, count)
            self._write(chunks)
            self._readers.resume()  # data arrive, even if not enough yet
            return len(chunks)
        return 0

    def _take(self, reader: ItemReader, count: int) -> Sequence[np.ndarray] | np.ndarray:
        """Returns some of the next `count` chunks, of which there are as many; each as it came, not copied."""
        if not reader.takes_in_graphs:
            return np.asarray(reader.take(count)[0])
        program = self._programs(reader, 1 << count.bit_length() - 1)
        # The operation behind a call, which takes much longer. One for all, since other threads run before each.
        arguments = {'args': program.captured_inputs, 'Tout': [output.dtype for output in program.outputs]}
        return [np.asarray(chunk)[0] for chunk in tf.raw_ops.StatefulPartitionedCall(f=program.name, **arguments)]

    def _program(self, reader: ItemReader, count: int) -> Any:
        take = tf.function(lambda: [reader.take(1)[0] for _ in range(count)], autograph=False)
        return take.get_concrete_function()

    def _write(self, chunks: Sequence[np.ndarray] | np.ndarray) -> None:
        while len(chunks := chunks[self._ring.write(chunks) :]) and not self._readers.closed:
            self._readers.each[0].sleep(_POLL_SECS)  # until the next call of the compiled loop makes room

    def _wanted_chunks(self) -> int:
        replay = self._storage.experience.replay
        # No limit before the first draw, nor after the server has lost items that were counted.
        if replay.samples_per_insert is None or not self._is_filled():
            return _MAX_CHUNKS_AT_ONCE
        inserts_in_balance = (self._samples + self._error_buffer) / replay.samples_per_insert + replay.min_size
        inserts = self._inserts_before + self._ring.num_written
        return max(0, math.ceil((inserts_in_balance - inserts) / self._storage.sequences_per_chunk))

    def _allowed_steps(self, num_steps: int) -> int:
        replay = self._storage.experience.replay
        if not self._is_filled():
            return 0
        if replay.samples_per_insert is None:
            return num_steps
        samples_in_balance = replay.samples_per_insert * self._inserts_beyond
        ahead = self._samples - samples_in_balance
        return max(0, min(num_steps, int((self._error_buffer - ahead) // self.batch_size)))

    def _is_filled(self) -> bool:
        return self._ring.size >= self._storage.experience.replay.min_size or self._ring.has_dropped
