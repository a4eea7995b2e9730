"""The real programs: their error messages, and that these come early."""

import os
import pathlib
import signal
import subprocess
import sys

import pytest

import scripts
from tests.testing import console_programs, forks
from tflearn.core.waiting import wait_until

CHECKOUT = pathlib.Path(scripts.__path__[0]).parent
DEADLINE_SECS = 120.0


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob('*'))


@pytest.mark.parametrize(
    ('job', 'flags', 'message'),
    [
        (
            'train',
            ['--strategy=mirrored:99', '--gin_bindings=train.Device.strategy="cpu"'],
            "got strategy='mirrored:99'; this machine has ",
        ),
        (
            'evaluate',
            ['--gin_bindings=evaluate.num_episodes=0'],
            'got evaluate.num_episodes = 0 in --gin_bindings; need an integer of at least 1 [episodes]',
        ),
        (
            'replay_server',
            ['--replay_address=inproc://1'],
            "got replay_address='inproc://1'; need HOST:PORT or valkey://HOST:PORT",
        ),
        ('collect', ['--gin_bindings=sequence_length=3'], 'got sequence_length in --gin_bindings, but nothing uses'),
    ],
)
def test_user_errors_take_one_line(tmp_path, job, flags, message):
    flags = ('--root_dir=run', '--gin_file=dqn_cartpole', *flags)
    log = tmp_path / 'log'
    code = forks.start(*console_programs.words(job), *flags, log=log, cwd=tmp_path).wait(DEADLINE_SECS)
    output = log.read_text()
    assert code == 2, output
    assert output.splitlines()[-1].startswith(f'{console_programs.name(job)}: error: {message}')
    assert 'Traceback' not in output
    assert [name for name in files(tmp_path / 'run') if 'checkpoint' in name or 'policies' in name] == []


@pytest.mark.parametrize(('job', 'code'), [('train', 143), ('serve', 0), ('export', 143)])
def test_a_job_that_loads_its_libraries_ends_at_once_on_a_signal(tmp_path, job, code):
    flags = ['--root_dir=run', *(['--gin_file=dqn_cartpole'] if job == 'train' else [])]
    command = [sys.executable, '-m', *console_programs.words(job), *flags]
    environment = {**os.environ, 'PYTHONPATH': str(CHECKOUT)}
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL)
    tasks = pathlib.Path(f'/proc/{process.pid}/task')
    wait_until(lambda: len(list(tasks.iterdir())) > 1, 'the thread of the job', DEADLINE_SECS, poll_secs=0.01)
    process.send_signal(signal.SIGTERM)
    assert process.wait(DEADLINE_SECS) == code
