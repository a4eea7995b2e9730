"""LocalReplay: a replay within one process, without a server: steps in, batches out, in an exact ratio."""

import dataclasses
import fractions
from collections.abc import Mapping
from typing import Any

from tflearn.core.errors import UserValueError
from tflearn.core.experience import Experience, Prioritized, Uniform
from tflearn.core.resumable import Resumable
from tflearn.replay.chunks import ChunkBuilder, pack
from tflearn.replay.storage import Storage
from tflearn.sampling.ring_source import RingSource


def check(experience: Experience) -> None:
    """Checks that a replay within one process supports the experience.

    Raises:
      ValueError: for a queue, or a limit of an item's draws.
    """
    replay = experience.replay
    if not isinstance(replay, Uniform | Prioritized) or replay.max_times_sampled:
        raise UserValueError(
            f'got Experience.replay={replay!r} for a replay within one process, which draws without a limit; need '
            'Uniform(...) or Prioritized(...) with max_times_sampled=0, or a replay server'
        )


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
          storage: the replay tables' layout; its experience passes `check`.
          num_environments: B.
        """
        experience = storage.experience
        # Each sequence is its own chunk, so that none waits for others.
        self._storage = dataclasses.replace(storage, experience=dataclasses.replace(experience, chunk_steps=1))
        ratio = experience.replay.samples_per_insert
        self._ratio = None if ratio is None else fractions.Fraction(str(ratio))  # in floats 100 * 0.29 < 29
        super().__init__(self._storage, batch_size, seed)
        layout = self._storage.layout
        self._chunks = ChunkBuilder(
            self._storage.experience, self._storage.num_starts, num_environments, layout.num_bytes
        )
        self._inserts = self._rounds = self._granted = 0
        self._num_filled = 0  # sequences beyond `min_size` that were there before collection
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

    def content(self) -> dict[str, Any]:
        """See `Resumable`."""
        return {**super().content(), 'parts': [part.content() for part in self._parts]}

    def set_content(self, content: Mapping[str, Any]) -> None:
        """See `Resumable`."""
        super().set_content(content)
        for part, own in zip(self._parts, content['parts'], strict=True):
            part.set_content(own)

    @property
    def _parts(self) -> list[Resumable]:
        return [self._ring, self._chunks, *([self._by_priority] if self._by_priority else [])]

    def begin_with_next(self) -> None:
        """See `ChunkBuilder.begin_with_next`."""
        self._chunks.begin_with_next()

    def begin_collection(self) -> None:
        """Lets what was added so far count for `min_size`, but not for the samples per insert.

        To be called once the replay was filled, such as from files, before the first step of an environment is added.
        """
        self._num_filled, self._rounds = max(0, self._inserts - self._min_size), 0

    @property
    def _inserts_beyond(self) -> int:
        return self._inserts - self._num_filled - self._min_size

    @property
    def owed_steps(self) -> int:
        """Train steps that the inserted sequences allow and that are not yet granted.

        With n sequences inserted beyond `min_size`, floor(n * samples_per_insert / batch size) in all; if the
        experience sets no ratio, one for each batched step since then.
        """
        if self._ratio is None:
            return self._rounds - self._granted
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
