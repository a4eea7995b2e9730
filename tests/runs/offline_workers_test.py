"""Two workers of tflearn train-offline, by TF_CONFIG, on this machine: real programs, real signals."""

import contextlib
import itertools
import json
import random
import re
import signal
import time
import zlib

import numpy as np
import pytest
import tensorflow as tf

from tests.data import data_sets
from tests.end_to_end.programs import Program
from tests.fakes import CheckedEnvironment
from tests.testing import written_summaries
from tflearn.core.errors import TRY_AGAIN_EXIT_STATUS
from tflearn.data import columns
from tflearn.data.reader import Dataset, EpisodeReader
from tflearn.environments import gymnasium_env
from tflearn.files.numbered import CheckpointFiles
from tflearn.files.run_dir import RunDir, read_json
from tflearn.launch.local import free_address

pytestmark = pytest.mark.slow

SEQUENCES = """
import os
import zlib

import tensorflow as tf

_file = open(f'sequences_{os.environ["SEQUENCES"]}', 'w', buffering=1)


def after_step(batch, loss_info):
    def write(*columns):
        sequences = (b''.join(column[i].tobytes() for column in columns) for i in range(len(columns[0])))
        _file.write(' '.join(str(zlib.crc32(one)) for one in sequences) + '\\n')

    tf.numpy_function(write, tf.nest.flatten(batch[0]), [])
"""
GIN = """
from __gin__ import dynamic_registration

import sequences
from tflearn.core import experience
from tflearn.agents import dqn
from tflearn.jobs import train
from tflearn.learner import train_loop
from tflearn.networks import networks

include 'dqn_cartpole.gin'

train.LearnerOptions.loop = @train_loop.LoopOptions()
train.LearnerOptions.checkpoint_interval_steps = 20
train_loop.LoopOptions.after_step = @sequences.after_step
train.Intervals.export_interval_steps = 1_000_000
train.SummaryOptions.interval_steps = 100
train.Initial.seed = 5
networks.NetworkOptions.fc_layer_params = (16,)
experience.Slicing.sequence_length = 2
"""
READING = {
    'memory': ('train_offline.Reading.order="epochs"',),
    'stream': ('train_offline.Reading.storage="stream"', 'train_offline.Reading.window_steps=1_000'),
}
SEQUENCE_LENGTH = 2
NUM_STEPS = 240


class Runs:
    """Runs of two workers, or of one, in a folder with the data set `data`."""

    def __init__(self, folder, monkeypatch, num_steps, data='data'):
        self.folder, self._monkeypatch, self._num_steps, self._data = folder, monkeypatch, num_steps, data
        (folder / 'sequences.py').write_text(SEQUENCES)
        (folder / 'run.gin').write_text(GIN)

    @contextlib.contextmanager
    def start(self, name, root, *bindings, size=2):
        with contextlib.ExitStack() as stack:
            yield list(self._programs(stack, name, root, bindings, size))

    def _programs(self, stack, name, root, bindings, size):
        addresses = [free_address() for _ in range(size)]
        for index in range(size):
            self._monkeypatch.delenv('TF_CONFIG', raising=False)
            if size > 1:
                task = {'cluster': {'worker': addresses}, 'task': {'type': 'worker', 'index': index}}
                self._monkeypatch.setenv('TF_CONFIG', json.dumps(task))
            self._monkeypatch.setenv('SEQUENCES', f'{name}_{index}')
            flags = [f'--root_dir={root}', '--gin_file=run.gin', f'--data={self._data}', *self._flags(size, bindings)]
            yield stack.enter_context(Program('train_offline', *flags, folder=self.folder, name=f'{name}_{index}'))

    def _flags(self, size, bindings):
        steps = f'train.StopConditions.num_train_steps={self._num_steps}'
        strategy = f'train.Device.strategy="{"multi_worker" if size > 1 else "default"}"'
        return [f'--gin_bindings={each}' for each in (steps, strategy, *bindings)]

    def complete(self, name, root, *bindings, size=2):
        """Runs until the end; returns the run directory and the output of each worker."""
        with self.start(name, root, *bindings, size=size) as programs:
            for program in programs:
                assert program.end() == 0, program.output
            return RunDir(self.folder / root), [program.output for program in programs]

    def batches(self, name, index):
        """Returns the sequences of each batch that a worker has trained on."""
        path = self.folder / f'sequences_{name}_{index}'
        lines = path.read_text().split('\n')[:-1] if path.exists() else []  # the last line may be a part of one
        return [line.split() for line in lines]

    def checkpoint(self, root):
        return max(CheckpointFiles(RunDir(self.folder / root).checkpoints).numbers(), default=0)


def write_cartpole(folder):
    """Writes several files of episodes; returns all sequences in them."""
    with contextlib.closing(gymnasium_env.make('CartPole-v1', num_environments=8, seed=0)) as environment:
        data_sets.write(folder / 'data', 750, environment, file_bytes=50_000)
        spec = columns.data_spec(environment.specs)
    assert len(list((folder / 'data').glob('*.tfrecord'))) > 3
    found = []
    for episode in EpisodeReader(Dataset([str(folder / 'data')]), spec).episodes():
        leaves = tf.nest.flatten(episode)
        for t in range(len(leaves[0]) - SEQUENCE_LENGTH + 1):
            found.append(str(zlib.crc32(b''.join(leaf[t : t + SEQUENCE_LENGTH].tobytes() for leaf in leaves))))
    assert len(set(found)) == len(found) > 5_000
    return set(found)


def interrupt(runs, root, reading, begin, num_steps, victim, number):
    """Sends a signal to a worker after so many train steps and a checkpoint; both must end within a minute."""
    with runs.start(number.name, root, *reading) as programs:

        def trained():
            return len(runs.batches(number.name, 0)) > num_steps and runs.checkpoint(root) > begin

        programs[0].wait_for(trained, f'{num_steps} train steps and a checkpoint')
        programs[victim].send(number)
        sent_at = time.monotonic()
        statuses = [program.end() for program in programs]
        assert time.monotonic() - sent_at < 60
    killed = number == signal.SIGKILL
    assert statuses[victim] == (-number if killed else 128 + number), programs[victim].output[-3000:]
    # TensorFlow's own service may end a process whose peer has died.
    allowed = {TRY_AGAIN_EXIT_STATUS, *([-signal.SIGABRT] if killed else [])}
    assert statuses[1 - victim] in allowed, programs[1 - victim].output[-3000:]


@pytest.mark.parametrize('storage', READING)
def test_two_workers_read_parts_of_their_own_and_go_on_exactly(tmp_path, monkeypatch, storage):
    data, draws = write_cartpole(tmp_path), random.Random(storage)
    runs = Runs(tmp_path, monkeypatch, NUM_STEPS)
    runs.complete('undisturbed', 'a', *READING[storage])
    undisturbed = [runs.batches('undisturbed', index) for index in range(2)]
    assert [len(each) for each in undisturbed] == [NUM_STEPS, NUM_STEPS]
    parts = [set(itertools.chain(*each[: NUM_STEPS // 2])) for each in undisturbed]  # in more than an epoch
    assert not parts[0] & parts[1] and parts[0] | parts[1] == data
    assert all(set(itertools.chain(*each)) == part for each, part in zip(undisturbed, parts, strict=True))
    assert 0.8 < len(parts[0]) / len(parts[1]) < 1.25

    begin, first = 0, draws.randrange(2)
    for number, victim in ((signal.SIGKILL, first), (signal.SIGTERM, 1 - first)):
        interrupt(runs, 'b', READING[storage], begin, draws.randrange(30, 70), victim, number)
        for index in range(2):
            mine = runs.batches(number.name, index)
            assert mine == undisturbed[index][begin : begin + len(mine)] != []
        before, begin = begin, runs.checkpoint('b')
        assert before < begin < NUM_STEPS
    runs.complete('last', 'b', *READING[storage])
    for index in range(2):
        assert runs.batches('last', index) == undisturbed[index][begin:]


def test_two_workers_equal_one_with_twice_the_batch(tmp_path, monkeypatch):
    """Where a batch is the whole part of a worker: otherwise, other sequences come together in a batch."""
    for i in range(2):
        data_sets.write(tmp_path / 'data' / str(i), 50, CheckedEnvironment((8, 8)), seed=i)
    num_sequences = 2 * 5 * (8 + 1 - SEQUENCE_LENGTH + 1)  # of each part: 5 episodes of each environment
    runs, values = Runs(tmp_path, monkeypatch, 60, 'data/*'), []
    for size in (2, 1):
        batch = f'experience.BatchItems.per_replica={num_sequences * 2 // size}'
        run_dir, outputs = runs.complete(f'of_{size}', f'run_{size}', *READING['memory'], batch, size=size)
        assert all(f': {num_sequences * 2 // size} sequences' in output for output in outputs)
        values.append([agent_values(run_dir, step) for step in (20, 60)])
    for before, after in values:
        assert any(not np.allclose(before[name], after[name], rtol=1e-2, atol=1e-2) for name in before)
    for of_two, of_one in zip(*values, strict=True):
        assert of_two.keys() == of_one.keys()
        for name, value in of_two.items():
            np.testing.assert_allclose(value, of_one[name], rtol=1e-3, atol=1e-4, err_msg=name)


def agent_values(run_dir, step):
    """The agent's variables in the first checkpoint from a train step on."""
    steps = CheckpointFiles(run_dir.checkpoints).numbers()
    reader = tf.train.load_checkpoint(str(run_dir.checkpoints / f'ckpt-{min(each for each in steps if each >= step)}'))
    return {
        name: reader.get_tensor(name)
        for name, shape in reader.get_variable_to_shape_map().items()
        if name.startswith('agent') and shape
    }


def test_two_workers_validate_together_and_stop_when_they_get_no_better(tmp_path, monkeypatch):
    write_cartpole(tmp_path)
    bindings = ('train_offline.Validation.share=0.2', 'train_offline.Validation.interval_steps=20')
    bindings += ('train_offline.DataStopConditions.patience=2',)
    run_dir, outputs = Runs(tmp_path, monkeypatch, 4_000).complete('it', 'run', *READING['memory'], *bindings)
    result = read_json(run_dir.train_result)
    losses = written_summaries.scalars(run_dir.summaries('train'))['validation/loss']
    best = min(losses, key=losses.get)
    assert result['reason'] == f'patience 2 reached: the least validation loss is that of train step {best}'
    assert [step for step in losses if step > best] == sorted(losses)[-2:]
    assert result['train_step'] == max(losses)
    for output in outputs:
        assert f'loss {losses[best]:.4g}; the least is {losses[best]:.4g}, of train step {best}' in output


@pytest.mark.parametrize('storage', READING)
def test_two_workers_end_after_epochs_of_the_smaller_part(tmp_path, monkeypatch, storage):
    write_cartpole(tmp_path)
    runs = Runs(tmp_path, monkeypatch, 4_000)
    run_dir, _ = runs.complete('it', 'run', *READING[storage], 'train_offline.DataStopConditions.max_epochs=3')
    both = [runs.batches('it', index) for index in range(2)]
    sizes = [len(set(itertools.chain(*batches))) for batches in both]
    num_steps = min(-(-3 * size // len(both[0][0])) for size in sizes)
    result = read_json(run_dir.train_result)
    assert (result['reason'], result['train_step']) == ('max_epochs 3 reached', num_steps)
    assert [len(batches) for batches in both] == [num_steps, num_steps]


@pytest.mark.parametrize('storage', READING)
def test_an_error_of_one_worker_ends_both(tmp_path, monkeypatch, storage):
    write_cartpole(tmp_path)
    runs = Runs(tmp_path, monkeypatch, 4_000)
    shard = sorted((tmp_path / 'data').glob('*.tfrecord'))[0]
    data = bytearray(shard.read_bytes())
    data[-100] ^= 255
    shard.write_bytes(data)
    with runs.start('it', 'run', *READING[storage]) as programs:
        statuses = [program.end() for program in programs]
    assert sorted(statuses) == [2, TRY_AGAIN_EXIT_STATUS], [program.output[-3000:] for program in programs]
    owner = statuses.index(2)
    assert 'got 1 damaged records, the last one in' in programs[owner].last_line
    assert re.search(r'got an error of (the data of )?another worker', programs[1 - owner].output)
