"""Two processes of tflearn-train that train as one, by TF_CONFIG, from a real replay server and collector."""

import json
import os
import pathlib
import signal
import subprocess
import sys

import portpicker
import pytest

from tflearn.run_dir import RunDir, read_json
from tflearn.waiting import wait_until

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEADLINE_SECS = 85.0
BINDINGS = (
    'dqn.make_agent.fc_layer_params=(8,)',
    'Experience.min_size=100',
    'Experience.samples_per_insert=8.0',
    'Experience.per_replica_batch_size=8',
    'train.steps_per_call=20',
    'train.checkpoint_interval_steps=50',
    'train.publish_interval_steps=20',
    'train.replica_check_interval_steps=50',
    'train.seed=3',
    'collect.num_environments=2',
)


class Processes:
    """The programs of one run, each with its log; whatever still runs at the end is killed."""

    def __init__(self, directory):
        self.run_dir = RunDir(directory / 'run')
        self._directory, self._address = directory, f'localhost:{portpicker.pick_unused_port()}'
        self._workers = [f'localhost:{portpicker.pick_unused_port()}' for _ in range(2)]
        self._all = {}

    def start(self, name, job, *flags, worker=None, bindings=()):
        environment = {**os.environ, 'PYTHONPATH': str(ROOT), 'CUDA_VISIBLE_DEVICES': ''}
        if worker is not None:
            task = {'type': 'worker', 'index': worker}
            environment['TF_CONFIG'] = json.dumps({'cluster': {'worker': self._workers}, 'task': task})
        command = [sys.executable, '-m', f'scripts.{job}', f'--root_dir={self.run_dir.root}']
        command += ['--gin_file=dqn_cartpole', f'--replay_address={self._address}', *flags]
        command += [f'--gin_bindings={binding}' for binding in (*BINDINGS, *bindings)]
        with self._log(name).open('w') as log:
            self._all[name] = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT)
        return self._all[name]

    def start_training(self, num_train_steps):
        steps = (f'train.num_train_steps={num_train_steps}',)
        for worker in (0, 1):
            self.start(f'train_{worker}', 'train', '--strategy=multi_worker', worker=worker, bindings=steps)

    def _log(self, name):
        return self._directory / f'{name}.log'

    def log(self, name):
        return self._log(name).read_text()

    def end(self, name):
        """Waits for its own end; returns its exit status."""
        try:
            return self._all[name].wait(DEADLINE_SECS)
        except subprocess.TimeoutExpired:
            self._all[name].send_signal(signal.SIGABRT)  # where its threads are
            self._all[name].wait(10)
            pytest.fail(f'{name} did not end:\n{self.log(name)[-6000:]}')

    def close(self):
        for process in self._all.values():
            if process.poll() is None:
                process.kill()
                process.wait(10)


@pytest.fixture
def processes(tmp_path):
    processes = Processes(tmp_path)
    processes.start('replay', 'replay_server')
    processes.start('collect', 'collect')
    yield processes
    processes.close()


def test_two_workers_are_stopped_together_and_go_on_together(processes):
    processes.start_training(10**6)
    status = processes.run_dir.status('train')

    def trained():
        assert processes._all['train_0'].poll() is None, processes.log('train_0')[-3000:]
        return ((read_json(status) or {}).get('train_step') or 0) >= 100

    wait_until(trained, '100 train steps', DEADLINE_SECS)
    processes._all['train_1'].send_signal(signal.SIGTERM)
    assert processes.end('train_1') == 128 + signal.SIGTERM, processes.log('train_1')[-3000:]
    assert processes.end('train_0') == 0, processes.log('train_0')[-3000:]
    assert read_json(status)['state'] == 'stopped'
    assert not processes.run_dir.train_result.exists()
    stopped_at = _newest_step(processes.run_dir)
    assert stopped_at >= 100
    assert f'stopped at train step {stopped_at}' in processes.log('train_1')

    processes.start_training(stopped_at + 100)
    for name in ('train_0', 'train_1'):
        assert processes.end(name) == 0, processes.log(name)[-3000:]
    result = read_json(processes.run_dir.train_result)
    assert result['reason'] == f'num_train_steps {stopped_at + 100} reached'
    assert result['env_steps'] > 100
    assert _newest_step(processes.run_dir) == stopped_at + 100
    assert (processes.run_dir.greedy_policy / str(stopped_at + 100)).exists()
    assert processes.end('collect') == 0, 'it was told, by the chief, that training is over'
    assert '2 replica(s) fed by 2 input pipeline(s)' in processes.log('train_1')
    assert len([*processes.run_dir.summaries('train').iterdir()]) == 2, 'one for each session of the chief'
    writers = {path.name.split('.')[-3] for path in processes.run_dir.root.rglob('events.out*')}
    assert len(writers) == 2, 'the chief of each session, and nobody else'


def _newest_step(run_dir):
    return max(int(path.stem.rpartition('-')[2]) for path in run_dir.checkpoints.glob('ckpt-*.index'))
