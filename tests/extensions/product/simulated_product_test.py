"""The simulated products of the documents, with real programs, and curl as their client."""

import os
import shutil
import signal
import subprocess
import sys

import pytest

from tests.testing import forks
from tflearn.core.waiting import is_listening, wait_until
from tflearn.files.run_dir import read_json
from tflearn.launch.local import free_port

pytest.importorskip('pyarrow', reason='needs pip install ".[product]"')
pytest.importorskip('tensorflow_serving', reason='needs pip install ".[serving]"')

DEADLINE_SECS = 240.0
ENVIRONMENT = {**os.environ, 'CUDA_VISIBLE_DEVICES': '-1', 'PYTHONPATH': str(forks.CHECKOUT)}
FEW = [
    'loop.Gate.margin=1000.0',
    'loop.Gate.held_out=0.6',  # of a few new sessions at least two, which the gate needs
    'loop.Logs.window_secs=1.0',
    'loop.Schedule.decisions=20',
]


def play(folder, *arguments):
    command = [sys.executable, 'docs/simulated_product.py', *arguments]
    ended = subprocess.run(
        command, cwd=folder, env=ENVIRONMENT, timeout=DEADLINE_SECS, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0 and 'mean return' in ended.stdout, ended.stderr


def turn(folder, product, train_steps):
    flags = [f'--root_dir=runs/{product}', f'--gin_file=docs/{product}_loop.gin', '--once']
    training = [
        f'train.StopConditions.num_train_steps = {train_steps}',
        'train.ExportOptions.policies = ("greedy_policy",)',
    ]
    bindings = [f'--gin_bindings={binding}' for binding in [*FEW, f'loop.Training.gin_bindings={training}']]
    ended = forks.run('scripts', 'loop', *flags, *bindings, cwd=folder, env=ENVIRONMENT, timeout=DEADLINE_SECS)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which('curl'), reason='needs curl')
@pytest.mark.parametrize(
    ('product', 'steps', 'sessions', 'train_steps'),
    [('news', 1, 600, 20), ('inlining', 6, 800, 1_000)],  # sessions need more: their weights differ much
)
def test_a_product_whose_client_is_curl_learns_from_its_own_decisions(tmp_path, product, steps, sessions, train_steps):
    (tmp_path / 'docs').symlink_to(forks.CHECKOUT / 'docs')
    play(tmp_path, product, f'--first_log={product}', f'--sessions={sessions}')
    turn(tmp_path, product, train_steps)
    port, rest_port = free_port(), free_port()
    flags = (f'--root_dir=runs/{product}_served', f'--port={port}', f'--rest_port={rest_port}', '--epsilon=0.3')
    log = (f'--decision_log={product}', '--decision_log_file_secs=1')
    server = forks.start('scripts.serve', *flags, *log, log=tmp_path / 'serve.log', cwd=tmp_path, env=ENVIRONMENT)
    try:
        wait_until(lambda: is_listening(f'localhost:{rest_port}'), 'the server', DEADLINE_SECS)
        wait_until(lambda: 'serves version' in (tmp_path / 'serve.log').read_text(), 'a version', DEADLINE_SECS)
        for seed in (1, 2):  # the window of the first ones ends before the outcomes of the second ones
            play(tmp_path, product, f'--server=localhost:{rest_port}', f'--sessions={60 // steps}', f'--seed={seed}')
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(DEADLINE_SECS)
    turn(tmp_path, product, train_steps)
    second = read_json(tmp_path / 'runs' / product / 'rounds' / '2' / 'end.json')
    counts = second['import']
    assert second['promoted'] and counts['steps'] > sessions * steps - 20
    assert second['gate']['passes'] and counts['rows'] == sessions * steps + 120
    assert product == 'inlining' or counts['decisions without an outcome'] == 0
    assert counts['steps'] == counts['episodes'] * steps
