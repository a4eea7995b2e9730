"""ReusePlan: which batch a learner trains on next, where it may do so more than once."""

import random

from tflearn.experience import Reuse


class ReusePlan:
    """Says, train step by train step, which slot's batch is next, and into which slots a fresh batch goes.

    The first slots take turns: whenever the one whose turn it is has had its train steps, a fresh batch replaces it
    (as in RLlib's minibatch buffer). The slots after them hold the newest batches for replay.
    """

    def __init__(self, reuse: Reuse | None, num_ahead: int = 1, seed: int | None = None):
        """Begins with empty slots.

        Args:
          reuse: the experience's reuse settings.
          num_ahead: slots that take turns where each batch is used once: that many may be planned at a time.
          seed: the seed for drawing replayed batches.
        """
        self._reuse = reuse or Reuse()
        self._num_recent = self._reuse.recent_batches if self._reuse.times > 1 else num_ahead
        self._uses_left = [0] * self._num_recent
        self._turn = self._num_replayable = self._num_fresh = 0
        self._owed = 0.0  # train steps with earlier batches
        self._random = random.Random(seed)

    @property
    def num_slots(self) -> int:
        """How many slots there have to be."""
        return self._num_recent + self._reuse.replay_batches

    def next_slot(self) -> int | None:
        """Returns the slot of the next train step; None if a fresh batch is needed first."""
        if self._owed >= 1 and self._num_replayable:
            self._owed -= 1
            return self._num_recent + self._random.randrange(self._num_replayable)
        slot = self._turn
        if not self._uses_left[slot]:
            return None
        self._uses_left[slot] -= 1
        self._turn = (slot + 1) % self._num_recent
        self._owed += self._reuse.replay_proportion
        return slot

    def fresh_slots(self) -> tuple[int, ...]:
        """Returns the slots that the next fresh batch goes to."""
        if not self._reuse.replay_batches:
            return (self._turn,)
        return self._turn, self._num_recent + self._num_fresh % self._reuse.replay_batches

    def put(self) -> None:
        """Tells that a fresh batch is in its slots."""
        self._uses_left[self._turn] = self._reuse.times
        self._num_fresh += 1
        self._num_replayable = min(self._num_fresh, self._reuse.replay_batches)

    def drop(self, slot: int) -> None:
        """Tells that a slot's batch is not to be used any more; one that is replayed may be asked for again."""
        if slot < self._num_recent:
            self._uses_left[slot] = 0
