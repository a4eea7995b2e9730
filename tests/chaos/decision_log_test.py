"""A whole server whose decision log cannot be written, and versions that are promoted meanwhile."""

import collections
import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading

import pytest

from tests.chaos.chaos_run import ROOT, wait_for
from tests.chaos.fuzz_serving_test import program
from tests.chaos.stops_test import fill
from tflearn.launch.local import free_port

pytestmark = pytest.mark.chaos

CLIENTS, PAUSE_SECS, FAULT_SECS = 4, 0.02, 4.0
BODY = json.dumps({'instances': [[1.0, 0.0, 0.0, 0.0]]})


class Load:
    """Clients that ask for actions, and report an outcome of every fourth one, until they are stopped.

    Attributes:
      ids: of the answered requests.
      accepted: the ids of the outcomes that the server has accepted.
      refused: how many it has not.
    """

    def __init__(self, port: int):
        self.ids, self.accepted, self.refused = list[str](), list[str](), 0
        self._port, self._stop = port, threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(i,)) for i in range(CLIENTS)]
        for thread in self._threads:
            thread.start()

    def _run(self, number: int) -> None:
        asked = 0
        while not self._stop.wait(PAUSE_SECS):
            event_id, asked = f'{number}-{asked}', asked + 1
            assert self._ask('/v1/models/greedy_policy:predict', BODY, {'Event-Id': event_id}) == 200
            self.ids.append(event_id)
            if asked % 4 == 0:
                outcome = json.dumps({'event_id': event_id, 'reward': 1.0})
                if self._ask('/v1/outcomes', outcome) == 200:
                    self.accepted.append(event_id)
                else:
                    self.refused += 1

    def _ask(self, path: str, body: str, headers: dict[str, str] | None = None) -> int:
        connection = http.client.HTTPConnection('localhost', self._port, timeout=60.0)
        with contextlib.closing(connection):
            connection.request('POST', path, body, headers or {})
            return connection.getresponse().status

    def stop(self) -> None:
        """Waits for the last answers."""
        self._stop.set()
        for thread in self._threads:
            thread.join()


@contextlib.contextmanager
def full(directory):
    fill(directory.parent / 'filler')
    yield
    (directory.parent / 'filler').unlink()


@contextlib.contextmanager
def renamed(directory):
    directory.rename(directory.with_name(f'moved-{len(list(directory.parent.iterdir()))}'))
    yield


@contextlib.contextmanager
def blocked(directory):
    """Leaves no directory, and no room for another one of its name, for a while."""
    directory.rename(directory.with_name(f'moved-{len(list(directory.parent.iterdir()))}'))
    directory.write_text('')
    yield
    directory.unlink()


FAULTS = {'full': full, 'full with the run': full, 'renamed': renamed, 'blocked': blocked}


@pytest.fixture
def disk(tmp_path):
    """A small disk."""
    path = tmp_path / 'disk'
    path.mkdir()
    if os.geteuid() or subprocess.run(['mount', '-t', 'tmpfs', '-o', 'size=40m', 'tmpfs', str(path)]).returncode:
        pytest.skip('a file system of its own needs root')
    yield path
    subprocess.run(['umount', '-l', str(path)], check=True)


def promote(root, candidate, *flags):
    """Returns the exit code of `tflearn promote`, and the last line that it wrote."""
    command = [sys.executable, '-m', 'scripts', 'promote', f'--root_dir={root}', f'--candidate={candidate}', *flags]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300.0)
    return done.returncode, (done.stdout + done.stderr).splitlines()[-1]


def logged(places, kind, key):
    """Returns how often each id stands in the files of a log; its directory may have been moved meanwhile."""
    texts = [path.read_text() for place in places for path in place.glob(f'{kind}-*.jsonl')]
    return collections.Counter(json.loads(line)[key] for text in texts for line in text.splitlines())


@pytest.mark.parametrize('fault', FAULTS)
def test_a_server_goes_on_without_its_decision_log_and_writes_what_it_counts(disk, tmp_path, promise, fault):
    pytest.importorskip('tensorflow_serving', reason='needs pip install ".[serving]"')
    from tests.testing import served_policies

    root = (disk if fault == 'full with the run' else tmp_path) / 'run'
    publisher = served_policies.Publisher(root / 'policies')
    publisher.publish(1)
    assert promote(root, 1, '--ungated')[0] == 0
    directory, ports = disk / 'log', (free_port(), free_port(), free_port())
    for step in (2, 3):
        publisher.publish(step)
    flags = [f'--root_dir={root}', f'--port={ports[0]}', f'--rest_port={ports[1]}', f'--metrics_port={ports[2]}']
    flags += [f'--decision_log={directory}', '--decision_log_file_secs=1', '--poll_secs=0.5']

    def count(name):
        """Returns a sample of the server's metrics; 0 if there is none."""
        connection = http.client.HTTPConnection('localhost', ports[2], timeout=60.0)
        with contextlib.closing(connection), contextlib.suppress(ConnectionRefusedError):
            connection.request('GET', '/metrics')
            text = connection.getresponse().read().decode()
            return float((re.search(rf'^{re.escape(name)} (\S+)$', text, re.M) or ['', '0'])[1])
        return 0.0

    decisions, shadows = (f'tflearn_{kind}_total{{result="logged"}}' for kind in ('decisions', 'shadows'))
    version = 'tflearn_served_version{model="greedy_policy"}'
    with program(tmp_path, 'scripts.serve', *flags) as (server, text):
        wait_for(lambda: count(version) == 1, 'the stable version')
        load = Load(ports[1])
        try:
            wait_for(lambda: count(decisions) > 50, 'the first decisions')
            with FAULTS[fault](directory):
                promoted = [promote(root, 2, '--to=shadow'), promote(root, 3, '--ungated')]
                threading.Event().wait(FAULT_SECS)
            if fault == 'full with the run':  # it says so, and the same command goes on
                assert all(code == 2 and 'error: got' in line for code, line in promoted), promoted
                promoted = [promote(root, 2, '--to=shadow'), promote(root, 3, '--ungated')]
            assert [code for code, _ in promoted] == [0, 0], promoted
            secs = wait_for(lambda: count(version) == 3, 'the promoted version')
            secs += wait_for(lambda: count(shadows) > 50, 'the answers of the shadow')
            # Now the log of shadows is open too.
            with FAULTS[fault](directory):
                threading.Event().wait(FAULT_SECS)
            threading.Event().wait(FAULT_SECS)
        finally:
            load.stop()
        secs += wait_for(lambda: count(decisions) == len(load.ids), 'the last decisions')
        counted = count(shadows)
        server.send_signal(signal.SIGTERM)
        assert server.wait(60.0) == 0, text()[-3000:]
    places = [path for path in disk.iterdir() if path.is_dir() and path != root]
    assert logged(places, 'decisions', 'id') == collections.Counter(load.ids)
    assert logged(places, 'outcomes', 'event_id') == collections.Counter(load.accepted)
    answers = logged([path / 'shadow' for path in places], 'decisions', 'id')
    # The last answers are counted after the count was read.
    assert answers.total() == len(answers) >= counted and answers.keys() <= set(load.ids)
    promise(f'the decision log, {fault}, and versions promoted meanwhile', 'nothing that was counted', secs)
