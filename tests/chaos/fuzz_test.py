"""Ten thousand malformed messages for a port that is ours: nothing ends, nothing grows, and it goes on answering."""

import functools
import json
import os
import re
import subprocess
import sys
import time

import pytest

from tests.chaos import fuzzing
from tests.chaos.chaos_run import ROOT

COUNT = 10_000
SEED = int(os.environ.get('TFLEARN_TEST_SEED', '0'))


@pytest.mark.chaos
@pytest.mark.parametrize('protocol', ['http', 'noise', 'tls'])
def test_metrics_of_a_run(tmp_path, capsys, protocol):
    (tmp_path / 'status').mkdir()
    status = {'time': time.time() + 1e6, 'train_step': 5}
    (tmp_path / 'status' / 'train.json').write_text(json.dumps(status))
    command = [sys.executable, '-m', 'scripts', 'run-metrics', f'--root_dir={tmp_path}', '--port=0']
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
        try:
            address = re.search(r'//(\S+)/', server.stdout.readline())[1]
            attack = functools.partial(fuzzing.fuzz, address, fuzzing.PROTOCOLS[protocol])
            before, after = fuzzing.measure(server.pid, attack, COUNT, SEED)
            with capsys.disabled():
                sys.stdout.write(f'\n{protocol}: {before} -> {after}\n')
            assert before.growth(after) is None
            answer = fuzzing.send(address, b'GET /metrics HTTP/1.0\r\n\r\n')
            assert b'tflearn_train_train_step_total{' in answer
        finally:
            server.kill()


# A program that listens and keeps a handle, or ends, for each connection: both are found.
LEAK = """
import os, socket, sys
server, kept = socket.create_server(('localhost', 0)), []
print(server.getsockname()[1], flush=True)
while True:
    connection = server.accept()[0]
    kept.append(connection)
    connection.shutdown(socket.SHUT_WR)  # the client goes on
    if sys.argv[1] == 'ends' and len(kept) > 30:
        os._exit(1)
"""


@pytest.mark.parametrize('kind', ['grows', 'ends'])
def test_what_grows_or_ends_is_found(kind, monkeypatch):
    monkeypatch.setattr(fuzzing, '_ANSWER_SECS', 20.0)
    monkeypatch.setattr(fuzzing, '_SETTLE_SECS', 0.1)
    monkeypatch.setattr(fuzzing, 'WARM_UP', 5)
    command = [sys.executable, '-c', LEAK, kind]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as leaking:
        try:
            attack = functools.partial(fuzzing.fuzz, f'localhost:{leaking.stdout.readline().strip()}', fuzzing.noise)
            if kind == 'ends':
                with pytest.raises(ProcessLookupError):
                    fuzzing.measure(leaking.pid, attack, 200, SEED)
            else:
                before, after = fuzzing.measure(leaking.pid, attack, 40, SEED)
                assert before.growth(after).startswith('file handles, from ')
        finally:
            leaking.kill()
