"""A learner is killed and started again, while its collector waits with a full queue: real programs, real signals."""

import contextlib
import signal

import pytest

from tests.end_to_end.programs import Addresses, Program, metric, pid
from tests.testing import written_summaries
from tflearn.files.run_dir import RunDir

MAX_LAG = 2
BINDINGS = (
    'networks.NetworkOptions.fc_layer_params=(16,)',
    f'Queue.max_policy_lag={MAX_LAG}',
    'Queue.max_size=64',  # eight batches, of which most are too old once the learner is back
    'BatchItems.per_replica=8',
    'train.StopConditions.num_train_steps=1_000_000',
    'train.LearnerOptions.checkpoint_interval_steps=20',
    'train.Intervals.export_interval_steps=1_000_000',
    'train.SummaryOptions.interval_steps=5',
)


@pytest.mark.slow
def test_it_goes_on_without_stale_batches_and_with_the_same_collector(tmp_path):
    run_dir = RunDir(tmp_path / 'run')
    addresses = Addresses()
    flags = ['--root_dir=run', '--gin_file=impala_cartpole']
    flags += [f'--gin_bindings={binding}' for binding in BINDINGS]
    with contextlib.ExitStack() as programs:

        def start(job, name=''):
            return programs.enter_context(Program(job, *flags, *addresses.flags(job), folder=tmp_path, name=name))

        start('replay_server')
        collect, killed = start('collect'), start('train')
        killed.wait_for(lambda: metric(run_dir, 'train', 'train_step') > 100, 'training')
        killed.send(signal.SIGKILL)
        assert killed.end() == -signal.SIGKILL
        step, collector = metric(run_dir, 'train', 'train_step'), pid(run_dir, 'collect_0')
        collect.wait_for(lambda: metric(run_dir, 'replay_server', 'replay_size') >= 64, 'a full queue')
        waiting_at = metric(run_dir, 'collect_0', 'env_steps')

        learner = start('train', 'again')
        learner.wait_for(lambda: metric(run_dir, 'train', 'train_step') > step + 100, 'training to go on')
        learner.wait_for(lambda: metric(run_dir, 'train', 'stale_sequences') > 0, 'stale sequences')
        collect.wait_for(lambda: metric(run_dir, 'collect_0', 'env_steps') > waiting_at + 1_000, 'collecting to go on')
        assert pid(run_dir, 'collect_0') == collector
        assert metric(run_dir, 'train', 'greatest_policy_lag') <= MAX_LAG
        learner.send(signal.SIGTERM)
        assert learner.end() == 128 + signal.SIGTERM
        assert 'from scratch' not in learner.output
    histograms = written_summaries.histograms(run_dir.summaries('train'))['data/policy_lag']
    assert all(greatest <= MAX_LAG for _, greatest, _ in histograms.values())
    assert max(histograms) > step
