"""TrainResult: what a call of `Learner.run` did."""

import dataclasses
import math

from tflearn.learner.metrics import Metrics


@dataclasses.dataclass(frozen=True)
class TrainResult:
    """What a call of `Learner.run` did.

    Attributes:
      num_steps: train steps taken; fewer than requested only when the data ended.
      loss: mean over the steps of the global batch's loss; NaN if there is no step to average.
      extra: the agent's extra metrics by name, means over steps, replicas and their own axes (see `LoopOptions`).
      info: means of the data's own metrics (`policy_version`, ...); for a `BatchSource` those of the last batch.
      num_nonfinite: train steps whose loss was not finite; they are not in the means.
      secs: duration of the call, without its triggers.
      data_wait_share: the part of the call spent waiting for data, in [0, 1].
      data_ended: whether there are no more data, so that no more train steps can be taken.
    """

    num_steps: int
    loss: float
    extra: dict[str, float]
    info: dict[str, float]
    num_nonfinite: int
    secs: float
    data_wait_share: float
    data_ended: bool = False

    @classmethod
    def of(cls, metrics: Metrics, secs: float, data_ended: bool = False) -> 'TrainResult':
        """Returns the result of a call with these metrics that took `secs` seconds."""
        means = metrics.means()
        extra, info = (
            {name.removeprefix(kind): mean for name, mean in means.items() if name.startswith(kind)}
            for kind in ('extra/', 'info/')
        )
        share = min(metrics.waited_secs / secs, 1.0)
        loss = means.get('loss', math.nan)
        return cls(metrics.num_steps, loss, extra, info, metrics.num_nonfinite, secs, share, data_ended)

    @property
    def waited_secs(self) -> float:
        """Seconds of the call spent waiting for data."""
        return self.data_wait_share * self.secs

    @property
    def steps_per_sec(self) -> float:
        """Train steps per second of the call."""
        return self.num_steps / self.secs
