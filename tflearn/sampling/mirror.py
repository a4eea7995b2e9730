"""ReplayMirror: a copy of the replay table in the learner's memory, from which a compiled loop draws its batches.

The replay server remains the durable store: every chunk is sent there first, and after a restart of the learner the
mirror is filled from it. New chunks arrive by the server's stream. A separate thread writes them to memory that is not
drawn from; the training thread makes them visible to draws, between two calls of the compiled loop.
"""

import json
import math
import threading
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from tflearn.replay import connection
from tflearn.replay.chunks import chunk_id, chunk_rows
from tflearn.replay.storage import REPLAY, STREAM, Storage, error_buffer
from tflearn.sampling import table_scan
from tflearn.sampling.reader import TableReader
from tflearn.sampling.ring_buffer import RingBuffer
from tflearn.waiting import Stopped, wait_until

_MAX_CHUNKS_AT_ONCE = 16
_POLL_SECS = 0.002
_INGEST_POLL_SECS = 0.03


class ReplayMirror(tf.train.experimental.PythonState):
    """A `BatchSource` that draws from the learner's memory. Its counts belong in the checkpoint.

    Attributes:
      batch_size: sequences of the batches that are granted from now on, which count as samples.
      takes_indices: see `BatchSource`.
    """

    takes_indices = True

    def __init__(
        self,
        address: str,
        storage: Storage,
        batch_size: int,
        timeout_secs: float,
        seed: int = 0,
        begins_filled: bool = False,
    ):
        """Allocates the memory; nothing is read before the first `grant`.

        Args:
          batch_size: sequences in a train step, over all replicas of this process.
          timeout_secs: how long to wait for data before `grant` returns 0 with `error` set.
          begins_filled: whether what the table holds before the run's first train step counts for `min_size`.
        """
        self._address, self._storage = address, storage
        self.batch_size = self._traced_size = batch_size
        self._counts_content = begins_filled  # until counts are restored
        self._timeout_secs, self._seed = timeout_secs, seed
        self._ring = RingBuffer(storage)
        self._reader = TableReader(
            address, storage, STREAM, [storage.signature['chunk']], storage.stream_chunks, timeout_secs
        )
        self._samples = self._inserts_before = 0  # inserts before this mirror, minus those it was filled with
        self._started = False
        self._closing = threading.Event()
        self._error: Exception | None = None
        self._error_buffer = error_buffer(storage.experience, storage.sequences_per_chunk)
        self._error_buffer = max(self._error_buffer, float(batch_size))
        self.max_draw_steps = self._ring.max_draw_steps(batch_size)
        logging.info(
            'the mirror of the replay takes %.1f MB for %d sequences',
            storage.mirror_bytes / 1e6,
            storage.experience.replay.max_size,
        )

    @property
    def _inserts(self) -> int:
        return self._inserts_before + self._ring.num_published

    @property
    def error(self) -> Exception | None:
        """Why there are no more batches; None if there are, or if the source was closed."""
        return self._reader.error or self._error

    def serialize(self) -> str:
        """Returns the counts of inserts and samples as JSON."""
        return json.dumps({'inserts': self._inserts, 'samples': self._samples})

    def deserialize(self, string_value: str) -> None:
        """Restores the counts of a checkpoint."""
        saved = json.loads(string_value)
        self._inserts_before, self._samples = saved['inserts'] - self._ring.num_published, saved['samples']
        self._counts_content = False

    def metrics(self) -> dict[str, Any]:
        """Returns `replay_size` and `samples_per_insert` (since the first draw was allowed; None before)."""
        inserts = self._inserts - self._storage.experience.replay.min_size
        ratio = self._samples / inserts if inserts > 0 else None
        return {'replay_size': self._ring.size, 'samples_per_insert': ratio}

    def close(self) -> None:
        """See `BatchSource`."""
        self._closing.set()
        self._reader.close()

    def grant(self, num_steps: int) -> int:
        """See `BatchSource`. Waits for data, and for the inserts that the samples per insert require."""
        if not self._started:
            self._started = True
            self._start()
        while not self._reader.closed:
            self._ring.publish()
            allowed = self._allowed_steps(num_steps)
            if allowed:
                self._reader.resume()
                self._samples += allowed * self.batch_size
                return allowed
            self._reader.wait(_POLL_SECS)
        return 0

    def draw(self, num_steps: tf.Tensor, seed: tf.Tensor, batch_size: tf.Tensor | None = None) -> Any:
        """See `RingBuffer.draw`. `batch_size` is the number of sequences of a batch if it varies."""
        size = self._traced_size if batch_size is None else batch_size
        return self._ring.draw(num_steps, size, self._seed, seed)

    def batch(self, drawn: Any, i: tf.Tensor) -> tuple[Any, dict[str, tf.Tensor]]:
        """See `RingBuffer.batch`."""
        return self._ring.batch(drawn, i)

    def _start(self) -> None:
        what = f'the replay server at {self._address}'
        try:
            wait_until(lambda: connection.server_info(self._address), what, self._timeout_secs, self._closing)
            self._reader.start(lambda samples: samples.map(lambda sample: sample.data['chunk']), in_flight=1)
            self._rebuild()
        except Exception as error:
            self._error = None if isinstance(error, Stopped) else error
            self._reader.close()
            return
        self._inserts_before -= self._ring.num_published
        if self._counts_content:
            self._inserts_before += min(self._ring.size, self._storage.experience.replay.min_size)
        threading.Thread(target=self._ingest, name='replay_ingest', daemon=True).start()

    def _rebuild(self) -> None:
        """Fills the mirror with the replay server's content, oldest first."""
        chunks = table_scan.read_chunks(self._address, self._storage, REPLAY, self._timeout_secs, self._closing)
        if not chunks:
            return
        first_rows = np.stack([chunk_rows(chunk, self._storage.layout.num_bytes)[0] for chunk in chunks])
        versions = self._storage.layout.column(first_rows, 'policy_version')
        newest_first = np.lexsort((np.array([chunk_id(chunk) for chunk in chunks]), versions))[::-1]
        chunks = [chunks[i] for i in newest_first]
        while chunks:  # each is freed once it is in the ring
            self._ring.add([chunks.pop() for _ in range(min(len(chunks), _MAX_CHUNKS_AT_ONCE))])
        logging.info('filled the mirror with %d sequences from %s', self._ring.size, self._address)

    def _ingest(self) -> None:
        """Writes new chunks to the ring, unless they are too far ahead of the samples: then the writers are blocked."""
        try:
            while not self._reader.closed:
                count = min(self._reader.size(), self._wanted_chunks(), _MAX_CHUNKS_AT_ONCE)
                if count:
                    self._write(np.asarray(self._reader.take(count)[0]))  # no copy
                    self._reader.resume()  # data arrive, even if not enough yet
                else:
                    self._reader.sleep(_POLL_SECS if self._reader.is_waited_for else _INGEST_POLL_SECS)
        except Exception as error:  # the training thread raises it
            if not self._reader.closed:
                self._error = error
                self._reader.close()

    def _write(self, chunks: np.ndarray) -> None:
        while len(chunks := chunks[self._ring.write(chunks) :]) and not self._reader.closed:
            self._reader.sleep(_POLL_SECS)  # until the next call of the compiled loop makes room

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
        samples_in_balance = replay.samples_per_insert * (self._inserts - replay.min_size)
        ahead = self._samples - samples_in_balance
        return max(0, min(num_steps, int((self._error_buffer - ahead) // self.batch_size)))

    def _is_filled(self) -> bool:
        return self._ring.size >= self._storage.experience.replay.min_size or self._ring.has_dropped
