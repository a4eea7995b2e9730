"""The checks of a run while it trains: a warning in the log when one begins to look wrong."""

from collections.abc import Mapping

import numpy as np
from absl import logging
from google.protobuf import message

from tflearn.files.run_dir import RunDir
from tflearn.tools import checks
from tflearn.tools.checks import Points
from tflearn.tools.series import NewScalars

_MOST_POINTS = 512  # of a metric; of a longer run every second one is kept
_ONLY_AT_THE_END = {'returns-flat', 'data-wait'}  # a young run has not learned yet, or waits for its first data


class Watch:
    """Takes each summary's metrics, and logs what looks wrong, once until it looks right again.

    Metrics of gradients are in no summary's metrics, since the summary program writes them itself; those of collectors
    and of the evaluation have steps of their own. They are read from the run's event files.
    """

    def __init__(self, run_dir: RunDir) -> None:
        """Reads nothing yet; what an earlier session has recorded is left out."""
        self._recorded: NewScalars | None = NewScalars(run_dir)
        self._steps: dict[str, list[int]] = {}
        self._values: dict[str, list[float]] = {}
        self._wrong: set[str] = set()

    def __call__(self, step: int, metrics: Mapping[str, float | None]) -> None:
        """Adds the metrics of a train step; those that are None or not finite are left out."""
        for name, value in metrics.items():
            if value is not None:
                self._add(f'train/{name}', step, float(value))
        self._add_recorded()
        series = {
            tag: Points(np.array(steps, np.int64), np.array(self._values[tag])) for tag, steps in self._steps.items()
        }
        wrong = {finding.check: finding for finding in checks.run_all(series) if finding.wrong}
        for check in wrong.keys() - self._wrong - _ONLY_AT_THE_END:
            logging.warning('train step %d: %s: %s; see %s', step, check, wrong[check].text, wrong[check].link)
        self._wrong = set(wrong)

    def _add_recorded(self) -> None:
        if self._recorded is None:
            return
        try:
            for tag, step, value in self._recorded():
                if not tag.startswith('train/') and not tag.endswith('/variable_norm'):  # those are given; unchecked
                    self._add(tag, step, value)
        except (OSError, message.DecodeError) as error:  # no reason to end the training
            logging.warning('no more warnings by metrics of gradients and collectors: %s', error)
            self._recorded = None

    def _add(self, tag: str, step: int, value: float) -> None:
        if not np.isfinite(value):
            return
        steps, values = self._steps.setdefault(tag, []), self._values.setdefault(tag, [])
        steps.append(step)
        values.append(value)
        if len(steps) > _MOST_POINTS:
            del steps[::2], values[::2]
