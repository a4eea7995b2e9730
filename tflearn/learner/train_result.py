"""TrainResult: what a call of `Learner.run` did."""

import dataclasses
import math
import time

import tensorflow as tf

from tflearn.learner.train_loop import Taken


@dataclasses.dataclass(frozen=True)
class TrainResult:
    """What a call of `Learner.run` did.

    Attributes:
      num_steps: train steps taken; fewer than asked for only when the data ended.
      loss: mean over the steps of the global batch's loss; NaN if there is no step to average.
      extra: the agent's extra metrics by name, means over steps, replicas and their own axes (see `LoopOptions`).
      info: means of the data's own metrics (`policy_version`, ...); of a `BatchSource` those of the last batch.
      num_nonfinite: train steps whose loss was not finite; they are not in the means.
      secs: of the call, without its triggers.
      data_wait_share: the part of the call spent waiting for data, in [0, 1].
      data_ended: whether there are no more data, so that no further train step can be taken.
    """

    num_steps: int
    loss: float
    extra: dict[str, float]
    info: dict[str, float]
    num_nonfinite: int
    secs: float
    data_wait_share: float
    data_ended: bool = False

    @property
    def waited_secs(self) -> float:
        """Seconds of the call spent waiting for data."""
        return self.data_wait_share * self.secs

    @property
    def steps_per_sec(self) -> float:
        """Train steps per second of the call."""
        return self.num_steps / self.secs


class Call:
    """Adds up what the programs of one call of `run` did."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._parts: list[Taken] = []
        self.num_steps = self.num_nonfinite = 0
        self.waited_secs = 0.0

    def add(self, taken: Taken) -> None:
        self._parts.append(taken)
        self.num_steps += taken.num_steps
        self.num_nonfinite += taken.num_nonfinite
        self.waited_secs += taken.waited_secs

    def result(self, data_ended: bool) -> TrainResult:
        secs = time.perf_counter() - self._start
        counted = float(self.num_steps - self.num_nonfinite) or math.nan
        if len(self._parts) == 1:
            sums = self._parts[0]
            totals = (sums.loss, sums.extra, sums.info)
        else:
            parts = [(part.loss, part.extra, part.info) for part in self._parts] or [(0.0, {}, {})]
            totals = tf.nest.map_structure(lambda *values: sum(values), *parts)
        loss, extra, info = totals
        return TrainResult(
            self.num_steps,
            loss / counted,
            {name: value / counted for name, value in extra.items()},
            {name: value / counted for name, value in info.items()},
            self.num_nonfinite,
            secs,
            min(self.waited_secs / secs, 1.0),
            data_ended,
        )
