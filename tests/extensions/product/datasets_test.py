"""Logs train an agent by a `Learner` without a data set of their own."""

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec

import tflearn
from tflearn.agents import bc
from tflearn.core.types import EnvironmentSpecs
from tflearn.extensions.product import datasets
from tflearn.networks.networks import NetworkOptions

pa = pytest.importorskip('pyarrow', reason='needs pip install ".[product]"')
parquet = pytest.importorskip('pyarrow.parquet')

MAP = """
episode = 'session'
time = 'at'
reward = 'clicks'
action = {column = 'item', kind = 'integer', high = 2}
[observation]
place = {columns = ['x', 'y']}
"""
NUM_STEPS = 40
EXPERIENCE = tflearn.Experience(replay=tflearn.Uniform(), batch=tflearn.BatchItems(4))


def test_pipelines_divide_the_decisions_of_parquet_files_and_an_agent_learns_from_them(tmp_path):
    (tmp_path / 'map.toml').write_text(MAP)
    numbers, paths = np.arange(NUM_STEPS), [str(tmp_path / f'{i}.parquet') for i in range(2)]
    columns = {'session': numbers // 5, 'at': numbers, 'clicks': numbers % 2, 'item': numbers % 3}
    columns |= {'x': numbers.astype(np.float32), 'y': np.ones(NUM_STEPS, np.float32)}
    for i, path in enumerate(paths):
        part = {name: column[20 * i : 20 * (i + 1)] for name, column in columns.items()}
        parquet.write_table(pa.table(part), path)
    action = tensor_spec.BoundedTensorSpec((), tf.int64, 0, 2, 'action')
    specs = EnvironmentSpecs({'place': tf.TensorSpec((2,), tf.float32, 'place')}, action)
    agent = bc.make_agent(specs, tflearn.create_train_step(), EXPERIENCE, network=NetworkOptions((4,)))
    dataset_fn = datasets.of_logs(paths, str(tmp_path / 'map.toml'), EXPERIENCE, agent.collect_data_spec)
    found = []
    for i in range(2):
        batches = dataset_fn(tf.distribute.InputContext(2, i, 2)).take(5)
        found.append([int(each[0]) for batch, _ in batches for each in batch.observation['place'][:, 0].numpy()])
    assert sorted(found[0] + found[1]) == list(range(NUM_STEPS)) and len(found[0]) == len(found[1])
    with tflearn.Learner(agent, dataset_fn, tflearn.RunDir(tmp_path / 'run')) as learner:
        assert learner.run(3).num_steps == 3
