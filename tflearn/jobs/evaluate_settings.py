"""Which policies the evaluate job evaluates, and how they act."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Literal

from tflearn.actors.episode_recorder import OnEpisode
from tflearn.actors.evaluator import MAX_SECS, MAX_STEPS_PER_EPISODE
from tflearn.core.errors import UserValueError
from tflearn.core.settings import Fraction, NonNegativeFloat, PositiveFloat, PositiveInt, checked_dataclass

# The names of `EpisodeMetrics` but for discounted returns.
_METRIC = re.compile(r'return(_\d+)?|length|reward|(info|info_end|custom)/.+')

Follow = Literal['newest', 'each', 'in_loop', 'weights', 'served']


@checked_dataclass(frozen=True)
class Videos:
    """How often the evaluate job records videos, if it is given `record_video`.

    Attributes:
      interval: the number of evaluations per video.
      episodes: the number of episodes of a video; they do not count for the mean return.
    """

    interval: PositiveInt = 10
    episodes: PositiveInt = 1


@checked_dataclass(frozen=True)
class Plateau:
    """When evaluations get no better: training ends.
    A run that ended so goes on with a greater `patience`.

    Attributes:
      patience: evaluations in a row of which none is better than the best one before, by
        `target_metric`.
      min_improvement: how much better an evaluation must be to count as better.
    """

    patience: PositiveInt = 10
    min_improvement: NonNegativeFloat = 0.0


@checked_dataclass(frozen=True)
class EvaluateOptions:
    """Additional settings of the evaluate job.

    Attributes:
      follow: 'newest' evaluates the newest exported version, 'each' every version once and in order
        (except those that the train job removes before: see `ExportOptions.keep_last`). 'in_loop'
        does so too, while training waits for it, for which both are in one process:
        `tflearn.train(mode='synchronous')`. 'weights' evaluates the weights that the train job
        publishes to the coordinator, so it needs no file of that job; an evaluated version is
        exported to the policy 'evaluated_policy' of this job's run directory. 'served' acts with a
        served policy, see `served_at`.
      policy: the name of the exported or served policy.
      served_at: the server's address, 'host:port', for 'served'.
      epsilon: the share of random actions; 0 leaves the policy unchanged.
      max_steps_per_episode: an episode that does not end within so many steps is cut there; the
        evaluation is then marked as incomplete, and its environment plays no other one.
      max_secs: an evaluation that takes longer ends with the episodes that are complete, as an
        incomplete one [s].
      target_metric: the metric of an episode whose mean makes a policy the best, and that the job's
        `target_return` is a value of: 'return', 'length', 'return_<i>' of several rewards, or
        'info/<key>' (mean over the steps) or 'info_end/<key>' (last value) of a number in the
        environment's info, or 'custom/<name>' of `on_episode`.
      lower_is_better: whether less of that metric is better, as of a cost.
      limits: by the name of a metric, as of `target_metric`, the most that its mean may be, such as
        {'info/cost': 0.1}. A policy above one of them is worse than all within them, by how far it
        is above, and reaches no target.
      videos: how often videos are recorded.
      on_episode: called with each episode that ends, an `episode_recorder.CollectedEpisode` of the
        collector 'evaluate'. It returns numbers by name, which become metrics 'custom/<name>' of
        the evaluation, or None.
    """

    follow: Follow = 'newest'
    policy: str = 'greedy_policy'
    served_at: str | None = None
    epsilon: Fraction = 0.0
    max_steps_per_episode: PositiveInt = MAX_STEPS_PER_EPISODE
    max_secs: PositiveFloat = MAX_SECS
    target_metric: str = 'return'
    lower_is_better: bool = False
    limits: Mapping[str, float] = dataclasses.field(default_factory=dict)
    videos: Videos = Videos()
    on_episode: OnEpisode | None = None

    def __post_init__(self) -> None:
        if (self.follow == 'served') != (self.served_at is not None):
            raise UserValueError(
                f'got EvaluateOptions.follow={self.follow!r} with served_at={self.served_at!r}; need '
                "follow='served' and served_at='host:port' together, or neither"
            )
        if not isinstance(self.limits, Mapping):
            raise UserValueError(f'got EvaluateOptions.limits={self.limits!r}; need a dict, of metrics to limits')
        for name, metric in (('target_metric', self.target_metric), *(('limits', each) for each in self.limits)):
            if not _METRIC.fullmatch(metric):
                raise UserValueError(
                    f'got EvaluateOptions.{name}={metric!r}; need return, length, reward, return_<i>, info/<key>, '
                    'info_end/<key> or custom/<name>'
                )
