"""Status: what a job does now, for programs that watch the run."""

import contextlib
import math
import os
import pathlib
import time
from collections.abc import Collection, Mapping
from typing import Any

from tflearn.core import side_tasks
from tflearn.core.errors import UserValueError
from tflearn.files import lock, messages
from tflearn.files.run_dir import read_json, write_json

_NOT_JSON = (math.inf, -math.inf)


class Status:
    """A job's newest metrics in a small file, for programs that watch the run.
    Written at most once a second.
    """

    def __init__(self, path: pathlib.Path, kept: Collection[str] = ()):
        """The file has the job's name. `kept` metrics begin with the values that the last process wrote."""
        self._path = path
        self._metrics: dict[str, Any] = {'job': path.stem, 'pid': os.getpid(), 'started': lock.started(os.getpid())}
        if kept:
            with contextlib.suppress(UserValueError, OSError):  # a damaged file
                before = read_json(path, messages.Status) or {}
                self._metrics |= {name: before[name] for name in kept if name in before}
        self._written_at = -math.inf

    @property
    def newest(self) -> Mapping[str, Any]:
        """The metrics now."""
        return self._metrics

    def update(self, state: str, **metrics: Any) -> None:
        """Updates `metrics`; a change of `state` is written immediately.

        Args:
          state: 'waiting', 'running', 'finished' or 'stopped', optionally followed by a few words.
          **metrics: numbers and strings; others keep their values.
        """
        changed = state != self._metrics.get('state')
        now = time.monotonic()
        finite = {name: None if value in _NOT_JSON or value != value else value for name, value in metrics.items()}
        self._metrics.update(finite, state=state, time=time.time())
        if changed or now - self._written_at >= 1.0:
            self._written_at = now
            if failures := side_tasks.failures.total():
                self._metrics['side_task_failures'] = failures
            with side_tasks.guarded(f'write {self._path}'):
                write_json(self._path, self._metrics)
