"""Optimizers of Keras 3, the package keras of the current lane, are refused in one line. Programs of the documents."""

import ast
import os
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec

import tflearn
from tests.agents import example_data
from tests.testing import docs_blocks, foreign_agents, lanes
from tflearn.agents import dqn
from tflearn.core.experience import Experience
from tflearn.core.train_step import create_train_step
from tflearn.core.types import EnvironmentSpecs, zeros
from tflearn.jobs.policy_exports import ExportOptions
from tflearn.optimization import optimizers

pytestmark = pytest.mark.skipif(not lanes.IS_CURRENT, reason='the package keras is Keras 2')
REFUSED = '^got {}, an? {} of the package keras, which is Keras 3; need Keras 2; take it from tf.keras$'


def test_refuses_an_optimizer_of_the_settings():
    with pytest.raises(TypeError, match=REFUSED.format('OptimizerOptions.kind', 'SGD')):
        optimizers.OptimizerOptions(kind=keras.optimizers.SGD)


def test_refuses_an_agent_with_an_optimizer(tmp_path, monkeypatch):
    monkeypatch.setattr(foreign_agents, '_adam', lambda: keras.optimizers.Adam(1e-3))
    action = tensor_spec.BoundedTensorSpec((), tf.int64, 0, 1, 'action')
    specs = EnvironmentSpecs(tf.TensorSpec((2,), tf.float32, 'observation'), action)
    agent = foreign_agents.behavioral_cloning(specs, create_train_step(), Experience())
    data = tf.data.Dataset.from_tensors(zeros(agent.collect_data_spec, (4, 1))).repeat()
    with pytest.raises(TypeError, match=REFUSED.format('an agent with optimizer', 'Adam')):
        tflearn.Learner(agent, lambda _: data, tflearn.RunDir(tmp_path))


def _programs():
    """Yields the programs of the documents that import TF-Agents, all but one as slow tests."""
    for block in docs_blocks.of('python'):
        if 'import tflearn  # isort: split' in block.text:
            is_slow = 'class Corridor' not in block.text
            yield pytest.param(block, marks=[pytest.mark.slow] if is_slow else [], id=str(block))


def _run(text, folder):
    """Runs a program as a file, in a process of its own; tests/conftest.py has imported tflearn in this one."""
    (folder / 'program.py').write_text(text, encoding='utf-8')
    environment = os.environ | {'PYTHONPATH': str(docs_blocks.ROOT)}
    environment.pop('TF_USE_LEGACY_KERAS', None)
    given = {'cwd': folder, 'env': environment, 'text': True, 'capture_output': True, 'timeout': 400}
    done = subprocess.run([sys.executable, 'program.py'], **given, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize('block', [*_programs()])
def test_the_imports_of_a_program_of_the_documents_succeed_in_their_order(block, tmp_path):
    nodes = [node for node in ast.parse(block.text).body if isinstance(node, ast.Import | ast.ImportFrom)]
    _run('\n'.join(map(ast.unparse, nodes)), tmp_path)


def test_the_program_with_networks_of_keras_3(tmp_path):
    """It trains a Q network, and its other two agents take a step."""
    (program,) = [block.text for block in docs_blocks.of('py') if 'import keras' in block.text]
    for old, new in (('num_train_steps=2_000', 'num_train_steps=20, num_episodes=1, exports=few'), ('=500', '=100')):
        assert old in program
        program = program.replace(old, new)
    with docs_blocks.working_in(tmp_path):
        exec(program, names := {'few': ExportOptions(('greedy_policy',))})
        assert names['action'] in (0, 1) and names['run'].train_step == 20
        for make_agent, specs in (('make_dqn', example_data.DISCRETE), ('make_sac', example_data.CONTINUOUS)):
            agent = names[make_agent](specs, create_train_step(), dqn.EXPERIENCE)
            agent.initialize()
            assert np.isfinite(agent.train(example_data.sequences(agent, 4, 2)).loss)


@pytest.mark.slow
def test_complete_programs_of_the_documents_run_as_files_of_their_own(tmp_path):
    (corridor,) = [
        block.text for block in docs_blocks.of('python') if 'class Corridor' in block.text and 'DdqnAgent' in block.text
    ]
    assert 'num_train_steps 1000 reached: ' in _run(corridor, tmp_path)
    example = (docs_blocks.DOCS / 'library_example.py').read_text(encoding='utf-8')
    assert 'train step 300' in _run(example, tmp_path)
