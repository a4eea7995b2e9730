"""Trackers get what a run records, each point once. Their libraries are in an environment of their own."""

import collections
import json
import os
import pathlib
import subprocess
import sys
from concurrent import futures

import numpy as np
import pytest
import tensorflow as tf
from matplotlib import image
from tensorboard.backend.event_processing import data_provider, plugin_event_multiplexer
from tensorboard.plugins import base_plugin
from werkzeug.test import Client

from tflearn.actors.evaluation_record import EvaluationRecord
from tflearn.core import side_tasks
from tflearn.core.waiting import wait_until
from tflearn.extensions.experiments import trackers
from tflearn.files.run_dir import RunDir, write_atomically, write_json
from tflearn.files.status import Status

ROOT = pathlib.Path(__file__).resolve().parents[3]
DEADLINE_SECS = 120.0
CONFIG = """from __gin__ import dynamic_registration
# Macros
discount = 0.99
make_agent = @dqn.make_agent
# Parameters
dqn.make_agent.gamma = %discount
dqn.make_agent.double = True
networks.NetworkOptions.fc_layer_params = \\
    (64,
     64)
train.train.make_agent = %make_agent
"""


TRACK = """
def track(event):
    with open('got', 'a') as file:
        print(event['kind'], file=file)
"""


FAILING_TRACK = """
import os


def track(event):
    if os.path.exists('down'):
        raise ConnectionError('the server is down')
    with open('got', 'a') as file:
        print(event.get('name'), event.get('step'), file=file)
"""


class Run:
    """A run that records as the jobs do."""

    def __init__(self, root):
        self.run_dir = RunDir(root)
        write_atomically(self.run_dir.config, CONFIG)
        self._writers = {
            job: tf.summary.create_file_writer(str(self.run_dir.summaries(job))) for job in ('train', 'evaluate')
        }
        self._record = EvaluationRecord(self.run_dir.evaluations)

    def train(self, step):
        with self._writers['train'].as_default(step):
            tf.summary.scalar('train/loss', 1 / step)
            tf.summary.histogram('train/weights', [1.0, 2.0])
        self._writers['train'].flush()
        Status(self.run_dir.status('train')).update('running', train_step=step, loss=1 / step)

    def evaluate(self, step):
        metrics = {'info/error': 0.5}
        self._record.append({'train_step': step, 'mean_return': 2.0 * step, 'exported_at': 1e9, 'metrics': metrics})
        with self._writers['evaluate'].as_default(step):
            tf.summary.scalar('evaluate/mean_return', 2.0 * step)
        self._writers['evaluate'].flush()

    def end(self, step):
        write_atomically(self.run_dir.videos / f'{step}.mp4', b'video')
        image.imsave(self.run_dir.learning_curve, np.zeros([2, 2, 3]))
        policy = self.run_dir.greedy_policy / f'{step}'
        write_atomically(policy / 'saved_model.pb', b'policy')
        (self.run_dir.greedy_policy / 'best').symlink_to(policy.name)
        write_json(self.run_dir.done, {'reason': 'num_train_steps 20 reached', 'train_step': step})


@pytest.fixture
def run(tmp_path):
    run = Run(tmp_path / 'runs' / 'a')
    run.train(10)
    run.evaluate(10)
    return run


def track(run, to, once=True):
    return trackers.follow(run.run_dir, *trackers.make(run.run_dir, to), 0.1, once)


def lines(run):
    text = run.run_dir.tracker('events').with_suffix('.jsonl').read_text()
    return [json.loads(line) for line in text.splitlines()]


def points(events):
    return collections.Counter((each['name'], each['step']) for each in events if each['kind'] == 'metric')


def test_events_are_written_once_whoever_dies(run):
    count = track(run, 'jsonl')
    events = lines(run)
    assert count == len(events)
    assert events[0] == {
        'kind': 'config',
        'settings': {
            'dqn.make_agent.gamma': 0.99,
            'dqn.make_agent.double': True,
            'networks.NetworkOptions.fc_layer_params': [64, 64],
            'train.train.make_agent': '@dqn.make_agent',
        },
    }, 'a macro is no setting: trackers would show it first, and %make_agent as a value'
    names = ['train/loss', 'evaluation/return', 'evaluation/info/error', 'status/train/loss', 'evaluate/mean_return']
    assert set(names) <= {name for name, _ in points(events)}
    (loss,) = (each for each in events if each.get('name') == 'train/loss')
    assert (loss['step'], loss['value'], loss['time'] > 1e9) == (10, pytest.approx(0.1), True)
    assert track(run, 'jsonl') == 0
    with open(run.run_dir.tracker('events').with_suffix('.jsonl'), 'a') as file:
        file.write('{"kind": "metric", "na')  # of a process that was killed before it remembered
    run.train(20)
    run.end(20)
    track(run, 'jsonl')
    events = lines(run)
    assert set(points(events).values()) == {1}
    files = [(each['name'], pathlib.Path(each['path']).name, each['step']) for each in events if each['kind'] == 'file']
    assert files == [('video', '20.mp4', 20), ('curve', 'learning_curve.png', 20), ('policy', '20', 20)]
    assert events[-1] == {'kind': 'end', 'reason': 'num_train_steps 20 reached'}
    assert track(run, 'jsonl') == 0


def test_what_is_being_written_comes_later(run):
    (file,) = run.run_dir.summaries('train').glob('events*')
    whole = file.read_bytes()
    file.write_bytes(whole[:-5])
    track(run, 'jsonl')
    assert ('train/loss', 10) in points(lines(run)), 'before the histogram'
    file.write_bytes(whole)
    run.train(20)
    track(run, 'jsonl')
    assert points(lines(run))['train/loss', 20] == points(lines(run))['train/loss', 10] == 1


def test_the_program_follows_a_run_to_its_end(run, tmp_path):
    command = [sys.executable, '-m', 'scripts', 'track', str(run.run_dir.root), '--to=jsonl', '--poll_secs=0.1']
    with open(tmp_path / 'out', 'w') as out:
        program = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=out)  # no fork: it loads no TensorFlow
    try:
        wait_until(lambda: run.run_dir.tracker('jsonl').exists(), 'the first events', DEADLINE_SECS)
        run.train(20)
        run.end(20)
        assert program.wait(DEADLINE_SECS) == 0, (tmp_path / 'out').read_text()
    finally:
        program.kill()
    assert points(lines(run))['train/loss', 20] == 1
    assert f'gave {len(lines(run))} events of ' in (tmp_path / 'out').read_text()


def in_hparams(folder):
    """Returns what the HParams page of TensorBoard asks for: the experiment, and the trials."""
    from tensorboard.plugins.hparams import hparams_plugin

    events = plugin_event_multiplexer.EventMultiplexer()
    events.AddRunsFromDirectory(str(folder))
    events.Reload()
    provider = data_provider.MultiplexerDataProvider(events, str(folder))
    apps = hparams_plugin.HParamsPlugin(base_plugin.TBContext(data_provider=provider)).get_plugin_apps()
    asked = {'startIndex': 0, 'sliceSize': 9, 'allowedStatuses': ['STATUS_SUCCESS'], 'colParams': []}
    experiment = Client(apps['/experiment']).post(json={'experimentName': ''}).get_json(force=True)
    groups = Client(apps['/session_groups']).post(json=asked).get_json(force=True)['sessionGroups']
    return experiment, groups


@pytest.mark.filterwarnings("ignore:html5lib's sanitizer")  # in TensorBoard's own copy
def test_tensorboard_shows_the_settings_beside_the_metrics(run, tmp_path):
    track(run, 'hparams')
    run.end(20)
    track(run, 'hparams')
    experiment, (group,) = in_hparams(tmp_path / 'runs')
    assert {'group': 'evaluate', 'tag': 'evaluate/mean_return'} in [each['name'] for each in experiment['metricInfos']]
    assert not {'discount', 'make_agent'} & group['hparams'].keys()
    assert group['hparams']['dqn.make_agent.gamma'] == 0.99 and group['hparams']['dqn.make_agent.double'] is True
    assert [each['status'] for each in group['sessions']] == ['STATUS_SUCCESS']


@pytest.mark.filterwarnings("ignore:html5lib's sanitizer")
def test_tensorboard_shows_each_seed_of_each_group(tmp_path):
    for gamma in ('0.9', '0.99'):
        run = Run(tmp_path / 'runs' / gamma / 'seed_1')
        write_atomically(run.run_dir.config, CONFIG.replace('discount = 0.99', f'discount = {gamma}'))
        run.end(20)
        track(run, 'hparams')
    _, groups = in_hparams(tmp_path / 'runs')
    assert sorted(group['hparams']['dqn.make_agent.gamma'] for group in groups) == [0.9, 0.99]
    assert [len(group['sessions']) for group in groups] == [1, 1]
    assert {group['name'].split(' in ')[0] for group in groups} == {'0.9/seed_1', '0.99/seed_1'}


def test_programs_that_only_read_runs_or_start_them_load_no_tensorflow():
    program = """
import sys
from tflearn.extensions.experiments import comparison, overview, report, runs, trackers, tuning
from tflearn.extensions.experiments import series
sys.exit(len({'tensorflow', 'tf_agents', 'reverb'} & sys.modules.keys()))
"""
    assert subprocess.run([sys.executable, '-c', program], cwd=ROOT, timeout=DEADLINE_SECS).returncode == 0


def test_a_function_of_the_user(run, tmp_path, monkeypatch):
    (tmp_path / 'mine.py').write_text(TRACK)
    monkeypatch.chdir(tmp_path)
    count = track(run, 'mine.py:track')
    assert (tmp_path / 'got').read_text().splitlines()[:2] == ['config', 'metric']
    assert len((tmp_path / 'got').read_text().splitlines()) == count
    assert track(run, 'mine.py:track') == 0


def test_a_tracker_that_fails_for_a_while_gets_everything_once(run, tmp_path, monkeypatch):
    (tmp_path / 'mine.py').write_text(FAILING_TRACK)
    (tmp_path / 'down').write_text('')
    monkeypatch.chdir(tmp_path)
    before = side_tasks.failures.total()
    with futures.ThreadPoolExecutor(1) as threads:
        followed = threads.submit(track, run, 'mine.py:track', once=False)
        try:
            has_failed = lambda: side_tasks.failures.total() > before + 1  # noqa: E731
            wait_until(lambda: has_failed() or followed.done(), 'two failures', DEADLINE_SECS)
            (tmp_path / 'down').unlink()
            wait_until((tmp_path / 'got').exists, 'the events', DEADLINE_SECS)
            run.train(20)
        finally:
            run.end(20)
        count = followed.result(DEADLINE_SECS)
    names = (tmp_path / 'got').read_text().splitlines()
    assert len(names) == count and names.count('train/loss 10') == names.count('train/loss 20') == 1
    (tmp_path / 'down').write_text('')
    run.train(30)
    with pytest.raises(ConnectionError):  # nobody would give the last events to it
        track(run, 'mine.py:track')


@pytest.mark.parametrize(
    ('to', 'message'),
    [
        ('comet', 'got --to=comet; need one of jsonl, hparams, mlflow, wandb, aim, or FILE.py:FUNCTION'),
        ('nothing.py:track', 'got --to=nothing.py:track; need one of'),
        ('hparams:x', 'it writes to the summaries'),
    ],
)
def test_wrong_trackers(run, to, message):
    with pytest.raises(ValueError, match=message):
        track(run, to)


@pytest.mark.parametrize('name', ['mlflow', 'wandb', 'aim'])
def test_a_missing_library_is_named(run, name, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=f'--to={name} needs; .*pip install {name}.*docs/watching.md'):
        track(run, name)


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(ValueError, match='which is no run; need the --root_dir'):
        trackers.follow(RunDir(tmp_path), *trackers.make(RunDir(tmp_path), 'jsonl'), 0.1, True)


READ_MLFLOW = """
import sys
from mlflow import MlflowClient
client = MlflowClient(sys.argv[1])
(run,) = client.search_runs([client.get_experiment_by_name('tflearn').experiment_id])
points = client.get_metric_history(run.info.run_id, 'train/loss')
files = sorted(each.path for each in client.list_artifacts(run.info.run_id))
print(run.info.status, run.data.params['dqn.make_agent.gamma'], [each.step for each in points], files)
"""
READ_AIM = """
import aim
from aim.storage.context import Context
(number,) = aim.Repo('.').list_all_runs()
run = aim.Run(number, repo='.')  # a Run that only reads waits for the index, which Aim's server writes
_, values = run.get_metric('train/loss', Context({})).values.sparse_numpy()
print(run['settings']['dqn.make_agent.gamma'], run['reason'], sorted(values.round(2).tolist()))
"""


@pytest.mark.slow  # installs packages
@pytest.mark.parametrize('name', ['mlflow', 'wandb', 'aim'])
def test_libraries_in_an_environment_of_their_own(run, name, tmp_path):
    python = tmp_path / 'environment' / 'bin' / 'python'
    environment = {**os.environ, 'PYTHONPATH': str(ROOT), 'MLFLOW_ALLOW_FILE_STORE': 'true', 'WANDB_MODE': 'offline'}

    def call(*command):
        ended = subprocess.run(
            [*map(str, command)], cwd=tmp_path, env=environment, text=True, capture_output=True, timeout=400
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    call(sys.executable, '-m', 'venv', python.parents[1])
    packages = 'absl-py', 'gin-config', 'numpy', 'tensorboard', trackers.PACKAGES[name]
    call(python, '-m', 'pip', 'install', '--quiet', *packages)
    to = (
        f'mlflow:{(tmp_path / "mlruns").as_uri()}' if name == 'mlflow' else f'aim:{tmp_path}' if name == 'aim' else name
    )
    command = [python, '-m', 'scripts', 'track', run.run_dir.root, f'--to={to}', '--once']
    call(*command)
    run.train(20)
    run.end(20)
    assert 'gave ' in call(*command)
    if name == 'mlflow':
        found = call(python, '-c', READ_MLFLOW, to.removeprefix('mlflow:'))
        assert found == "FINISHED 0.99 [10, 20] ['curve', 'policy', 'video']\n"
    elif name == 'wandb':
        folders = list((tmp_path / 'wandb').glob('offline-run-*'))
        (number,) = {folder.name.rpartition('-')[2] for folder in folders}
        content = b''.join(file.read_bytes() for folder in folders for file in folder.glob('*.wandb'))
        assert len(folders) == 2 and json.loads(run.run_dir.tracker('wandb').read_text())['tracker'] == {'run': number}
        assert b'dqn.make_agent.gamma' in content and b'train/loss' in content and b'saved_model.pb' in content
    else:
        assert call(python, '-c', READ_AIM) == '0.99 num_train_steps 20 reached [0.05, 0.1]\n'
