"""Two workers of tflearn-train equal one with twice the batch: real programs, a real replay server, the same data.

The workers draw for themselves, and write down what they train on. One worker then gets the same items from a queue, in
the same order: the batches of both workers at a train step are its batch.
"""

import contextlib
import itertools
import json
import pickle
import re
import threading

import numpy as np
import pytest
import reverb
import tensorflow as tf

from tests.end_to_end.programs import Addresses, Program
from tflearn.files.run_dir import RunDir
from tflearn.launch.local import free_address
from tflearn.replay import backend
from tflearn.replay.storage import REPLAY

pytestmark = pytest.mark.slow

NUM_STEPS, PER_WORKER, CHUNK_STEPS = 100, 8, 16
RTOL, ATOL = 1e-4, 1e-6  # sums of floats in another order, over 100 steps of Adam
RECORDER = """
import dataclasses
import os
import pickle

import tensorflow as tf
from tflearn.core.experience import Uniform

_file = open(os.environ.get('BATCHES', os.devnull), 'wb')


def after_step(batch, loss_info):
    def write(*columns):
        pickle.dump(columns, _file)
        _file.flush()

    tf.numpy_function(write, tf.nest.flatten(batch[0]), [])


def on_queue(specs, train_step, experience, make):
    return make(specs, train_step, dataclasses.replace(experience, replay=Uniform()))
"""
GIN = """
from __gin__ import dynamic_registration

import recorder
from tflearn.core import experience
from tflearn.jobs import train
from tflearn.learner import train_loop

include '{run}.gin'

train.LearnerOptions.loop = @train_loop.LoopOptions()
train_loop.LoopOptions.after_step = @recorder.after_step
train.Intervals.export_interval_steps = 1_000_000
train.SummaryOptions.interval_steps = 1_000_000
train.StopConditions.num_train_steps = {num_steps}
train.Initial.seed = 5
"""
QUEUE = (  # which DQN refuses for good reasons, unless it does not know
    'experience.Experience.replay=@experience.Queue()',
    'experience.Queue.max_size=32',
    'make_agent=@recorder.on_queue',
    'recorder.on_queue.make=@dqn.make_agent',
)
PPO = (
    'experience.Queue.max_policy_lag=None',
    'experience.Queue.versions_ahead=None',
    'experience.Queue.max_size=32',
    'experience.Slicing.sequence_length=9',
    'experience.Slicing.stride=8',
    'experience.Iteration.num_epochs=2',
    'experience.Iteration.minibatch_steps=128',  # one minibatch, since each worker has an order of its own
)


class Run:
    """A run of one or several workers with a replay server, in a folder; all are killed at the end."""

    def __init__(self, folder, name, gin, size, *bindings):
        self._folder, self._name, self._size = folder, name, size
        self._addresses, self.root = Addresses(), folder / name
        strategy = 'multi_worker' if size > 1 else 'default'
        batch = f'experience.BatchItems.per_replica={PER_WORKER * 2 // size}'
        given = (f'train.Device.strategy="{strategy}"', batch, *bindings)
        self._flags = [f'--root_dir={name}', f'--gin_file={gin}']
        self._flags += [f'--gin_bindings={each}' for each in given]

    @contextlib.contextmanager
    def replay(self):
        """Starts the replay server; gives a client, the types of a row's columns, and the bytes of an item."""
        name = f'{self._name}_replay'
        own = self._addresses.flags('replay_server')
        with Program('replay_server', *self._flags, *own, folder=self._folder, name=name) as program:
            info = program.wait_for(lambda: backend.counts(self._addresses.replay), 'its start')
            spec = info[REPLAY].signature['chunk']
            yield reverb.Client(self._addresses.replay), row_type(spec.name), int(np.prod(spec.shape))

    def train(self, monkeypatch):
        """Trains until the end. Returns the batches of each worker, in order."""
        workers, names = [free_address() for _ in range(self._size)], []
        with contextlib.ExitStack() as stack:
            programs = []
            for index in range(self._size):
                names.append(f'{self._name}_{index}')
                monkeypatch.setenv('BATCHES', f'batches_{names[-1]}')
                monkeypatch.delenv('TF_CONFIG', raising=False)
                if self._size > 1:
                    task = {'cluster': {'worker': workers}, 'task': {'type': 'worker', 'index': index}}
                    monkeypatch.setenv('TF_CONFIG', json.dumps(task))
                own = self._addresses.flags('train')
                program = Program('train', *self._flags, *own, folder=self._folder, name=names[-1])
                programs.append(stack.enter_context(program))
            for program in programs:
                assert program.end() == 0, program.output[-3000:]
        return [read_batches(self._folder / f'batches_{name}') for name in names]

    def values(self):
        """The agent's variables and its optimizer's after the last train step."""
        reader = tf.train.load_checkpoint(str(RunDir(self.root).checkpoints / f'ckpt-{NUM_STEPS}'))
        shapes = reader.get_variable_to_shape_map()
        return {name: reader.get_tensor(name) for name in shapes if name.startswith('agent')}


def row_type(text):
    """The columns of a packed row, from the text of its layout."""
    found = re.findall(r'([\w/]+):(\w+)\[([\d,]*)\]', text)
    names = [name for name, _, _ in found]
    names[len(names) - 1 - names[::-1].index('step_type')] = 'next_step_type'
    shapes = [tuple(int(n) for n in shape.split(',') if n) for _, _, shape in found]
    return np.dtype([(name, kind, shape) for name, (_, kind, _), shape in zip(names, found, shapes, strict=True)])


def read_batches(path):
    with open(path, 'rb') as file:
        batches = []
        with contextlib.suppress(EOFError):
            while True:
                batches.append(pickle.load(file))
    assert len(batches) == NUM_STEPS
    return batches


def random_rows(kind, shape, number):
    """Rows of a policy that acts at random, and never ends an episode; another `number` gives others."""
    draws, rows = np.random.default_rng(number), np.zeros(shape, kind)
    for name in kind.names:
        if kind[name].base.kind == 'f':
            rows[name] = draws.normal(size=rows[name].shape)
    rows['action'] = draws.integers(0, 2, rows['action'].shape)
    rows['step_type'] = rows['next_step_type'] = rows['discount'] = 1
    return rows


def insert(client, items, stop=None):
    """Inserts packed items in their order, each after the one before; while the queue is full it waits."""
    writer = client.trajectory_writer(num_keep_alive_refs=1, validate_items=False)
    for item in items:
        writer.append({'chunk': item})
        writer.create_item(REPLAY, 1.0, {'chunk': writer.history['chunk'][-1]})
        while not stop or not stop.is_set():
            with contextlib.suppress(reverb.DeadlineExceededError):
                writer.flush(timeout_ms=200)
                break
        if stop and stop.is_set():
            return


@contextlib.contextmanager
def feeding(client, items):
    """Inserts items meanwhile."""
    stop = threading.Event()
    thread = threading.Thread(target=insert, args=(client, items, stop), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(10)


def packed_item(rows):
    rows['begins'] = 0
    rows['begins'][0] = 1
    return np.ascontiguousarray(rows).view(np.uint8).reshape(len(rows), -1)


def packed_chunk(rows, number):
    rows['begins'][:CHUNK_STEPS] = 1
    return np.concatenate([np.array([number]).view(np.uint8), rows.view(np.uint8)])


def assert_equal(of_two, of_one):
    assert of_two.keys() == of_one.keys() and len(of_two) > 10
    for name, value in of_two.items():
        np.testing.assert_allclose(value, of_one[name], rtol=RTOL, atol=ATOL, err_msg=name)
    assert [value for name, value in of_two.items() if '_iterations' in name] == [NUM_STEPS]


def write_files(folder, run):
    (folder / 'recorder.py').write_text(RECORDER)
    (folder / 'run.gin').write_text(GIN.format(run=run, num_steps=NUM_STEPS))


def test_dqn_of_two_workers_equals_one_with_twice_the_batch(tmp_path, monkeypatch):
    """Each worker draws from its own mirror of a replay that was filled before."""
    write_files(tmp_path, 'dqn_cartpole')
    small = ('Uniform.min_size=500', 'Uniform.samples_per_insert=None', 'Uniform.sampling="learner"')
    two = Run(tmp_path, 'two', 'run.gin', 2, *small)
    with two.replay() as (client, kind, num_bytes):
        num_rows = num_bytes // kind.itemsize  # after an id of 8 bytes
        insert(client, (packed_chunk(random_rows(kind, num_rows, number), number) for number in range(64)))
        batches = two.train(monkeypatch)
    drawn = [[tuple(column.tobytes() for column in columns) for columns in each] for each in batches]
    assert not set(drawn[0]) & set(drawn[1]), 'each worker has draws of its own'

    def in_order():
        for columns in itertools.chain.from_iterable(zip(*batches, strict=True)):
            for i in range(PER_WORKER):
                rows = np.zeros(columns[0].shape[1], kind)
                for name, column in zip(kind.names[2:], columns, strict=True):
                    rows[name] = column[i]
                yield packed_item(rows)

    one = Run(tmp_path, 'one', 'run.gin', 1, *QUEUE)
    with one.replay() as (client, *_), feeding(client, in_order()):
        one.train(monkeypatch)
    assert_equal(two.values(), one.values())


def test_ppo_of_two_workers_equals_one_with_twice_the_batch(tmp_path, monkeypatch):
    """Both workers take items from one queue; its iterations prepare them with normalizers that both share."""
    write_files(tmp_path, 'ppo_cartpole')
    two = Run(tmp_path, 'two', 'run.gin', 2, *PPO)
    with two.replay() as (client, kind, _):
        items = (packed_item(random_rows(kind, 9, number)) for number in itertools.count())
        with feeding(client, items):
            batches = two.train(monkeypatch)
    logits = next(name for name in kind.names if name.endswith('logits'))  # which the preparation does not change
    numbers = {random_rows(kind, 9, n)[logits][0].tobytes(): n for n in range(4 * NUM_STEPS * PER_WORKER)}

    def items_of(columns):
        of_two = [column for column in columns if column.shape[1:] == (2,)]
        found = [numbers[row.tobytes()] for column in of_two for row in column if row.tobytes() in numbers]
        assert len(found) == PER_WORKER
        return sorted(found)

    used = [[items_of(columns) for columns in each] for each in batches]
    assert all(each[i] == each[i + 1] for each in used for i in range(0, NUM_STEPS, 2))  # two epochs
    order = [number for pair in list(zip(*used, strict=True))[::2] for numbers in pair for number in numbers]
    assert len(set(order)) == len(order) == NUM_STEPS * PER_WORKER
    one = Run(tmp_path, 'one', 'run.gin', 1, *PPO)
    items = (packed_item(random_rows(kind, 9, number)) for number in order)
    with one.replay() as (client, *_), feeding(client, items):
        one.train(monkeypatch)
    assert_equal(two.values(), one.values())
