"""A learner without Reverb: trains from a feed through the SIGKILL of a worker and of the dispatcher, and ends."""

import contextlib
import os

import pytest

from tests.chaos.chaos_run import ROOT, wait_for
from tests.chaos.hand_run import HandRun
from tflearn.files.run_dir import read_json, write_json
from tflearn.launch.local import free_address

pytestmark = pytest.mark.chaos

STEPS = 3_000  # far more than those whose batches are on the way
WITHOUT_REVERB = ROOT / 'tests' / 'testing' / 'no_reverb'


class FedRun(HandRun):
    """A run whose learner cannot import Reverb."""

    def __init__(self, directory, opened, gin_file, bindings=()):
        super().__init__(directory, opened, gin_file, bindings)
        self.feed_address = free_address()

    def start_all(self, num_workers):
        """Starts all jobs; returns the processes by name."""
        path = os.pathsep.join([str(WITHOUT_REVERB), str(ROOT)])
        processes = {
            'replay_server': self.start('replay_server'),
            'feed': self.start_feed(),
            **{f'feed_worker_{i}': self.start_feed(i) for i in range(num_workers)},
            'collect': self.start('collect'),
        }
        fed = f'--feed_address={self.feed_address}'
        processes['train'] = self.start('train', fed, prefix=['env', f'PYTHONPATH={path}'])
        return processes

    def start_feed(self, worker=None):
        """Starts the dispatcher, or a worker."""
        more, name = ([], 'feed') if worker is None else ([f'--worker={worker}'], f'feed_worker_{worker}')
        return self.start('feed', f'--feed_address={self.feed_address}', *more, name=name)


def kill(process):
    process.kill()
    process.wait(30.0)


def test_a_learner_without_reverb_survives_worker_and_dispatcher(tmp_path, promise):
    bindings = ('train.StopConditions.num_train_steps=1_000_000', 'train.Data.timeout_secs=60.0')
    with contextlib.ExitStack() as opened:
        run = FedRun(tmp_path, opened, 'dqn_cartpole', bindings)
        jobs = run.start_all(num_workers=2)
        run.progress()
        kill(jobs['feed_worker_0'])
        without_one = run.progress(STEPS)
        jobs['feed_worker_0'] = run.start_feed(0)
        wait_for(lambda: run.status('feed_worker_0').get('pid') == jobs['feed_worker_0'].pid, 'the worker', 120.0)
        kill(jobs['feed'])
        without_dispatcher = run.progress(STEPS)
        jobs['feed'] = run.start_feed()
        wait_for(lambda: run.status('feed').get('pid') == jobs['feed'].pid, 'the dispatcher', 120.0)
        kill(jobs['feed_worker_1'])  # what is left is the worker that is known by the journal alone
        after = run.progress(STEPS)
        env_steps = run.status('train')['env_steps']
        wait_for(lambda: run.status('train')['env_steps'] > env_steps, 'new reports', 60.0)
        for name in ('feed', 'feed_worker_0'):
            kill(jobs[name])
        gone = wait_for(lambda: jobs['train'].poll() is not None, 'the end of the learner', 180.0)
        assert jobs['train'].returncode == 69, run.text('train')[-3000:]
        assert f'the feed at {run.feed_address}, which does not answer' in run.text('train').splitlines()[-1]
        assert run.run_dir.checkpoints.exists()
    goes_on = 'nothing: training goes on'
    promise('SIGKILL of a feed worker', goes_on, f'{without_one:.0f} s to the next {STEPS} train steps')
    promise(
        "SIGKILL of the feed's dispatcher",
        goes_on,
        f'{without_dispatcher:.0f} s to the next {STEPS} train steps; after its restart without a worker {after:.0f} s',
    )
    promise('the feed is gone for good', 'nothing: the learner saves and ends', f'{gone:.0f} s')


@pytest.mark.parametrize(('gin_file', 'more'), [('dqn_cartpole', ()), ('ppo_cartpole', ('Queue.versions_ahead=None',))])
def test_a_learner_without_reverb_learns(gin_file, more, tmp_path):
    with contextlib.ExitStack() as opened:
        run = FedRun(tmp_path, opened, gin_file, ('train.StopConditions.num_train_steps=300_000', *more))
        jobs = run.start_all(num_workers=1)
        evaluate = run.start('evaluate')
        wait_for(lambda: evaluate.poll() is not None or jobs['train'].poll() is not None, 'the end', 900.0)
        evaluate.wait(120.0)
        done = read_json(run.run_dir.done)
        assert done and 'target' in done['reason'], (done, run.text('train')[-2000:])
        write_json(run.run_dir.stop_request, {'reason': 'done'})
