"""CartPole on several nodes of a real Ray cluster: solved, though jobs are killed and a node is lost."""

import contextlib
import dataclasses
import json
import os
import pathlib
import pickle
import re
import signal
import subprocess
import sys

import pytest

from tests.end_to_end import programs
from tests.extensions.clusters.ray_nodes import cluster
from tests.extensions.clusters.slurm_cluster import wait_for
from tests.launch.fake_run import RUNNING, gone, run_on_nodes, topology
from tflearn.files.run_dir import RunDir, read_json

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).resolve().parents[3]
SOLVED = ('evaluate.evaluate.target_return=475.0', 'train.StopConditions.num_train_steps=1_000_000')
SAVING = (
    'replay_server.replay_server.checkpoint_interval_secs=5.0',
    'train.LearnerOptions.checkpoint_interval_steps=500',
    'train.Intervals.export_interval_steps=1000',
)
# Submits a topology of fake jobs.
_SUBMIT = """
import pickle, sys
from tflearn.files.run_dir import RunDir
from tflearn.extensions.clusters import ray_cluster
topology, options = pickle.load(open(sys.argv[2], 'rb'))
ray_cluster.submit(topology, RunDir(sys.argv[1]), 'scripts', ray_cluster.RayOptions(**options))
"""


@pytest.fixture(scope='module')
def ray():
    with cluster() as made:
        yield made


@pytest.fixture(autouse=True)
def all_nodes_are_there(ray):
    ray.restore()


class Driver:
    """A launch on the cluster, as a process; its run is killed at the end if it is left."""

    def __init__(self, ray, run_dir, command):
        self.run_dir, self._ray = run_dir, ray
        environment = {**ray.environment, 'PYTHONPATH': str(ROOT), 'CUDA_VISIBLE_DEVICES': ''}
        with open(run_dir.root.with_suffix('.out'), 'ab') as out:
            self.process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=out, stderr=subprocess.STDOUT)

    def close(self):
        self.process.kill()
        self.process.wait(10)

    def out(self):
        return self.run_dir.root.with_suffix('.out').read_text()

    def log(self, name):
        log = self.run_dir.log(name)
        return log.read_text(errors='replace') if log.exists() else ''

    def lines(self, job, beginning):
        return [line.removeprefix(beginning) for line in self.log(job).splitlines() if line.startswith(beginning)]

    def status(self, job):
        return programs.status(self.run_dir, job)

    def wait_for(self, condition, what, secs):
        def checked():
            assert self.process.poll() is None, self.out()
            return condition()

        return wait_for(checked, what, secs)

    def trains_after(self, pid):
        status = self.status('train')
        assert not self.run_dir.failure.exists(), self.run_dir.failure.read_text() + self.log('train')[-4000:]
        return str(status.get('state')).startswith('running') and status.get('pid') != pid


def test_small_jobs_survive_the_loss_of_a_worker_and_of_a_node(ray, tmp_path):
    """All of Ray's part, with jobs that need no TensorFlow."""
    run_dir = RunDir(tmp_path / 'run')
    fakes = run_on_nodes(run_dir, 2, stop_timeout_secs=5.0)
    options = {'address': ray.address, 'ray_python': ray.python, 'strategy': 'SPREAD'}
    (tmp_path / 'submit.pickle').write_bytes(pickle.dumps((fakes, options)))
    command = [sys.executable, '-c', _SUBMIT, str(run_dir.root), str(tmp_path / 'submit.pickle')]
    with contextlib.closing(Driver(ray, run_dir, command)) as driver:

        def configs(count):
            for log in ('train', 'train_1'):
                driver.wait_for(
                    lambda log=log: len(driver.lines(log, 'TF_CONFIG=')) >= count, f'start {count} of {log}', 120.0
                )
            two = [json.loads(driver.lines(log, 'TF_CONFIG=')[count - 1]) for log in ('train', 'train_1')]
            assert [config['task']['index'] for config in two] == [0, 1]
            assert two[0]['cluster'] == two[1]['cluster'] and len(two[0]['cluster']['worker']) == 2
            return two[0]['cluster']['worker']

        def server():
            return (driver.lines('collect_0', 'the server is at ') or [''])[-1]

        def pids():
            return {job: driver.status(job).get('pid') for job in ('replay_server', 'train', 'evaluate', 'collect_0')}

        first = configs(1)
        driver.wait_for(lambda: all(pids().values()), 'all jobs', 60.0)
        assert len({ray.node_of(pid) for pid in pids().values()}) > 1, 'jobs are on several nodes'
        # A worker that dies makes TensorFlow's others end with 75; these do not, so both are killed.
        for pid in _processes(f'{run_dir.root} train env=TF_CONFIG'):
            os.kill(pid, signal.SIGKILL)
        assert configs(2) != first, 'both workers are started again, with other addresses'

        driver.wait_for(server, 'the collector', 120.0)
        before, lost = server(), ray.node_of(driver.status('replay_server')['pid'])
        ray.lose(lost)
        driver.wait_for(lambda: server() not in ('', before), 'the new address of the server', 300.0)
        assert server() == read_json(run_dir.address('coordinator'))['address']
        assert ray.node_of(driver.status('replay_server')['pid']) not in ('', lost)
        assert 'was lost; its jobs are started again on another one' in driver.out()

        configs(3)  # Both workers followed the server.
        (run_dir.root / 'stopped').unlink(missing_ok=True)
        left = [pid for pid in pids().values() if pid]
        driver.process.send_signal(signal.SIGTERM)
        assert driver.process.wait(60) == 128 + signal.SIGTERM, driver.out()
        stopped = (run_dir.root / 'stopped').read_text().split()
        assert set(stopped) == {'train', 'evaluate', 'collect_0', 'replay_server'} and stopped[-1] == 'replay_server'
        wait_for(lambda: all(map(gone, left)), 'the end of the jobs', 20.0)
        assert not run_dir.address('coordinator').exists() and not run_dir.failure.exists()


def test_jobs_end_when_the_driver_was_killed(ray, tmp_path):
    run_dir = RunDir(tmp_path / 'run')
    fakes = dataclasses.replace(topology(run_dir, train=[RUNNING, 'wait=900']), stop_timeout_secs=5.0)
    fakes.save(RunDir(tmp_path))
    (tmp_path / 'submit.pickle').write_bytes(pickle.dumps((fakes, {'address': ray.address, 'ray_python': ray.python})))
    run_dir.make()
    (run_dir.root / 'addresses').mkdir()
    command = [sys.executable, '-c', _SUBMIT, str(run_dir.root), str(tmp_path / 'submit.pickle')]
    with contextlib.closing(Driver(ray, run_dir, command)) as driver:
        driver.wait_for(lambda: run_dir.logs.exists() and driver.log('ray_train'), 'the actor', 60.0)
        run_dir.address('coordinator').write_text('{"address": "there:1"}')
        driver.wait_for(lambda: driver.status('train').get('pid'), 'the job', 60.0)
        pid = driver.status('train')['pid']
        driver.process.kill()
        wait_for(lambda: gone(pid), 'the end of the job', 60.0)


def _processes(words):
    found = []
    for path in pathlib.Path('/proc').glob('[0-9]*/cmdline'):
        with contextlib.suppress(OSError):
            if words in path.read_text().replace('\0', ' ') and 'worker' not in path.read_text():
                found.append(int(path.parent.name))
    return found


def test_cartpole_is_solved_though_jobs_are_killed_and_a_node_is_lost(ray, tmp_path):
    run_dir = RunDir(tmp_path / 'run')
    command = [sys.executable, '-m', 'scripts.launch', f'--root_dir={run_dir.root}', '--gin_file=dqn_cartpole']
    command += ['--backend=ray', '--num_collectors=2', '--resources=train:cores=2', '--resources=collect:memory_gb=0.1']
    command += [f'--backend_option=address={ray.address}', f'--backend_option=ray_python={ray.python}']
    command += ['--backend_option=strategy=SPREAD', f'--backend_option=python={sys.executable}']
    command += [f'--gin_bindings={binding}' for binding in (*SOLVED, *SAVING)]
    with contextlib.closing(Driver(ray, run_dir, command)) as driver:
        driver.wait_for(lambda: driver.trains_after(None), 'training', 300.0)
        refused = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
        assert refused.returncode == 2 and 'which another launch uses' in refused.stderr
        nodes = {ray.node_of(driver.status(job)['pid']) for job in ('replay_server', 'train', 'collect_0')}
        assert '' not in nodes and len(nodes) > 1, 'jobs are on several nodes'

        driver.wait_for(lambda: any(run_dir.checkpoints.glob('ckpt-*.index')), 'a checkpoint', 300.0)
        learner = driver.status('train')['pid']
        os.kill(learner, signal.SIGKILL)
        in_place = driver.wait_for(lambda: driver.trains_after(learner), 'the learner, in place', 300.0)

        learner = driver.status('train')['pid']
        lost = ray.node_of(learner)
        ray.lose(lost)
        elsewhere = driver.wait_for(lambda: driver.trains_after(learner), 'the learner, on another node', 600.0)
        assert ray.node_of(driver.status('train')['pid']) not in ('', lost)
        begun = [int(step) for step in re.findall(r'learner: .* train step (\d+), ', driver.log('train'))]
        assert begun[-1] > 0, 'it goes on from a checkpoint'
        assert driver.process.wait(1800) == 0, driver.out()
    done = read_json(run_dir.done)
    best = max(json.loads(line)['mean_return'] for line in run_dir.evaluations.read_text().splitlines())
    assert best >= 475.0, done
    sys.stdout.write(
        f'\nray: learner back after {in_place:.0f} s in place and {elsewhere:.0f} s on another node; '
        f'{done["reason"]}; best return {best:.0f}\n'
    )
