"""Two processes of tflearn-train that train as one, by TF_CONFIG, from a real replay server and collector."""

import json
import os
import re
import signal
import subprocess

import pytest

from tests.end_to_end.programs import Addresses
from tests.testing import console_programs, forks
from tflearn.core.errors import TRY_AGAIN_EXIT_STATUS
from tflearn.core.waiting import wait_until
from tflearn.files.run_dir import RunDir, read_json
from tflearn.launch.local import free_address

DEADLINE_SECS = 120.0
BINDINGS = (
    'networks.NetworkOptions.fc_layer_params=(8,)',
    'Uniform.min_size=100',
    'Uniform.samples_per_insert=8.0',
    'BatchItems.per_replica=8',
    'train.Intervals.steps_per_call=20',
    'train.LearnerOptions.checkpoint_interval_steps=50',
    'train.Intervals.publish_interval_steps=20',
    'train.SummaryOptions.interval_steps=30',
    'train.Intervals.replica_check_interval_steps=50',
    'train.Initial.seed=3',
    'train.ExportOptions.policies=("greedy_policy",)',
    'collect.num_environments=2',
)


ENDLESS = 'train.StopConditions.num_train_steps=1000000'


class Processes:
    """The programs of one run, each with its log; those still running at the end are killed."""

    def __init__(self, directory):
        self.run_dir = RunDir(directory / 'run')
        self._directory, self._addresses = directory, Addresses()
        self._workers = [free_address() for _ in range(2)]
        self._all = {}

    def start(self, name, job, *flags, worker=None, bindings=()):
        environment = {**os.environ, 'CUDA_VISIBLE_DEVICES': ''}
        if worker is not None:
            task = {'type': 'worker', 'index': worker}
            environment['TF_CONFIG'] = json.dumps({'cluster': {'worker': self._workers}, 'task': task})
        words = [f'--root_dir={self.run_dir.root}', '--gin_file=dqn_cartpole', *self._addresses.flags(job)]
        words += [*flags, *(f'--gin_bindings={binding}' for binding in (*BINDINGS, *bindings))]
        self._all[name] = forks.start(*console_programs.words(job), *words, log=self._log(name), env=environment)
        return self._all[name]

    def start_training(self, *bindings, of_worker_1=()):
        for worker, more in ((0, ()), (1, of_worker_1)):
            self.start(
                f'train_{worker}', 'train', '--strategy=multi_worker', worker=worker, bindings=(*bindings, *more)
            )

    def wait_for_steps(self, num_steps):
        """Waits until a new session has reached a train step."""

        def trained():
            assert self._all['train_0'].poll() is None, self.log('train_0')[-3000:]
            status = read_json(self.run_dir.status('train')) or {}
            return status.get('pid') == self._all['train_0'].pid and (status.get('train_step') or 0) >= num_steps

        wait_until(trained, f'train step {num_steps}', DEADLINE_SECS)

    def _log(self, name):
        return self._directory / f'{name}.log'

    def log(self, name):
        return self._log(name).read_text()

    def end(self, name):
        """Waits until the process ends; returns its exit status."""
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


def test_two_workers_stop_together(processes):
    processes.start_training(ENDLESS)
    processes.wait_for_steps(100)
    stop_together(processes, 100, num_sessions=1)


@pytest.mark.slow  # tests/learner/multi_worker_test.py resumes two workers
def test_two_workers_resume_together_after_a_crash(processes):
    processes.start_training(ENDLESS)
    processes.wait_for_steps(100)
    for worker in (1, 0):
        processes._all[f'train_{worker}'].kill()
        processes.end(f'train_{worker}')
    crashed_at = _newest_step(processes.run_dir)

    processes.start_training(ENDLESS)
    processes.wait_for_steps(crashed_at + 100)
    versions = [_version_after_crash(processes.log(f'train_{worker}')) for worker in (0, 1)]
    assert versions[0] == versions[1]  # None if the newest weights were those of the checkpoint
    stop_together(processes, crashed_at + 100, num_sessions=2)


def stop_together(processes, least, num_sessions):
    """Asks one worker to stop: both do, at the same step, which is `least` at least."""
    processes._all['train_1'].send_signal(signal.SIGTERM)
    assert processes.end('train_1') == 128 + signal.SIGTERM, processes.log('train_1')[-3000:]
    assert processes.end('train_0') == TRY_AGAIN_EXIT_STATUS, processes.log('train_0')[-3000:]
    assert 'because another worker was asked to stop; start all workers again' in processes.log('train_0')
    assert read_json(processes.run_dir.status('train'))['state'] == 'stopped'
    assert not processes.run_dir.train_result.exists()
    stopped_at = _newest_step(processes.run_dir)
    assert stopped_at >= least
    assert f'stopped at train step {stopped_at}' in processes.log('train_1')
    sessions = [*processes.run_dir.summaries('train').iterdir()]
    assert len(sessions) == num_sessions, 'one for each session of the chief'


@pytest.mark.slow
def test_stop_condition_of_one_worker_finishes_the_run_on_all(processes):
    processes.start_training(ENDLESS, of_worker_1=('train.StopConditions.max_secs=3.0',))
    for name in ('train_0', 'train_1'):
        assert processes.end(name) == 0, processes.log(name)[-3000:]
    result, last = read_json(processes.run_dir.train_result), _newest_step(processes.run_dir)
    assert (result['reason'], result['train_step']) == ('max_secs reached on another worker', last)
    assert last > 0 and result['env_steps'] > 100
    assert read_json(processes.run_dir.status('train'))['state'] == 'finished'
    assert (processes.run_dir.greedy_policy / str(last)).exists()
    assert processes.end('collect') == 0, 'the chief published that training is over'
    assert '2 replica(s) fed by 2 input pipeline(s)' in processes.log('train_1')
    writers = {path.name.split('.')[-3] for path in processes.run_dir.root.rglob('events.out*')}
    assert len(writers) == 1, 'only the chief'


def _version_after_crash(log):
    found = re.search(r'policy version (\d+) was published after the checkpoint', log)
    return found and found[1]


def _newest_step(run_dir):
    return max(int(path.stem.rpartition('-')[2]) for path in run_dir.checkpoints.glob('ckpt-*.index'))
