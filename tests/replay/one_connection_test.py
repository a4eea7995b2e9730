"""How many connections and messages a job makes: of a real server in a process of its own, counted by the kernel."""

import pathlib
import time

import pytest

from tests.testing import forks
from tests.testing.coordinators import coordinating  # noqa: F401
from tflearn.coordinator import control, reports
from tflearn.coordinator.reports import CreditReader
from tflearn.core.waiting import is_listening, wait_until
from tflearn.launch.local import free_port
from tflearn.replay import backend

_SERVER = """
import pathlib, sys, threading

import tensorflow as tf

from tflearn.replay.reverb.server import ReplayServer
from tflearn.replay.storage import TableSpec

port, directory = sys.argv[1:]
table = TableSpec('replay', 10, {'chunk': tf.TensorSpec((2,), tf.uint8)})
server = ReplayServer([table], int(port), pathlib.Path(directory))
threading.Event().wait(300)
"""


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


def test_a_collector_has_few_connections_whatever_it_does(coordinating):  # noqa: F811
    """One for each thread that asks: reports, credits; the newest weights have another one."""
    server = coordinating.serve()
    learner = coordinating.learner(server)
    job = coordinating.job(server)
    reporter, reader = reports.Reporter(job), CreditReader(job)
    credits = control.Credits(5, 8)
    learner.put_credits(credits)
    wait_until(lambda: reader.newest == credits, 'credits', 10)
    assert reporter.report({'env_steps': 0}, [])
    for count in range(30):
        learner.put_credits(credits)
        assert reporter.report({'env_steps': count}, [{'return': 1.0}] * 8)
        assert job.addresses('replay') == []
    now, _ = connections(server.port)
    assert len(now) <= 4, 'the learner has one for its heartbeats too'
    reader.close()


def test_a_restarted_server_is_found_again_at_once(start):
    port = free_port()
    address = f'localhost:{port}'
    for _ in range(2):
        process = start(port)
        wait_until(lambda: backend.counts(address), 'an answer', 20)
        process.kill()
        process.wait(10)
        began = time.monotonic()
        assert backend.counts(address) is None
        assert backend.counts(address) is None
        assert time.monotonic() - began < 5, 'only the first call waits'
