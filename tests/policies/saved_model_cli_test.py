"""TensorFlow's tool shows the inputs and outputs of an exported policy."""

import re
import subprocess
import sys

import pytest

from tests.testing import example_policies
from tflearn.policies.exporter import PolicyExporter


@pytest.mark.slow
def test_signatures_and_names_are_readable(tmp_path):
    version = PolicyExporter(example_policies.recurrent(), tmp_path).export(1, {})
    tool = [sys.executable, '-m', 'tensorflow.python.tools.saved_model_cli']
    command = [*tool, 'show', '--dir', str(version), '--all']
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    signatures = dict(re.findall(r"signature_def\['(\w+)'\]:\n(.*?)Method name", shown, re.DOTALL))
    assert {'serving_default', 'action', 'distribution', 'get_initial_state'} <= set(signatures)
    named = {name: set(re.findall(r"(?:inputs|outputs)\['(\w+)'\]", text)) for name, text in signatures.items()}
    state = {'policy_state_0', 'policy_state_1'}
    assert named['serving_default'] == {'observation', 'action', *state}
    assert named['action'] == {'step_type', 'reward', 'discount', 'observation', 'action', *state}
    assert named['get_initial_state'] == {'batch_size', *state}
    assert any(name.startswith('distribution') for name in named['distribution'])
    functions = shown.partition('Concrete Functions')[2]
    for argument in ('step_type', 'reward', 'discount', 'observation', 'policy_state', 'batch_size'):
        assert f"name='{argument}" in functions
