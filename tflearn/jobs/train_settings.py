"""What a session of training does, and how often."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from tflearn.errors import UserValueError
from tflearn.jobs.policy_exports import ExportOptions
from tflearn.learner.learner import LearnerOptions
from tflearn.learner.summaries import SummaryOptions


@dataclasses.dataclass(frozen=True)
class Settings:
    """What a session does, and how often: train steps between two events of a kind, each at least 1.

    Attributes:
      checkpoint: between two checkpoints.
      summary: between two summaries.
      publish: between two publications of the weights.
      export: between two exports of the policy.
      replica_check: between two comparisons of the replicas' variables; None makes none.
      watchdog_secs: how long several workers may take for a call of the learner, before their processes are ended.
      learner: the learner's further settings.
      exports: which policies are exported.
    """

    checkpoint: int
    summary: int
    publish: int
    export: int
    replica_check: int | None = None
    watchdog_secs: float = 900.0
    learner: LearnerOptions = dataclasses.field(default_factory=LearnerOptions)
    exports: ExportOptions = dataclasses.field(default_factory=ExportOptions)

    def __post_init__(self) -> None:
        for name in ('checkpoint', 'summary', 'publish', 'export', 'replica_check'):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserValueError(f'got {name}_interval_steps={value}; need at least 1 train step')

    @property
    def texts(self) -> Callable[[], Mapping[str, str]]:
        """Tells of the run, by tag: its configuration, the code's revision, ..."""
        return (self.learner.summaries and self.learner.summaries.texts) or dict

    def learner_options(
        self, policy_version: Callable[[], int], figures: Callable[[], Mapping[str, float | None]]
    ) -> Any:
        """Returns the learner's settings with these intervals, and with what only the session knows."""
        summaries = dataclasses.replace(
            self.learner.summaries or SummaryOptions(),
            interval_steps=self.summary,
            policy_version=policy_version,
            figures=figures,
        )
        return dataclasses.replace(self.learner, checkpoint_interval_steps=self.checkpoint, summaries=summaries)


def with_texts(options: LearnerOptions, texts: Callable[[], Mapping[str, str]]) -> LearnerOptions:
    """Returns the options with what `texts` tells, by tag, for TensorBoard."""
    summaries = dataclasses.replace(options.summaries or SummaryOptions(), texts=texts)
    return dataclasses.replace(options, summaries=summaries)
