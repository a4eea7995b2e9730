"""What an evaluation looks at, and how it acts."""

import dataclasses
from typing import Literal, get_args

from tflearn.errors import UserValueError

Follow = Literal['newest', 'each', 'weights', 'served']


@dataclasses.dataclass(frozen=True)
class EvaluateOptions:
    """The evaluate job's further settings.

    Attributes:
      follow: 'newest' evaluates the newest exported version, 'each' every one, once and in their order (those that the
        train job removes before their turn are lost: see `ExportOptions.keep_last`). 'weights' evaluates what the train
        job publishes to the replay server, so it needs no file of that job; a version that was evaluated is exported to
        the policy 'evaluated_policy' of this job's run directory. 'served' has a server act, see `served_at`.
      policy: name of the exported or served policy.
      served_at: 'host:port' of the server, for 'served'.
      epsilon: share of random actions; 0 leaves the policy as it is.
      max_steps_per_episode: an episode that takes longer is an error.
      video_interval: of so many evaluations the first is filmed, if the job is given `record_video`.
      video_episodes: that are filmed; they do not count for the mean return.
    """

    follow: Follow = 'newest'
    policy: str = 'greedy_policy'
    served_at: str | None = None
    epsilon: float = 0.0
    max_steps_per_episode: int = 100_000
    video_interval: int = 10
    video_episodes: int = 1

    def __post_init__(self) -> None:
        if self.follow not in get_args(Follow):
            raise UserValueError(
                f'got EvaluateOptions.follow={self.follow!r}; need one of {", ".join(get_args(Follow))}'
            )
        if (self.follow == 'served') != (self.served_at is not None):
            raise UserValueError(
                f'got EvaluateOptions.follow={self.follow!r} with served_at={self.served_at!r}; need '
                "follow='served' and served_at='host:port' together, or neither"
            )
        if not 0 <= self.epsilon <= 1:
            raise UserValueError(f'got EvaluateOptions.epsilon={self.epsilon!r}; need a number in [0, 1]')
        for name in ('max_steps_per_episode', 'video_interval', 'video_episodes'):
            if getattr(self, name) < 1:
                raise UserValueError(f'got EvaluateOptions.{name}={getattr(self, name)}; need at least 1')
