"""Which policies the evaluate job evaluates, and how they act."""

import re
from typing import Literal

from tflearn.actors.evaluator import MAX_SECS, MAX_STEPS_PER_EPISODE
from tflearn.core.errors import UserValueError
from tflearn.core.settings import Fraction, PositiveFloat, PositiveInt, checked_dataclass

# The names of `EpisodeMetrics` but for discounted returns.
_METRIC = re.compile(r'return(_\d+)?|length|reward|info(_end)?/.+')

Follow = Literal['newest', 'each', 'weights', 'served']


@checked_dataclass(frozen=True)
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
      max_steps_per_episode: an episode that does not end within so many steps is cut there; the evaluation is then
        marked as incomplete, and its environment plays no other one.
      max_secs: an evaluation that takes longer ends with the episodes that are complete, as an incomplete one [s].
      target_metric: the metric of an episode whose mean makes a policy the best, and that the job's `target_return` is
        a value of: 'return', 'length', 'return_<i>' of several rewards, or 'info/<key>' (mean over the steps) or
        'info_end/<key>' (last value) of a number in the environment's info.
      lower_is_better: whether less of that metric is better, as of a cost.
      video_interval: the number of evaluations per video, if the job is given `record_video`.
      video_episodes: the number of episodes of a video; they do not count for the mean return.
    """

    follow: Follow = 'newest'
    policy: str = 'greedy_policy'
    served_at: str | None = None
    epsilon: Fraction = 0.0
    max_steps_per_episode: PositiveInt = MAX_STEPS_PER_EPISODE
    max_secs: PositiveFloat = MAX_SECS
    target_metric: str = 'return'
    lower_is_better: bool = False
    video_interval: PositiveInt = 10
    video_episodes: PositiveInt = 1

    def __post_init__(self) -> None:
        if (self.follow == 'served') != (self.served_at is not None):
            raise UserValueError(
                f'got EvaluateOptions.follow={self.follow!r} with served_at={self.served_at!r}; need '
                "follow='served' and served_at='host:port' together, or neither"
            )
        if not _METRIC.fullmatch(self.target_metric):
            raise UserValueError(
                f'got EvaluateOptions.target_metric={self.target_metric!r}; need return, length, reward, return_<i>, '
                'info/<key> or info_end/<key>'
            )
