"""Which policies the evaluate job evaluates, and how they act."""

import dataclasses
from typing import Literal, get_args

from tflearn.errors import UserValueError

Follow = Literal['newest', 'each', 'weights', 'served']


@dataclasses.dataclass(frozen=True)
class EvaluateOptions:
    """Additional settings of the evaluate job.

    Attributes:
      follow: 'newest' evaluates the newest exported version, 'each' every version once and in order (except those that
        the train job removes before: see `ExportOptions.keep_last`). 'weights' evaluates the weights that the train job
        publishes to the replay server, so it needs no file of that job; an evaluated version is exported to the policy
        'evaluated_policy' of this job's run directory. 'served' acts with a served policy, see `served_at`.
      policy: the name of the exported or served policy.
      served_at: the server's address, 'host:port', for 'served'.
      epsilon: the share of random actions; 0 leaves the policy unchanged.
      max_steps_per_episode: an episode with more steps is an error.
      video_interval: the number of evaluations per video, if the job is given `record_video`.
      video_episodes: the number of episodes of a video; they do not count for the mean return.
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
