"""The coordinator's program: a coordinator and a relay of it, as processes; its status; what it refuses."""

import contextlib
import os
import subprocess
import sys

import numpy as np
import pytest

import tflearn
from tests.coordinator.weights_messages_test import made
from tflearn.coordinator import weights_messages
from tflearn.coordinator.client import Access, Coordinator, Role
from tflearn.coordinator.weights_reader import Lost, WeightsReader
from tflearn.core.waiting import wait_until
from tflearn.files.run_dir import RunDir, read_json
from tflearn.launch.local import free_address

TOKEN = 'a-token-of-enough-characters'
DEADLINE_SECS = 30.0


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
    with contextlib.closing(WeightsReader(address, 'c', TOKEN)) as reader, contextlib.suppress(Lost):
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
        np.testing.assert_array_equal(weights_messages.values(found)[0], range(5))
        wait_until(lambda: learner.addresses('relay') == [relay], 'its registration', DEADLINE_SECS)
        file = RunDir(tmp_path).status('coordinator')
        wait_until(lambda: (read_json(file) or {}).get('train_step') == 1, 'its status', DEADLINE_SECS)
        assert learner.status()['run_id'] == (tmp_path / 'run_id').read_text().strip()
    assert read_json(file)['state'] == 'stopped'


@pytest.mark.parametrize(
    ('flags', 'words'),
    [
        (['--coordinator_address=8009'], 'got --coordinator_address=8009; need HOST:PORT'),
        (['--relay_address=nowhere'], 'got --relay_address=nowhere; need HOST:PORT with a port from 1 to 65535'),
        (['--coordinator_token=env:NO_SUCH'], 'got a --coordinator_token that cannot be read (no such variable)'),
        ([f'--coordinator_token={TOKEN}'], 'got a --coordinator_token that cannot be read (No such file or directory)'),
    ],
)
def test_wrong_flags_take_one_line(flags, words):
    process = start(*flags)
    _, errors = process.communicate(timeout=DEADLINE_SECS)
    assert process.returncode == 2, errors
    assert TOKEN not in errors
    line = errors.strip().splitlines()[-1]
    assert line.startswith('tflearn-coordinator: error: got ') and words in line
