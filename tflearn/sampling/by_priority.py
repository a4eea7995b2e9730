"""ByPriority: what a source of a ring buffer is with draws by priority, and with importance weights."""

from typing import Any

import numpy as np
import tensorflow as tf

from tflearn.core.experience import Prioritized
from tflearn.core.types import WEIGHTS
from tflearn.replay.priorities import importance_weights, priorities
from tflearn.sampling.ring_buffer import RingBuffer
from tflearn.sampling.sum_tree import SumTree

# A draw does not know the errors of its own train steps, so it is of few: fewer than a server's draws are behind.
_MAX_DRAW_STEPS = 16


class ByPriority:
    """Comes before the class of a source that draws uniformly from its ring buffer, and draws by priority instead.

    The priorities are in a sum tree beside the ring, and in no checkpoint: after a restart all items have the initial
    priority, like new ones. A draw knows the errors of all train steps before it.
    """

    _ring: RingBuffer
    _seed: int
    _traced_size: int
    max_draw_steps: int

    def _begin(self, replay: Prioritized) -> None:
        """Makes the tree; to be called when the source was made."""
        self.prioritization = replay.prioritization
        self.max_draw_steps = min(self.max_draw_steps, _MAX_DRAW_STEPS)
        self._tree, self._max_size = SumTree(replay.max_size), replay.max_size
        self._known = self._ring.window_ever  # the sequences that the tree has
        self._drawn = np.empty((0, self._traced_size), np.int64)  # of the newest draw, counted over all ever written
        self._counts = {'priorities_updated': 0, 'priorities_not_finite': 0}

    def grant(self, num_steps: int) -> int:
        """Grants at most `max_draw_steps`, so that each draw knows all errors before it."""
        granted: int = super().grant(min(num_steps, self.max_draw_steps))  # type: ignore[misc]
        self._follow_window()
        return granted

    def draw(self, num_steps: tf.Tensor, seed: tf.Tensor, batch_size: tf.Tensor | None = None) -> Any:
        """See `RingBuffer.draw`; by priority. `batch` adds importance weights float32 [B], not normalized."""
        del batch_size  # it does not vary
        with tf.device('CPU:0'):
            arguments = [tf.cast(num_steps, tf.int64), tf.cast(seed, tf.int64)]
            sequences, expected = tf.numpy_function(self._choose, arguments, (tf.int64, tf.float32))
            sequences, expected = (tf.ensure_shape(part, (None, self._traced_size)) for part in (sequences, expected))
            weights = importance_weights(self.prioritization, expected, seed)
            return self._ring.read(sequences), weights

    def batch(self, drawn: Any, i: tf.Tensor) -> tuple[Any, dict[str, tf.Tensor]]:
        """See `RingBuffer.batch`."""
        data, info = super().batch(drawn[0], i)  # type: ignore[misc]
        return data, info | {WEIGHTS: tf.gather(drawn[1], i)}

    def update(self, step: int, errors: np.ndarray) -> None:
        """See `PrioritizedSource`. The next draw knows the errors; those that are not finite change nothing."""
        sequences, errors = self._drawn[: len(errors)].ravel(), errors.ravel()
        finite = np.isfinite(errors)
        stored = finite & (sequences >= self._known[0])
        values = priorities(self.prioritization, errors[stored], step)
        self._tree.set(sequences[stored] % self._max_size, values)
        self._counts['priorities_updated'] += int(stored.sum())
        self._counts['priorities_not_finite'] += int((~finite).sum())

    def metrics(self) -> dict[str, Any]:
        """Adds the counts of priorities."""
        return super().metrics() | self._counts  # type: ignore[misc,no-any-return]

    def _follow_window(self) -> None:
        """Gives new sequences the initial priority, and those that were dropped none."""
        (oldest, newest), (now_oldest, now_newest) = self._known, self._ring.window_ever
        if (oldest, newest) == (now_oldest, now_newest):
            return
        self._known = now_oldest, now_newest
        # Dropped ones first: a new sequence may be in the place of one.
        self._tree.set(np.arange(oldest, min(now_oldest, newest)) % self._max_size, 0.0)
        new = np.arange(max(newest, now_oldest), now_newest) % self._max_size
        self._tree.set(new, self.prioritization.initial_priority)

    def _choose(self, num_steps: np.ndarray, step: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Draws sequences [num_steps, B]. Returns them and N P, the expected number of each in N draws."""
        oldest, newest = self._known
        random = np.random.default_rng((self._seed, int(step)))
        shares = random.random(int(num_steps) * self._traced_size)
        if (total := self._tree.total) > 0:
            slots = self._tree.find(shares)
            expected = (newest - oldest) * self._tree.get(slots) / total
            sequences = oldest + (slots - oldest) % self._max_size
        else:  # of no priority above 0: like the server, uniformly
            sequences = oldest + (shares * (newest - oldest)).astype(np.int64)
            expected = np.ones(len(shares))
        self._drawn = sequences.reshape(-1, self._traced_size)
        return self._drawn, expected.astype(np.float32).reshape(self._drawn.shape)
