"""Data in files and arrays train agents by a `Learner`: shares of input pipelines, epochs, and the position."""

import numpy as np
import pytest
import tensorflow as tf

import tflearn
from tflearn.agents import bc, dqn, td3
from tflearn.api import datasets
from tflearn.data import arrays, columns, conversion
from tflearn.data.reader import Dataset
from tflearn.environments import spaces
from tflearn.networks.networks import NetworkOptions
from tflearn.optimization.supervised import Examples, SupervisedAgent

# 8 episodes of 5 steps; the first number of an observation is that of its step.
NUM_STEPS = 40
EPISODE = np.repeat(np.arange(8), 5)
OBSERVATION = np.stack([np.arange(NUM_STEPS), EPISODE], axis=1).astype(np.float32)
REWARD = np.ones(NUM_STEPS, np.float32)
CHOICES, NUMBERS = np.arange(NUM_STEPS) % 2, np.linspace(-1.0, 1.0, NUM_STEPS, dtype=np.float32)[:, None]
EXPERIENCE = tflearn.Experience(replay=tflearn.Uniform(), batch=tflearn.BatchItems(4))
SMALL = NetworkOptions((4,))


def _written(directory, action=CHOICES):
    arrays.from_arrays(directory, OBSERVATION, action, REWARD, episode=EPISODE)
    return columns.read_specs(directory)


def _supervised():
    network = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    spec = tf.TensorSpec((2,)), tf.TensorSpec((1,))
    return SupervisedAgent(*spec, network, 'mse', tflearn.create_train_step(), tf.keras.optimizers.Adam(1e-3))


def _arrays(directory, epochs):
    del directory
    return _supervised(), datasets.of_arrays(Examples(OBSERVATION, NUMBERS), 4, epochs=epochs)


def _tfrecord(directory, epochs):
    paths = [str(directory / f'{i}.tfrecord') for i in range(3)]
    for i, path in enumerate(paths):
        with tf.io.TFRecordWriter(path) as file:
            for row in np.concatenate([OBSERVATION, NUMBERS], axis=1)[i::3]:
                file.write(row.tobytes())

    def parse(record):
        row = tf.ensure_shape(tf.io.decode_raw(record, tf.float32), [3])
        return Examples(row[:2], row[2:])

    return _supervised(), datasets.of_tfrecord(paths, parse, 4, epochs=epochs)


def _episodes(directory, epochs):
    agent = bc.make_agent(_written(directory), tflearn.create_train_step(), EXPERIENCE, network=SMALL)
    data = Dataset([str(directory)])
    return agent, datasets.of_episodes(data, EXPERIENCE, agent.collect_data_spec, epochs=epochs)


def _steps(directory, epochs):
    agent = dqn.make_agent(_written(directory), tflearn.create_train_step(), EXPERIENCE, network=SMALL)
    given = OBSERVATION, CHOICES, REWARD, EXPERIENCE, agent.collect_data_spec
    return agent, datasets.of_steps(*given, epochs=epochs, episode=EPISODE)


def _rlds(directory, epochs):
    pytest.importorskip('tensorflow_datasets')
    specs = _written(directory / 'own', NUMBERS)
    conversion.convert(Dataset([str(directory / 'own')]), directory / 'rlds', conversion.RLDS, spaces)
    agent = td3.make_agent(specs, tflearn.create_train_step(), EXPERIENCE, network=SMALL)
    return agent, datasets.of_rlds(str(directory / 'rlds'), EXPERIENCE, agent.collect_data_spec, epochs=epochs)


KINDS = [_arrays, _tfrecord, _episodes, _steps, pytest.param(_rlds, marks=pytest.mark.filterwarnings('ignore'))]


def _numbers(batch):
    """Returns the numbers of the steps with which the items of a batch begin."""
    items = batch if isinstance(batch, Examples) else batch[0]
    return items.observation.numpy().reshape(4, -1)[:, 0].astype(int).tolist()


@pytest.mark.parametrize('make', KINDS)
def test_pipelines_divide_the_items_and_an_agent_learns_from_them(make, tmp_path):
    agent, dataset_fn = make(tmp_path, epochs=1)
    parts = []
    for i in range(2):
        dataset = dataset_fn(tf.distribute.InputContext(2, i, 2))
        parts.append([number for batch in dataset for number in _numbers(batch)])
    assert not set(parts[0]) & set(parts[1])
    # Of a file more than another has, the last items fill no batch.
    assert len(parts[0] + parts[1]) >= NUM_STEPS - 2 * 3 and parts[0] != sorted(parts[0])
    if make is not _tfrecord:
        assert sorted(parts[0] + parts[1]) == list(range(NUM_STEPS))
    options = tflearn.LearnerOptions(None, None, loop=tflearn.LoopOptions(jit_compile=False))
    with tflearn.Learner(agent, dataset_fn, tflearn.RunDir(tmp_path / 'a' / 'run'), options=options) as learner:
        assert learner.run(3).num_steps == 3
    with tflearn.Learner(agent, dataset_fn, tflearn.RunDir(tmp_path / 'a' / 'run'), options=options) as learner:
        result = learner.run(20)
    assert (result.num_steps, result.data_ended) == (NUM_STEPS // 4 - 3, True), 'it goes on after three batches'


def test_fewer_files_than_pipelines_are_divided_by_records(tmp_path):
    _, dataset_fn = _tfrecord(tmp_path, epochs=1)
    parts = [dataset_fn(tf.distribute.InputContext(4, i, 4)).unbatch() for i in range(4)]
    numbers = [{int(each.observation[0]) for each in part} for part in parts]
    assert sum(map(len, numbers)) == len(set.union(*numbers)) >= NUM_STEPS - 4 * 3


def test_each_epoch_has_another_order(tmp_path):
    _, dataset_fn = _arrays(tmp_path, epochs=2)
    numbers = [number for batch in dataset_fn(tf.distribute.InputContext()) for number in _numbers(batch)]
    first, second = numbers[:NUM_STEPS], numbers[NUM_STEPS:]
    assert sorted(first) == sorted(second) == list(range(NUM_STEPS)) and first != second


def test_episodes_without_a_sequence_are_refused(tmp_path):
    cut = np.ones(NUM_STEPS, bool)  # after termination short episodes would be filled up
    arrays.from_arrays(tmp_path, OBSERVATION, CHOICES, REWARD, episode=EPISODE, truncated=cut)
    experience = tflearn.Experience(slicing=tflearn.Slicing(sequence_length=9), replay=tflearn.Uniform())
    with pytest.raises(ValueError, match='got no episode of 9 steps or more'):
        datasets.of_episodes(Dataset([str(tmp_path)]), experience, columns.data_spec(columns.read_specs(tmp_path)))
