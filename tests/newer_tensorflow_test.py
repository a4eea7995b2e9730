"""Newer TensorFlow versions: they load exported policies, and the Learner trains there without Reverb.

Slow, and it downloads them: `scripts/test -m slow tests/newer_tensorflow_test.py`. Needs uv; UV=FILE says where it is.
TFLEARN_NEWER_TENSORFLOW=VERSION chooses another version. docs/support-horizon.md says what was seen.
"""

import os
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from tests.testing import example_policies
from tflearn.policies.exporter import PolicyExporter

ROOT = pathlib.Path(__file__).resolve().parents[1]
VERSION = os.environ.get('TFLEARN_NEWER_TENSORFLOW', '2.21')
OBSERVATIONS = np.linspace(-1, 1, 40, dtype=np.float32).reshape(10, 4)
LOAD = """
import sys, numpy, tensorflow as tf
policy = tf.saved_model.load(sys.argv[1])
observations = tf.constant(numpy.load(sys.argv[2]))
numpy.save(sys.argv[3], policy.signatures['serving_default'](observation=observations)['action'])
print(tf.__version__)
"""
# What the Learner and TF-Agents' agents need besides; TF-Agents' own pins exclude newer versions.
LEARNER_NEEDS = (
    *('absl-py', 'cloudpickle', 'gin-config', 'gym==0.23.0', 'pillow', 'six', 'tensorboard'),
    *('tensorflow-probability', 'tf-keras'),
)
pytestmark = pytest.mark.slow


class Environment:
    """An environment of uv's with the newer TensorFlow."""

    def __init__(self, uv: str, folder: pathlib.Path):
        self._uv, self.python = uv, folder / 'bin' / 'python'
        self._run([uv, 'venv', '--quiet', '--python', sys.executable, str(folder)])

    def install(self, *arguments: str) -> None:
        self._run([self._uv, 'pip', 'install', '--quiet', '--python', str(self.python), *arguments])

    def run(self, *arguments: str | os.PathLike[str], cwd: pathlib.Path, **variables: str) -> str:
        return self._run([str(self.python), *map(str, arguments)], cwd, variables)

    def _run(self, command: list[str], cwd: pathlib.Path | None = None, variables: dict[str, str] | None = None) -> str:
        environment = {name: value for name, value in os.environ.items() if name != 'PYTHONPATH'} | (variables or {})
        done = subprocess.run(
            command, cwd=cwd, env=environment, text=True, capture_output=True, timeout=280, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope='module')
def newer(tmp_path_factory) -> Environment:
    uv = shutil.which(os.environ.get('UV', 'uv'))
    if uv is None:
        pytest.skip('needs uv; set UV=FILE')
    environment = Environment(uv, tmp_path_factory.mktemp('newer') / 'venv')
    environment.install(f'tensorflow-cpu=={VERSION}.*')
    return environment


@pytest.mark.parametrize('name', ['greedy', 'stochastic_actor'])
def test_it_loads_an_exported_policy(newer, tmp_path, name):
    policy = getattr(example_policies, name)()
    path = PolicyExporter(policy, tmp_path / 'policy', keep_last=1).export(1, {}).resolve()
    np.save(tmp_path / 'observations.npy', OBSERVATIONS)
    version = newer.run('-c', LOAD, path, tmp_path / 'observations.npy', tmp_path / 'actions.npy', cwd=tmp_path)
    assert version.startswith(f'{VERSION}.')
    actions = np.load(tmp_path / 'actions.npy')
    expected = tf.saved_model.load(str(path)).signatures['serving_default'](observation=tf.constant(OBSERVATIONS))
    assert actions.shape == expected['action'].shape
    if name == 'greedy':
        assert actions.tolist() == expected['action'].numpy().tolist()


def test_the_learner_trains_there(newer, tmp_path):
    newer.install(*LEARNER_NEEDS)
    newer.install('--no-deps', 'tf-agents==0.19.*')
    out = newer.run(ROOT / 'docs' / 'library_example.py', cwd=tmp_path, PYTHONPATH=str(ROOT), TF_USE_LEGACY_KERAS='1')
    assert 'train step 300' in out
