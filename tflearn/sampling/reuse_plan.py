"""ReusePlan: which batch a learner trains on next, if it may use batches more than once."""

import random

from tflearn.experience import Reuse


class ReusePlan:
    """Chooses the slot of each train step's batch, and the slots of each new batch.

    The first slots are used in round-robin order: when the next one has had its train steps, a new batch replaces its
    batch (as in RLlib's minibatch buffer). The slots after them hold the newest batches for replay.
    """

    def __init__(self, reuse: Reuse | None, num_ahead: int = 1, seed: int | None = None):
        """Begins with empty slots.

        Args:
          num_ahead: the number of round-robin slots if each batch is used once: as many batches can be planned ahead.
        """
        self._reuse = reuse or Reuse()
        self._num_recent = self._reuse.recent_batches if self._reuse.times > 1 else num_ahead
        self._uses_left = [0] * self._num_recent
        self._turn = self._num_replayable = self._num_fresh = 0
        self._owed = 0.0  # train steps with earlier batches that are due
        self._random = random.Random(seed)

    @property
    def num_slots(self) -> int:
        """The number of slots needed."""
        return self._num_recent + self._reuse.replay_batches

    def next_slot(self) -> int | None:
        """Takes the next train step's slot and returns it; None if a new batch is needed first."""
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
        """Returns the slots for the next new batch."""
        if not self._reuse.replay_batches:
            return (self._turn,)
        return self._turn, self._num_recent + self._num_fresh % self._reuse.replay_batches

    def put(self) -> None:
        """Records that a new batch is in its slots."""
        self._uses_left[self._turn] = self._reuse.times
        self._num_fresh += 1
        self._num_replayable = min(self._num_fresh, self._reuse.replay_batches)

    def drop(self, slot: int) -> None:
        """Records that a slot's batch must not be used any more. (A replayed batch may be chosen again.)"""
        if slot < self._num_recent:
            self._uses_left[slot] = 0
