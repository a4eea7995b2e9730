"""The programs in docs/python.md run, one after the other, as a user would run them."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

CHECKOUT = pathlib.Path(__file__).parents[1]
PACKAGED, OWN, USE = re.findall(r'```python\n(.*?)```', (CHECKOUT / 'docs' / 'python.md').read_text(), re.DOTALL)


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp('user')


def run(program, folder):
    (folder / 'program.py').write_text(program)
    command = [sys.executable, 'program.py']
    environment = {**os.environ, 'PYTHONPATH': str(CHECKOUT), 'TF_CPP_MIN_LOG_LEVEL': '2'}
    done = subprocess.run(
        command, cwd=folder, env=environment, text=True, capture_output=True, timeout=250, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_packaged_run(folder):
    small = [
        'train.train.num_train_steps = 60',
        'experience.Experience.min_size = 100',
        'evaluate.evaluate.num_episodes = 2',
    ]
    out = run(PACKAGED.replace("'dqn_cartpole'", f"'dqn_cartpole', gin_bindings={small}"), folder)
    assert 'num_train_steps 60 reached' in out.splitlines()[-1]
    assert str(folder / 'runs' / 'dqn_cartpole') in out.splitlines()[-1]


def test_an_environment_and_a_network_of_ones_own_and_its_policy(folder):
    lines = [line for line in OWN.splitlines() if line.strip() and not re.match(r'import |from |"""', line.strip())]
    assert len(lines) < 30
    out = run(OWN, folder)
    reason, best_return = re.match(r'(.*): (\S+) of \(', out).groups()
    assert (reason, float(best_return)) == ('num_train_steps 1000 reached', 16.5), 'always to the right'
    run(USE + 'assert (action, actions.tolist()) == (1, [1, 1])\n', folder)
