"""The real serve program: its flags, its error messages, and that it serves until it is stopped."""

import pathlib
import signal
import subprocess
import sys

import numpy as np
import pytest

import scripts
from tests.testing import forks
from tflearn.core.waiting import is_listening, wait_until
from tflearn.launch.local import free_port

CHECKOUT = pathlib.Path(scripts.__path__[0]).parent
DEADLINE_SECS = 120.0


def run(*arguments):
    command = [sys.executable, '-m', 'scripts.serve', *arguments]
    return subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=DEADLINE_SECS)


@pytest.mark.parametrize('flag', ['--help', '--helpfull'])
def test_help(flag):
    ended = run(flag)
    assert (ended.returncode, ended.stderr) == (0, '')
    assert ended.stdout.startswith('tflearn-serve: Serves the newest version of each policy')
    for name in ('root_dir', 'port', 'batching', 'tls_client_ca', 'stop_timeout_secs'):
        assert f'  --{name}\n' in ended.stdout
    assert 'gin_file' not in ended.stdout


@pytest.mark.parametrize(
    ('flags', 'message'),
    [
        ((), 'got no --root_dir; need '),
        (('--root_dir=x', '--versions=new'), 'got --versions=new; need train steps'),
        (('--root_dir=x', f'--tls_key={__file__}'), 'got a part of --tls_certificate, --tls_key'),
        (('--root_dir=x', '--policies=../x'), 'got --policies=../x; need names of directories'),
        (('--root_dir=x', '--port=99999'), 'got a wrong flag: '),
        (('--root_dir=x', '--tls_key=no_file'), 'got --tls_key=no_file; need a file'),
    ],
)
def test_user_errors_take_one_line(flags, message):
    ended = run(*flags)
    assert ended.returncode == 2
    assert ended.stderr.startswith(f'tflearn-serve: error: {message}') and ended.stderr.count('\n') == 1


def test_a_missing_extra_takes_one_line(tmp_path):
    arguments = ('tensorflow_serving', 'scripts.serve', f'--root_dir={tmp_path}')
    ended = forks.run('tests.testing.without', *arguments, timeout=DEADLINE_SECS)
    assert ended.returncode == 2
    line = ended.stderr.splitlines()[-1]
    assert line.startswith(
        'tflearn-serve: error: got no tensorflow_serving, which serving needs; need that installed; pip install '
    )
    assert line.endswith("'tensorflow-serving-api>=2.15,<2.22' (the extra serving)")
    assert 'Traceback' not in ended.stderr


def test_it_serves_until_it_is_stopped(tmp_path):
    pytest.importorskip('tensorflow_serving', reason='needs pip install ".[serving]"')
    from tests.testing import served_policies
    from tflearn.serving.client import PolicyClient

    served_policies.Publisher(tmp_path / 'policies').publish(5)
    port = free_port()
    log = tmp_path / 'log'
    process = forks.start('scripts.serve', f'--root_dir={tmp_path}', f'--port={port}', log=log)
    try:
        wait_until(lambda: is_listening(f'localhost:{port}') or process.poll() is not None, 'the server', DEADLINE_SECS)
        client = PolicyClient(f'localhost:{port}')

        def answer():
            try:
                return client.predict({'observation': np.ones([1, 4], np.float32)})
            except Exception:  # it listens before it has loaded the policy
                return None

        outputs, version = wait_until(answer, 'an answer', DEADLINE_SECS)
        assert (version, outputs['action'].tolist()) == (5, [1])
        client.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_SECS) == 128 + signal.SIGTERM, log.read_text()
    finally:
        process.kill()
    assert 'Traceback' not in log.read_text()
