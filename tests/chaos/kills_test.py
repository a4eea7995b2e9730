"""SIGKILLs at random moments over all jobs and the launcher; cycles of SIGTERM and restart."""

import collections
import os
import random
import signal
import statistics
import threading

import pytest

from tests.chaos.chaos_run import JOBS, ChaosRun, wait_for
from tflearn.files.run_dir import write_json

pytestmark = [pytest.mark.chaos, pytest.mark.parametrize('backend', ['reverb', 'valkey'])]

SEED = int(os.environ.get('TFLEARN_TEST_SEED', '0'))
CHECKPOINT_STEPS = 500
BINDINGS = (
    f'train.LearnerOptions.checkpoint_interval_steps={CHECKPOINT_STEPS}',
    'replay_server.replay_server.checkpoint_interval_secs=5.0',
    'evaluate.evaluate.target_return=None',
    'train.Intervals.export_interval_steps=1000',
    'train.StopConditions.num_train_steps=1_000_000',
)


def _best(run):
    return max(evaluation['mean_return'] for evaluation in run.evaluations())


def test_fifty_kills_of_any_process(tmp_path, promise, backend):
    chaos, pause = random.Random(SEED), threading.Event()
    run = ChaosRun(tmp_path, 'dqn_cartpole', BINDINGS, [f'--replay_backend={backend}'])
    recovery, back, highest, kills = [], 0, 0, 0
    with run.started():
        wait_for(lambda: run.running, 'the first train step')
        while kills < 50:
            pause.wait(chaos.uniform(0.5, 4.0))
            highest, job = max(highest, run.train_step), chaos.choice((*JOBS, 'launch'))
            pid = run.status('train').get('pid')
            if not run.signal(job, signal.SIGKILL):
                continue
            kills += 1
            if job == 'launch':
                run.wait(10.0)
                run.start()
            if job in ('train', 'launch'):
                recovery.append(wait_for(lambda pid=pid: run.running_after(pid), 'the restart of the learner'))
                back = max(back, highest - run.restored_step())
        write_json(run.run_dir.stop_request, {'reason': 'fifty kills are enough'})
        assert run.wait() == 0, run.output.read_text()[-3000:]
        wait_for(lambda: not run.processes(), 'the end of all processes', 30.0)
    # One interval, and the checkpoint that was being written.
    assert back <= 2 * CHECKPOINT_STEPS
    assert _best(run) >= 475
    lost = f'{back} train steps of {CHECKPOINT_STEPS} between checkpoints; best return {_best(run):.0f}'
    promise(
        f'{kills} SIGKILLs of any process, replay in {backend}',
        lost,
        f'{statistics.median(recovery):.0f} s, at most {max(recovery):.0f} s',
    )


def test_fifteen_kills_and_standstills_of_any_process(tmp_path, promise, backend):
    """SIGKILLs, and SIGSTOPs of up to 15 s, in any order."""
    chaos, pause = random.Random(SEED), threading.Event()
    run = ChaosRun(tmp_path, 'dqn_cartpole', BINDINGS, [f'--replay_backend={backend}'])
    sent, back, highest, secs = collections.Counter(), 0, 0, []
    with run.started():
        wait_for(lambda: run.running, 'the first train step')
        while sent.total() < 15:
            pause.wait(chaos.uniform(0.5, 4.0))
            highest, job = max(highest, run.train_step), chaos.choice((*JOBS, 'launch'))
            pid, number = run.status('train').get('pid'), chaos.choice((signal.SIGKILL, signal.SIGSTOP))
            if not run.signal(job, number):
                continue
            sent[number.name] += 1
            if number == signal.SIGSTOP:
                pause.wait(chaos.uniform(1.0, 15.0))
                run.signal(job, signal.SIGCONT)
                secs.append(wait_for(lambda: run.running, f'training after a standstill of {job}'))
                continue
            if job == 'launch':
                run.wait(10.0)
                run.start()
            if job in ('train', 'launch'):
                secs.append(wait_for(lambda pid=pid: run.running_after(pid), 'the restart of the learner'))
                back = max(back, highest - run.restored_step())
        wait_for(lambda: run.run_dir.evaluations.exists() and _best(run) >= 475, 'a solved task', 600.0)
        write_json(run.run_dir.stop_request, {'reason': 'fifteen are enough'})
        assert run.wait() == 0, run.output.read_text()[-3000:]
        wait_for(lambda: not run.processes(), 'the end of all processes', 30.0)
    assert back <= 2 * CHECKPOINT_STEPS
    promise(
        f'{sent["SIGKILL"]} SIGKILLs and {sent["SIGSTOP"]} SIGSTOPs of any process, replay in {backend}',
        f'{back} train steps of {CHECKPOINT_STEPS} between checkpoints; best return {_best(run):.0f}',
        f'{statistics.median(secs):.0f} s, at most {max(secs):.0f} s',
    )


def test_twenty_stops_by_sigterm(tmp_path, promise, backend):
    chaos, pause = random.Random(SEED), threading.Event()
    run = ChaosRun(tmp_path, 'dqn_cartpole', BINDINGS, [f'--replay_backend={backend}'])
    stops, restarts = [], []
    with run.started():
        for _ in range(20):
            restarts.append(wait_for(lambda: run.running, 'training'))
            pause.wait(chaos.uniform(0.5, 4.0))
            run.signal('launch', signal.SIGTERM)
            stops.append(wait_for(lambda: run.ended() is not None, 'the stop', 60.0))
            assert run.ended() == 143, run.output.read_text()[-3000:]
            step, size = run.train_step, run.status('replay_server')['replay_size']
            assert run.newest_checkpoint() == step, 'the last train step is saved'
            run.start()
            wait_for(lambda: run.status('replay_server').get('state') == 'running', 'the replay server')
            wait_for(lambda: run.running, 'training')
            assert run.restored_step() == step
            assert run.status('replay_server')['replay_size'] >= min(size, 100_000)
        write_json(run.run_dir.stop_request, {'reason': 'twenty stops are enough'})
        assert run.wait() == 0, run.output.read_text()[-3000:]
    assert _best(run) >= 475
    assert max(stops) < 30.0
    lost = f'nothing: step, replay and counters; best return {_best(run):.0f}'
    promise(
        f'{len(stops)} stops by SIGTERM, replay in {backend}',
        lost,
        f'stop {max(stops):.0f} s, restart {max(restarts):.0f} s at most',
    )
