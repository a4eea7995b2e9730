"""A worker of two is killed under `tflearn-launch --num_workers=2`: both end, and the launcher starts both again."""

import os
import pathlib
import re
import signal
import sys
import time

import pytest

from tests.end_to_end.programs import Program, metric, pid
from tests.launch.fake_run import gone
from tflearn.core.waiting import wait_until
from tflearn.files.numbered import CheckpointFiles
from tflearn.files.run_dir import RunDir

pytestmark = pytest.mark.slow

END_SECS = 60.0
BINDINGS = (
    'networks.NetworkOptions.fc_layer_params=(8,)',
    'Uniform.min_size=100',
    'BatchItems.per_replica=8',
    'train.Intervals.steps_per_call=20',
    'train.LearnerOptions.checkpoint_interval_steps=100',
    'train.Intervals.export_interval_steps=1_000_000',
    'train.StopConditions.num_train_steps=1_000_000',
    'collect.num_environments=2',
)


@pytest.mark.parametrize('victim', [0, 1])
def test_a_killed_worker_ends_both_and_the_launcher_starts_them_again(tmp_path, victim):
    run_dir = RunDir(tmp_path / 'run')
    files = CheckpointFiles(run_dir.checkpoints)
    flags = ['--root_dir=run', '--gin_file=dqn_cartpole', '--num_workers=2', '--num_collectors=1']
    flags += [f'--gin_bindings={binding}' for binding in BINDINGS]
    with Program('launch', *flags, folder=tmp_path) as launch:
        launch.wait_for(lambda: files.numbers() and max(files.numbers()) >= 200, 'two checkpoints')
        chief = pid(run_dir, 'train')
        workers = siblings(chief)
        assert len(workers) == 2 and chief in workers
        os.kill(chief if not victim else next(each for each in workers if each != chief), signal.SIGKILL)
        start = time.monotonic()
        wait_until(lambda: all(map(gone, workers)), 'the end of both', END_SECS, poll_secs=0.05)
        ended_secs = time.monotonic() - start
        saved = max(map(train_step, run_dir.manifests.glob('*.json')))
        launch.wait_for(lambda: pid(run_dir, 'train') not in workers, 'a new start')
        launch.wait_for(lambda: metric(run_dir, 'train', 'train_step') >= saved + 100, 'further train steps')
        log = run_dir.log('train').read_text()
        assert '2 replica(s) fed by 2 input pipeline(s)' in log
        steps = [int(step) for step in re.findall(r'learner: 2 replica\(s\), train step (\d+)', log)]
        assert sorted(steps) == [0, 0, saved, saved], 'both workers go on from the newest whole checkpoint'
        launch.send(signal.SIGTERM)
        assert launch.end() == 128 + signal.SIGTERM, launch.output
        assert metric(run_dir, 'train', 'state') == 'stopped'
        assert max(files.numbers()) == metric(run_dir, 'train', 'train_step')
    sys.stdout.write(f'\nworker {victim} of 2 killed: both ended within {ended_secs:.1f} s\n')
    assert 'train ended with exit code 75' in launch.output


def train_step(manifest):
    """The learner's train step in a manifest; 0 if it has none yet."""
    return int((re.search(r'"train_step": (\d+)', manifest.read_text()) or [0, 0])[1])


def siblings(process):
    """The children of a process's parent."""
    parent = pathlib.Path(f'/proc/{process}/stat').read_text().rpartition(')')[2].split()[1]
    return [int(each) for each in pathlib.Path(f'/proc/{parent}/task/{parent}/children').read_text().split()]
