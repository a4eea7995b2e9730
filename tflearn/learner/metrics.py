"""Metrics: made in each replica, summed over replicas and steps in one vector, merged on the host,
read once.

`StepMetrics` is the layout of the vector, `Metrics` is what is read from it, `IntervalMetrics` are
those since the last summary.
"""

import dataclasses
import math
import os
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from tflearn.learner.elements import flatten_with_names, is_number

Reduction = Literal['mean', 'sum', 'max', 'min']

_REDUCTIONS = {'mean': tf.reduce_mean, 'sum': tf.reduce_sum, 'max': tf.reduce_max, 'min': tf.reduce_min}
_MAX_DEFERRED_SIZE = 1024

COUNT, LOSS = 0, 1  # indices in the vector


@dataclasses.dataclass(frozen=True)
class Metrics:
    """The metrics of some train steps; those of several calls are added.

    Attributes:
      num_nonfinite: how many of them had a loss that was not finite; these are in no sum.
      sums: sums over the steps: 'loss', 'extra/<name>' of the agent and 'info/<name>' of the data.
    """

    num_steps: int = 0
    num_nonfinite: int = 0
    waited_secs: float = 0.0
    sums: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def __add__(self, other: 'Metrics') -> 'Metrics':
        sums = {name: self.sums.get(name, 0.0) + other.sums.get(name, 0.0) for name in {**self.sums, **other.sums}}
        return Metrics(
            self.num_steps + other.num_steps,
            self.num_nonfinite + other.num_nonfinite,
            self.waited_secs + other.waited_secs,
            sums,
        )

    def means(self) -> dict[str, float]:
        """Returns the means over the steps whose loss was finite; NaN if there was none."""
        count = float(self.num_steps - self.num_nonfinite) or math.nan
        return {name: value / count for name, value in self.sums.items()}


class StepMetrics:
    """The layout of a train step's metrics (loss, the agent's extra metrics, the data's own) in one vector.

    An operation for each metric would cost more than a small train step does. So means and sums of
    small tensors are left for `read`, after the sum over the steps; then a step needs one
    concatenation and one addition for all of them.
    """

    def __init__(self, rules: Mapping[str, Reduction], num_replicas: int, last_info: Sequence[str] = ()):
        """The layout is known when a step has been traced.

        Args:
          rules: by the name of an extra metric, how it is reduced. The default is 'mean'; but 'sum'
            for the losses in a named tuple, as TF-Agents' agents return them: each scalar whose
            name ends with 'loss' is a replica's share of the global batch's, like the loss itself.
          last_info: names of the data's own metrics, if these are not summed over the steps in the
            vector: their means over one batch follow it.
        """
        self._rules, self._num_replicas, self._last_info = rules, num_replicas, last_info
        self._sizes: dict[str, int] = {}
        self._summed: set[str] = set()
        self._extremes: dict[str, Reduction] = {}
        self._summary: dict[str, int] = {}

    @property
    def size(self) -> int:
        """The vector's length, with the summary's; known once a step has been traced."""
        return 2 + sum(self._sizes.values()) + len(self._extremes) + sum(self._summary.values())

    def of_replica(self, loss: tf.Tensor, extra: Any, info: Any) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Returns a replica's metrics: those that are summed, float32 [n],
        and a [1] for each maximum or minimum.

        Args:
          loss: scalar, this replica's share.
          extra: nest of the agent's extra metrics; leaves that are not numbers are left out.
          info: nest of the data's own metrics.
        """
        parts, extremes = [tf.constant([1.0 / self._num_replicas]), loss[None]], []
        self._extremes = {}
        for kind, values in (('extra', extra), ('info', () if self._last_info else info)):
            for name, value in flatten_with_names(values):
                tensor = tf.convert_to_tensor(value)
                if not is_number(tensor.dtype):
                    continue
                tensor = tf.cast(tensor, tf.float32)
                is_loss = tensor.shape.rank == 0 and name.endswith('loss')
                is_share = is_loss and kind == 'extra' and hasattr(extra, '_fields')
                rule = self._rules.get(name, 'sum' if is_share else 'mean')
                if rule in ('max', 'min'):
                    extremes.append(_REDUCTIONS[rule](tensor)[None])
                    self._extremes[f'{kind}/{name}'] = rule
                else:
                    parts.append(self._linear(f'{kind}/{name}', tensor, rule))
        return tf.concat(parts, axis=0), extremes

    def _linear(self, name: str, tensor: tf.Tensor, rule: Reduction) -> tf.Tensor:
        size = tensor.shape.num_elements()
        if rule == 'sum':
            self._summed.add(name)
        if name not in self._sizes:
            self._sizes[name] = size if size and size <= _MAX_DEFERRED_SIZE else 1
        if size == self._sizes[name]:
            return tf.reshape(tensor, [-1])
        # Too large, of no fixed size, or traced before for another batch size.
        number = tf.reduce_mean(tensor) if rule == 'mean' else tf.reduce_sum(tensor) / self._sizes[name]
        return tf.fill([self._sizes[name]], number)

    def over_replicas(self, strategy: tf.distribute.Strategy, summed: Any, extremes: list[Any]) -> tf.Tensor:
        """Returns the vector of the complete step,
        from what `of_replica` returned on each replica.
        """
        vector = strategy.reduce(tf.distribute.ReduceOp.SUM, summed, axis=None)
        if self._num_replicas > 1:
            extremes = [
                _REDUCTIONS[rule](strategy.gather(part, axis=0))[None]
                for part, rule in zip(extremes, self._extremes.values(), strict=True)
            ]
        return tf.concat([vector, *extremes], axis=0)

    def of_summary(self, tensors: Mapping[str, tf.Tensor]) -> list[tf.Tensor]:
        """Returns a replica's summary tensors as one vector, to follow that of the metrics; [] if there are none."""
        self._summary = {tag: tensor.shape[0] for tag, tensor in tensors.items()}
        return [tf.concat([*tensors.values()], axis=0)] if tensors else []

    def read_summary(self, vector: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the summary of one train step by tag; see `read`."""
        first = self.size - sum(self._summary.values())
        parts = np.split(vector, np.cumsum([first, *self._summary.values()]))
        return dict(zip(self._summary, parts[1:-1], strict=True))

    def read(self, vector: np.ndarray, num_steps: int | None = None, waited_secs: float = 0.0) -> Metrics:
        """Reads a sum of vectors.

        Args:
          vector: the sum over the steps whose loss was finite, followed by the means of
            `last_info`.
          num_steps: train steps taken; None if each of them is in the sum.
        """
        count, sums, start = round(float(vector[COUNT])), {'loss': float(vector[LOSS])}, 2
        for name, size in self._sizes.items():
            total = float(vector[start : start + size].sum())
            sums[name] = total if name in self._summed else total / (size * self._num_replicas)
            start += size
        sums |= {name: float(value) for name, value in zip(self._extremes, vector[start:], strict=False)}
        last = zip(self._last_info, vector[self.size :], strict=True)
        sums |= {f'info/{name}': count * float(mean) for name, mean in last}
        num_steps = count if num_steps is None else num_steps
        return Metrics(num_steps, num_steps - count, waited_secs, sums)


class IntervalMetrics:
    """The metrics of all train steps between two summaries."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter):
        self._clock = clock
        self._start: float | None = None  # before the first train step there is nothing to wait for
        self._total = Metrics()
        self._trigger_secs = self._longest_trigger_secs = 0.0

    @property
    def num_steps(self) -> int:
        """Train steps since the last summary."""
        return self._total.num_steps

    def begin(self) -> None:
        """Starts the clock; it then runs until the end of training."""
        if self._start is None:
            self._start = self._clock()

    def add(self, metrics: Metrics) -> None:
        """Adds the metrics of train steps, or of a wait for data;
        waits before `begin` do not count.
        """
        if self._start is not None:
            self._total += metrics

    def add_trigger(self, secs: float) -> None:
        """Adds seconds for which a trigger held up training."""
        self._trigger_secs += secs
        self._longest_trigger_secs = max(self._longest_trigger_secs, secs)

    def leave_out(self, secs: float) -> None:
        """Leaves out seconds that just passed."""
        if self._start is not None:
            self._start += secs

    def take(self) -> Mapping[str, float]:
        """Returns the metrics since the last call, and starts the next interval.

        Returns:
          `loss`, `extra/...` and `info/...`: means over the steps whose loss was finite (none
          without such a step); `nonfinite_steps`; `steps_per_sec`, of all time that passed, except
          what was left out; `data_wait_share`, the part of it spent waiting for data, in [0, 1];
          `trigger_secs`, spent in triggers, and `longest_trigger_secs`, in one call of one of them.
        """
        now, total = self._clock(), self._total
        secs = max(now - (self._start or now), 1e-9)
        metrics = {
            **(total.means() if total.num_steps > total.num_nonfinite else {}),
            'nonfinite_steps': total.num_nonfinite,
            'steps_per_sec': total.num_steps / secs,
            'data_wait_share': min(total.waited_secs / secs, 1.0),
            'trigger_secs': self._trigger_secs,
            'longest_trigger_secs': self._longest_trigger_secs,
        }
        self._start, self._total = now, Metrics()
        self._trigger_secs = self._longest_trigger_secs = 0.0
        return metrics


def rss_mb(pages: pathlib.Path = pathlib.Path('/proc/self/statm')) -> float | None:
    """Returns the resident memory of this process [MB]; None where the system does not report it.

    Args:
      pages: the file in which the system reports it.
    """
    try:
        resident = int(pages.read_text(encoding='utf-8').split()[1])
    except OSError:
        return None
    return resident * os.sysconf('SC_PAGE_SIZE') / 1e6


@dataclasses.dataclass(frozen=True)
class TrainResult:
    """What a call of `Learner.run` did.

    Attributes:
      num_steps: train steps taken; fewer than requested only when the data ended.
      loss: mean over the steps of the global batch's loss; NaN if there is no step to average.
      extra: the agent's extra metrics by name, means over steps, replicas and their own axes (see
        `LoopOptions`).
      info: means of the data's own metrics (`policy_version`, ...); for a `Source` those of the
        last batch.
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
