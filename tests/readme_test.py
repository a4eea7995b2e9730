"""What README.md and docs/index.md say can be done is done here."""

import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys

import pytest

from tflearn.config import files, preview
from tflearn.launch.local import free_address
from tflearn.run_dir import RunDir, read_json

CHECKOUT = pathlib.Path(__file__).parents[1]
README, START, OWN = (
    (CHECKOUT / page).read_text() for page in ('README.md', 'docs/index.md', 'docs/your-algorithm.md')
)
COMMAND = r'^    (?:\./scripts/|\.venv/bin/)\S.*$|`(?:\./scripts/|\.venv/bin/)\S+ [^`]*--[^`]*`'
COMMANDS, START_COMMANDS = (
    [line.strip(' `') for line in re.findall(COMMAND, page, re.MULTILINE)] for page in (README, START)
)
SMALL = (
    'train.num_train_steps=100',
    'train.export_interval_steps=50',
    'dqn.make_agent.fc_layer_params=(8,)',
    'experience.Experience.min_size=100',
    'evaluate.target_return=None',
    'evaluate.num_episodes=2',
)


def is_run(command):
    return command.startswith('./scripts/quickstart --')


def test_the_two_commands_come_first():
    assert COMMANDS[:2] == ['./scripts/quickstart', './scripts/test']
    for command in COMMANDS[:2]:
        assert (CHECKOUT / command).stat().st_mode & 0o111, f'{command} cannot be run'


def test_is_short():
    assert len(README.splitlines()) <= 120


def test_each_package_is_in_the_architecture():
    packages = {path.name for path in (CHECKOUT / 'tflearn').iterdir() if (path / '__init__.py').exists()}
    architecture = (CHECKOUT / 'docs' / 'architecture.md').read_text()
    assert packages <= set(re.findall(r'^  (\w+)/ ', architecture, re.MULTILINE))


@pytest.mark.parametrize('command', [*filter(is_run, START_COMMANDS)])
def test_launch_takes_the_arguments(command):
    arguments = dict(word.removeprefix('--').split('=', 1) for word in shlex.split(command)[1:])
    gin_file = files.resolve(arguments.get('gin_file', 'dqn_cartpole'))
    bindings = [arguments['gin_bindings']] if 'gin_bindings' in arguments else []
    jobs = [f'tflearn.jobs.{job}' for job in ('replay_server', 'collect', 'train', 'evaluate')]
    preview.check(gin_file, bindings, jobs)


@pytest.mark.parametrize('command', [*filter(is_run, COMMANDS)])
def test_quickstart_takes_the_arguments(command, tmp_path):
    arguments = [word for word in shlex.split(command)[1:] if not word.startswith('--root_dir')]
    if not any(word.startswith('--gin_file') for word in arguments):
        arguments.append('--gin_file=dqn_cartpole')
    # No learner listens at this address: the configuration was read, and the wait gave up.
    tried = [*arguments, f'--root_dir={tmp_path}', '--replay_address=localhost:1', '--connect_timeout_secs=1']
    done = _run('train', tried)
    assert done.returncode == 2
    assert 'waiting for the replay server at localhost:1' in done.stderr


def _run(job, arguments):
    command = [sys.executable, '-m', f'scripts.{job}', *arguments]
    return subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=120, check=False)


def test_jobs_by_hand_and_the_policy(tmp_path):
    by_hand = [
        command for command in START_COMMANDS if command.startswith('.venv/bin/tflearn-') and 'by_hand' in command
    ]
    assert [pathlib.Path(command.split()[0]).name.removeprefix('tflearn-') for command in by_hand] == [
        'replay-server',
        'collect',
        'train',
        'evaluate',
    ]
    root, address = tmp_path / 'by_hand', free_address()
    jobs = [_start(command, root, address, tmp_path) for command in by_hand]
    try:
        for job in jobs[1:]:
            assert job.wait(180) == 0
        jobs[0].send_signal(signal.SIGINT)
        assert jobs[0].wait(60) == 128 + signal.SIGINT
    finally:
        for job in jobs:
            job.kill()
    done = read_json(RunDir(root).done)
    assert done['train_step'] == 100

    snippet = re.search(r'```python\n(.*?)```', START, re.DOTALL).group(1)
    program = (
        snippet.replace('runs/dqn_cartpole', str(root)) + '\nassert actions.shape == (1,) and actions[0] in (0, 1)\n'
    )
    alone = subprocess.run([sys.executable, '-c', program], capture_output=True, text=True, timeout=120, check=False)
    assert alone.returncode == 0, alone.stderr

    (command,) = [command for command in START_COMMANDS if command.startswith('.venv/bin/tflearn-export')]
    # (A policy that has learned nothing yet does not bear int8.)
    arguments = command.replace('runs/dqn_cartpole', str(root)).replace('=int8', '=float32')
    exported = _run('export', shlex.split(arguments)[1:])
    assert exported.returncode == 0, exported.stderr
    assert list(root.rglob('*.tflite'))


def test_synchronous(tmp_path):
    (command,) = [command for command in START_COMMANDS if command.startswith('.venv/bin/tflearn-synchronous')]
    arguments = [word for word in shlex.split(command)[1:] if not word.startswith('--root_dir')]
    done = _run(
        'synchronous', [*arguments, f'--root_dir={tmp_path}', *(f'--gin_bindings={binding}' for binding in SMALL)]
    )
    assert done.returncode == 0, done.stderr
    assert read_json(RunDir(tmp_path).train_result)['train_step'] == 100


def test_a_task_of_ones_own(tmp_path):
    for language, name in (('python', 'own_task.py'), ('gin', 'own_task.gin')):
        (block,) = re.findall(rf'```{language}\n(# {re.escape(name)}\n.*?)```', OWN, re.DOTALL)
        (tmp_path / name).write_text(block)
    arguments = [f'--root_dir={tmp_path}', '--gin_file=own_task.gin', '--gin_bindings=train.num_train_steps=100']
    command = [sys.executable, '-m', 'scripts.synchronous', *arguments]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, 'PYTHONPATH': str(CHECKOUT)},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert read_json(RunDir(tmp_path).train_result)['train_step'] == 100


def _start(command, root, address, directory):
    program, *arguments = shlex.split(command)
    arguments = [word for word in arguments if not word.startswith(('--root_dir', '--replay_address'))]
    job = pathlib.Path(program).name.removeprefix('tflearn-').replace('-', '_')
    arguments += [
        f'--root_dir={root}',
        f'--replay_address={address}',
        *(f'--gin_bindings={binding}' for binding in SMALL),
    ]
    with (directory / f'{job}.log').open('w') as log:
        command = [sys.executable, '-m', f'scripts.{job}', *arguments]
        return subprocess.Popen(command, cwd=CHECKOUT, stdout=log, stderr=log)
