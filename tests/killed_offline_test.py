"""Training on recorded episodes is killed and started again: the batches go on exactly. Real programs and signals."""

import contextlib
import random
import signal

import pytest

from tests.data import data_sets
from tests.end_to_end.programs import Program, metric
from tflearn.environments import gymnasium_env
from tflearn.files.numbered import CheckpointFiles
from tflearn.files.run_dir import RunDir

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
SETTINGS = {
    'memory': ('train_offline.Reading.order="epochs"', 'train_offline.Validation.share=0.2'),
    'stream': ('train_offline.Reading.storage="stream"', 'train_offline.Reading.window_steps=3_000'),
}


@pytest.mark.slow
@pytest.mark.parametrize('storage', SETTINGS)
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
        flags += [f'--gin_bindings={binding}' for binding in SETTINGS[storage]]
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
