"""Sends what a run records to a tracker, each point once, from a process of its own. Loads no TensorFlow.

A tracker is called with events, which are dicts:

- {'kind': 'config', 'settings': {name: value}}: the run's configuration;
- {'kind': 'metric', 'name': 'train/loss', 'step': 100, 'value': 0.5, 'time': 1.7e9}: a point of a curve;
- {'kind': 'file', 'name': 'video', 'path': '/runs/a/videos/1.mp4', 'step': 100}: a video, or at the end the learning
  curve ('curve') and the best policy ('policy', a directory);
- {'kind': 'end', 'reason': 'target_return 475 reached'}: the run has ended.
"""

import contextlib
import math
import pathlib
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from tflearn.actors import evaluation_record
from tflearn.config import reader
from tflearn.core.errors import UserValueError
from tflearn.core.extras import import_error
from tflearn.experiments import overview
from tflearn.files.run_dir import RunDir, read_json, write_json

try:
    from tflearn.tools import series
except ImportError as missing:
    raise import_error(missing, 'tflearn-track') from missing

Event = dict[str, Any]

_NO_METRICS = ('pid', 'time')  # numbers of a status file


class Tracker:
    """Where events go.

    Attributes:
      state: what it needs to go on in another process, as JSON: read after `flush`.
    """

    state: dict[str, Any]

    def __call__(self, event: Event) -> None:
        """Takes an event."""
        raise NotImplementedError

    def flush(self) -> None:
        """Delivers what it has taken, if it has not done so."""

    def close(self) -> None:
        """Ends the connection, if there is one."""


def follow(run_dir: RunDir, name: str, make: Any, poll_secs: float, once: bool) -> int:
    """Gives a tracker what it has not had yet, until the run has ended.

    Args:
      name: of the file that remembers what the tracker has had.
      make: makes the tracker, from the `state` that it had.
      poll_secs: seconds between two looks at the run.
      once: end when what is there now has been given.

    Returns:
      The number of events.

    Raises:
      ValueError: if it is no run.
    """
    if not overview.is_run(run_dir.root):
        raise UserValueError(f'got {run_dir.root}, which is no run; need the --root_dir of a run')
    memory = run_dir.tracker(name)
    before = read_json(memory, 'position', 'tracker') or {'position': {}, 'tracker': {}}
    feed, count = Feed(run_dir, before['position']), 0
    tracker: Tracker = make(before['tracker'])
    with contextlib.closing(tracker):
        write_json(memory, {**before, 'tracker': tracker.state})
        while True:
            has_ended = once or run_dir.done.exists()
            events = list(feed.read())
            for event in events:
                tracker(event)
            if events:
                tracker.flush()
                write_json(memory, {'position': feed.position, 'tracker': tracker.state})
            count += len(events)
            if has_ended:
                return count
            threading.Event().wait(poll_secs)


class Feed:
    """Reads what a run has recorded since the last call.

    Attributes:
      position: what has been read, as JSON.
    """

    def __init__(self, run_dir: RunDir, position: Mapping[str, Any]):
        self._run_dir = run_dir
        empty: dict[str, Any] = {'config': False, 'evaluations': 0, 'offsets': {}, 'statuses': {}, 'files': []}
        self.position = {**empty, 'ended': None, **position}

    def read(self) -> Iterator[Event]:
        """Yields the events since the last call."""
        if not self.position['config'] and self._run_dir.config.exists():
            self.position['config'] = True
            values = overview.settings(self._run_dir).items()
            texts = {name: repr(value) if any(reader.leaves(value)) else value for name, value in values}
            yield {'kind': 'config', 'settings': texts}
        done = read_json(self._run_dir.done, 'reason', 'train_step')
        yield from self._summaries()
        yield from self._evaluations()
        yield from self._statuses()
        for path in sorted(self._run_dir.videos.rglob('[!.]*.mp4')):
            yield from self._file('video', path, self._step())
        if done and self.position['ended'] != done['train_step']:
            self.position['ended'] = done['train_step']
            yield from self._file('curve', self._run_dir.learning_curve, done['train_step'])
            links = [self._run_dir.greedy_policy / link for link in ('best', 'latest')]
            if policy := next((link for link in links if link.exists()), None):
                yield from self._file('policy', policy.resolve(), done['train_step'])
            yield {'kind': 'end', 'reason': done['reason']}

    def _summaries(self) -> Iterator[Event]:
        """Yields the scalars of event files."""
        for path in sorted(self._run_dir.summaries('train').parent.glob('*/events.out.tfevents.*')):
            key = str(path.relative_to(self._run_dir.root))
            for event, end in series.events(path, self.position['offsets'].get(key, 0)):
                self.position['offsets'][key] = end
                for tag, number in series.scalars(event):
                    yield from _metric(tag, event.step, number, event.wall_time)

    def _evaluations(self) -> Iterator[Event]:
        evaluations = evaluation_record.read(self._run_dir.evaluations)
        for each in evaluations[self.position['evaluations'] :]:
            metrics = {'return': each.get('mean_return'), 'length': each.get('mean_length'), **each.get('metrics', {})}
            for name, value in metrics.items():
                yield from _metric(f'evaluation/{name}', each['train_step'], value, each.get('exported_at'))
        self.position['evaluations'] = len(evaluations)

    def _statuses(self) -> Iterator[Event]:
        step = self._step()
        for job, status in self._run_dir.statuses().items():
            at = status.get('time')
            if at is None or at == self.position['statuses'].get(job):
                continue
            self.position['statuses'][job] = at
            for name, value in status.items():
                if name not in _NO_METRICS:
                    yield from _metric(f'status/{job}/{name}', step, value, at)

    def _step(self) -> int:
        return self._run_dir.statuses().get('train', {}).get('train_step') or 0

    def _file(self, name: str, path: pathlib.Path, step: int) -> Iterator[Event]:
        key = str(path.relative_to(self._run_dir.root))
        if path.exists() and key not in self.position['files']:
            self.position['files'].append(key)
            yield {'kind': 'file', 'name': name, 'path': str(path), 'step': step}


def _metric(name: str, step: int, value: Any, time: float | None) -> Iterator[Event]:
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        yield {'kind': 'metric', 'name': name, 'step': step, 'value': float(value), 'time': time}
