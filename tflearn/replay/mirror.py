"""ReplayMirror: the replay table in the learner's memory, from which a compiled loop draws its batches.

The replay server stays the durable truth: every chunk goes there first, and after a restart of the learner the mirror
is filled from it. What is new comes by the server's stream. Only the training thread changes the mirror, between two
calls of the compiled loop, so that no draw sees a sequence that is half overwritten.
"""

import collections
import dataclasses
import json
import math
import time
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from tflearn.replay import connection, rate_limits
from tflearn.replay.reader import TableReader
from tflearn.replay.storage import MIRROR_CHUNKS_AT_ONCE, REPLAY, STREAM, Storage
from tflearn.waiting import LOG_EVERY_SECS

_MAX_CHUNKS_AT_ONCE = MIRROR_CHUNKS_AT_ONCE
_MAX_DRAW_BYTES = 4 << 20
_MAX_DRAW_STEPS = 256
_POLL_SECS = 0.002
_REFRESH_SECS = 0.01


def _chunk_spec(storage: Storage) -> tf.TensorSpec:
    return tf.TensorSpec(storage.chunk_shape, tf.uint8)


@dataclasses.dataclass(frozen=True)
class _Chunk:
    """A chunk in the ring: its rows, the sequences up to its end (all that ever were), and how to know it again."""

    num_rows: int
    next_start: int
    fingerprint: int


class RingBuffer:
    """Rows in a ring of memory, and the places where their sequences begin, oldest first.

    Attributes:
      rows: uint8 variable [max_rows, num_bytes].
      starts: int64 variable [max_size]: rows that begin a sequence, itself a ring.
      window: int64 variable [2]: place in `starts` of the oldest sequence, and how many there are.
    """

    def __init__(self, storage: Storage):
        """Allocates the memory, on the host."""
        self._length = storage.experience.sequence_length
        self._num_starts = storage.num_starts
        self._max_size = storage.experience.max_size
        self._max_rows = storage.mirror_rows
        with tf.device('CPU:0'):
            self.rows = tf.Variable(tf.zeros((self._max_rows, storage.layout.num_bytes), tf.uint8), trainable=False)
            self.starts = tf.Variable(tf.zeros((self._max_size,), tf.int64), trainable=False)
            self.window = tf.Variable(tf.zeros((2,), tf.int64), trainable=False)
        self._next_row = self._num_used = self._oldest = self._next_start = 0
        self._chunks: collections.deque[_Chunk] = collections.deque()
        self._fingerprints: set[int] = set()

    @property
    def size(self) -> int:
        """Sequences that can be drawn."""
        return self._next_start - self._oldest

    @property
    def has_dropped(self) -> bool:
        """Says whether it was full once: the oldest sequences have made room."""
        return self._oldest > 0

    def add(self, chunks: np.ndarray) -> int:
        """Takes in chunks uint8 [n, rows, num_bytes]; fewer at once than the ring holds. Known ones are left out.

        Returns:
          The number of sequences in all of them.
        """
        rows, places, starts = [], [], []
        for chunk in chunks:
            begins = np.flatnonzero(chunk[: self._num_starts, 0])
            fingerprint = hash(chunk.tobytes())
            if not len(begins) or fingerprint in self._fingerprints:
                continue
            used = chunk[begins[0] : begins[-1] + self._length]
            place = self._allocate(len(used), len(begins), fingerprint)
            rows.append(used)
            places.append(np.arange(place, place + len(used)))
            starts.append(place + begins - begins[0])
        if rows:
            self._write(np.concatenate(rows), np.concatenate(places), np.concatenate(starts))
        return int(np.count_nonzero(chunks[:, : self._num_starts, 0]))

    def _allocate(self, num_rows: int, num_sequences: int, fingerprint: int) -> int:
        """Makes room for a chunk, in one piece; the oldest go. Returns its place."""
        wraps = self._next_row + num_rows > self._max_rows
        needed = num_rows + (self._max_rows - self._next_row if wraps else 0)
        while self._num_used + needed > self._max_rows:
            oldest = self._chunks.popleft()
            self._num_used -= oldest.num_rows
            self._oldest = max(self._oldest, oldest.next_start)
            self._fingerprints.discard(oldest.fingerprint)
        place = 0 if wraps else self._next_row
        self._next_row = place + num_rows
        self._num_used += needed
        self._next_start += num_sequences
        self._chunks.append(_Chunk(needed, self._next_start, fingerprint))
        self._fingerprints.add(fingerprint)
        return place

    def _write(self, rows: np.ndarray, places: np.ndarray, starts: np.ndarray) -> None:
        self.rows.scatter_update(tf.IndexedSlices(rows, places))
        starts = starts[-self._max_size :]
        where = np.arange(self._next_start - len(starts), self._next_start) % self._max_size
        self.starts.scatter_update(tf.IndexedSlices(starts, where))
        self._oldest = max(self._oldest, self._next_start - self._max_size)
        self.window.assign([self._oldest % self._max_size, self.size])


class ReplayMirror(tf.train.experimental.PythonState):
    """Batches for the learner from its own memory; a `BatchSource`. Its counts belong in the checkpoint."""

    def __init__(self, address: str, storage: Storage, batch_size: int, timeout_secs: float, seed: int = 0):
        """Allocates the memory; nothing is read before the first `grant`.

        Args:
          address: the replay server, 'host:port'.
          storage: of the run; mirrored.
          batch_size: sequences of a train step, over all replicas that this process feeds.
          timeout_secs: how long to wait for data before `grant` returns 0 with `error` set.
          seed: of the draws.
        """
        self._address, self._storage, self._batch_size = address, storage, batch_size
        self._timeout_secs, self._seed = timeout_secs, seed
        self._ring = RingBuffer(storage)
        self._reader = TableReader(
            address, storage, STREAM, [_chunk_spec(storage)], storage.stream_chunks, timeout_secs
        )
        self._inserts = self._samples = 0
        self._started = False
        self._refreshed_at = 0.0
        self._error_buffer = rate_limits.error_buffer(storage.experience, storage.sequences_per_chunk)
        self._error_buffer = max(self._error_buffer, float(batch_size))
        row_bytes = batch_size * storage.experience.sequence_length * storage.layout.num_bytes
        self.max_draw_steps = max(1, min(_MAX_DRAW_STEPS, _MAX_DRAW_BYTES // row_bytes))
        logging.info(
            'the mirror of the replay takes %.1f MB for %d sequences',
            storage.mirror_bytes / 1e6,
            storage.experience.max_size,
        )

    @property
    def error(self) -> Exception | None:
        """Why there are no more batches; None if it was closed."""
        return self._reader.error

    def serialize(self) -> str:
        """Returns what came and went, for a checkpoint."""
        return json.dumps({'inserts': self._inserts, 'samples': self._samples})

    def deserialize(self, string_value: str) -> None:
        """Takes over what a checkpoint holds."""
        saved = json.loads(string_value)
        self._inserts, self._samples = saved['inserts'], saved['samples']

    def figures(self) -> dict[str, Any]:
        """Returns `replay_size` and `samples_per_insert` (since the first draw was allowed; None before)."""
        inserts = self._inserts - self._storage.experience.min_size
        ratio = self._samples / inserts if inserts > 0 else None
        return {'replay_size': self._ring.size, 'samples_per_insert': ratio}

    def close(self) -> None:
        """Ends it, also for a learner that waits. May be called from any thread."""
        self._reader.close()

    def grant(self, num_steps: int) -> int:
        """Waits until train steps may be taken: there are data, and the samples per insert allow them.

        Args:
          num_steps: wanted.

        Returns:
          How many of them may be taken now; 0 if there will be none: it was closed, or has an `error`.
        """
        if not self._started:
            self._started = True
            self._start()
        while not self._reader.closed:
            self._refresh()
            allowed = self._allowed_steps(num_steps)
            if allowed:
                self._reader.resume()
                self._samples += allowed * self._batch_size
                return allowed
            self._reader.wait(_POLL_SECS)
        return 0

    def draw(self, num_steps: tf.Tensor, seed: tf.Tensor) -> tuple[Any, dict[str, tf.Tensor]]:
        """Draws uniformly, with replacement. For a graph.

        Args:
          num_steps: integer scalar: batches to draw; at most `max_draw_steps` were granted.
          seed: int64 scalar, another one for every draw: the train step.

        Returns:
          The trajectory [num_steps, B, T, ...], and a dict with `policy_version` int64 [num_steps, B, T].
        """
        length, num_bytes = self._storage.experience.sequence_length, self._storage.layout.num_bytes
        with tf.device('CPU:0'):
            oldest, size = tf.unstack(self._ring.window)
            shape = [tf.cast(num_steps, tf.int32) * self._batch_size]
            seeds = tf.stack([tf.constant(self._seed, tf.int64), tf.cast(seed, tf.int64)])
            drawn = tf.random.stateless_uniform(shape, seeds, 0, size, tf.int64)
            starts = tf.gather(self._ring.starts, (oldest + drawn) % self._storage.experience.max_size)
            rows = tf.gather(self._ring.rows, starts[:, None] + tf.range(length, dtype=tf.int64))
            columns = self._storage.layout.unpack(tf.reshape(rows, [-1, self._batch_size, length, num_bytes]))
            return columns['trajectory'], {'policy_version': columns['policy_version']}

    def _start(self) -> None:
        self._reader.start(lambda samples: samples.batch(1).map(lambda sample: sample.data['chunk']), in_flight=8)
        self._rebuild()

    def _rebuild(self) -> None:
        """Fills the mirror with what the replay server holds: draws until every chunk was seen."""
        info = connection.server_info(self._address)
        num_chunks = info[REPLAY].current_size if info else 0
        if not num_chunks:
            return
        specs = [tf.TensorSpec((), tf.uint64), _chunk_spec(self._storage)]
        reader = TableReader(self._address, self._storage, REPLAY, specs, _MAX_CHUNKS_AT_ONCE, self._timeout_secs)
        reader.start(
            lambda samples: samples.batch(16).map(lambda sample: (sample.info.key, sample.data['chunk'])), in_flight=64
        )
        found: dict[int, np.ndarray] = {}
        # Draws are uniform: to see all of n takes n ln(n) of them.
        draws, enough = 0, num_chunks * (math.log(num_chunks) + 5)
        logged_at = time.monotonic()
        while len(found) < num_chunks and draws < enough and not (reader.closed or self._reader.closed):
            size = reader.size()
            if not size:
                reader.wait(_POLL_SECS)
                continue
            reader.resume()
            keys, chunks = (tensor.numpy() for tensor in reader.take(size))
            found |= dict(zip(keys.tolist(), chunks, strict=True))
            draws += size
            if time.monotonic() - logged_at >= LOG_EVERY_SECS:
                logged_at = time.monotonic()
                logging.info('filling the mirror: %d of %d chunks', len(found), num_chunks)
        reader.close()
        self._add_by_age(list(found.values()))
        logging.info('filled the mirror with %d sequences from %s', self._ring.size, self._address)

    def _add_by_age(self, chunks: list[np.ndarray]) -> None:
        if not chunks:
            return
        first_rows = self._storage.layout.unpack(tf.constant(np.stack([chunk[0] for chunk in chunks])))
        versions = first_rows['policy_version'].numpy()
        for part in np.array_split(np.argsort(versions, kind='stable'), math.ceil(len(chunks) / 64)):
            self._ring.add(np.stack([chunks[i] for i in part]))

    def _refresh(self) -> None:
        """Takes in what has come, unless that is too far ahead of the samples: then the writers are held back."""
        now = time.monotonic()
        if now - self._refreshed_at < _REFRESH_SECS:
            return
        self._refreshed_at = now
        count = min(self._reader.size(), self._wanted_chunks(), _MAX_CHUNKS_AT_ONCE)
        if count:
            (chunks,) = self._reader.take(count)
            self._inserts += self._ring.add(chunks.numpy())
            self._reader.resume()

    def _wanted_chunks(self) -> int:
        experience = self._storage.experience
        # Before the first draw there is nothing to be ahead of; nor after the server has lost what the counts tell of.
        if experience.samples_per_insert is None or not self._is_filled():
            return _MAX_CHUNKS_AT_ONCE
        inserts_in_balance = (self._samples + self._error_buffer) / experience.samples_per_insert + experience.min_size
        return max(0, math.ceil((inserts_in_balance - self._inserts) / self._storage.sequences_per_chunk))

    def _allowed_steps(self, num_steps: int) -> int:
        experience = self._storage.experience
        if not self._is_filled():
            return 0
        if experience.samples_per_insert is None:
            return num_steps
        samples_in_balance = experience.samples_per_insert * (self._inserts - experience.min_size)
        ahead = self._samples - samples_in_balance
        return max(0, min(num_steps, int((self._error_buffer - ahead) // self._batch_size)))

    def _is_filled(self) -> bool:
        return self._ring.size >= self._storage.experience.min_size or self._ring.has_dropped
