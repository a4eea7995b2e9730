"""The export job after a short run: full models of steps, and models in other formats calibrated on its replay."""

import logging
import os
import threading
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import pytest
import tensorflow as tf
from tf_agents.policies import random_tf_policy
from tf_agents.trajectories import time_step as ts
from tf_agents.trajectories.trajectory import Trajectory

from tests.data import data_sets
from tests.testing import example_policies, forks, lanes
from tflearn.core.experience import BatchItems, Experience, Queue
from tflearn.environments import vector_env
from tflearn.files.run_dir import RunDir
from tflearn.jobs import export as export_job
from tflearn.jobs.collect import collect
from tflearn.jobs.export import export
from tflearn.jobs.policy_exports import ExportOptions
from tflearn.jobs.train import train
from tflearn.policies import converted, loader, updates, versions
from tflearn.policies.converted import Converted
from tflearn.policies.exporter import PolicyExporter
from tflearn.policies.products import ProductOptions
from tflearn.replay import servers, stored_episodes
from tflearn.replay.storage import Storage
from tflearn.replay.writers import ReplayWriter

FEW = {'steps_per_call': 20, 'checkpoint_interval_steps': 50, 'publish_interval_steps': 20}


@lanes.classic  # tests/policies/converted_test.py has models of all kinds in the current lane
def test_exports_models_of_a_finished_run(small_run):
    replay = small_run.start_replay()
    small_run.start(collect, num_environments=2)
    options = ExportOptions(('greedy_policy',), update_interval_steps=20)
    small_run.start(train, num_train_steps=100, export_interval_steps=100, exports=options, **FEW).join()
    replay.stop.set()
    replay.join()
    run_dir, directory = small_run.dir, small_run.dir.greedy_policy
    step = updates.steps(directory)[0]
    ended = forks.run('scripts', 'export', f'--root_dir={run_dir.root}', f'--train_step={step}', timeout=120)
    assert (ended.returncode, ended.stdout) == (0, f'{directory / str(step)}\n'), ended.stderr
    assert loader.load(directory / str(step)).train_step == step

    rows = stored_episodes.read_rows(run_dir.replay_checkpoints, 100)
    observation = rows[3][1]
    assert [name for name, _ in rows][:5] == ['begins', 'policy_version', 'step_type', 'observation', 'action']
    assert observation.shape[1:] == (4,) and np.abs(observation).max() < 10
    assert set(np.unique(rows[4][1])) == {0, 1}
    # Integers cannot distinguish values that are nearly equal, as those of a network that was hardly trained.
    linear = example_policies.Linear(example_policies.OBSERVATION, example_policies.DISCRETE_PAIR)
    linear.set([0.0, 0.0, 1.0, 1.0])
    PolicyExporter(linear.policy, run_dir.policy('linear')).export(100, {})
    for policy, form in (('greedy_policy', 'tflite'), ('linear', 'tflite_int8')):
        model = tf.saved_model.load(str(run_dir.policy(policy) / '100')).signatures['serving_default']
        expected = model(observation=tf.constant(observation))['action'].numpy()
        path = export(run_dir=run_dir, policy=policy, format=form)
        assert path == run_dir.root / 'converted' / policy / f'100{converted.SUFFIXES[form]}'
        got = converted.run_tflite(path.read_bytes(), {'observation': observation})['action']
        assert np.mean(got == expected) > 0.9


@lanes.classic  # tests/policies/converted_test.py has int8 in the current lane
def test_exports_a_quantized_actor(tmp_path, caplog):
    policy = example_policies.greedy_actor()
    example_policies.reweigh(policy, seed=1)
    run_dir = RunDir(tmp_path)
    PolicyExporter(policy, run_dir.greedy_policy).export(3, {})
    observation = np.random.default_rng(0).normal(size=(200, 4)).astype(np.float32)
    np.savez(tmp_path / 'seen.npz', observation=observation)
    given = {'run_dir': run_dir, 'observations': str(tmp_path / 'seen.npz')}
    exact = export(**given, format='tflite', output=str(tmp_path / 'exact.tflite'))
    quantised = export(**given, format='tflite_int8').read_bytes()
    example_policies.reweigh(policy, seed=2)
    PolicyExporter(policy, run_dir.greedy_policy).export(4, {})
    assert export(**given, format='tflite') == run_dir.converted('greedy_policy', '4.tflite')  # none was evaluated
    versions.point_best(run_dir.greedy_policy / '3')
    with caplog.at_level(logging.WARNING):
        assert export(**given, format='tflite') == run_dir.converted('greedy_policy', '3.tflite')
    assert 'takes the version 3, the best one by evaluation; --train_step=4 takes the newest one' in caplog.text
    example_policies.reweigh(policy, seed=1)
    details = converted.tflite_interpreter(quantised).get_tensor_details()
    assert any(tensor['dtype'] == np.int8 for tensor in details)
    shuffled = {'observation': observation[::-1].copy()}
    fixed = tf.saved_model.load(str(export(run_dir=run_dir, batch_size=2, output=str(tmp_path / 'fixed'))))
    with pytest.raises(ValueError, match='got output=.*fixed, which exists; need'):
        export(run_dir=run_dir, batch_size=2, output=str(tmp_path / 'fixed'))
    assert not list(tmp_path.glob('.*'))
    serving = fixed.signatures['serving_default']
    assert serving.structured_input_signature[1]['observation'].shape == (2, 4)
    live = policy.action(
        example_policies.time_step(policy, 2)._replace(observation=tf.constant(observation[:2]))
    ).action
    np.testing.assert_allclose(serving(observation=tf.constant(observation[:2]))['action'], live, atol=1e-6)
    product = ProductOptions(2, names={'action': 'torque'}, tflite=False)
    path = export(run_dir=run_dir, product=product)
    assert path == run_dir.product('greedy_policy') / '3' and (path.parent / 'latest').resolve() == path
    torque = tf.saved_model.load(str(path)).signatures['action'](observation=tf.constant(observation[:2]))['torque']
    np.testing.assert_allclose(torque, live, atol=1e-6)
    with pytest.raises(ValueError, match='got product=.* with batch_size=2, .*; need product alone'):
        export(run_dir=run_dir, product=product, batch_size=2, output=str(tmp_path / 'product'))
    other = tmp_path / 'other'
    example_policies.reweigh(policy)
    version = PolicyExporter(policy, other).export(3, {})
    with pytest.raises(RuntimeError, match='got action of the tflite_int8 model with a greatest difference of'):
        Converted(version, 'tflite_int8').compare(exact.read_bytes(), shuffled)


class Widening(gymnasium.Env):
    """Its observations grow with the step: from +-0.25 to +-10."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def _observed(self):
        return self.np_random.uniform(-1, 1, 4).astype(np.float32) * (self._step + 1) / 4, {}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._step = 0
        return self._observed()

    def step(self, action):
        self._step += 1
        observation, info = self._observed()
        return observation, 1.0, self._step == 39, False, info


@lanes.quantizes
def test_calibrates_int8_on_recorded_episodes(tmp_path):
    policy = example_policies.greedy_actor()
    example_policies.reweigh(policy, seed=1)
    run_dir, recorded = RunDir(tmp_path), tmp_path / 'data'
    version = PolicyExporter(policy, run_dir.greedy_policy).export(3, {})
    environment = vector_env.in_process(Widening, 4, 0)
    rows = data_sets.write(recorded, 400, environment)
    environment.close()
    seen = np.concatenate([row.observation[row.step_type != ts.StepType.LAST] for row in rows])
    np.savez(tmp_path / 'few.npz', observation=seen[:8])
    ended = forks.run(
        'scripts', 'export', f'--root_dir={tmp_path}', '--format=tflite_int8', f'--observations={recorded}', timeout=120
    )
    assert ended.returncode == 0, ended.stderr
    assert 'compared with the SavedModel on 1560 observations: action ' in ended.stderr
    few = export(
        run_dir=run_dir, format='tflite_int8', observations=str(tmp_path / 'few.npz'), output=str(tmp_path / 'few')
    )
    models = {'recorded': run_dir.converted('greedy_policy', '3_int8.tflite').read_bytes(), 'few': few.read_bytes()}
    expected = loader.load(version).action(ts.restart(seen, len(seen)), ())[0]
    errors = {
        name: np.abs(converted.run_tflite(model, {'observation': seen})['action'] - expected).mean()
        for name, model in models.items()
    }
    assert errors['recorded'] < errors['few'] / 10
    inputs = Converted(version, 'tflite').inputs
    half = export_job._observations(run_dir, version, inputs, str(recorded), 500)['observation']
    assert len({*map(tuple, half.tolist())} & {*map(tuple, seen.tolist())}) == 500
    np.testing.assert_allclose(np.abs(half).mean(), np.abs(seen).mean(), rtol=0.1)  # of all steps alike


def test_rejects_invalid_arguments(tmp_path):
    run_dir = RunDir(tmp_path)
    with pytest.raises(ValueError, match='got no policy in .*greedy_policy; need one that the train job has exported'):
        export(run_dir=run_dir)
    PolicyExporter(example_policies.stochastic_actor(), run_dir.policy('raw_policy')).export(1, {})
    with pytest.raises(ValueError, match='got no checkpoint of the replay'):
        export(run_dir=run_dir, policy='raw_policy', format='tflite_int8')
    np.savez(tmp_path / 'seen.npz', observation=np.zeros((5, 3), np.float32))
    with pytest.raises(ValueError, match=r'got observations of .*float32\[3\].*need .*float32\[4\]'):
        export(run_dir=run_dir, policy='raw_policy', format='tflite_int8', observations=str(tmp_path / 'seen.npz'))
    with pytest.raises(ValueError, match='got --product_names=action; need default=name,...'):
        export_job.product_options(None, ['action', 'logits=scores'], False, False)
    assert export_job.product_options(None, ['action=torque'], True, False) == ProductOptions(
        time_step=True, names={'action': 'torque'}
    )
    with pytest.raises(ValueError, match='need one of onnx, tflite, tflite_int8, or None'):
        export(run_dir=run_dir, format='int4')


class State(NamedTuple):
    """An observation whose fields are not in alphabetical order."""

    velocity: Any
    position: Any


def test_named_tuple_fields_keep_their_names(tmp_path):
    leaf = tf.TensorSpec((1,), tf.float32)
    observation_spec = State(leaf, leaf)
    time_step, action = ts.time_step_spec(observation_spec), example_policies.DISCRETE_PAIR
    policy = random_tf_policy.RandomTFPolicy(time_step, action)
    run_dir = RunDir(tmp_path)
    version = PolicyExporter(policy, run_dir.greedy_policy).export(1, {})
    experience = Experience(replay=Queue(max_size=100), batch=BatchItems(1))
    storage = Storage(experience, policy.trajectory_spec)
    server = servers.serve(storage.make_tables(), 0, run_dir.replay_checkpoints)
    try:
        writer = ReplayWriter(server.address, storage, 1, threading.Event())
        for number in range(10):
            observed = State(np.full((1, 1), 1, np.float32), np.full((1, 1), 2, np.float32))
            one, step_type = np.ones(1, np.float32), np.full(1, number > 0, np.int32)
            writer(Trajectory(step_type, observed, np.zeros(1, np.int64), (), 0 * step_type + 1, one, one), 0)
        writer.flush()
        server.checkpoint()
    finally:
        server.close()
    assert len(stored_episodes.read_rows(run_dir.replay_checkpoints, 500)[0][1]) >= 9  # each step, not one of each draw
    given = export_job._observations(run_dir, version, Converted(version, 'tflite').inputs, None, 5)
    assert {len(values) for values in given.values()} == {5}
    assert {name: set(values.ravel()) for name, values in given.items()} == {
        'observation_velocity': {1},
        'observation_position': {2},
    }


@pytest.mark.parametrize('kind', ['missing', 'pipe', 'damaged', 'text', 'npy'])
def test_rejects_observations_that_cannot_be_read(tmp_path, kind):
    path = tmp_path / 'seen.npz'
    if kind == 'pipe':
        os.mkfifo(path)
    elif kind == 'npy':
        with path.open('wb') as file:
            np.save(file, np.zeros(3))
    elif kind != 'missing':
        path.write_bytes({'damaged': b'PK\x03\x04' + bytes(40), 'text': b'no'}[kind])
    with pytest.raises(ValueError, match=r'got observations=.*seen.npz.*; need an npz file'):
        export_job._load(path, 5)
