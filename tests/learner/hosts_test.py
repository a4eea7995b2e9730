"""Hosts that one process drives read their own shares of the data; no batch goes through that process."""

import contextlib
import json
import socket
import threading

import pytest
import tensorflow as tf

from tests.learner import hosts_program
from tests.testing import forks
from tflearn.core.waiting import is_listening, wait_until
from tflearn.launch.local import free_port

pytestmark = pytest.mark.slow  # three programs with TensorFlow

NUM_ROWS = 4 * hosts_program.BATCH * hosts_program.NUM_BATCHES


class Proxy:
    """Passes connections on to a port of this machine, and counts the bytes that come back."""

    def __init__(self, target):
        self.received, self._target = 0, target
        self._listener = socket.create_server(('127.0.0.1', 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(('127.0.0.1', self._target))
                for ends in ((client, server, False), (server, client, True)):
                    threading.Thread(target=self._pass_on, args=ends, daemon=True).start()

    def _pass_on(self, source, sink, counts):
        with contextlib.suppress(OSError), source:
            while data := source.recv(1 << 16):
                self.received += counts * len(data)
                sink.sendall(data)

    def close(self):
        self._listener.close()


def test_each_host_reads_its_share_and_the_coordinator_moves_no_batch(tmp_path):
    for i in range(4):
        with tf.io.TFRecordWriter(str(tmp_path / f'{i}.tfrecord')) as file:
            for number in range(i, NUM_ROWS, 4):
                file.write(str(number))
    ports = [free_port(), free_port()]
    with contextlib.ExitStack() as ending:
        for i in range(2):
            process = forks.start('tests.learner.hosts_program', 'host', i, *ports, log=tmp_path / f'host_{i}.log')
            ending.callback(process.wait, 30)
            ending.callback(process.kill)
        wait_until(lambda: all(is_listening(f'127.0.0.1:{port}') for port in ports), 'the hosts', 120)
        proxies = [ending.enter_context(contextlib.closing(Proxy(port))) for port in ports]
        words = ('coordinator', tmp_path, *(proxy.port for proxy in proxies))
        ended = forks.run('tests.learner.hosts_program', *words, timeout=180)
        assert ended.returncode == 0, ended.stderr[-3000:]
        found = json.loads(ended.stdout.splitlines()[-1])
        received = sum(proxy.received for proxy in proxies)
    one, two = map(set, found['rows'])
    assert len(one) == len(two) == hosts_program.BATCH * hosts_program.NUM_BATCHES and not one & two
    assert {row % 4 for row in one} == {0, 2} and {row % 4 for row in two} == {1, 3}, 'each its own files'
    assert 0 < received < found['batch_bytes'] / 4, 'ten batches were drawn'
