"""A run goes on while the files of the package are changed: by an upgrade, an editor, or a version control system."""

import os
import pathlib
import shutil
import subprocess
import sys

import tflearn

CHECKOUT = pathlib.Path(tflearn.__file__).parents[1]
DEADLINE_SECS = 240.0
# Every function then begins in a line in which another one was when it was imported.
PROGRAM = """
import pathlib
import tflearn, tflearn.jobs.synchronous
for file in pathlib.Path(tflearn.__file__).parent.rglob('*.py'):
    file.write_text('#\\n' * 33 + file.read_text())
bindings = ['train.StopConditions.num_train_steps = 20', 'Uniform.min_size = 50', 'evaluate.evaluate.num_episodes = 1']
bindings.append('train.ExportOptions.policies = ("greedy_policy",)')
run = tflearn.train(gin_file='dqn_cartpole', gin_bindings=bindings, root_dir='run', mode='synchronous')
print(run.train_step, tflearn.__file__)
"""


def test_a_run_does_not_read_its_functions_again(tmp_path):
    for folder in ('tflearn', 'gin'):
        shutil.copytree(CHECKOUT / folder, tmp_path / folder)  # with what is compiled
    ended = subprocess.run(
        [sys.executable, '-c', PROGRAM],
        cwd=tmp_path,
        env={**os.environ, 'PYTHONPATH': str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECS,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert ended.stdout.splitlines()[-1] == f'20 {tmp_path / "tflearn" / "__init__.py"}'
