"""The coordinator is killed and started again at random moments of a run: alone, and in the replay server."""

import os
import random
import signal
import threading

import pytest

from tests.chaos.chaos_run import ChaosRun, wait_for
from tflearn.files.run_dir import write_json

pytestmark = pytest.mark.chaos

SEED = int(os.environ.get('TFLEARN_TEST_SEED', '0'))
KILLS, NUM_COLLECTORS = 10, 2
BINDINGS = (
    'train.LearnerOptions.checkpoint_interval_steps=1_000',
    'train.StopConditions.num_train_steps=10_000_000',
    'train.Intervals.export_interval_steps=10_000',
    'replay_server.replay_server.checkpoint_interval_secs=5.0',
    'evaluate.evaluate.target_return=None',
)


class Watched(ChaosRun):
    """A run whose policy versions are looked at all the time."""

    def __init__(self, *given, **more):
        super().__init__(*given, **more)
        self.went_back, self._newest, self._over = [], {}, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self):
        while not self._over.wait(0.1):
            for name in ('train', *(f'collect_{i}' for i in range(NUM_COLLECTORS))):
                version = self.status(name).get('policy_version') or 0
                if version < self._newest.get(name, 0):
                    self.went_back.append((name, self._newest[name], version))
                self._newest[name] = version

    def close(self):
        self._over.set()
        self._thread.join(10.0)

    @property
    def num_ended(self):
        """The episodes that the collectors have ended, by their status."""
        return sum(self.status(f'collect_{i}').get('episodes') or 0 for i in range(NUM_COLLECTORS))

    def all_are_counted_once(self):
        """Whether the learner has each episode of the collectors, and none twice."""
        status = self.status('train')
        assert (status.get('reported_episodes') or 0) <= (status.get('episodes') or 0)
        # A collector reports first, and writes its status within a second.
        wait_for(lambda: (status.get('episodes') or 0) <= self.num_ended, 'each to be counted once', 3.0)
        return status.get('reported_episodes') == status.get('episodes') and status.get('episodes')


@pytest.mark.parametrize('gin_file', ['ppo_cartpole', 'dqn_cartpole'])
@pytest.mark.parametrize('job', ['coordinator', 'replay_server'])
def test_ten_kills_of_the_coordinator(tmp_path, promise, gin_file, job):
    chaos, pause = random.Random(SEED), threading.Event()
    flags = [f'--num_collectors={NUM_COLLECTORS}', *(['--coordinator_alone'] if job == 'coordinator' else [])]
    run, secs = Watched(tmp_path, gin_file, BINDINGS, flags), []
    with run.started():
        wait_for(lambda: run.running and run.all_are_counted_once(), 'training', 240.0)
        pids = {name: run.status(name)['pid'] for name in ('train', 'collect_0', 'collect_1')}
        for _ in range(KILLS):
            pause.wait(chaos.uniform(0.5, 6.0))
            killed = run.status(job)['pid']
            assert run.signal(job, signal.SIGKILL)
            again = wait_for(lambda killed=killed: run.status(job).get('pid') not in (None, killed), 'its restart')
            step = run.train_step
            secs.append(again + wait_for(lambda step=step: run.train_step > step + 50, 'training to go on'))
        wait_for(run.all_are_counted_once, 'all episodes', 60.0)
        assert {name: run.status(name)['pid'] for name in pids} == pids, 'nobody ends because of it'
        write_json(run.run_dir.stop_request, {'reason': 'ten kills are enough'})
        assert run.wait() == 0, run.output.read_text()[-3000:]
    run.close()
    assert run.status('train')['episodes'] <= run.num_ended, 'one is counted twice'
    assert not run.went_back
    where = 'alone' if job == 'coordinator' else 'in the replay server'
    fault = f'{KILLS} SIGKILLs of the coordinator {where}, {gin_file}'
    promise(fault, 'no episode lost or counted twice, no version went back', f'{max(secs):.0f} s at most to go on')
