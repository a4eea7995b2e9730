"""The weights server's program: a server and a relay of it, as processes; its status; what it refuses."""

import contextlib
import os
import subprocess
import sys

import numpy as np
import pytest

import tflearn
from tests.coordinator.weights_messages_test import made
from tflearn.coordinator import weights_messages
from tflearn.coordinator.weights_client import Client, Lost
from tflearn.core.waiting import wait_until
from tflearn.files.run_dir import RunDir, read_json
from tflearn.launch.local import free_address

TOKEN = 'a-token-of-enough-characters'
DEADLINE_SECS = 30.0


def start(*flags):
    command = [sys.executable, '-m', 'scripts.weights', *flags]
    root = os.path.dirname(os.path.dirname(tflearn.__file__))
    environment = {**os.environ, 'WEIGHTS_TOKEN': TOKEN}
    return subprocess.Popen(command, cwd=root, env=environment, stderr=subprocess.PIPE, text=True)


@contextlib.contextmanager
def running(*flags):
    process = start('--weights_token=env:WEIGHTS_TOKEN', *flags)
    try:
        yield process
    finally:
        process.terminate()
        _, errors = process.communicate(timeout=DEADLINE_SECS)
        assert process.returncode == 128 + 15, errors


def asked(address):
    """Returns the newest publication, or None; waits for the server."""
    with contextlib.closing(Client([address], 'c', TOKEN)) as client, contextlib.suppress(Lost):
        return client.get(None, 1)


def test_a_relay_gives_what_the_server_gets(tmp_path):
    root, relay = free_address(), free_address()
    with (
        running(f'--listen={root}', f'--run_dir={tmp_path}'),
        running(f'--listen={relay}', f'--upstream={root}'),
        contextlib.closing(Client([root], 'learner', TOKEN)) as learner,
    ):
        wait_until(lambda: status_of(learner), 'the server', DEADLINE_SECS)
        learner.put(made([np.arange(5, dtype=np.float32)]))
        found = wait_until(lambda: asked(relay), 'the publication at the relay', DEADLINE_SECS)
        np.testing.assert_array_equal(weights_messages.values(found)[0], range(5))
        file = RunDir(tmp_path).status('weights')
        wait_until(lambda: (read_json(file) or {}).get('train_step') == 1, 'its status', DEADLINE_SECS)
    assert read_json(file)['state'] == 'stopped'


def status_of(client):
    with contextlib.suppress(Lost):
        return client.status()


@pytest.mark.parametrize(
    ('flags', 'words'),
    [
        (['--listen=8010'], 'got --listen=8010; need HOST:PORT'),
        (['--upstream=nowhere'], 'got --upstream=nowhere; need HOST:PORT with a port from 1 to 65535'),
        (['--weights_token=env:NO_SUCH'], 'got a --weights_token that cannot be read (no such variable)'),
        ([f'--weights_token={TOKEN}'], 'got a --weights_token that cannot be read (No such file or directory)'),
        (['--listen=no.such.machine.invalid:8010'], 'which cannot be listened at'),
    ],
)
def test_wrong_flags_take_one_line(flags, words):
    process = start(*flags)
    _, errors = process.communicate(timeout=DEADLINE_SECS)
    assert process.returncode == 2, errors
    assert TOKEN not in errors
    line = errors.strip().splitlines()[-1]
    assert line.startswith('tflearn-weights: error: got ') and words in line
