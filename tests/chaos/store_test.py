"""A run directory in an object store: killed at random moments, continued, evaluated, exported, served."""

import contextlib
import hashlib
import os
import pathlib
import random
import signal
import subprocess
import sys
import threading
import time

import pytest

pytest.importorskip('fsspec', reason='needs fsspec: the extra stores')

from tests.chaos.chaos_run import ROOT
from tests.testing import console_programs, s3_server
from tflearn.extensions.serving import client
from tflearn.extensions.stores import store_layout
from tflearn.extensions.stores.objects import Objects
from tflearn.launch.local import free_port

pytestmark = pytest.mark.chaos

SEED = int(os.environ.get('TFLEARN_TEST_SEED', '0'))
DEADLINE_SECS = 900.0
NUM_TRAIN_STEPS = 40_000  # two minutes, so the kills are over before
NUM_KILLS = int(os.environ.get('TFLEARN_NUM_KILLS', '6'))
JOBS = ('train', 'replay_server', 'evaluate', 'collect_0', 'launch')
TINY = (
    'networks.NetworkOptions.fc_layer_params=(16,)',
    'train.Intervals.steps_per_call=50',
    'train.Intervals.publish_interval_steps=50',
    'train.Intervals.export_interval_steps=200',
    'train.LearnerOptions.checkpoint_interval_steps=200',
    'train.SummaryOptions.interval_steps=200',
    'replay_server.checkpoint_interval_secs=5',
    'Uniform.samples_per_insert=8.0',
    'BatchItems.per_replica=16',
    'Uniform.min_size=100',
    'evaluate.num_episodes=2',
    'evaluate.target_return=None',
)


@pytest.fixture(params=['file', s3_server.S3])
def url(request, tmp_path, monkeypatch):
    """The URL of a run in an empty store."""
    monkeypatch.setenv('TMPDIR', str(tmp_path))
    if request.param == 'file':
        yield f'file://{tmp_path}/store/run'
        return
    with s3_server.bucket(monkeypatch) as bucket:
        yield f'{bucket}/run'


class StoreRun:
    """A run in a store by `tflearn-launch`."""

    def __init__(self, url, directory):
        self.url, self.objects, self.output = url, Objects(url), directory / 'output.txt'

    def start(self, num_train_steps):
        bindings = [*TINY, f'train.StopConditions.num_train_steps={num_train_steps}']
        command = ['launch', f'--root_dir={self.url}', '--gin_file=dqn_cartpole']
        with self.output.open('ab') as output:
            command = [sys.executable, '-m', 'scripts.launch', *command[1:]]
            command += [f'--gin_bindings={binding}' for binding in bindings]
            return subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)

    def status(self, job):
        with contextlib.suppress(OSError):
            return store_layout.json.loads(self.objects.read(f'status/{job}.json'))
        return {}

    def check_whole(self):
        """Checks each file that a marker names; returns the sets. Their owners may delete them meanwhile."""
        there = self.objects.list()
        sets = sorted(store_layout.whole_sets(there))
        for key in sets:
            marker = store_layout.marker(key)
            try:
                content = self.objects.read(marker)
                for name, (size, digest) in store_layout.decode(content, key).items():
                    file = self.objects.read(name)
                    if digest is not None and (len(file), hashlib.sha256(file).hexdigest()) != (size, digest):
                        assert self._changed(marker, content), f'{name} is not what {marker} lists'
            except FileNotFoundError:
                assert self._changed(marker, content), f'{marker} lists what is not there'
        for name in there:
            if name.startswith(('status/', 'manifests/')) or name in ('DONE', 'train/result.json'):
                with contextlib.suppress(FileNotFoundError):
                    content = self.objects.read(name)
                    store_layout.json.loads(content.partition(b'\n')[2] if name.startswith('manifests/') else content)
        return sets

    def _changed(self, marker, content):
        try:
            return self.objects.read(marker) != content
        except FileNotFoundError:
            return True

    def program(self, *words):
        command = [sys.executable, '-m', *console_programs.words(words[0]), *words[1:]]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_SECS, check=True)


def test_kills_leave_whole_files_and_the_run_goes_on(url, tmp_path, promise):
    run, chance, num_killed = StoreRun(url, tmp_path), random.Random(SEED), 0
    launch = run.start(NUM_TRAIN_STEPS)
    try:
        for _ in range(NUM_KILLS):
            _wait(lambda launch=launch: run.status('train').get('state') == 'running' or launch.poll() is not None)
            threading.Event().wait(chance.uniform(0.5, 8.0))
            job = chance.choice(JOBS)
            pid = launch.pid if job == 'launch' else run.status(job).get('pid')
            num_killed += _kill(pid, tmp_path)
            run.check_whole()
            if launch.poll() is not None or job == 'launch':
                launch.wait(60)
                launch = run.start(NUM_TRAIN_STEPS)
        assert launch.wait(DEADLINE_SECS) == 0, run.output.read_text()[-3_000:]
    finally:
        launch.kill()
        launch.wait(60)
    assert num_killed > NUM_KILLS / 2, 'it was over too soon'
    done = store_layout.json.loads(run.objects.read('DONE'))
    assert done['train_step'] == NUM_TRAIN_STEPS
    sets = run.check_whole()
    assert {f'train/checkpoints/ckpt-{NUM_TRAIN_STEPS}', done['policy']} <= set(sets)
    names = run.objects.list()
    assert not [name for name in names if store_layout.set_of(name) not in (None, *sets)], 'leftovers'
    _use(run, done)
    text = run.output.read_text() + ''.join(
        run.objects.read(name).decode(errors='replace') for name in names if name.startswith('logs/')
    )
    assert s3_server.SECRET not in text
    promise(f'{num_killed} SIGKILLs of any process of a run in a store', 'as in a directory; whole files only', '-')


def _kill(pid, directory):
    """Kills a process that was started with `directory` as TMPDIR; returns whether there was one."""
    with contextlib.suppress(OSError):
        if f'TMPDIR={directory}\0'.encode() in pathlib.Path(f'/proc/{pid}/environ').read_bytes():
            os.kill(pid, signal.SIGKILL)
            return True
    return False


def _use(run, done):
    """Exports, serves and looks at the run."""
    exported = run.program('export', f'--root_dir={run.url}', '--format=tflite').stdout.strip()
    assert exported.startswith(run.url)
    assert run.objects.size(exported[len(run.url) + 1 :]) > 0
    run.program('doctor', run.url)
    port = free_port()
    command = [sys.executable, '-m', 'scripts.serve', f'--root_dir={run.url}', f'--port={port}']
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL) as server:
        model = client.PolicyClient(f'localhost:{port}', 'greedy_policy')
        try:
            _wait(lambda: _version(model) == done['train_step'], 120)
        finally:
            model.close()
            server.terminate()
    assert run.status('serve')['state'] == 'stopped'


def _version(model):
    with contextlib.suppress(Exception):  # it is starting
        return model.newest_version()
    return None


def _wait(condition, secs=DEADLINE_SECS):
    deadline = time.monotonic() + secs
    while not condition():
        assert time.monotonic() < deadline
        threading.Event().wait(0.5)
