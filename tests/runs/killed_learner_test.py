"""A learner is killed and started again, and a collector is lost: real programs, real signals."""

import signal

import pytest

from tests.end_to_end.programs import metric, pid, starter
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
    with starter(tmp_path, 'impala_cartpole', BINDINGS) as start:
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


# PPO with two collectors, of which one is stopped, goes on, and is killed: real programs, real signals.

LOST_COLLECTOR_BINDINGS = (
    'networks.NetworkOptions.fc_layer_params=(16,)',
    'collect.num_environments=4',  # of the 32 items of an iteration: both have a share in each
    'train.StopConditions.num_train_steps=1_000_000',
    'train.Intervals.export_interval_steps=1_000_000',
    'train.LearnerOptions.checkpoint_interval_steps=1_000_000',
    'train.SummaryOptions.interval_steps=1_000_000',
)


@pytest.mark.slow
def test_iterations_continue_without_one_collector(tmp_path):
    run_dir = RunDir(tmp_path / 'run')
    with starter(tmp_path, 'ppo_cartpole', LOST_COLLECTOR_BINDINGS) as start:

        def version():
            return metric(run_dir, 'train', 'policy_version')

        def goes_on(count=30):
            begun = version()
            learner.wait_for(lambda: version() >= begun + count, f'{count} iterations')

        start('replay_server')
        learner = start('train')
        start('collect', 'collect_0')
        lost = start('collect', 'collect_1', '--collector_name=collect_1')
        learner.wait_for(lambda: metric(run_dir, 'collect_1', 'env_steps') > 500, 'both collectors')
        goes_on()

        lost.send(signal.SIGSTOP)
        learner.wait_for(lambda: 'collect_1' in learner.output, 'the end of its lease')
        steps = metric(run_dir, 'collect_1', 'env_steps')
        goes_on()
        lost.send(signal.SIGCONT)
        lost.wait_for(lambda: metric(run_dir, 'collect_1', 'env_steps') > steps + 500, 'a share for it again')
        goes_on()

        lost.send(signal.SIGKILL)
        assert lost.end() == -signal.SIGKILL
        learner.wait_for(lambda: learner.output.count('has not reported') >= 2, 'the end of its lease')
        stale = metric(run_dir, 'train', 'stale_sequences')
        goes_on(100)
        assert metric(run_dir, 'train', 'stale_sequences') - stale <= 16, 'what was made for the lost one, at most'
