"""Learner workers find each other through the run directory."""

import json
import re
import subprocess
import sys
import threading

import pytest

from tests.launch.fake_run import DEADLINE_SECS
from tflearn.files.run_dir import RunDir, write_json
from tflearn.launch import learner_worker


def test_all_workers_get_one_cluster_and_their_own_index(tmp_path):
    run_dir, configs = RunDir(tmp_path), {}
    write_json(run_dir.address('train_2'), {'address': 'old:1', 'attempt': '7.0.0', 'count': 5})

    def join(rank):
        configs[rank] = json.loads(learner_worker.tf_config(run_dir, rank, 3, DEADLINE_SECS))

    threads = [threading.Thread(target=join, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_SECS)
    assert [configs[rank]['task'] for rank in range(3)] == [{'type': 'worker', 'index': rank} for rank in range(3)]
    clusters = [configs[rank]['cluster']['worker'] for rank in range(3)]
    assert clusters[0] == clusters[1] == clusters[2]
    assert 'old:1' not in clusters[0] and len(set(clusters[0])) == 3
    assert all(re.fullmatch(r'[\w.-]+:\d+', address) for address in clusters[0])


def test_workers_that_start_alone_form_a_group_of_those_that_wait(tmp_path):
    run_dir, configs = RunDir(tmp_path), {}

    def join(rank, name):
        configs[name] = json.loads(learner_worker.tf_config(run_dir, rank, 2, DEADLINE_SECS))

    def started(name):
        thread = threading.Thread(target=join, args=(int(name[0]), name))
        thread.start()
        return thread

    for thread in [started('0a'), started('1a')]:
        thread.join(DEADLINE_SECS)
    assert configs['0a']['cluster'] == configs['1a']['cluster']
    early = started('1b')
    early.join(0.5)
    assert early.is_alive(), 'its old group is not for a worker that was started again'
    join(0, '0b')
    early.join(DEADLINE_SECS)
    assert configs['0b']['cluster'] == configs['1b']['cluster'] != configs['0a']['cluster']
    with pytest.raises(TimeoutError, match=re.escape('got no address of worker(s) 1 of 2 within 0.5 s; need all')):
        learner_worker.tf_config(run_dir, 0, 2, 0.5)


def test_names_the_workers_that_do_not_come(tmp_path):
    for rank, missing in ((0, '1, 2'), (1, '0')):
        text = f'got no address of worker(s) {missing} of 3 within 0.1 s; need all'
        with pytest.raises(TimeoutError, match=re.escape(text)):
            learner_worker.tf_config(RunDir(tmp_path), rank, 3, 0.1)


def test_becomes_the_program():
    program = "import os; print(os.environ['TF_CONFIG'])"
    command = [sys.executable, '-c', program]
    code = f"from tflearn.launch import learner_worker; learner_worker.execute({command!r}, 'this')"
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, timeout=DEADLINE_SECS)
    assert done.stdout == 'this\n'
