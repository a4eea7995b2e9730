"""ONNX and TFLite models act as the SavedModel does: of each algorithm's policy, images, masks, policy states."""

import functools
import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs.tensor_spec import BoundedTensorSpec

pytest.importorskip('onnxruntime', reason='needs pip install ".[onnx]"')

from tests.testing import algorithms, forks, lanes
from tests.testing.algorithms import ALGORITHMS
from tests.testing.converted_models import NUM, check
from tflearn.agents import dqn
from tflearn.core.train_step import create_train_step
from tflearn.core.types import EnvironmentSpecs
from tflearn.files.run_dir import RunDir
from tflearn.jobs import policy_exports
from tflearn.jobs.export import export
from tflearn.networks.networks import NetworkOptions
from tflearn.policies.converted import INT8, ONNX, Converted
from tflearn.policies.exporter import PolicyExporter


def exported(agent, path):
    """Exports the greedy policy, with large weights, so that all actions occur and states have an effect."""
    policy = policy_exports._greedy(policy_exports._processed(agent))
    for i, variable in enumerate(policy.variables()):
        if variable.dtype.is_floating and variable.shape.rank:
            drawn = tf.random.stateless_normal(variable.shape, (i, 1), dtype=variable.dtype)
            fan_in = np.prod(variable.shape[:-1])
            variable.assign(2 * drawn / np.sqrt(fan_in) if variable.shape.rank > 1 else tf.abs(drawn) / 4)
    return PolicyExporter(policy, path).export(1, {})


@pytest.mark.parametrize('name', algorithms.names('sac', 'r2d2'))
def test_acts_as_the_saved_model_does(name, tmp_path):
    version = exported(ALGORITHMS[name].make(), tmp_path / name)
    check(version)
    if 'q_values' in tf.saved_model.load(str(version)).signatures:
        check(version, signature='q_values')


def test_images_and_masks(tmp_path):
    observation = {
        'image': BoundedTensorSpec((10, 10, 3), tf.uint8, 0, 255),
        'legal': BoundedTensorSpec((5,), tf.int32, 0, 1),
    }
    specs = EnvironmentSpecs(observation, BoundedTensorSpec((), tf.int64, 2, 6))
    network = NetworkOptions((16,), conv_layer_params=((4, 3, 2),))
    make = functools.partial(dqn.make_agent, network=network, action_mask='legal', distribution=None)
    agent = make(specs, create_train_step(), dqn.EXPERIENCE)
    agent.initialize()
    rng = np.random.default_rng(0)
    legal = rng.integers(0, 2, (NUM, 5), np.int32)
    legal[np.arange(NUM), rng.integers(0, 5, NUM)] = 1
    image = rng.integers(0, 256, (NUM, 10, 10, 3), np.uint8)
    given = {'observation_image': image, 'observation_legal': legal}
    version = exported(agent, tmp_path / 'masked')
    check(version, given)
    check(version, given, 'q_values')
    model = Converted(version, ONNX, 'q_values')
    inputs = model.completed(given)
    values = model.run(model.convert(inputs), inputs)['q_values']
    np.testing.assert_array_equal(values == np.finfo(np.float32).min, legal == 0)
    actions = Converted(version, ONNX).expected(given)['action']
    np.testing.assert_array_equal(values.argmax(1) + 2, actions)


@lanes.quantizes
def test_int8_of_a_policy_with_states(tmp_path):
    run_dir = RunDir(tmp_path)
    exported(ALGORITHMS['recurrent_sac'].make(), run_dir.greedy_policy)
    np.savez(tmp_path / 'seen.npz', observation=np.random.default_rng(0).uniform(-1, 1, (200, 3)).astype(np.float32))
    path = export(run_dir=run_dir, format=INT8, observations=str(tmp_path / 'seen.npz'))
    assert path == run_dir.converted('greedy_policy', '1_int8.tflite')
    model = Converted(run_dir.greedy_policy / '1', INT8)
    given = model.completed(model.random_observations(50))
    action = model.run(path.read_bytes(), given)['action']
    assert 0 < np.max(np.abs(action - model.expected(given)['action'])) < 0.1


def test_the_program_writes_onnx_models(tmp_path):
    """Any runtime of ONNX runs them by their flat names."""
    import onnxruntime

    run_dir = RunDir(tmp_path)
    for name, policy in {'greedy_policy': ALGORITHMS['dqn'], 'raw_policy': ALGORITHMS['ppo']}.items():
        agent = policy.make()
        PolicyExporter(policy_exports._POLICIES[name](agent, agent.policy), run_dir.policy(name)).export(1, {})
    flags = [f'--root_dir={tmp_path}', '--format=onnx']
    ended = forks.run('scripts', 'export', *flags, '--signature=q_values', timeout=120)
    path = run_dir.converted('greedy_policy', '1_q_values.onnx')
    assert (ended.returncode, ended.stdout) == (0, f'{path}\n'), ended.stderr
    session = onnxruntime.InferenceSession(str(path))
    assert [each.name for each in session.get_inputs()] == ['observation']
    assert session.run(['q_values'], {'observation': np.zeros((7, 3), np.float32)})[0].shape == (7, 2)
    given = {'run_dir': run_dir, 'policy': 'raw_policy', 'format': ONNX}
    assert export(**given, signature='distribution').name == '1_distribution.onnx'
    with pytest.raises(ValueError, match='which draws its actions; need a greedy one for onnx, or the signature'):
        export(**given)
    with pytest.raises(ValueError, match="got signature='values'; need one of .*: action, distribution, serving_def"):
        export(**given, signature='values')
    with pytest.raises(ValueError, match="got signature='action' without a format"):
        export(run_dir=run_dir, signature='action')


def test_a_missing_extra_is_one_line(tmp_path):
    without = tmp_path / 'without'
    without.mkdir()
    (without / 'sitecustomize.py').write_text("import sys\nsys.modules['onnx'] = None\n")
    environment = {**os.environ, 'PYTHONPATH': f'{without}:{os.getcwd()}'}
    command = [sys.executable, '-m', 'scripts', 'export', f'--root_dir={tmp_path}', '--format=onnx']
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    assert 'got no onnx, which --format=onnx needs; need that installed; pip install ' in ended.stderr
    assert ended.stderr.count('\n') == 1


def test_libraries_of_onnx_leave_the_environment_as_it_is(tmp_path):
    """tf2onnx sets TF_CPP_MIN_LOG_LEVEL, and what a job starts afterwards would show TensorFlow's own lines."""
    program = tmp_path / 'program.py'
    program.write_text(
        'import os\nbefore = dict(os.environ)\nimport tensorflow as tf\n'
        'from tflearn.policies import onnx\n'
        'onnx.convert(lambda x: {"y": x + 1.0}, {"x": tf.TensorSpec([None, 2], tf.float32, "x")})\n'
        'assert dict(os.environ) == before'
    )
    ended = forks.run(str(program), timeout=120.0)
    assert ended.returncode == 0, ended.stderr
