"""The products of the runs on tasks like a compiler's and a chip's, with TensorFlow's own tools."""

import importlib

import numpy as np
import pytest

import gin
from tests.policies.products_aot_test import TOOL, run
from tflearn.config import files, job_config
from tflearn.core.train_step import create_train_step
from tflearn.files.run_dir import RunDir
from tflearn.jobs.policy_exports import ExportOptions, PolicyExports
from tflearn.jobs.run import Run
from tflearn.jobs.train import train
from tflearn.policies import converted, products
from tflearn.policies.products import ProductOptions

pytestmark = pytest.mark.slow


@pytest.mark.parametrize('task', ['inlining', 'floorplan'])
def test_greedy_and_collect_policies(task, tmp_path):
    """As LLVM has them: named `action_<feature>`, with the decision's logits; a mask is respected in all of them."""
    module = importlib.import_module(f'tflearn.extensions.tasks.{task}')
    run_dir = RunDir(tmp_path)
    given = {'run': Run(run_dir)}
    job_config.configure(train, given, files.resolve(f'ppo_{task}'), [])
    bound = gin.get_bindings(train)
    environment = module.make(1, 0)
    agent = bound['make_agent'](environment.specs, create_train_step(), bound['experience'])
    options = ProductOptions(parameters=True, time_step=True, names={'action': 'decision'})
    exports = PolicyExports(agent, run_dir, ExportOptions(products=options), dict)
    exports.export(0)
    exports.wait()
    observation = environment.reset().observation
    environment.close()
    fields = {'step_type': np.ones(1, np.int32), 'reward': np.zeros(1, np.float32), 'discount': np.ones(1, np.float32)}
    inputs = {**observation, **fields}
    np.savez(tmp_path / 'inputs.npz', **inputs)
    flags = ['--inputs=' + ';'.join(f'{name}={tmp_path}/inputs.npz[{name}]' for name in inputs)]
    legal = np.flatnonzero(observation.get('mask', np.ones((1, 2)))[0])
    for policy in ('greedy_policy', 'collect_policy'):
        path = run_dir.product(policy) / 'latest'
        shown = run(*TOOL, 'run', '--dir', path, '--tag_set=serve', '--signature_def=action', *flags)
        assert 'Result for output key decision' in shown and 'Result for output key logits' in shown
        model = (path / products.TFLITE).read_bytes()
        details = converted.tflite_interpreter(model).get_input_details()
        assert {tensor['name'] for tensor in details} == {f'action_{name}:0' for name in inputs}
        decisions = {int(converted.run_tflite(model, inputs, 'action')['decision'][0]) for _ in range(10)}
        assert decisions <= set(legal) and (len(decisions) > 1) == (policy == 'collect_policy')
        checkpoint = f'--checkpoint_path={path}/variables/variables'
        compiled = [
            '--signature_def_key=action',
            checkpoint,
            f'--output_prefix={tmp_path}/{policy}',
            '--cpp_class=Policy',
        ]
        run(*TOOL, 'aot_compile_cpu', '--dir', path, '--tag_set=serve', *compiled)
        header = (tmp_path / f'{policy}.h').read_text()
        assert all(f'arg_feed_{name}_data' in header for name in observation) and 'result_fetch_decision' in header
        assert (tmp_path / f'{policy}.o').stat().st_size > 10_000
