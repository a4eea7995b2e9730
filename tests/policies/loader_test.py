"""The loader finds the newest complete version, whatever the exporter does meanwhile."""

import json
import shutil

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.agents.ddpg import actor_network, critic_network
from tf_agents.agents.td3 import td3_agent
from tf_agents.policies import greedy_policy, policy_loader
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts

from tests.testing import example_policies, lanes
from tflearn.core.errors import UserValueError
from tflearn.core.types import EnvironmentSpecs
from tflearn.files.run_dir import RunDir
from tflearn.jobs import export
from tflearn.learner import warm_start
from tflearn.policies import external, loaded_model, loader, updates, versions
from tflearn.policies.exporter import PolicyExporter
from tflearn.policies.policy_function import load_policy
from tflearn.policies.products import ProductOptions


@pytest.fixture(scope='module')
def exported(tmp_path_factory):
    directory = tmp_path_factory.mktemp('policies')
    PolicyExporter(example_policies.recurrent(), directory).export(4, {'env_steps': 40})
    return directory


def test_loaded_policy_has_its_train_step_and_metadata(exported):
    policy = loader.load(exported / '4')
    assert policy.train_step == 4
    assert policy.metadata['env_steps'] == 40
    assert policy.path == exported / '4'


def test_policy_state_is_returned_and_restarts_with_each_episode(exported):
    policy = loader.load(exported / '4')
    time_step = example_policies.time_step(example_policies.recurrent(), 2)
    start = policy.initial_state(2)
    _, second = policy.action(time_step, start)
    _, third = policy.action(time_step, second)
    first_of_one = time_step._replace(step_type=np.array([0, 1], np.int32))
    _, mixed = policy.action(first_of_one, second)
    for from_start, from_second, result in zip(*map(tf.nest.flatten, (second, third, mixed)), strict=True):
        np.testing.assert_allclose(result[0], from_start[0], rtol=1e-6)
        np.testing.assert_allclose(result[1], from_second[1], rtol=1e-6)
        assert not np.allclose(from_start, from_second)


def test_accepts_float64_observations(exported):
    policy = loader.load(exported / '4')
    time_step = example_policies.time_step(example_policies.recurrent(), 3)
    wide = time_step._replace(observation=time_step.observation.astype(np.float64))
    np.testing.assert_array_equal(*(policy.action(step, policy.initial_state(3))[0] for step in (time_step, wide)))


def test_rejects_environments_with_other_specs(exported):
    policy = loader.load(exported / '4')
    observation, action = example_policies.OBSERVATION, example_policies.DISCRETE
    policy.check(EnvironmentSpecs(observation, action))
    with pytest.raises(ValueError, match=r'float32\[4\].*the environment has .*float32\[5\]'):
        policy.check(EnvironmentSpecs(tf.TensorSpec((5,), tf.float32), action))
    with pytest.raises(ValueError, match='observation_position'):
        policy.check(EnvironmentSpecs(example_policies.NESTED_OBSERVATION, action))
    with pytest.raises(ValueError, match='int64.*int32'):
        policy.check(EnvironmentSpecs(observation, tf.TensorSpec((), tf.int32)))


def test_an_unknown_dimension_fits_any(tmp_path):
    """TF-Agents' TD3 acts with float32[None] for an action of float32[1]."""
    observation, action = example_policies.OBSERVATION, tensor_spec.BoundedTensorSpec((1,), tf.float32, -2, 2)
    time_step = ts.time_step_spec(observation)
    actor = actor_network.ActorNetwork(observation, action, fc_layer_params=(8,))
    critic = critic_network.CriticNetwork((observation, action), joint_fc_layer_params=(8,))
    agent = td3_agent.Td3Agent(time_step, action, actor, critic, actor_optimizer=None, critic_optimizer=None)
    agent.initialize()
    greedy = greedy_policy.GreedyPolicy(agent.policy)
    policy = loader.load(PolicyExporter(greedy, tmp_path).export(1, {}))
    model = tf.saved_model.load(str(policy.path))
    assert model.signatures['serving_default'].structured_outputs['action'].shape.as_list() == [None, None]
    policy.check(EnvironmentSpecs(observation, action))
    policy.check(EnvironmentSpecs(observation, tensor_spec.BoundedTensorSpec((7,), tf.float32, -2, 2)))
    for other, text in (((1, 1), r'float32\[1, 1\]'), ((), r'float32\[\]')):
        with pytest.raises(ValueError, match=rf"'action': 'float32\[None\]'.* the environment has .*'{text}'"):
            policy.check(EnvironmentSpecs(observation, tf.TensorSpec(other, tf.float32)))
    with pytest.raises(ValueError, match=r"float32\[None\]'.*float64\[1\]"):
        policy.check(EnvironmentSpecs(observation, tf.TensorSpec((1,), tf.float64)))
    assert policy.action(example_policies.time_step(agent.policy, 3))[0].shape == (3, 1)


def test_missing_and_damaged_versions_raise_different_errors(exported, tmp_path):
    with pytest.raises(FileNotFoundError, match='still there'):
        loader.load(tmp_path / '7')
    for name, content in (('saved_model.pb', 'nonsense'), ('metadata.json', '{}')):
        (tmp_path / '7').mkdir(exist_ok=True)
        (tmp_path / '7' / name).write_text(content)
    with pytest.raises(ValueError, match='damaged'):
        external.load(tmp_path)


def test_loads_the_next_version_if_one_is_pruned_while_loading(tmp_path, monkeypatch):
    """As soon as it is found, and when it is about to be read."""
    exporter = PolicyExporter(example_policies.greedy(), tmp_path, keep_last=1)
    exporter.export(0, {})
    find, load, pruned = versions.find, loader.load, []

    def replace(step):
        if step not in pruned:
            pruned.append(step)
            exporter.export(step + 1, {})

    def find_early(path, train_step=None):
        version = find(path, train_step)
        if version.name == '0':
            replace(0)
        return version

    def load_late(version):
        replace(1)
        return load(version)

    monkeypatch.setattr(versions, 'find', find_early)
    monkeypatch.setattr(loader, 'load', load_late)
    assert external.load(tmp_path).train_step == 2
    assert pruned == [0, 1]


def _served(version, observations):
    from tflearn.extensions.serving.served_version import ServedVersion

    signature = ServedVersion(version).signature('serving_default')
    (name,) = signature.inputs
    return next(iter(signature.run({name: observations}).values()))


def _of_one_batch_size(version, observations):
    run_dir, output = RunDir(version.parents[2]), version.parents[3] / 'fixed'
    export.export(run_dir=run_dir, train_step=4, batch_size=len(observations), output=str(output))
    (result,) = tf.saved_model.load(str(output)).signatures['serving_default'](tf.constant(observations)).values()
    return result.numpy()


def _of_update(version, observations):
    return load_policy(updates.materialise(version.parent, 5))(observations)


def _of_product(version, observations):
    run_dir, options = RunDir(version.parents[2]), ProductOptions(len(observations), tflite=False)
    model = export.export(run_dir=run_dir, train_step=4, product=options)
    return tf.saved_model.load(str(model)).signatures['action'](observation=tf.constant(observations))['action'].numpy()


def _of_saved_policy(version, observations):
    size = len(observations)
    step = ts.TimeStep(np.ones(size, np.int32), np.zeros(size, np.float32), np.ones(size, np.float32), observations)
    return external.SavedPolicy(version).action(step, ())[0]


def _of_warm_start(version, observations):
    policy = example_policies.greedy()
    warm_start.load_policy(version, policy.variables())
    return policy.action(ts.restart(tf.constant(observations), len(observations))).action.numpy()


@pytest.fixture(scope='module')
def two_models(tmp_path_factory):
    """Folders with the versions of a policy, and with a model of other weights; a time step, and its actions."""
    policies, other = tmp_path_factory.mktemp('policies'), tmp_path_factory.mktemp('other')
    policy = example_policies.greedy()
    exporter = PolicyExporter(policy, policies, keep_updates=2)
    exporter.export(4, {})
    exporter.snapshot(5, {}, update=True)()
    time_step = example_policies.time_step(policy, 50)
    expected = policy.action(tf.nest.map_structure(tf.constant, time_step)).action.numpy()
    example_policies.reweigh(policy, seed=3)
    PolicyExporter(policy, other).export(4, {})
    return policies, other, time_step, expected


@lanes.classic
@pytest.mark.parametrize(
    'act',
    [
        lambda *given: load_policy(given[0])(given[1]),
        pytest.param(_served, marks=pytest.mark.extensions),
        *(_of_one_batch_size, _of_update, _of_product, _of_saved_policy, _of_warm_start),
    ],
)
def test_files_exchanged_after_the_check_are_not_loaded(tmp_path, monkeypatch, two_models, act):
    """Somebody exchanges a model for another one at the moment in which TensorFlow begins to load it."""
    made, other, time_step, expected = two_models
    policies = tmp_path / 'run' / 'policies' / 'greedy_policy'
    shutil.copytree(made, policies, symlinks=True)
    load, exchanged = tf.saved_model.load, []

    def exchange(path, *arguments, **options):
        for version in () if exchanged else (policies / '4', policies / 'updates' / '5'):
            shutil.rmtree(version / 'variables')
            shutil.copytree(other / '4' / 'variables', version / 'variables')
        exchanged.append(path)
        return load(path, *arguments, **options)

    monkeypatch.setattr(loaded_model, '_graphs', {})
    monkeypatch.setattr(tf.saved_model, 'load', exchange)
    np.testing.assert_array_equal(act(policies / '4', time_step.observation), expected)
    assert exchanged
    with pytest.raises(ValueError, match='got another file'):
        loader.load(policies / '4')


# Updates are small, and materialise to the versions that a full export would write.


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
        exporter.snapshot(train_step, {'env_steps': 2 * train_step}, update=True)()
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
    other.snapshot(40, {}, update=True)()
    assert updates.steps(directory) == [20, 30], 'an update before a full export was compared'
    other.export(40, {})
    other.snapshot(40, {}, update=True)()
    exporter.export(50, {})
    assert versions.versions(directory) == [20, 50]
    assert len(list((directory / 'updates').glob('model-*'))) == 2
    assert exporter.drop_newer_than(30) == [50]
    assert updates.steps(directory) == [20, 30]
    # A graph is removed with the last update that belongs to it, including updates that were moved aside.
    for train_step in (60, 70):
        exporter.snapshot(train_step, {}, update=True)()
    assert len(list((directory / 'updates').glob('model-*'))) == 2
    for path in (directory / 'updates').glob('.moved_aside-*'):
        shutil.rmtree(path)
    exporter.snapshot(80, {}, update=True)()
    assert len(list((directory / 'updates').glob('model-*'))) == 1
    assert updates.materialise(directory, 80) == directory / '80'


def test_rejects_updates_that_cannot_be_materialised(tmp_path):
    directory = tmp_path / 'policy'
    with pytest.raises(ValueError, match='no update of step 5 .* need one of: none; set update_interval_steps'):
        updates.materialise(directory, 5)
    exporter = PolicyExporter(example_policies.greedy(), directory)
    exporter.export(0, {})
    exporter.snapshot(5, {}, update=True)()
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
