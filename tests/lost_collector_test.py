"""PPO with two collectors, of which one is stopped, goes on, and is killed: real programs, real signals."""

import contextlib
import signal

import pytest

from tests.end_to_end.programs import Addresses, Program, metric
from tflearn.files.run_dir import RunDir

BINDINGS = (
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
    addresses = Addresses()
    flags = ['--root_dir=run', '--gin_file=ppo_cartpole']
    flags += [f'--gin_bindings={binding}' for binding in BINDINGS]
    with contextlib.ExitStack() as programs:

        def start(job, name='', *more):
            return programs.enter_context(
                Program(job, *flags, *addresses.flags(job), *more, folder=tmp_path, name=name)
            )

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
