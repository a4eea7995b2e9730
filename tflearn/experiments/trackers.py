"""The trackers that tflearn-track knows: JSON lines, TensorBoard's HParams, MLflow, Weights & Biases, Aim, a function.

Each is made from `to`, the text after its name in --to, and from the state that it had. Their libraries are in no
extra, since they do not fit beside TensorFlow 2.15: tflearn-track runs in an environment of its own as well.
"""

import importlib
import json
import os
import pathlib
import runpy
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tensorboard.compat.proto import event_pb2
from tensorboard.plugins.hparams import metadata, plugin_data_pb2
from tensorboard.summary.writer.record_writer import RecordWriter

from tflearn.core.errors import UserImportError, UserValueError
from tflearn.experiments.tracking import Event, Tracker
from tflearn.files.run_dir import RunDir

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
    """The settings and the end as events of TensorBoard's HParams plugin, beside the run's own summaries.

    The plugin finds the metrics in the event files that the jobs write, so they are not written again.
    """

    def __init__(self, run_dir: RunDir, to: str, state: dict[str, Any]):
        if to:
            raise UserValueError(f'got --to=hparams:{to}; need --to=hparams: it writes to the summaries of the run')
        folder = run_dir.summaries('train').parent
        folder.mkdir(parents=True, exist_ok=True)
        self.state = state or {'path': str(folder / f'events.out.tfevents.{int(time.time())}.hparams')}
        path = pathlib.Path(self.state['path'])
        self._name, self._file = run_dir.root.name, path.open('ab')
        self._writer = RecordWriter(self._file)
        if self._file.tell() == 0:
            self._writer.write(event_pb2.Event(wall_time=time.time(), file_version='brain.Event:2').SerializeToString())

    def __call__(self, event: Event) -> None:
        if event['kind'] == 'config':
            start = plugin_data_pb2.SessionStartInfo(group_name=self._name, start_time_secs=time.time())
            for name, value in event['settings'].items():
                if isinstance(value, bool):
                    start.hparams[name].bool_value = value
                elif isinstance(value, int | float):
                    start.hparams[name].number_value = value
                else:
                    start.hparams[name].string_value = str(value)
            self._write(metadata.SESSION_START_INFO_TAG, session_start_info=start)
        elif event['kind'] == 'end':
            end = plugin_data_pb2.SessionEndInfo(status='STATUS_SUCCESS', end_time_secs=time.time())
            self._write(metadata.SESSION_END_INFO_TAG, session_end_info=end)

    def _write(self, tag: str, **content: Any) -> None:
        event = event_pb2.Event(wall_time=time.time())
        value = event.summary.value.add(tag=tag, tensor=metadata.NULL_TENSOR)
        data = plugin_data_pb2.HParamsPluginData(version=metadata.PLUGIN_DATA_VERSION, **content)
        value.metadata.CopyFrom(metadata.create_summary_metadata(data))
        self._writer.write(event.SerializeToString())

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class Mlflow(Tracker):
    """A run of MLflow."""

    def __init__(self, run_dir: RunDir, to: str, state: dict[str, Any]):
        """`to` is the tracking URI; by default MLFLOW_TRACKING_URI. MLFLOW_EXPERIMENT_NAME names the experiment."""
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
        """`to` is the repository; by default .aim in the working directory. Files are not copied, their paths are."""
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
    """Returns a name of the tracker that `to` describes, for its memory, and what makes it from its state.

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
            'in an environment of its own (docs/trackers.md)'
        ) from error


def _parts(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
