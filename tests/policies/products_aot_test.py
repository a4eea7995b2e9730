"""Products with TensorFlow's command-line tool: run by it, and compiled ahead of time into a C++ program."""

import os
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.policies import greedy_policy

import scripts
from tests.policies.products_test import stochastic_policy
from tflearn.files.run_dir import RunDir
from tflearn.policies.exporter import PolicyExporter

pytestmark = pytest.mark.slow

CHECKOUT = pathlib.Path(scripts.__path__[0]).parent
TOOL = [sys.executable, '-m', 'tensorflow.python.tools.saved_model_cli']
TENSORFLOW = pathlib.Path(tf.__file__).parent
RUNTIME = TENSORFLOW / 'xla_aot_runtime_src'
# What a compiled function of small matrices needs of the runtime.
SOURCES = [
    'tensorflow/compiler/tf2xla/xla_compiled_cpu_function.cc',
    'xla/cpu_function_runtime.cc',
    'xla/executable_run_options.cc',
    'xla/service/custom_call_status.cc',
    'xla/service/cpu/runtime_single_threaded_matmul_f32.cc',
]
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
    if shutil.which('g++') is None:
        pytest.skip('needs g++ to link what was compiled')
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
