"""The settings of a training session."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from tflearn.defaults import DefaultInt
from tflearn.distribute.watchdog import Watchdog
from tflearn.errors import UserValueError
from tflearn.jobs.policy_exports import ExportOptions
from tflearn.learner.learner import LearnerOptions

# Defaults of the jobs train and synchronous, if neither their arguments nor the learner's options set the intervals.
CHECKPOINT_INTERVAL_STEPS = DefaultInt(5_000)
SUMMARY_INTERVAL_STEPS = DefaultInt(1_000)


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings of a session. Intervals are train steps, each at least 1.

    Attributes:
      publish: the interval of publications of the weights.
      export: the interval of exports of the policies.
      learner: the learner's settings; see `with_intervals`.
      exports: which policies are exported.
      replica_check: the interval of comparisons of the replicas' variables; None makes none.
      texts: returns texts about the run by tag: its configuration, the code's revision, ...
      watchdog: ends the process if a part of the session takes too long; None never does.
    """

    publish: int
    export: int
    learner: LearnerOptions = dataclasses.field(default_factory=LearnerOptions)
    exports: ExportOptions = dataclasses.field(default_factory=ExportOptions)
    replica_check: int | None = None
    texts: Callable[[], Mapping[str, str]] = dict
    watchdog: Watchdog | None = None

    def __post_init__(self) -> None:
        _check_intervals(publish=self.publish, export=self.export, replica_check=self.replica_check)

    @property
    def summary(self) -> int | None:
        """The interval of summaries [train steps]; None if there are none at fixed intervals."""
        return self.learner.summaries.interval_steps if self.learner.summaries else None

    def learner_options(
        self, policy_version: Callable[[], int], metrics: Callable[[], Mapping[str, float | None]]
    ) -> LearnerOptions:
        """Returns the learner's settings with the functions that only the session can provide."""
        summaries = self.learner.summaries
        if summaries is None:
            return self.learner
        summaries = dataclasses.replace(
            summaries,
            policy_version=policy_version,
            metrics=_joined(summaries.metrics, metrics),
            texts=_joined(summaries.texts, self.texts),
        )
        return dataclasses.replace(self.learner, summaries=summaries)


def with_intervals(job: str, options: LearnerOptions, checkpoint: int | None, summary: int | None) -> LearnerOptions:
    """Returns the learner's options with the intervals that either they or the job's own arguments set.

    Args:
      job: the job's name, for the message.
      options: the learner's options as given by the user.
      checkpoint: the job's `checkpoint_interval_steps`.
      summary: the job's `summary_interval_steps`.

    Raises:
      ValueError: if both set an interval to different values, or if an option is set that only the job can know.
    """
    _check_intervals(checkpoint=checkpoint, summary=summary)
    summaries = options.summaries
    if summaries is not None and summaries.policy_version is not None:
        raise UserValueError('got SummaryOptions.policy_version; need None: the job itself knows the newest version')
    checkpoint = _one_of(
        f'{job}.checkpoint_interval_steps',
        checkpoint,
        'LearnerOptions.checkpoint_interval_steps',
        options.checkpoint_interval_steps,
    )
    summary = _one_of(
        f'{job}.summary_interval_steps',
        summary,
        'SummaryOptions.interval_steps' if summaries else 'LearnerOptions.summaries',
        summaries.interval_steps if summaries else None,
    )
    if summaries is not None:
        summaries = dataclasses.replace(summaries, interval_steps=summary)
    return dataclasses.replace(options, checkpoint_interval_steps=checkpoint, summaries=summaries)


def _one_of(name: str, value: int | None, option: str, option_value: int | None) -> int | None:
    """Returns the value that was given; the job's default if none was."""
    if isinstance(option_value, DefaultInt):
        return value
    if isinstance(value, DefaultInt) or value == option_value:
        return option_value
    raise UserValueError(f'got {name}={value} and {option}={option_value}; need one of them; leave the other one out')


def _check_intervals(**intervals: int | None) -> None:
    for name, value in intervals.items():
        if value is not None and value < 1:
            raise UserValueError(f'got {name}_interval_steps={value}; need at least 1 train step')


def _joined(
    users: Callable[[], Mapping[str, Any]] | None, jobs: Callable[[], Mapping[str, Any]]
) -> Callable[[], Mapping[str, Any]]:
    return (lambda: {**users(), **jobs()}) if users else jobs
