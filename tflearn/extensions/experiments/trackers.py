"""Follows a run from outside and gives what it records to a tracker, each point once.
Loads no TensorFlow.

A tracker is called with events, which are dicts:

- {'kind': 'config', 'settings': {name: value}}: the run's configuration;
- {'kind': 'metric', 'name': 'train/loss', 'step': 100, 'value': 0.5, 'time': 1.7e9}: a point of a
  curve;
- {'kind': 'file', 'name': 'video', 'path': '/runs/a/videos/1.mp4', 'step': 100}: a video, or at the
  end the learning curve ('curve') and the best policy ('policy', a directory);
- {'kind': 'end', 'reason': 'target_return 475 reached'}: the run has ended.

The trackers are JSON lines, TensorBoard's HParams, MLflow, Weights & Biases, Aim, a function. Each
is made from `to`, the text after its name in --to, and from the state that it had. Their libraries
are in no extra, since they do not fit beside TensorFlow 2.15: tflearn track runs in an environment
of its own as well.
"""

import contextlib
import importlib
import json
import math
import os
import pathlib
import runpy
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NotRequired, TypedDict

from tensorboard.compat.proto import event_pb2
from tensorboard.plugins.hparams import metadata, plugin_data_pb2, summary_v2
from tensorboard.summary.writer.record_writer import RecordWriter

from tflearn.actors import evaluation_record
from tflearn.config import reader
from tflearn.core import extras, side_tasks
from tflearn.core.errors import UserImportError, UserValueError
from tflearn.core.settings import NonNegativeInt
from tflearn.extensions.experiments import overview
from tflearn.files import messages
from tflearn.files.run_dir import RunDir, read_json, write_json

with extras.needed_by('tflearn track'):
    from tflearn.extensions.experiments import series

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


_MakeTracker = Callable[[dict[str, Any]], Tracker]  # from its state


def follow(run_dir: RunDir, name: str, make: Any, poll_secs: float, once: bool) -> int:
    """Sends a tracker what it has not had yet, until the run has ended.

    What a tracker could not take, since its server does not answer for a while, is given to it
    again; at the end of the run that is an error.

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
    count = 0
    with contextlib.closing(_Delivery(run_dir, run_dir.tracker(name), make)) as delivery:
        while not (once or run_dir.done.exists()):
            with side_tasks.guarded(f'give what {run_dir.root} has recorded to {name}'):
                count += delivery.run()
            threading.Event().wait(poll_secs)
        return count + delivery.run()


class _Delivery:
    """A tracker, and the file of what it has had, from which another goes on after a failure."""

    def __init__(self, run_dir: RunDir, memory: pathlib.Path, make: _MakeTracker):
        self._run_dir, self._memory, self._make = run_dir, memory, make
        self._tracker: Tracker | None = None
        self._begin()

    def run(self) -> int:
        """Sends the tracker what is new; returns the number of events."""
        tracker = self._tracker or self._begin()
        try:
            events = list(self._feed.read())
            for event in events:
                tracker(event)
            if events:
                tracker.flush()
                had = {'position': self._feed.position, 'tracker': tracker.state}
                write_json(self._memory, had)
        except BaseException:
            self._tracker = None
            with side_tasks.guarded('close a tracker that has failed'):
                tracker.close()
            raise
        return len(events)

    def close(self) -> None:
        if self._tracker:
            self._tracker.close()

    def _begin(self) -> Tracker:
        before = read_json(self._memory, _Memory) or {'position': {}, 'tracker': {}}
        self._feed = Feed(self._run_dir, before['position'])
        self._tracker = tracker = self._make(before['tracker'])
        write_json(self._memory, {**before, 'tracker': tracker.state})
        return tracker


class _Position(TypedDict):
    """See `Feed.position`."""

    config: NotRequired[bool]
    evaluations: NotRequired[NonNegativeInt]
    offsets: NotRequired[dict[str, NonNegativeInt]]
    statuses: NotRequired[dict[str, Any]]
    files: NotRequired[list[Any]]
    ended: NotRequired[NonNegativeInt | None]


class _Memory(TypedDict):
    """`RunDir.tracker`."""

    position: _Position
    tracker: dict[str, Any]


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
            settings = overview.settings(self._run_dir).items()
            texts = {name: repr(value) if any(reader.leaves(value)) else value for name, value in settings}
            yield {'kind': 'config', 'settings': texts}
        done = read_json(self._run_dir.done, messages.Done)
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
        files = sorted(self._run_dir.summaries('train').parent.glob('*/events.out.tfevents.*'))
        for scalar in series.new_scalars(self._run_dir, files, self.position['offsets']):
            yield from _metric(*scalar)

    def _evaluations(self) -> Iterator[Event]:
        evaluations = evaluation_record.read(self._run_dir.evaluations)
        for each in evaluations[self.position['evaluations'] :]:
            metrics = {
                'return': each.get('mean_return'),
                'length': each.get('mean_length'),
                **(each.get('metrics') or {}),
            }
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


PACKAGES = {'mlflow': 'mlflow-skinny', 'wandb': 'wandb', 'aim': 'aim'}
_MOST = 100  # parameters in one call of MLflow; metrics are ten times as many
_MOST_LETTERS = 500  # of a parameter's value


class JsonLines(Tracker):
    """A line for each event, in a file."""

    def __init__(self, run_dir: RunDir, to: str, state: dict[str, Any]):
        """`to` is the file; by default events.jsonl in the run directory's trackers."""
        path = pathlib.Path(to).expanduser() if to else run_dir.tracker('events').with_suffix('.jsonl')
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open('ab')
        self.state = state or {'size': self._file.tell()}
        if self._file.tell() > self.state['size']:  # what a killed process had not remembered
            self._file.truncate(self.state['size'])

    def __call__(self, event: Event) -> None:
        self._file.write((json.dumps(event) + '\n').encode())

    def flush(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self.state = {'size': self._file.tell()}

    def close(self) -> None:
        self._file.close()


class HParams(Tracker):
    """The settings and the end as events of TensorBoard's HParams plugin,
    beside the run's own summaries.

    The plugin finds the metrics in the event files that the jobs write, so they are not written
    again.
    """

    def __init__(self, run_dir: RunDir, to: str, state: dict[str, Any]):
        if to:
            raise UserValueError(f'got --to=hparams:{to}; need --to=hparams: it writes to the summaries of the run')
        folder = run_dir.summaries('train').parent
        folder.mkdir(parents=True, exist_ok=True)
        self.state = state or {'path': str(folder / f'events.out.tfevents.{int(time.time())}.hparams')}
        path = pathlib.Path(self.state['path'])
        # TensorBoard makes one trial of the runs of one name, and shows its first 15 letters.
        root = run_dir.root
        self._trial = f'{root.parent.name}/{root.name} in {root.parent.parent}'
        self._file = path.open('ab')
        self._writer = RecordWriter(self._file)
        if self._file.tell() == 0:
            self._writer.write(event_pb2.Event(wall_time=time.time(), file_version='brain.Event:2').SerializeToString())

    def __call__(self, event: Event) -> None:
        summary: Any = None
        if event['kind'] == 'config':
            settings = event['settings'].items()
            texts = {name: value if isinstance(value, int | float) else str(value) for name, value in settings}
            summary = summary_v2.hparams_pb(texts, trial_id=self._trial)
        elif event['kind'] == 'end':  # of which that module has no function
            end = plugin_data_pb2.SessionEndInfo(status='STATUS_SUCCESS', end_time_secs=time.time())
            data = plugin_data_pb2.HParamsPluginData(version=metadata.PLUGIN_DATA_VERSION, session_end_info=end)
            about = metadata.create_summary_metadata(data)
            summary = {
                'value': [{'tag': metadata.SESSION_END_INFO_TAG, 'metadata': about, 'tensor': metadata.NULL_TENSOR}]
            }
        if summary is not None:
            self._writer.write(event_pb2.Event(wall_time=time.time(), summary=summary).SerializeToString())

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class Mlflow(Tracker):
    """A run of MLflow."""

    def __init__(self, run_dir: RunDir, to: str, state: dict[str, Any]):
        """`to` is the tracking URI; by default MLFLOW_TRACKING_URI.
        MLFLOW_EXPERIMENT_NAME names the experiment.
        """
        mlflow = _imported('mlflow')
        self._entities = mlflow.entities
        try:
            self._client = mlflow.MlflowClient(tracking_uri=to or None)
            self.state = state or {'run': self._begin(run_dir.root.name)}
        except mlflow.exceptions.MlflowException as error:
            raise UserValueError(
                f'got --to=mlflow:{to}, which MLflow refuses ({error}); need the URI of a server, or the package mlflow'
            ) from error
        self._metrics: list[Any] = []

    def _begin(self, run_name: str) -> str:
        """Creates a run; returns its id."""
        name = os.environ.get('MLFLOW_EXPERIMENT_NAME', 'tflearn')
        experiment = self._client.get_experiment_by_name(name)
        number = experiment.experiment_id if experiment else self._client.create_experiment(name)
        return str(self._client.create_run(number, run_name=run_name).info.run_id)

    def __call__(self, event: Event) -> None:
        if event['kind'] == 'metric':
            at = int(1000 * (event['time'] or time.time()))
            self._metrics.append(self._entities.Metric(event['name'], event['value'], at, event['step']))
        elif event['kind'] == 'config':
            items = event['settings'].items()
            params = [self._entities.Param(name, str(value)[:_MOST_LETTERS] or "''") for name, value in items]
            for part in _parts(params, _MOST):
                self._client.log_batch(self.state['run'], params=part)
        elif event['kind'] == 'file':
            is_folder = pathlib.Path(event['path']).is_dir()
            log = self._client.log_artifacts if is_folder else self._client.log_artifact
            log(self.state['run'], event['path'], event['name'])
        else:
            self.flush()
            self._client.set_terminated(self.state['run'])

    def flush(self) -> None:
        for part in _parts(self._metrics, 10 * _MOST):
            self._client.log_batch(self.state['run'], metrics=part)
        self._metrics = []


class Wandb(Tracker):
    """A run of Weights & Biases; WANDB_MODE=offline writes it to WANDB_DIR, for `wandb sync`."""

    def __init__(self, run_dir: RunDir, to: str, state: dict[str, Any]):
        """`to` is the project; by default WANDB_PROJECT, or 'tflearn'."""
        self._wandb = _imported('wandb')
        self.state = state or {'run': secrets.token_hex(4)}
        self._run = self._wandb.init(
            project=to or os.environ.get('WANDB_PROJECT', 'tflearn'),
            id=self.state['run'],
            name=run_dir.root.name,
            resume='allow',
            reinit='create_new',
        )
        self._run.define_metric('*', step_metric='step')
        self._points: dict[int, dict[str, float]] = {}

    def __call__(self, event: Event) -> None:
        if event['kind'] == 'metric':
            self._points.setdefault(event['step'], {})[event['name']] = event['value']
        elif event['kind'] == 'config':
            self._run.config.update(event['settings'], allow_val_change=True)
        elif event['kind'] == 'file' and event['name'] == 'policy':
            artifact = self._wandb.Artifact(f'{self._run.id}-policy', 'model')
            artifact.add_dir(event['path'])
            self._run.log_artifact(artifact)
        elif event['kind'] == 'file':
            kind = self._wandb.Image if event['name'] == 'curve' else self._wandb.Video
            self._run.log({event['name']: kind(event['path']), 'step': event['step']})

    def flush(self) -> None:
        for step, values in sorted(self._points.items()):
            self._run.log({**values, 'step': step})
        self._points = {}

    def close(self) -> None:
        self._run.finish()


class Aim(Tracker):
    """A run of Aim."""

    def __init__(self, run_dir: RunDir, to: str, state: dict[str, Any]):
        """`to` is the repository; by default .aim in the working directory.
        Files are not copied, their paths are.
        """
        self._run = _imported('aim').Run(run_hash=state.get('run'), repo=to or '.', experiment='tflearn')
        self._run.name = run_dir.root.name
        self.state = {'run': self._run.hash}

    def __call__(self, event: Event) -> None:
        if event['kind'] == 'metric':
            self._run.track(event['value'], name=event['name'], step=event['step'])
        elif event['kind'] == 'config':
            self._run['settings'] = {name: str(value) for name, value in event['settings'].items()}
        elif event['kind'] == 'file':
            self._run[f'{event["name"]}_{event["step"]}'] = event['path']
        else:
            self._run['reason'] = event['reason']

    def close(self) -> None:
        self._run.close()


class Function(Tracker):
    """A user's function, which gets each event."""

    def __init__(self, function: Callable[[Event], object], state: dict[str, Any]):
        self._function, self.state = function, state

    def __call__(self, event: Event) -> None:
        self._function(event)


TRACKERS: Mapping[str, type] = {'jsonl': JsonLines, 'hparams': HParams, 'mlflow': Mlflow, 'wandb': Wandb, 'aim': Aim}


def make(run_dir: RunDir, to: str) -> tuple[str, Callable[[dict[str, Any]], Tracker]]:
    """Returns a name of the tracker that `to` describes, for its memory,
    and what makes it from its state.

    Raises:
      ValueError: if there is none.
    """
    kind, _, rest = to.partition(':')
    if kind in TRACKERS:
        return kind, lambda state: TRACKERS[kind](run_dir, rest, state)
    if kind.endswith('.py') and rest.isidentifier() and pathlib.Path(kind).is_file():
        function = runpy.run_path(kind).get(rest)
        if callable(function):
            return f'{pathlib.Path(kind).stem}_{rest}', lambda state: Function(function, state)
    raise UserValueError(
        f'got --to={to}; need one of {", ".join(TRACKERS)}, or FILE.py:FUNCTION, a function of one event'
    )


def _imported(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UserImportError(
            f'got no {error.name}, which --to={module} needs; need that installed; pip install {PACKAGES[module]}, '
            'in an environment of its own (docs/watching.md)'
        ) from error


def _parts(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
