"""QueueSource: batches of a queue's items, each used once, or several times if the experience says so.

Batches are assembled only when the learner asks for them. So a short queue gives new data, and items that have become
too old by then are dropped.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.trajectories import time_step as ts

from tflearn.core.experience import Reuse
from tflearn.replay.chunks import with_version
from tflearn.replay.item_reader import ItemReader, Readers, one_by_one
from tflearn.replay.storage import REPLAY, Storage
from tflearn.sampling.source import Batch, Planned


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

    @property
    def is_ready(self) -> bool:
        """Whether the next train step has its batch."""
        return bool(self._uses_left[self._turn] or (self._owed >= 1 and self._num_replayable))

    @property
    def has_batches(self) -> bool:
        """Whether any slot has a batch that may still be used."""
        return bool(any(self._uses_left) or self._num_replayable)

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


_MAX_AHEAD_BYTES = 64 << 20
_MAX_IN_FLIGHT = 16
_MAX_DRAW_STEPS = 32
_POLL_SECS = 0.001


class QueueSource(Planned):
    """A `Source` for the queues of one or several replay servers.

    Batches are stored in slots in this process; a draw returns only the slots' indices.

    Attributes:
      num_used: items taken for train steps so far.
      num_stale: items dropped as too old so far.
      has_rounds: whether a call of the learner ends where there is no batch, since nothing waits for one.
    """

    _KEPT = (
        '_plan',
        '_next_reader',
        '_pool',
        '_oldest',
        '_newest_version',
        'num_used',
        'num_stale',
        '_greatest_lag',
        '_num_others',
    )

    def __init__(
        self,
        addresses: Sequence[str],
        storage: Storage,
        batch_size: int,
        timeout_secs: float,
        make_reader: Callable[..., ItemReader],
        seed: int | None = None,
    ):
        """Takes nothing before `start`, or the first `grant`.

        Args:
          addresses: the replay servers' addresses, 'host:port'. Items are taken alternately from all servers that have
            some, so that none of them waits for another.
          batch_size: items in a train step, over all replicas of this process.
          make_reader: makes what reads the items at an address, with the arguments of a `TableReader`.
        """
        experience = storage.experience
        replay = experience.replay
        self._storage, self._batch_size = storage, batch_size
        self._item_shape = (experience.slicing.num_rows, storage.layout.num_bytes)
        self._ahead = max(1, min(replay.read_ahead, _MAX_AHEAD_BYTES // int(np.prod(self._item_shape))))
        spec = tf.TensorSpec(self._item_shape, tf.uint8)
        self._given = self._readers = Readers(
            [make_reader(address, storage, REPLAY, [spec], self._ahead, timeout_secs) for address in addresses]
        )
        self.has_rounds = not any(reader.reads_ahead for reader in self._readers.each)
        self._max_policy_lag, self._episode_steps = replay.max_policy_lag, replay.episode_steps
        self._num_others = 0
        if reuse := replay.reuse:
            self.steps_per_batch = reuse.times * (1 + reuse.replay_proportion)
        self._plan = ReusePlan(reuse, max(1, min(_MAX_DRAW_STEPS, self._ahead // batch_size)), seed)
        self.max_draw_steps = _MAX_DRAW_STEPS
        self._next_reader = 0  # index of the reader to take the next item from, if it has one
        self._pool = np.empty((0, *self._item_shape), np.uint8)
        self._oldest = [0] * self._plan.num_slots  # the oldest policy version in each slot
        self._newest_version = 0
        self.addresses, self.num_used = tuple(addresses), 0
        self.num_stale = self._greatest_lag = 0
        with tf.device('CPU:0'):
            empty = tf.zeros((self._plan.num_slots, batch_size, *self._item_shape), tf.uint8)
            self._slots = tf.Variable(empty, trainable=False, name='slots')
        self._keep_order(_MAX_DRAW_STEPS)

    @property
    def owed_steps(self) -> int:
        """Train steps that can be taken at once, at most; 0 if they need items that are not there yet."""
        return self.max_draw_steps if self._plan.is_ready or self._fill_pool() else 0

    def metrics(self) -> dict[str, Any]:
        """Returns `stale_sequences`, dropped so far, and `greatest_policy_lag` that was trained on [versions].

        If only episodes of one length are taken, also `other_episodes`, dropped so far.
        """
        others = {} if self._episode_steps is None else {'other_episodes': self._num_others}
        return {'stale_sequences': self.num_stale, 'greatest_policy_lag': self._greatest_lag, **others}

    def on_version(self, policy_version: int) -> None:
        """See `Source`."""
        self._newest_version = policy_version

    def used_and_dropped(self) -> tuple[int, int]:
        """See `Source`."""
        return self.num_used, self.num_stale + self._num_others

    def content(self) -> dict[str, Any]:
        """See `Resumable`."""
        return {**super().content(), 'slots': self._slots.numpy() if self._plan.has_batches else None}

    def set_content(self, content: Mapping[str, Any]) -> None:
        """See `Resumable`."""
        super().set_content(content)
        if content['slots'] is not None:
            self._slots.assign(content['slots'])

    def grant(self, num_steps: int) -> int:
        """See `Source`. Waits for a batch, and plans the next train steps."""
        self.start()
        planned: list[int] = []
        while len(planned) < min(num_steps, _MAX_DRAW_STEPS):
            slot = self._plan.next_slot()
            if slot is None:
                slots = self._plan.fresh_slots()
                # A planned batch must stay in its slot until it is taken. Nobody waits for a new one while there are
                # steps that can be taken.
                if not set(slots).isdisjoint(planned) or not self._fetch(slots, waits=not planned):
                    break
            elif self._is_stale(self._oldest[slot]):
                self._plan.drop(slot)
            else:
                planned.append(slot)
                self._greatest_lag = max(self._greatest_lag, self._newest_version - self._oldest[slot])
        self._set_order(np.resize(np.array(planned or [0], np.int32), _MAX_DRAW_STEPS))
        return len(planned)

    def batch(self, drawn: tf.Tensor, i: tf.Tensor) -> Batch:
        """Returns batch `i` of a draw: the trajectory [B, T, ...], and its `policy_version` [B, T]."""
        with tf.device('CPU:0'):
            rows = tf.gather(self._slots, tf.gather(drawn, i))
        return with_version(self._storage.layout.unpack(rows))

    def start(self) -> None:
        """See `Source`: reads items on threads."""
        for reader in self._readers.each:
            reader.start(one_by_one, in_flight=max(1, min(self._ahead // 2, _MAX_IN_FLIGHT)))

    def _fetch(self, slots: Sequence[int], waits: bool) -> bool:
        """Puts a new batch into slots. Returns False if there is none: immediately, or if `waits`, after the end."""
        while not self._fill_pool():
            if not waits or self.has_rounds or self._readers.closed:
                return False
            self._readers.wait(_POLL_SECS)
        self._readers.resume()
        rows, self._pool = self._pool[: self._batch_size], self._pool[self._batch_size :]
        self.num_used += self._batch_size
        for slot in slots:
            # An assignment to a slice would read the variable, and copy all slots.
            self._slots.scatter_update(tf.IndexedSlices(rows[np.newaxis], [slot]))
            self._oldest[slot] = int(self._versions(rows).min())
        self._plan.put()
        return True

    def _fill_pool(self) -> bool:
        """Takes available items until there are enough for a batch. Returns whether there are."""
        for reader, count in zip(self._readers.each, self._counts_to_take(), strict=True):
            if count > 0:
                (items,) = reader.take(count)
                self._pool = np.concatenate([self._pool, self._whole_episodes(np.asarray(items))])
                self._readers.resume()  # data arrive, even if not enough for a batch
        stale = self._is_stale(self._versions(self._pool))
        if np.any(stale):
            self.num_stale += int(np.sum(stale))
            self._pool = self._pool[~stale]
        return len(self._pool) == self._batch_size

    def _whole_episodes(self, items: np.ndarray) -> np.ndarray:
        """Returns the items [n, T, num_bytes] that are complete episodes of the wanted length, if there is one."""
        if self._episode_steps is None:
            return items
        rows = items[:, : self._episode_steps + 1]
        types = self._storage.layout.column(rows.reshape(-1, rows.shape[-1]), 'step_type').reshape(rows.shape[:2])
        wanted = np.full(self._episode_steps + 1, ts.StepType.MID, np.int32)
        wanted[0], wanted[-1] = ts.StepType.FIRST, ts.StepType.LAST
        whole = np.all(types == wanted, axis=1)
        self._num_others += int(np.sum(~whole))
        return items[whole]

    def _counts_to_take(self) -> list[int]:
        """Returns how many items to take from each reader for a batch: alternately one from each that has some."""
        available, counts = [reader.size() for reader in self._readers.each], [0] * len(self._readers.each)
        wanted = min(self._batch_size - len(self._pool), sum(available))
        # It goes on with the reader after the last one of the call before, so that none gets ahead of the others over
        # many small batches.
        while wanted:
            if counts[self._next_reader] < available[self._next_reader]:
                counts[self._next_reader] += 1
                wanted -= 1
            self._next_reader = (self._next_reader + 1) % len(counts)
        return counts

    def _versions(self, rows: np.ndarray) -> np.ndarray:
        """Returns the oldest policy version of each item [n, T, num_bytes], which is that of its first row."""
        return self._storage.layout.column(rows[:, 0], 'policy_version')

    def _is_stale(self, version: Any) -> Any:
        bound = self._max_policy_lag
        return bound is not None and self._newest_version - version > bound
