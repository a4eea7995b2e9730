"""How many connections and messages a job makes: of a real server in a process of its own, counted by the kernel."""

import pathlib
import threading
import time

import numpy as np
import pytest
import tensorflow as tf

from tests.testing import forks
from tflearn.coordinator import control, credits, reports, weights_contract
from tflearn.core.waiting import is_listening, wait_until
from tflearn.launch.local import free_port
from tflearn.replay import connection

_SERVER = """
import pathlib, sys, threading

from tests.replay import one_connection_test
from tflearn.coordinator import credits, heartbeat, reports
from tflearn.replay.reverb.server import ReplayServer
from tflearn.coordinator import weights_contract

port, directory = sys.argv[1:]
tables = [reports.table(), credits.table(), heartbeat.table(), weights_contract.table(one_connection_test.VARIABLES)]
server = ReplayServer(tables, int(port), pathlib.Path(directory))
threading.Event().wait(300)
"""
VARIABLES = [tf.Variable(np.zeros((100, 100), np.float32), name='kernel')]


@pytest.fixture
def start(tmp_path):
    """Returns a function port -> server process, which is killed at the end."""
    (tmp_path / 'server.py').write_text(_SERVER)
    started = []

    def make(port):
        started.append(
            forks.start(
                str(tmp_path / 'server.py'), port, tmp_path / f'c{len(started)}', log=tmp_path / f'{len(started)}.log'
            )
        )
        wait_until(lambda: is_listening(f'localhost:{port}'), 'the server', 60)
        return started[-1]

    yield make
    for process in started:
        process.kill()
        process.wait(10)


def connections(port):
    """The local ports of connections to `port`, also of those that were closed within the last minute; open ones."""
    rows = [
        line.split()
        for name in ('tcp', 'tcp6')
        for line in pathlib.Path(f'/proc/self/net/{name}').read_text().splitlines()[1:]
    ]
    ours = [(row[1], row[3]) for row in rows if int(row[2].rpartition(':')[2], 16) == port]
    return {local for local, _ in ours}, {local for local, state in ours if state == '01'}


def publication(version):
    values = [version, version, 0, False, version, np.full((100, 100), version, np.float32)]
    specs = weights_contract.signature(VARIABLES)
    return {
        name: np.asarray(value, spec.dtype.as_numpy_dtype)
        for (name, spec), value in zip(specs.items(), values, strict=True)
    }


def test_a_collector_has_one_connection_whatever_it_does(start):
    """All that a collector sends and asks for, many times: no new connection for any of it."""
    port = free_port()
    address = f'localhost:{port}'
    start(port)
    wait_until(lambda: connection.counts(address), 'an answer', 60)
    learner = control.Credits(control.new_lease('train'), 0, 5, 8)
    reporter, reader = reports.Reporter(address, 'collect_0'), credits.CreditReader(address, interval_secs=0.01)
    before, _ = connections(port)
    seen, columns = set(), weights_contract.signature(VARIABLES)
    for version in range(1, 31):
        assert connection.insert(address, weights_contract.VARIABLES, publication(version))
        assert weights_contract.counts(address) == (1, version)
        fetched = weights_contract.fetch(address, columns)
        assert fetched['policy_version'] == version and np.all(fetched[weights_contract.column(0)] == version)
        assert credits.send(address, learner)
        reporter.report({'env_steps': version}, [{'return': 1.0}] * 8)
        assert connection.counts(address)[reports.REPORTS].size == 1, 'one message for all environments'
        assert len(connection.receive(address, reports.REPORTS, 1)) == 1
        now, is_open = connections(port)
        seen |= is_open
        assert len(is_open) <= 2
    wait_until(lambda: reader.newest, 'credits', 10)
    reader.close()
    assert len(now - before) == 0 and len(seen) == 1


def test_a_restarted_server_is_found_again_at_once(start):
    port = free_port()
    address = f'localhost:{port}'
    for _ in range(2):
        process = start(port)
        wait_until(lambda: connection.counts(address), 'an answer', 20)
        assert connection.send(address, reports.REPORTS, 'report', 'text')
        assert connection.receive(address, reports.REPORTS, 1) == [b'text']
        process.kill()
        process.wait(10)
        began = time.monotonic()
        assert connection.counts(address) is None
        assert not connection.send(address, reports.REPORTS, 'report', 'text')
        assert connection.receive(address, reports.REPORTS, 1) == []
        assert time.monotonic() - began < 5, 'only the first call waits'


def test_a_read_of_items_that_are_gone_gives_up_and_delays_nothing(start, monkeypatch):
    monkeypatch.setattr('tflearn.replay.reverb.client._TRANSFER_SECS', 0.5)
    port = free_port()
    address = f'localhost:{port}'
    process = start(port)
    wait_until(lambda: connection.counts(address), 'an answer', 20)
    assert connection.receive(address, reports.REPORTS, 3) == []
    process.kill()
    process.wait(10)
    threading.Event().wait(3.0)  # gRPC's delay of the read that waits on grows meanwhile
    start(port)
    began = time.monotonic()
    wait_until(lambda: connection.counts(address), 'an answer', 20)
    assert time.monotonic() - began < 2
