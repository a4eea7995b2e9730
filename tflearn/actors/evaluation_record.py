"""The file with a run's evaluations: one JSON object per line."""

import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from absl import logging

from tflearn.core import forms, side_tasks
from tflearn.core.errors import UserValueError
from tflearn.files import messages
from tflearn.files.run_dir import write_atomically

Evaluation = dict[str, Any]


def value(evaluation: Mapping[str, Any], metric: str) -> float | None:
    """Returns the mean of a metric of its episodes, named as in `EpisodeMetrics`;
    None if no episode has it.
    """
    if metric in ('return', 'length'):
        return evaluation.get(f'mean_{metric}')
    return (evaluation.get('metrics') or {}).get(metric)


def read(path: pathlib.Path) -> list[Evaluation]:
    """Returns the evaluations of a file that another process may be writing;
    none if there is no file.

    Raises:
      ValueError: if a line is damaged.
    """
    return _parse(path)[0]


def _parse(path: pathlib.Path) -> tuple[list[Evaluation], str | None]:
    """Returns the evaluations, and the file's complete lines if the last line is incomplete."""
    try:
        text = path.read_text(encoding='utf-8', errors='replace') if path.exists() else ''
    except OSError as error:
        raise UserValueError(f'got {path}, which cannot be read ({error.strerror}); need a file; remove it') from error
    complete, newline, incomplete = text.rpartition('\n')
    evaluations = []
    for number, line in enumerate(complete.splitlines(), start=1):
        try:
            evaluation = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserValueError(f'got a damaged line {number} in {path} ({error}); remove that line') from error
        if fault := forms.fault(evaluation, messages.StepEvaluation, '', f'a damaged line {number} in {path}, with '):
            raise UserValueError(f'{fault}; remove that line')
        evaluations.append(evaluation)
    return evaluations, complete + newline if incomplete else None


class EvaluationRecord:
    """Reads, repairs and extends the file. It has one writer.

    Attributes:
      evaluations: the evaluations in their order in time; each has train_step, env_steps,
        mean_return, num_episodes, returns (of each episode), metrics (the means of the other ones,
        see `EpisodeMetrics`), dropped_episodes (interrupted ones, which do not count), exported_at
        (of the policy, unix seconds), and incomplete (why it is not of all episodes) if it is. A
        step may occur again: evaluated twice, or trained again after an older checkpoint was
        restored.
    """

    def __init__(self, path: pathlib.Path):
        """Reads the file, if it exists. A last line that a killed writer left incomplete is removed.

        Raises:
          ValueError: if another line is damaged.
        """
        self._path, self._unwritten = path, b''
        self.evaluations, complete = _parse(path)
        if complete is not None:
            logging.warning('removed the incomplete last line of %s', path)
            write_atomically(path, complete)

    def append(self, evaluation: Evaluation) -> None:
        """Adds an evaluation, and writes it to the file; if that fails, `write` does it later."""
        self.evaluations.append(evaluation)
        self._unwritten += (json.dumps(evaluation) + '\n').encode()
        self.write()

    def write(self) -> None:
        """Writes the evaluations that are not in the file yet; all of them, or none."""
        if not self._unwritten:
            return
        with side_tasks.guarded(f'write {self._path}'):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open('ab', buffering=0) as file:
                size, rest = file.tell(), self._unwritten
                try:
                    while rest:  # a disk that is nearly full takes a part
                        rest = rest[file.write(rest) :]
                    os.fsync(file.fileno())
                except OSError:
                    file.truncate(size)
                    raise
            self._unwritten = b''

    def find(self, policy: Mapping[str, Any]) -> Evaluation | None:
        """Returns the last evaluation of a policy by its metadata:
        its train_step and exported_at.
        """
        for evaluation in reversed(self.evaluations):
            if all(evaluation.get(key) == policy.get(key) for key in ('train_step', 'exported_at')):
                return evaluation
        return None

    def best(self, metric: str = 'return', lower_is_better: bool = False) -> float | None:
        """Returns the best mean of a metric; None before the first evaluation that has it."""
        values = [found for each in self.evaluations if (found := value(each, metric)) is not None]
        return (min if lower_is_better else max)(values, default=None)
