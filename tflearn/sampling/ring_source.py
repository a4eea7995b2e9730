"""RingSource: a source that draws from a ring buffer, uniformly or by priority (`ByPriority`, `SumTree`).

LocalReplay: one within one process, without a server: steps in, batches out, in an exact ratio.
"""

import abc
import dataclasses
import fractions
import sys
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from tflearn.core.errors import UserValueError
from tflearn.core.experience import Experience, Prioritization
from tflearn.core.resumable import Resumable
from tflearn.core.types import WEIGHTS
from tflearn.replay.chunks import ChunkBuilder, pack
from tflearn.replay.priorities import importance_weights, num_clipped, priorities
from tflearn.replay.storage import Storage
from tflearn.sampling.ring_buffer import RingBuffer
from tflearn.sampling.source import Batch, Source

# A draw does not know the errors of its own train steps, so it is of few: fewer than a server's draws are behind.
_MAX_DRAW_STEPS = 16

_BRANCHES = 16  # fewer levels than a binary tree, each of which is a few calls of numpy for all draws


class SumTree:
    """Priorities and their sums, level by level (Schaul et al. 2016, arXiv 1511.05952, appendix B.2.1).

    Each sum is computed from the numbers below it, so that rounding errors do not accumulate.

    It differs from the paper in two ways: nodes have 16 children, and draws are independent of each other, not one from
    each of several equal ranges.
    """

    def __init__(self, size: int):
        """Makes a tree of `size` zeros."""
        self._levels: list[np.ndarray] = []  # float64 [n, 16], leaves first
        while True:
            size = -(-size // _BRANCHES)
            self._levels.append(np.zeros((size, _BRANCHES)))
            if size == 1:
                break

    @property
    def total(self) -> float:
        """The sum of all numbers."""
        return float(self._levels[-1].sum())

    def get(self, indices: np.ndarray) -> np.ndarray:
        """Returns the numbers float64 [n] at `indices` int64 [n]."""
        return self._levels[0].reshape(-1)[indices]

    def set(self, indices: np.ndarray, values: np.ndarray | float) -> None:
        """Sets the numbers at `indices` int64 [n], each finite and at least 0; of equal indices the last one counts."""
        self._levels[0].reshape(-1)[indices] = values
        for below, above in zip(self._levels, self._levels[1:], strict=False):
            indices = indices // _BRANCHES  # equal ones get the same sum
            above.reshape(-1)[indices] = below[indices].sum(axis=1)

    def find(self, shares: np.ndarray) -> np.ndarray:
        """Returns indices int64 [n] with numbers above 0, at given shares of the total, which is above 0.

        Args:
          shares: float64 [n], in [0, 1); uniform ones draw indices in proportion to their numbers.
        """
        indices, rest = np.zeros(len(shares), np.int64), shares * self.total
        rows = np.arange(len(shares))
        for level in reversed(self._levels):
            sums = level[indices]
            ends = np.cumsum(sums, axis=1)
            # Not behind the last child above 0, where rounding would lead.
            last = _BRANCHES - 1 - np.argmax(sums[:, ::-1] > 0, axis=1)
            child = np.minimum((ends <= rest[:, None]).sum(axis=1), last)
            rest = rest - np.where(child > 0, ends[rows, child - 1], 0.0)
            indices = indices * _BRANCHES + child
        return indices


class ByPriority(Resumable):
    """The plan of a ring buffer's source that draws by priority, with importance weights.

    The priorities are in a sum tree beside the ring. They are in the checkpoints of the synchronous job alone: after a
    restart of another one all items have the initial priority, like new ones. A draw knows the errors of all train
    steps before it.

    Attributes:
      counts: the priorities that were updated, those of them that were clipped, and those that were not finite.
    """

    _KEPT = ('_tree', '_known', '_drawn', 'counts')

    def __init__(self, ring: RingBuffer, prioritization: Prioritization, max_size: int, seed: int):
        """Makes the tree, of `max_size` items."""
        self._ring, self._seed = ring, seed
        self.prioritization = prioritization
        self._tree, self._max_size = SumTree(max_size), max_size
        self._known = ring.window_ever  # the sequences that the tree has
        self._drawn = np.empty((0, 0), np.int64)  # of the newest draw, counted over all ever written
        self.counts = {'priorities_updated': 0, 'priorities_clipped': 0, 'priorities_not_finite': 0}

    def draw(self, num_steps: tf.Tensor, step: tf.Tensor, batch_size: int | tf.Tensor) -> tuple[Any, tf.Tensor]:
        """Returns what `RingBuffer.read` does, and importance weights float32 [num_steps, B], not normalized."""
        with tf.device('CPU:0'):
            arguments = [tf.cast(each, tf.int64) for each in (num_steps, step, batch_size)]
            sequences, expected = tf.numpy_function(self._choose, arguments, (tf.int64, tf.float32))
            shape = None, tf.get_static_value(batch_size)
            sequences, expected = (tf.ensure_shape(part, shape) for part in (sequences, expected))
            return self._ring.read(sequences), importance_weights(self.prioritization, expected, step)

    def update(self, step: int, errors: np.ndarray) -> None:
        """See `Source`. The next draw knows the errors; those that are not finite change nothing."""
        sequences, errors = self._drawn[: len(errors)].ravel(), errors.ravel()
        finite = np.isfinite(errors)
        stored = finite & (sequences >= self._known[0])
        values = priorities(self.prioritization, errors[stored], step)
        self._tree.set(sequences[stored] % self._max_size, values)
        self.counts['priorities_updated'] += int(stored.sum())
        clipped = num_clipped(self.prioritization, errors[stored])
        self.counts['priorities_clipped'] = self.counts.get('priorities_clipped', 0) + clipped  # of an old checkpoint
        self.counts['priorities_not_finite'] += int((~finite).sum())

    def _follow_window(self) -> None:
        """Sets the initial priority of new sequences, and none for those that were dropped."""
        (oldest, newest), (now_oldest, now_newest) = self._known, self._ring.window_ever
        if (oldest, newest) == (now_oldest, now_newest):
            return
        self._known = now_oldest, now_newest
        # Dropped ones first: a new sequence may be in the place of one.
        self._tree.set(np.arange(oldest, min(now_oldest, newest)) % self._max_size, 0.0)
        new = np.arange(max(newest, now_oldest), now_newest) % self._max_size
        self._tree.set(new, self.prioritization.initial_priority)

    def _choose(self, num_steps: np.ndarray, step: np.ndarray, batch_size: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Draws sequences [num_steps, B]. Returns them and N P, the expected number of each in N draws."""
        self._follow_window()
        oldest, newest = self._known
        # By the seed and the train step alone: a resumed run draws what an undisturbed one does.
        random = np.random.default_rng((self._seed, int(step)))
        shares = random.random((int(num_steps), int(batch_size)))
        if (total := self._tree.total) > 0:
            slots = self._tree.find(shares.ravel()).reshape(shares.shape)
            expected = (newest - oldest) * self._tree.get(slots) / total
            # The tree is a ring: sequence s is in slot s % max_size, so a slot's sequence is the first one from the
            # oldest on with that remainder.
            sequences = oldest + (slots - oldest) % self._max_size
        else:  # of no priority above 0: like the server, uniformly
            sequences = oldest + (shares * (newest - oldest)).astype(np.int64)
            expected = np.ones(shares.shape)
        self._drawn = sequences
        return sequences, expected.astype(np.float32)


class RingSource(Source):
    """A `Source` that draws from a ring buffer, as the experience says: uniformly, or by priority.

    Of several workers each draws from its own ring, by the priorities there, and N and P are those of its ring.
    """

    takes_indices = True

    def __init__(self, storage: Storage, batch_size: int, seed: int):
        """Allocates the memory."""
        self.batch_size = self._traced_size = batch_size
        self._seed, replay = seed, storage.experience.replay
        self._min_size, self._samples = replay.min_size, 0
        self._ring = RingBuffer(storage)
        self.max_draw_steps = self._ring.max_draw_steps(batch_size)
        self._by_priority: ByPriority | None = None
        self._max_grant = sys.maxsize
        logging.info('the replay takes %.1f MB for %d sequences', storage.mirror_bytes / 1e6, replay.max_size)
        if replay.prioritization:
            self._by_priority = ByPriority(self._ring, replay.prioritization, replay.max_size, seed)
            self.prioritization = replay.prioritization
            # So that each draw knows all errors before it.
            self._max_grant = self.max_draw_steps = min(self.max_draw_steps, _MAX_DRAW_STEPS)

    def draw(self, num_steps: tf.Tensor, seed: tf.Tensor, batch_size: tf.Tensor | None = None) -> Any:
        """See `RingBuffer.draw`."""
        size = self._traced_size if batch_size is None else batch_size
        if self._by_priority:
            return self._by_priority.draw(num_steps, seed, size)
        return self._ring.draw(num_steps, size, self._seed, seed), ()

    def batch(self, drawn: Any, i: tf.Tensor) -> Batch:
        """See `RingBuffer.batch`; by priority with importance weights."""
        rows, weights = drawn
        data, info = self._ring.batch(rows, i)
        return data, info | ({WEIGHTS: tf.gather(weights, i)} if self._by_priority else {})

    def update(self, step: int, errors: np.ndarray) -> None:
        """See `Source`."""
        if self._by_priority:
            self._by_priority.update(step, errors)

    @property
    @abc.abstractmethod
    def _inserts_beyond(self) -> int:
        """Sequences inserted beyond `min_size`, that count for the samples per insert."""

    def metrics(self) -> dict[str, Any]:
        """Returns `replay_size`, `samples_per_insert` (None before a draw is allowed), and counts of priorities."""
        inserts, counts = self._inserts_beyond, self._by_priority.counts if self._by_priority else {}
        ratio = self._samples / inserts if inserts > 0 else None
        return {'replay_size': self._ring.size, 'samples_per_insert': ratio, **counts}


def check_local(experience: Experience) -> None:
    """Checks that a replay within one process supports the experience.

    Raises:
      ValueError: for a queue, or a limit of an item's draws.
    """
    replay = experience.replay
    if not replay.learns_from_old_items or replay.max_times_sampled:
        raise UserValueError(
            f'got Experience.replay={replay!r} for a replay within one process, which draws without a limit; need '
            'Uniform(...) or Prioritized(...) with max_times_sampled=0, or a replay server'
        )


def local_storage(storage: Storage) -> Storage:
    """Returns how a replay within one process stores what `storage` does: no sequence waits for others of a chunk."""
    return dataclasses.replace(storage, experience=dataclasses.replace(storage.experience, chunk_steps=1))


class LocalReplay(RingSource):
    """Observer of trajectories [B, ...] and a `Source`, for one thread that acts and trains alternately.

    Holds the same sequences as a `ReplayMirror`, drawn in the same way. Nothing depends on the clock, so the same steps
    and the same seed give the same batches. A sequence can be drawn as soon as its last step was added.

    A job puts its content into its checkpoints (`Resumable`), or a resumed run fills it again, with `min_size`
    sequences before the first draw.
    """

    _KEPT = ('_samples', '_inserts', '_rounds', '_granted', '_num_filled')

    def __init__(self, storage: Storage, num_environments: int, batch_size: int, seed: int = 0):
        """Allocates the memory.

        Args:
          storage: the replay tables' layout; its experience passes `check_local`.
          num_environments: B.
        """
        self._storage = local_storage(storage)
        ratio = storage.experience.replay.samples_per_insert
        self._ratio = None if ratio is None else fractions.Fraction(str(ratio))  # in floats 100 * 0.29 < 29
        super().__init__(self._storage, batch_size, seed)
        layout = self._storage.layout
        self._chunks = ChunkBuilder(
            self._storage.experience, self._storage.num_starts, num_environments, layout.num_bytes
        )
        self._parts = [self._ring, self._chunks, *([self._by_priority] if self._by_priority else [])]
        self._inserts = self._rounds = self._granted = 0
        self._num_filled = 0  # sequences beyond `min_size` that were there before collection
        self._is_complete = False
        self._closed = False

    def __call__(self, trajectory: Any, policy_version: int) -> None:
        """Adds one step of every environment.

        Args:
          trajectory: tf_agents Trajectory of numpy arrays [B, ...], boundary rows included.

        Raises:
          ValueError: if the trajectory does not match the storage's spec.
        """
        pack(self._storage.layout, trajectory, policy_version, self._chunks.next_rows)
        chunks = self._chunks.append(trajectory.step_type, trajectory.next_step_type, trajectory.discount)
        self._inserts += self._ring.add(chunks)
        self._rounds += self._ring.size >= self._min_size

    def begin_with_next(self) -> None:
        """See `ChunkBuilder.begin_with_next`."""
        self._chunks.begin_with_next()

    def begin_collection(self) -> None:
        """Counts what was added so far for `min_size`, but not for the samples per insert.

        To be called once the replay was filled, such as from files, before the first step of an environment is added.
        """
        self._num_filled, self._rounds = max(0, self._inserts - self._min_size), 0

    def end_collection(self) -> None:
        """See `Source`."""
        self._is_complete = True

    @property
    def _inserts_beyond(self) -> int:
        return self._inserts - self._num_filled - self._min_size

    @property
    def owed_steps(self) -> int:
        """Train steps that the inserted sequences allow and that are not yet granted.

        With n sequences inserted beyond `min_size`, floor(n * samples_per_insert / batch size) in all; if the
        experience sets no ratio, one for each batched step since then, and any number after the last batched step.
        """
        if self._ratio is None:
            return self.max_draw_steps if self._is_complete and self._rounds else self._rounds - self._granted
        return int((max(0, self._inserts_beyond) * self._ratio - self._samples) // self.batch_size)

    def metrics(self) -> dict[str, Any]:
        """Returns those of a `RingSource`, and `unused_steps`, whose episodes are too short for a sequence."""
        return {**super().metrics(), 'unused_steps': self._chunks.unused.num_steps}

    def grant(self, num_steps: int) -> int:
        """Returns how many of `num_steps` train steps are owed; never waits, since no data would arrive meanwhile."""
        granted = 0 if self._closed else min(num_steps, self.owed_steps, self._max_grant)
        self._granted += granted
        self._samples += granted * self.batch_size
        return granted

    def close(self) -> None:
        """Grants no more."""
        self._closed = True
