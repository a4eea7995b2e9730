"""The coordinator's program: a coordinator and a relay of it, as processes; its status; what it refuses."""

import contextlib
import os
import signal
import subprocess
import sys

import numpy as np
import pytest

import tflearn
from tests.coordinator.weights_transport_test import made
from tests.testing import command_lines, forks
from tflearn.coordinator import weights_transport
from tflearn.coordinator.client import Coordinator, Role
from tflearn.coordinator.weights_transport import CoordinatorLost, WeightsReader
from tflearn.core.access import Access
from tflearn.core.waiting import is_listening, wait_until
from tflearn.files.run_dir import RunDir, read_json
from tflearn.launch.local import free_address, free_port

TOKEN = 'a-token-of-enough-characters'
DEADLINE_SECS = 120.0


def start(*flags):
    command = [sys.executable, '-m', 'scripts.coordinator', *flags]
    root = os.path.dirname(os.path.dirname(tflearn.__file__))
    environment = {**os.environ, 'COORDINATOR_TOKEN': TOKEN}
    return subprocess.Popen(command, cwd=root, env=environment, stderr=subprocess.PIPE, text=True)


@contextlib.contextmanager
def running(*flags):
    process = start('--coordinator_token=env:COORDINATOR_TOKEN', *flags)
    try:
        yield process
    finally:
        process.terminate()
        _, errors = process.communicate(timeout=DEADLINE_SECS)
        assert process.returncode == 128 + 15, errors


def asked(address):
    """Returns the newest publication, or None; waits for the server."""
    with contextlib.closing(WeightsReader(address, 'c', TOKEN)) as reader, contextlib.suppress(CoordinatorLost):
        return reader.get(None, 1)


def test_a_relay_gives_what_the_coordinator_gets(tmp_path, monkeypatch):
    monkeypatch.setenv('COORDINATOR_TOKEN', TOKEN)
    root, relay = free_address(), free_address()
    learner = Coordinator(Access(root, 'env:COORDINATOR_TOKEN'), 'train')
    with (
        running(f'--coordinator_address={root}', f'--run_dir={tmp_path}'),
        running(f'--coordinator_address={root}', f'--relay_address={relay}', '--name=relay_0'),
        contextlib.closing(learner),
    ):
        learner.join(Role('train', contract={'all': {}}, epoch=1), DEADLINE_SECS)
        learner.put_weights(made([np.arange(5, dtype=np.float32)]))
        found = wait_until(lambda: asked(relay), 'the publication at the relay', DEADLINE_SECS)
        np.testing.assert_array_equal(weights_transport.values(found)[0], range(5))
        wait_until(lambda: learner.addresses('relay') == [relay], 'its registration', DEADLINE_SECS)
        file = RunDir(tmp_path).status('coordinator')
        wait_until(lambda: (read_json(file) or {}).get('train_step') == 1, 'its status', DEADLINE_SECS)
        assert learner.status()['run_id'] == (tmp_path / 'run_id').read_text().strip()
    assert read_json(file)['state'] == 'stopped'


@pytest.mark.parametrize(
    ('flags', 'words'),
    [
        (['--relay_address=nowhere'], 'got --relay_address=nowhere; need HOST:PORT with a port from 1 to 65535'),
        (['--coordinator_token=env:NO_SUCH'], 'got a --coordinator_token that cannot be read (no such variable)'),
    ],
)
def test_wrong_flags_take_one_line(flags, words):
    ended = command_lines.run('coordinator', *flags, timeout=DEADLINE_SECS)
    assert ended.returncode == 2, ended.stderr
    line = ended.stderr.strip().splitlines()[-1]
    assert line.startswith('tflearn-coordinator: error: got ') and words in line


# The real serve program: its flags, its error messages, and that it serves until it is stopped.


@pytest.mark.extensions
def test_a_missing_extra_takes_one_line(tmp_path):
    arguments = ('tensorflow_serving', 'scripts.serve', f'--root_dir={tmp_path}')
    ended = forks.run('tests.testing.without', *arguments, timeout=DEADLINE_SECS)
    assert ended.returncode == 2
    line = ended.stderr.splitlines()[-1]
    assert line.startswith(
        'tflearn-serve: error: got no tensorflow_serving, which serving needs; need that installed; pip install '
    )
    assert " 'tensorflow-serving-api>=2.15,<2.16' " in line and 'python_version' not in line
    assert line.endswith(' (the extra serving)')
    assert 'Traceback' not in ended.stderr


@pytest.mark.extensions
def test_it_serves_until_it_is_stopped(tmp_path):
    pytest.importorskip('tensorflow_serving', reason='needs pip install ".[serving]"')
    from tests.testing import served_policies
    from tflearn.extensions.serving.client import PolicyClient

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
        assert process.wait(DEADLINE_SECS) == 0, log.read_text()
    finally:
        process.kill()
    assert 'Traceback' not in log.read_text()
