"""Runs on recorded episodes are killed: alone, before they collect and after: real programs, real signals."""

import re
import signal

import pytest

from tests.data import data_sets
from tests.end_to_end.programs import metric, starter
from tests.testing import written_summaries
from tflearn.environments import gymnasium_env
from tflearn.files.run_dir import RunDir, read_json

PRETRAIN = 40_000
TOTAL = PRETRAIN + 12_000
SETTINGS = (
    'demonstrations=@train.Demonstrations()',
    'train.Demonstrations.dataset=@train.Dataset()',
    "train.Dataset.paths=('data',)",
    f'train.Demonstrations.num_pretrain_steps={PRETRAIN}',
    'train.Demonstrations.share=0.25',
    'train.Demonstrations.fill_replay=True',
    'networks.NetworkOptions.fc_layer_params=(8,)',
    'experience.BatchItems.per_replica=16',
    'Uniform.min_size=100',
    'Uniform.samples_per_insert=32.0',
    f'train.StopConditions.num_train_steps={TOTAL}',
    'train.LearnerOptions.checkpoint_interval_steps=2_000',
    'train.Intervals.export_interval_steps=1_000_000',
    'train.SummaryOptions.interval_steps=1_000',
)


def killed(learner, run_dir, step, name='train_step'):
    """Kills the learner after this train step; returns the train step that was last seen."""
    learner.wait_for(lambda: metric(run_dir, 'train', name) > step, f'{name} {step}')
    learner.send(signal.SIGKILL)
    assert learner.end() == -signal.SIGKILL
    return metric(run_dir, 'train', name)


CLONING = 100_000
CLONING_SETTINGS = (
    'from tflearn.agents import bc',
    'train.Initial.cloning=@train.Cloning()',
    'train.Cloning.dataset=@train.Dataset()',
    "train.Dataset.paths=('data',)",
    'train.Cloning.make_agent=@bc.make_agent',
    f'train.Cloning.num_train_steps={CLONING}',
    'bc.make_agent.network=@networks.NetworkOptions()',
    'networks.NetworkOptions.fc_layer_params=(8,)',
    'train.StopConditions.num_train_steps=1_000_000',
    'train.LearnerOptions.checkpoint_interval_steps=100',
    'train.Intervals.export_interval_steps=1_000_000',
)


def write_data(tmp_path):
    environment = gymnasium_env.make('CartPole-v1', num_environments=2, seed=1)
    data_sets.write(tmp_path / 'data', 300, environment)
    environment.close()
    return RunDir(tmp_path / 'run')


def check(run_dir):
    """The run took each train step once, those on demonstrations alone before it collected anything."""
    result = read_json(run_dir.train_result)
    assert (result['reason'], result['train_step']) == (f'num_train_steps {TOTAL} reached', TOTAL)
    # A step that is taken again after a kill is summarized again.
    found = written_summaries._values(run_dir.summaries('train'), 'scalars')
    shares = {(step, float(value)) for step, tag, value in found if tag == 'train/demonstration_share'}
    assert shares == {(step, 1.0 if step <= PRETRAIN else 0.25) for step in range(1_000, TOTAL + 1_000, 1_000)}
    return result


@pytest.mark.slow
def test_the_jobs_continue_in_both_phases(tmp_path):
    run_dir = write_data(tmp_path)
    with starter(tmp_path, 'dqn_cartpole', SETTINGS) as start:
        start('replay_server')
        collector = start('collect')
        first = killed(start('train'), run_dir, 2_000)
        assert first < PRETRAIN
        assert metric(run_dir, 'collect_0', 'env_steps') == 0
        learner = start('train', 'again')
        second = killed(learner, run_dir, PRETRAIN + 2_000)
        assert 'from scratch' not in learner.output
        assert f'trained on demonstrations for {PRETRAIN} train steps' in learner.output
        last = start('train', 'last')
        assert last.end() == 0, last.output
        assert 'trained on demonstrations for' not in last.output, 'it has gone on after them'
        assert collector.end() == 0, collector.output
    assert second > PRETRAIN
    # An own item is drawn 32 times, and 12 items of a batch are own ones. (The first 100 items are episodes.)
    assert check(run_dir)['env_steps'] > (TOTAL - PRETRAIN) * 12 / 32 * 0.8


@pytest.mark.slow
def test_the_synchronous_job_continues_in_both_phases(tmp_path):
    run_dir = write_data(tmp_path)
    with starter(tmp_path, 'dqn_cartpole', SETTINGS) as start:
        assert killed(start('synchronous', 'first'), run_dir, 2_000) < PRETRAIN
        assert metric(run_dir, 'train', 'env_steps') == 0
        assert killed(start('synchronous', 'again'), run_dir, PRETRAIN + 2_000) > PRETRAIN
        last = start('synchronous', 'last')
        assert last.end() == 0, last.output
        assert 'from scratch' not in last.output
    assert check(run_dir)['env_steps'] > (TOTAL - PRETRAIN) * 12 / 32 * 0.8


@pytest.mark.slow
def test_a_killed_cloning_and_the_ppo_after_it_go_on(tmp_path):
    run_dir = write_data(tmp_path)
    with starter(tmp_path, 'ppo_cartpole', CLONING_SETTINGS) as start:
        start('replay_server')
        collector = start('collect')
        assert killed(start('train'), run_dir, 3_000, 'cloning_step') < CLONING
        assert metric(run_dir, 'collect_0', 'env_steps') == 0
        learner = start('train', 'again')
        step = killed(learner, run_dir, 300)
        assert re.search(r'train step [1-9]\d*, .*/cloning/train/checkpoints/ckpt-', learner.output)
        assert f'cloned recorded episodes in {CLONING} train steps' in learner.output
        learner = start('train', 'last')
        learner.wait_for(lambda: metric(run_dir, 'train', 'train_step') > step + 100, 'training to go on')
        assert 'cloned recorded episodes' not in learner.output
        collected = metric(run_dir, 'collect_0', 'env_steps')
        collector.wait_for(lambda: metric(run_dir, 'collect_0', 'env_steps') > collected, 'collecting to go on')
