"""The numbers of a run over HTTP, from a real process."""

import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest

pytest.importorskip('prometheus_client', reason='needs pip install ".[serving]"')

import prometheus_client

from tflearn.files.run_dir import RunDir, write_json
from tflearn.jobs.run_metrics import RunMetrics
from tflearn.launch.topology import KINDS


def text(run_dir, run):
    registry = prometheus_client.CollectorRegistry()
    registry.register(RunMetrics(run_dir, run, KINDS))
    return prometheus_client.generate_latest(registry).decode()


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
    write_json(run_dir.status('pod-a-4'), {'time': now, 'policy_version': 16_777_217, 'env_steps': 123_456_789})
    lines = [line for line in text(run_dir, 'a "b"\n\\').splitlines() if not line.startswith('# HELP')]
    assert [line for line in lines if 'tflearn_run_' not in line and 'tflearn_job_' not in line] == [
        '# TYPE tflearn_collect_policy_version gauge',
        r'tflearn_collect_policy_version{job="pod-a-1",run="a \"b\"\n\\"} 3.0',
        r'tflearn_collect_policy_version{job="pod-a-4",run="a \"b\"\n\\"} 1.6777217e+07',
        '# TYPE tflearn_collect_env_steps_total counter',
        r'tflearn_collect_env_steps_total{job="pod-a-4",run="a \"b\"\n\\"} 1.23456789e+08',
        '# TYPE tflearn_replay_server_replay_size gauge',
        r'tflearn_replay_server_replay_size{job="replay_server_1",run="a \"b\"\n\\"} 4.0',
        '# TYPE tflearn_train_train_step_total counter',
        r'tflearn_train_train_step_total{job="train",run="a \"b\"\n\\"} 1200.0',
        '# TYPE tflearn_train_data_wait_share gauge',
        r'tflearn_train_data_wait_share{job="train",run="a \"b\"\n\\"} 0.25',
    ]


def test_the_state_of_the_run_and_of_its_jobs(tmp_path):
    run_dir, now = RunDir(tmp_path), time.time()
    write_json(run_dir.status('launch'), {'job': 'launch', 'time': now - 100, 'restarts': {'train': 2, 'collect_0': 0}})
    write_json(run_dir.status('train'), {'time': now, 'state': 'running (compiles)'})
    write_json(run_dir.status('collect_0'), {'time': now, 'state': 'waiting for the learner'})
    write_json(run_dir.status('evaluate'), {'time': now - 100, 'state': 'running'})
    numbers = [
        'tflearn_run_done{run="r"} 0.0',
        'tflearn_job_state{job="collect_0",run="r",state="waiting"} 1.0',
        'tflearn_job_state{job="train",run="r",state="running"} 1.0',
        'tflearn_job_restarts_total{job="train",run="r"} 2.0',
        'tflearn_job_restarts_total{job="collect_0",run="r"} 0.0',
    ]
    assert [line for line in text(run_dir, 'r').splitlines() if not line.startswith('#')] == numbers
    write_json(run_dir.done, {'reason': 'num_train_steps 5 reached'})
    assert 'tflearn_run_done{run="r"} 1.0' in text(run_dir, 'r')


def test_prometheus_can_ask_the_program(tmp_path):
    run_dir = RunDir(tmp_path / 'my_run')
    write_json(run_dir.status('train'), {'time': time.time(), 'train_step': 5})
    command = [sys.executable, '-m', 'scripts', 'run-metrics', f'--root_dir={run_dir.root}', '--port=0']
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            url = process.stdout.readline().strip()
            with urllib.request.urlopen(url, timeout=20) as answer:
                assert answer.headers['Content-Type'].startswith('text/plain; version=')
                assert b'tflearn_train_train_step_total{job="train",run="my_run"} 5.0\n' in answer.read()
            with pytest.raises(urllib.error.HTTPError):
                urllib.request.urlopen(url.removesuffix('metrics'), timeout=20)
            process.terminate()
            assert process.wait(20) == 0, 'SIGTERM is how it ends'
        finally:
            process.kill()
