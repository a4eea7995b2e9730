"""CartPole on three nodes of a real Slurm cluster: solved, though jobs are killed, a node is lost, workers die."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys

import pytest

from tests.end_to_end import programs
from tests.extensions.clusters.slurm_cluster import cluster, wait_for
from tests.launch.fake_run import run_on_nodes
from tflearn.extensions.clusters import slurm as slurm_scripts
from tflearn.files.run_dir import RunDir, read_json, write_json

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).resolve().parents[3]
ENDLESS = ('evaluate.evaluate.target_return=None', 'train.StopConditions.num_train_steps=1_000_000')
SAVING = (
    'replay_server.replay_server.checkpoint_interval_secs=5.0',
    'train.LearnerOptions.checkpoint_interval_steps=500',
    'train.Intervals.export_interval_steps=1000',
)


@pytest.fixture(scope='module')
def slurm():
    with cluster() as made:
        yield made


@pytest.fixture(autouse=True)
def no_jobs_are_left(slurm):
    yield
    slurm.run('scancel', '--me', '--signal=KILL')


class SlurmRun:
    """A run that `tflearn-launch --backend=slurm` submits."""

    def __init__(self, slurm, directory, bindings=(), flags=()):
        self.slurm, self.run_dir = slurm, RunDir(directory / 'run')
        self._command = [sys.executable, '-m', 'scripts.launch', f'--root_dir={self.run_dir.root}', *flags]
        self._command += ['--backend=slurm', '--gin_file=dqn_cartpole', '--resources=collect:cores=1,memory_gb=1.5']
        self._command += [f'--gin_bindings={binding}' for binding in bindings]

    def submit(self):
        environment = {**self.slurm.environment, 'PYTHONPATH': str(ROOT), 'CUDA_VISIBLE_DEVICES': ''}
        return subprocess.run(self._command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)

    def ids(self):
        return read_json(self.run_dir.submitted)['slurm']

    def status(self, job):
        return programs.status(self.run_dir, job)

    def trains_after(self, pid):
        status = self.status('train')
        assert not self.run_dir.failure.exists(), self.run_dir.failure.read_text() + self.log('train')
        return str(status.get('state')).startswith('running') and status.get('pid') != pid

    def log(self, job):
        return self.run_dir.log(job).read_text(errors='replace')[-4000:]

    def kill(self, job):
        pid = self.status(job)['pid']
        os.kill(pid, signal.SIGKILL)
        return pid

    def await_end(self):
        ids = ','.join(self.ids().values())
        wait_for(lambda: not self.slurm.run('squeue', '-h', '-j', ids).strip(), 'the end of all jobs', 300.0)


def test_small_jobs_survive_the_loss_of_a_worker_and_of_a_node(slurm, tmp_path, monkeypatch):
    """All of Slurm's part, with jobs that need no TensorFlow."""
    for name in ('SLURM_CONF', 'PYTHONPATH'):
        monkeypatch.setenv(name, {**slurm.environment, 'PYTHONPATH': str(ROOT)}[name])
    run_dir = RunDir(tmp_path / 'run')
    fakes = run_on_nodes(run_dir, 1, stop_timeout_secs=10.0)
    text = slurm_scripts.submit(fakes, run_dir, 'scripts', slurm_scripts.SlurmOptions())
    assert text.startswith('Submitted: replay_server '), text

    def lines(job, beginning):
        log = run_dir.log(job)
        found = log.read_text().splitlines() if log.exists() else []
        return [line.removeprefix(beginning) for line in found if line.startswith(beginning)]

    def configs(count):
        wait_for(lambda: len(lines('train', 'TF_CONFIG=')) >= count, f'{count} workers', 120.0)
        two = [json.loads(line) for line in lines('train', 'TF_CONFIG=')[count - 2 : count]]
        assert sorted(config['task']['index'] for config in two) == [0, 1]
        assert two[0]['cluster'] == two[1]['cluster'] and len(two[0]['cluster']['worker']) == 2
        return two[0]['cluster']['worker']

    first = configs(2)
    wait_for(lambda: read_json(run_dir.status('train')), 'the learner')
    os.kill(read_json(run_dir.status('train'))['pid'], signal.SIGKILL)
    assert configs(4) != first, 'both workers are started again, with other addresses'

    wait_for(lambda: lines('collect_0', 'the server is at '), 'the collector', 120.0)
    before = lines('collect_0', 'the server is at ')[-1]
    lost = slurm.node_of(read_json(run_dir.submitted)['slurm']['replay_server'])
    slurm.lose(lost)
    wait_for(lambda: lines('collect_0', 'the server is at ')[-1] != before, 'the new address of the server', 300.0)
    after = lines('collect_0', 'the server is at ')[-1]
    assert after == read_json(run_dir.address('coordinator'))['address']
    wait_for(lambda: after in lines('train', 'the server is at '), 'the learner with the new address', 300.0)

    numbers = read_json(run_dir.submitted)['slurm'].values()
    slurm.run('scancel', '--signal=TERM', '--batch', *numbers)
    wait_for(lambda: not slurm.run('squeue', '-h', '-j', ','.join(numbers)).strip(), 'the end of all jobs', 60.0)
    stopped = (run_dir.root / 'stopped').read_text().split()
    assert {'replay_server', 'train', 'evaluate', 'collect_0'} == set(stopped)
    assert stopped.count('train') >= 2, 'both workers get the signal'
    assert not run_dir.address('coordinator').exists() and not run_dir.failure.exists()
    slurm.start_node(lost)


def test_cartpole_is_solved_though_jobs_are_killed_and_a_node_is_lost(slurm, tmp_path):
    run = SlurmRun(slurm, tmp_path, [*ENDLESS, *SAVING], ['--num_collectors=2', '--resources=train:cores=6'])
    submitted = run.submit()
    assert submitted.returncode == 0, submitted.stderr
    wait_for(lambda: run.trains_after(None), 'training', 600.0)
    nodes = {slurm.node_of(number) for number in run.ids().values()}
    assert len(nodes) > 1, 'jobs are on several nodes'
    refused = run.submit()
    assert refused.returncode == 2 and 'whose jobs all wait or run' in refused.stderr

    wait_for(lambda: run.run_dir.checkpoints.is_dir() and any(run.run_dir.checkpoints.iterdir()), 'a checkpoint', 300.0)
    learner, collector = run.kill('train'), run.kill('collect_0')
    in_place = wait_for(lambda: run.trains_after(learner), 'the learner, started again in place', 300.0)
    wait_for(lambda: run.status('collect_0').get('pid') != collector, 'the collector', 300.0)

    learner, lost = run.status('train')['pid'], slurm.node_of(run.ids()['train'])
    assert slurm.node_of(run.ids()['replay_server']) == lost, 'both are lost'
    address = run.run_dir.address('coordinator').read_text()
    slurm.lose(lost)
    slurm.run('scancel', '--signal=KILL', run.ids()['evaluate'])
    wait_for(lambda: not slurm.run('squeue', '-h', '-j', run.ids()['evaluate']).strip(), 'the end of evaluate')
    before = run.ids()
    assert run.submit().returncode == 0
    assert {kind for kind, number in run.ids().items() if number != before[kind]} == {'evaluate'}, 'only what is gone'
    elsewhere = wait_for(lambda: run.trains_after(learner), 'the learner, on another node', 600.0)
    assert slurm.node_of(run.ids()['train']) not in ('', lost)
    begun = [int(step) for step in re.findall(r'learner: .* train step (\d+), ', run.log('train'))]
    assert begun[-1] > 0, 'it goes on from a checkpoint'
    assert run.run_dir.address('coordinator').read_text() != address
    assert int(run.status('replay_server')['replay_size']) > 1000, 'from its checkpoint'

    solved = lambda: _best(run.run_dir) >= 475  # noqa: E731
    wait_for(solved, 'an evaluation of 475', 1800.0)
    write_json(run.run_dir.stop_request, {'reason': 'solved'})
    run.await_end()
    assert read_json(run.run_dir.done)['reason']
    sys.stdout.write(
        f'\nslurm: learner back after {in_place:.0f} s in place and {elsewhere:.0f} s on another node '
        f'with the replay server; best return {_best(run.run_dir):.0f}\n'
    )


def _best(run_dir):
    if not run_dir.evaluations.exists():
        return 0.0
    return max(json.loads(line)['mean_return'] for line in run_dir.evaluations.read_text().splitlines())


def test_two_workers_of_a_learner_die_and_stop_together(slurm, tmp_path):
    flags = ['--num_workers=2', '--resources=train:cores=1']
    run = SlurmRun(slurm, tmp_path, [*ENDLESS, *SAVING, 'train.Intervals.steps_per_call=20'], flags)
    assert run.submit().returncode == 0
    wait_for(lambda: run.trains_after(None), 'training', 600.0)
    wait_for(lambda: any(run.run_dir.checkpoints.glob('ckpt-*.index')), 'a checkpoint', 600.0)
    assert '2 replica(s) fed by 2 input pipeline(s)' in run.log('train')
    learner = run.kill('train')
    secs = wait_for(lambda: run.trains_after(learner), 'both workers, started again', 600.0)
    slurm.run('scancel', '--signal=TERM', '--batch', *run.ids().values())
    run.await_end()
    status = run.status('train')
    assert status['state'] == 'stopped'
    newest = max(int(path.stem.rpartition('-')[2]) for path in run.run_dir.checkpoints.glob('ckpt-*.index'))
    assert newest == status['train_step'], 'the last train step is saved'
    assert run.submit().returncode == 0
    wait_for(lambda: run.trains_after(status['pid']), 'the same command goes on', 600.0)
    assert run.status('train')['train_step'] >= newest
    write_json(run.run_dir.stop_request, {'reason': 'it goes on'})
    run.await_end()
    assert run.run_dir.done.exists()
    sys.stdout.write(f'\nslurm: two workers train again {secs:.0f} s after one was killed\n')
