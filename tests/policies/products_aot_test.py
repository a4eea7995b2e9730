"""Products with TensorFlow's command-line tool: run by it, and compiled ahead of time into a C++ program."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.policies import greedy_policy

import scripts
from tests.policies.products_test import stochastic_policy
from tests.testing import docs_blocks, example_policies, lanes
from tflearn.files.run_dir import RunDir
from tflearn.policies.exporter import PolicyExporter
from tflearn.policies.products import ProductOptions

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(lanes.IS_CURRENT, reason='the runtime of TensorFlow 2.21 needs Abseil, built from its sources'),
    pytest.mark.skipif(shutil.which('g++') is None, reason='needs g++ to link what was compiled'),
]

CHECKOUT = pathlib.Path(scripts.__path__[0]).parent
TOOL = [sys.executable, '-m', 'tensorflow.python.tools.saved_model_cli']
TENSORFLOW = pathlib.Path(tf.__file__).parent
RUNTIME = TENSORFLOW / 'xla_aot_runtime_src'
# The example of the page on exporting.
(MAIN,) = (block.text for block in docs_blocks.of('cpp') if 'policy.h' in block.text)
(COMPILING,) = (
    block.text.partition('\n')[2]
    for block in docs_blocks.of('bash')
    if '\nsaved_model_cli aot_compile_cpu --dir fixed' in block.text
)
(LINKING,) = (block.text for block in docs_blocks.of('bash') if 'xla_aot_runtime_src' in block.text)
(LOADING,) = (block.text for block in docs_blocks.of('cpp') if 'tensorflow/c/c_api.h' in block.text)
SOURCES = re.findall(r'\$XLA/(\S+\.cc)', LINKING)  # what a compiled function of small matrices needs of the runtime
PROGRAM = """
#include <cstdio>
#include "policy.h"
int main() {
  Policy policy;
  for (int i = 0; i < 300; i++) {
    policy.arg_feed_callee_users() = 1;
    policy.arg_feed_node_count() = 2;
    if (!policy.Run()) return 1;
    std::printf("%ld", static_cast<long>(policy.result_fetch_inlining_decision()));
    for (int k = 0; k < 3; k++) std::printf(" %.7f", policy.result_fetch_logits(0, k));
    std::printf("\\n");
  }
}
"""


@pytest.fixture(scope='module')
def made(tmp_path_factory):
    """The products of a greedy policy and of the one that draws from its distribution, made by the program."""
    run_dir, raw = RunDir(tmp_path_factory.mktemp('run')), stochastic_policy()
    for name, policy in {'raw_policy': raw, 'greedy_policy': greedy_policy.GreedyPolicy(raw)}.items():
        PolicyExporter(policy, run_dir.policy(name)).export(1, {})
        flags = ['--product', '--product_time_step', '--product_parameters', '--product_names=action=inlining_decision']
        printed = run(
            sys.executable, '-m', 'scripts', 'export', f'--root_dir={run_dir.root}', f'--policy={name}', *flags
        )
        assert printed == f'{run_dir.product(name) / "1"}\n'
    return run_dir


def run(*command, timeout=300):
    environment = {**os.environ, 'PYTHONPATH': str(CHECKOUT)}
    command = list(map(str, command))
    ended = subprocess.run(command, cwd=CHECKOUT, env=environment, capture_output=True, text=True, timeout=timeout)
    assert ended.returncode == 0, ended.stderr[-3000:]
    return ended.stdout


@pytest.mark.parametrize('name', ['greedy_policy', 'raw_policy'])
def test_runs_and_compiles(made, name, tmp_path):
    path = made.product(name) / 'latest'
    features = {'callee_users': np.array([1]), 'node_count': np.array([2])}
    fields = {'step_type': np.ones(1, np.int32), 'reward': np.zeros(1, np.float32), 'discount': np.ones(1, np.float32)}
    np.savez(tmp_path / 'inputs.npz', **features, **fields)
    given = [f'--inputs={";".join(f"{key}={tmp_path}/inputs.npz[{key}]" for key in {**features, **fields})}']
    shown = run(*TOOL, 'run', '--dir', path, '--tag_set=serve', '--signature_def=action', *given)
    assert 'Result for output key inlining_decision' in shown and 'Result for output key logits' in shown
    compiled = ['--signature_def_key=action', f'--checkpoint_path={path}/variables/variables', '--cpp_class=Policy']
    run(*TOOL, 'aot_compile_cpu', '--dir', path, '--tag_set=serve', *compiled, f'--output_prefix={tmp_path}/policy')
    (tmp_path / 'main.cc').write_text(PROGRAM)
    sources = [tmp_path / 'main.cc', *(RUNTIME / source for source in SOURCES)]
    objects = [tmp_path / 'policy.o', tmp_path / 'policy_metadata.o']
    includes = [f'-I{TENSORFLOW}/include', f'-I{RUNTIME}', f'-I{tmp_path}']
    run('g++', '-std=c++17', '-w', *includes, *sources, *objects, '-lpthread', '-o', tmp_path / 'program')
    lines = [line.split() for line in run(tmp_path / 'program').splitlines()]
    model = tf.saved_model.load(str(path))
    named = {key: tf.constant(value) for key, value in {**features, **fields}.items()}
    expected = model.signatures['action'](**named)
    logits = np.array([line[1:] for line in lines], np.float32)
    np.testing.assert_allclose(logits, np.repeat(expected['logits'], 300, axis=0), atol=1e-5)
    actions = np.array([line[0] for line in lines], int)
    if name == 'greedy_policy':
        assert set(actions) == set(expected['inlining_decision'].numpy())
    else:
        shares = np.bincount(actions, minlength=3) / 300
        np.testing.assert_allclose(shares, tf.nn.softmax(expected['logits'])[0], atol=0.12)


def test_the_example_of_the_page(tmp_path):
    """Its C++ programs answer as the policy does: the one that is compiled, and the one that loads the SavedModel."""
    version = PolicyExporter(example_policies.greedy(), tmp_path / 'exported').export(1, {})
    ProductOptions().save(version, tmp_path / 'fixed')
    (tmp_path / 'main.cc').write_text(MAIN)
    path = f'{pathlib.Path(sys.executable).parent}:{os.environ["PATH"]}'
    environment = {**os.environ, 'PATH': path}
    run_in = {'cwd': tmp_path, 'env': environment, 'capture_output': True, 'text': True, 'timeout': 300, 'check': True}
    ended = subprocess.run(['bash', '-e', '-c', f'{COMPILING}\n{LINKING}'], **run_in)
    assert ended.stdout.splitlines()[-1] in '0123'
    observations = np.random.default_rng(1).normal(size=(50, 4)).astype(np.float32)
    given = '\n'.join(' '.join(map(str, row)) for row in observations)
    (tmp_path / 'load.cc').write_text(LOADING)
    by_c_api = LOADING.splitlines()[0].partition('; ')[2]
    subprocess.run(['bash', '-e', '-c', f'TF={TENSORFLOW}; {by_c_api} -o load'], **run_in)
    printed = subprocess.run([tmp_path / 'policy'], input=given, **run_in).stdout.split()
    assert subprocess.run([tmp_path / 'load'], input=given, **run_in).stdout.split() == printed
    signature = tf.saved_model.load(str(version)).signatures['serving_default']
    expected = signature(observation=tf.constant(observations))['action'].numpy()
    assert list(map(int, printed)) == expected.tolist() and len(set(printed)) > 1
