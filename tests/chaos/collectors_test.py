"""Collectors that are lost for good, or that have another configuration."""

import contextlib
import threading

import pytest

from tests.chaos.chaos_run import wait_for
from tests.chaos.hand_run import HandRun

pytestmark = pytest.mark.chaos

BINDINGS = (
    'evaluate.evaluate.target_return=None',
    'train.StopConditions.num_train_steps=100_000_000',
    'train.Intervals.export_interval_steps=100_000_000',
    'collect.num_environments=2',  # of the 32 items of an iteration: each of the four has a share in all of them
)
MEASURED_SECS = 40.0


def _iterations_per_sec(run):
    """Returns the rate of policy versions, one for each iteration, from now on."""
    before = run.status('train')
    threading.Event().wait(MEASURED_SECS)
    after = run.status('train')
    return (after['policy_version'] - before['policy_version']) / (after['time'] - before['time'])


def test_ppo_goes_on_with_three_of_four_collectors(tmp_path, promise):
    with contextlib.ExitStack() as opened:
        run = HandRun(tmp_path, opened, 'ppo_cartpole', BINDINGS)
        for job in ('replay_server', 'train'):
            run.start(job)
        names = [f'collect_{i}' for i in range(4)]
        collectors = [run.start('collect', f'--collector_name={name}', name=name) for name in names]
        wait_for(lambda: all(run.status(name).get('env_steps', 0) > 500 for name in names), 'all collectors')
        before = _iterations_per_sec(run)
        collectors[3].kill()
        after = _iterations_per_sec(run)  # from the kill on, the end of its lease included
        assert [collector.poll() for collector in collectors[:3]] == [None] * 3
        assert after >= 0.7 * before, f'{before:.2f} and {after:.2f} iterations a second'
    promise(
        'one of four collectors of PPO is killed for good',
        'the steps that it had not sent',
        f'{after / before:.2f} of the iterations a second in the {MEASURED_SECS:.0f} s from the kill on',
    )


def test_a_collector_with_another_configuration_is_refused(tmp_path, promise):
    with contextlib.ExitStack() as opened:
        run = HandRun(tmp_path, opened, 'dqn_cartpole', BINDINGS[:2])
        for job in ('replay_server', 'train', 'collect'):
            run.start(job)
        run.progress()
        other = '--gin_bindings=networks.NetworkOptions.fc_layer_params=(7,)'
        stranger = run.start('collect', other, '--collector_name=collect_1', name='stranger')
        wait_for(lambda: stranger.poll() is not None, 'its end')
        assert stranger.poll() == 2
        line = run.text('stranger').splitlines()[-1]
        assert line.startswith('tflearn-collect: error: got ') and 'need' in line, line
        run.progress()
    promise('a collector with another configuration', 'nothing', 'refused')
