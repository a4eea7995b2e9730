"""The numbers of a run over HTTP, from a real process."""

import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest

from tflearn.run_dir import RunDir, write_json
from tflearn.schedulers import run_metrics


def test_the_fresh_numbers_of_all_jobs(tmp_path):
    run_dir, now = RunDir(tmp_path), time.time()
    train = {'job': 'train', 'pid': 7, 'state': 'running', 'time': now, 'train_step': 1200, 'data_wait_share': 0.25}
    write_json(run_dir.status('train'), {**train, 'loss': None})
    write_json(run_dir.status('pod-a-1'), {'time': now, 'policy_version': 3, 'random_actions': True})
    write_json(run_dir.status('replay_server_1'), {'time': now, 'replay_size': 4})
    write_json(run_dir.status('evaluate'), {'time': now - 100, 'mean_return': 9.0})
    run_dir.status('replay_server').write_text('{')
    write_json(run_dir.status('pod-a-2'), {'time': now, 'policy_version': 10**400})
    write_json(run_dir.status('pod-a-3'), {'time': 10**400, 'policy_version': 3})
    assert run_metrics.text(run_dir, 'r').splitlines() == [
        '# TYPE tflearn_collect_policy_version gauge',
        'tflearn_collect_policy_version{run="r",job="pod-a-1"} 3',
        '# TYPE tflearn_replay_server_replay_size gauge',
        'tflearn_replay_server_replay_size{run="r",job="replay_server_1"} 4',
        '# TYPE tflearn_train_train_step gauge',
        'tflearn_train_train_step{run="r",job="train"} 1200',
        '# TYPE tflearn_train_data_wait_share gauge',
        'tflearn_train_data_wait_share{run="r",job="train"} 0.25',
    ]
    assert run_metrics.text(RunDir(tmp_path / 'other'), 'r') == ''


def test_prometheus_can_ask_the_program(tmp_path):
    run_dir = RunDir(tmp_path / 'my_run')
    write_json(run_dir.status('train'), {'time': time.time(), 'train_step': 5})
    command = [sys.executable, '-m', 'scripts.run_metrics', f'--root_dir={run_dir.root}', '--port=0']
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            url = process.stdout.readline().strip()
            with urllib.request.urlopen(url, timeout=20) as answer:
                assert answer.headers['Content-Type'].startswith('text/plain; version=0.0.4')
                assert b'tflearn_train_train_step{run="my_run",job="train"} 5\n' in answer.read()
            with pytest.raises(urllib.error.HTTPError):
                urllib.request.urlopen(url.removesuffix('metrics'), timeout=20)
            process.terminate()
            assert process.wait(20) == 143
        finally:
            process.kill()
