"""PrioritizedMirror: batches that are drawn by priority from a copy of the replay table in the learner's memory."""

from collections.abc import Sequence

from tflearn.core.errors import UserTypeError
from tflearn.core.experience import Prioritized
from tflearn.replay.storage import Storage
from tflearn.sampling.by_priority import ByPriority
from tflearn.sampling.mirror import ReplayMirror


class PrioritizedMirror(ByPriority, ReplayMirror):
    """A `BatchSource` that draws from the learner's memory by priority, with importance weights.

    Of several workers each draws from its own mirror, by the priorities there, and N and P are those of its mirror.
    """

    def __init__(
        self,
        addresses: str | Sequence[str],
        storage: Storage,
        batch_size: int,
        timeout_secs: float,
        seed: int = 0,
        filled_from: Sequence[str] | None = None,
    ):
        """See `ReplayMirror`.

        Raises:
          TypeError: if the experience has another replay.
        """
        replay = storage.experience.replay
        if not isinstance(replay, Prioritized):
            raise UserTypeError(f'got Experience.replay={replay!r}; need Prioritized(...)')
        super().__init__(addresses, storage, batch_size, timeout_secs, seed, filled_from=filled_from)
        self._begin(replay)
