"""Updates are small, and materialise to the versions that a full export would write."""

import json
import shutil

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.policies import policy_loader

from tests.testing import example_policies
from tflearn.core.errors import UserValueError
from tflearn.policies import loader, updates, versions
from tflearn.policies.exporter import PolicyExporter


def size(path):
    return sum(file.stat().st_size for file in path.rglob('*') if file.is_file())


def test_an_update_becomes_the_full_model_of_its_step(tmp_path):
    directory = tmp_path / 'policy'
    policy = example_policies.greedy()
    exporter = PolicyExporter(policy, directory, keep_last=1, keep_updates=2)
    exporter.export(0, {'env_steps': 0})
    time_step = example_policies.time_step(policy, 50)
    live = {}
    for train_step in (10, 20, 30):
        example_policies.reweigh(policy, seed=train_step)
        exporter.export_update(train_step, {'env_steps': 2 * train_step})
        live[train_step] = policy.action(tf.nest.map_structure(tf.constant, time_step)).action.numpy()
    assert updates.steps(directory) == [20, 30]
    assert versions.versions(directory) == [0]
    assert size(directory / 'updates' / '30') < size(directory / '0') / 2
    assert size(directory / '0') > size(next((directory / 'updates').glob('model-*'))) > 0

    version = updates.materialise(directory, 20)
    outside = updates.materialise(directory, 30, tmp_path / 'mine')
    assert version == directory / '20'
    assert updates.materialise(directory, 20) == version
    for train_step, path in ((20, version), (30, outside)):
        loaded = loader.load(path)
        np.testing.assert_array_equal(loaded.action(time_step)[0], live[train_step])
        assert (loaded.train_step, loaded.metadata['env_steps']) == (train_step, 2 * train_step)
        opened = policy_loader.load(str(path))
        assert opened.action(tf.nest.map_structure(lambda leaf: leaf[7], time_step)).action == live[train_step][7]
    # Another graph, of another process, has its own model; the materialised version stays.
    other = PolicyExporter(example_policies.epsilon_greedy(), directory, keep_last=1, keep_updates=3)
    other.export_update(40, {})
    assert updates.steps(directory) == [20, 30], 'an update before a full export was compared'
    other.export(40, {})
    other.export_update(40, {})
    exporter.export(50, {})
    assert versions.versions(directory) == [20, 50]
    assert len(list((directory / 'updates').glob('model-*'))) == 2
    assert exporter.drop_newer_than(30) == [50]
    assert updates.steps(directory) == [20, 30]
    # A graph is removed with the last update that belongs to it, including updates that were moved aside.
    for train_step in (60, 70):
        exporter.export_update(train_step, {})
    assert len(list((directory / 'updates').glob('model-*'))) == 2
    for path in (directory / 'updates').glob('.moved_aside-*'):
        shutil.rmtree(path)
    exporter.export_update(80, {})
    assert len(list((directory / 'updates').glob('model-*'))) == 1
    assert updates.materialise(directory, 80) == directory / '80'


def test_rejects_updates_that_cannot_be_materialised(tmp_path):
    directory = tmp_path / 'policy'
    with pytest.raises(ValueError, match='no update of step 5 .* need one of: none; set update_interval_steps'):
        updates.materialise(directory, 5)
    exporter = PolicyExporter(example_policies.greedy(), directory)
    exporter.export(0, {})
    exporter.export_update(5, {})
    with pytest.raises(ValueError, match='need one of: 5'):
        updates.materialise(directory, 6)
    with pytest.raises(ValueError, match='which exists'):
        updates.materialise(directory, 5, tmp_path)
    for record in (directory / 'updates').glob('*/digests.json'):
        record.unlink()  # as an earlier version wrote it
    (graph,) = (directory / 'updates').glob('*/saved_model.pb')
    graph.write_bytes(graph.read_bytes()[:100])
    with pytest.raises(UserValueError, match='got a damaged policy at .*updates/5 .*; remove it'):
        updates.materialise(directory, 5)
    metadata = directory / 'updates' / '5' / 'metadata.json'
    metadata.write_text(json.dumps({**json.loads(metadata.read_text()), 'graph': 'other'}))
    with pytest.raises(ValueError, match='without its graph; need .*model-other'):
        updates.materialise(directory, 5)
    assert versions.versions(directory) == [0]
