"""Runs on recorded episodes are killed: alone, before they collect and after: real programs, real signals."""

import contextlib
import random
import re
import signal

import pytest

from tests.data import data_sets
from tests.end_to_end.programs import Program, metric, starter
from tests.testing import written_summaries
from tflearn.environments import gymnasium_env
from tflearn.files.numbered import CheckpointFiles
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


# Training on recorded episodes is killed and started again: the batches go on exactly. Real programs and signals.

HASHES = """
import os
import zlib

import tensorflow as tf

_file = open(f'hashes_{os.environ["HASHES"]}', 'w', buffering=1)


def after_step(batch, loss_info):
    def write(*columns):
        _file.write(f"{zlib.crc32(b''.join(column.tobytes() for column in columns))}\\n")

    tf.numpy_function(write, tf.nest.flatten(batch[0]), [])
"""
GIN = """
from __gin__ import dynamic_registration

import hashes
from tflearn.jobs import train
from tflearn.learner import train_loop

include 'dqn_cartpole.gin'

train.LearnerOptions.loop = @train_loop.LoopOptions()
train.LearnerOptions.checkpoint_interval_steps = 500
train_loop.LoopOptions.after_step = @hashes.after_step
train.StopConditions.num_train_steps = 8_000
train.Intervals.export_interval_steps = 1_000_000
"""
KILLED_OFFLINE_SETTINGS = {
    'memory': ('train_offline.Reading.order="epochs"', 'train_offline.Validation.share=0.2'),
    'stream': ('train_offline.Reading.storage="stream"', 'train_offline.Reading.window_steps=3_000'),
}


@pytest.mark.slow
@pytest.mark.parametrize('storage', KILLED_OFFLINE_SETTINGS)
def test_the_batches_go_on_exactly(tmp_path, monkeypatch, storage):
    with contextlib.closing(gymnasium_env.make('CartPole-v1', num_environments=8, seed=0)) as environment:
        data_sets.write(tmp_path / 'data', 1_500, environment, file_bytes=100_000)
    assert len(list((tmp_path / 'data').glob('*.tfrecord'))) > 3
    (tmp_path / 'hashes.py').write_text(HASHES)
    (tmp_path / 'hashed.gin').write_text(GIN)

    def start(name, root, seed=5):
        monkeypatch.setenv('HASHES', name)
        flags = [f'--root_dir={root}', '--gin_file=hashed.gin', '--data=data']
        flags += [f'--gin_bindings=train.Initial.seed={seed}']
        flags += [f'--gin_bindings={binding}' for binding in KILLED_OFFLINE_SETTINGS[storage]]
        return Program('train_offline', *flags, folder=tmp_path, name=name)

    def hashes(name):
        return (tmp_path / f'hashes_{name}').read_text().splitlines()

    with start('undisturbed', 'a') as program:
        assert program.end() == 0, program.output
    undisturbed = hashes('undisturbed')
    assert len(undisturbed) == 8_000 and len(set(undisturbed)) > 7_900
    run_dir = RunDir(tmp_path / 'b')
    begins, draws = [], random.Random(storage)
    for session in range(3):
        begins.append(max(CheckpointFiles(run_dir.checkpoints).numbers(), default=0))
        name = f'session_{session}'
        with start(name, 'b', seed=5 + session) as program:  # the checkpoint's seed counts
            until = begins[-1] + draws.randrange(1_100, 2_500)
            if session < 2:
                program.wait_for(lambda until=until: metric(run_dir, 'train', 'train_step') > until, 'training')
                program.send(signal.SIGKILL)
            assert program.end() == (-signal.SIGKILL if session < 2 else 0), program.output
        mine = hashes(name)[:-1]  # the last line may be a part of one
        assert mine == undisturbed[begins[-1] : begins[-1] + len(mine)]
    assert begins[0] == 0 < begins[1] < begins[2]
    assert len(mine) == 8_000 - begins[2] - 1
