"""The workers of a learner train as one: on one machine as one job, or on several, by the run directory."""

import dataclasses
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading

import pytest

from tests.launch.fake_run import DEADLINE_SECS, RUN, RUNNING, WAIT, ended, gone, launched, pids, topology, wait_for
from tflearn.core.errors import TRY_AGAIN_EXIT_STATUS
from tflearn.files.run_dir import RunDir, write_json
from tflearn.launch import learner_workers
from tflearn.launch.topology import on_one_machine, run_topology

STOPPED = 128 + signal.SIGTERM


@pytest.mark.parametrize(
    ('statuses', 'status'),
    [
        ((0, 0), 0),
        ((STOPPED, STOPPED), STOPPED),
        ((-signal.SIGTERM, STOPPED), STOPPED),
        ((-signal.SIGKILL, TRY_AGAIN_EXIT_STATUS), TRY_AGAIN_EXIT_STATUS),
        ((-signal.SIGKILL, -signal.SIGABRT), TRY_AGAIN_EXIT_STATUS),
        ((-signal.SIGKILL, 1), TRY_AGAIN_EXIT_STATUS),
        ((STOPPED, TRY_AGAIN_EXIT_STATUS), TRY_AGAIN_EXIT_STATUS),
        ((1, TRY_AGAIN_EXIT_STATUS), 1),
        ((1, -signal.SIGABRT), 1),
        ((2, -signal.SIGABRT), 2),
        ((2, 3), 2),
    ],
)
def test_exit_status_of_a_group(statuses, status):
    assert learner_workers.exit_status(statuses) == learner_workers.exit_status(statuses[::-1]) == status


def test_each_worker_has_its_own_configuration_and_devices():
    one, other = learner_workers.environments(2, {'HOME': '/', 'CUDA_VISIBLE_DEVICES': '0,2,3,5'})
    assert (one['CUDA_VISIBLE_DEVICES'], other['CUDA_VISIBLE_DEVICES'], one['HOME']) == ('0,3', '2,5', '/')
    configs = [json.loads(each['TF_CONFIG']) for each in (one, other)]
    assert [config['task'] for config in configs] == [{'type': 'worker', 'index': 0}, {'type': 'worker', 'index': 1}]
    assert configs[0]['cluster'] == configs[1]['cluster'] and len(set(configs[0]['cluster']['worker'])) == 2
    assert all(each.get('CUDA_VISIBLE_DEVICES') is None for each in learner_workers.environments(2, {}))


def test_only_jobs_of_several_workers_become_groups():
    jobs = {job.name: job.command for job in run_topology(package='p', flags=[], num_collectors=1, num_workers=3).jobs}
    here = run_topology(package='p', flags=[], num_collectors=1, num_workers=3)
    grouped = {job.name: job.command for job in on_one_machine(here).jobs}
    program = (sys.executable, '-m', 'tflearn.launch.learner_workers', '3')
    assert grouped == jobs | {'train': (*program, *jobs['train'])}


def test_the_death_of_a_worker_ends_the_others_and_restarts_the_group(run_dir):
    """Workers that do not notice it are killed; the group then starts again, as one job."""
    program = 'import sys; from tflearn.launch import learner_workers as g; sys.exit(g.run_group(sys.argv[1:], 2, 0.5))'
    jobs = topology(run_dir, train=[RUNNING, f'once={WAIT}', 'await=evaluated'], evaluate=['await=evaluated', 'done'])
    train, evaluate = jobs.jobs
    group = dataclasses.replace(train, command=(sys.executable, '-c', program, *train.command))
    jobs = dataclasses.replace(jobs, jobs=(group, evaluate))
    with launched(run_dir, jobs) as launch:
        (worker,) = pids(run_dir, 'train')
        workers = wait_for(lambda: len(found := siblings(worker)) == 2 and found, 'both workers')
        wait_for(lambda: (run_dir.root / 'once_train').exists(), 'their work')
        os.kill(workers[0], signal.SIGKILL)
        wait_for(lambda: all(map(gone, workers)), 'the end of both')
        (run_dir.root / 'evaluated').touch()
        code, out, err = ended(launch)
    assert (code, err) == (0, '')
    assert 'train ended with exit code 75; restart 1 of 20' in out
    assert '1 workers have not ended 0.5 s after the first one: killed' in out


def test_workers_end_with_the_program_that_started_them(run_dir):
    program = 'import sys; from tflearn.launch import learner_workers as g; sys.exit(g.run_group(sys.argv[1:], 2))'
    (train,) = topology(run_dir, train=RUN).jobs
    with subprocess.Popen([sys.executable, '-c', program, *train.command]) as group:
        try:
            (worker,) = pids(run_dir, 'train')
            workers = siblings(worker)
        finally:
            group.kill()
        wait_for(lambda: all(map(gone, workers)), 'the end of both')


def siblings(pid):
    """The children of a process's parent."""
    parent = pathlib.Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[1]
    return [int(each) for each in pathlib.Path(f'/proc/{parent}/task/{parent}/children').read_text().split()]


def test_all_workers_get_one_cluster_and_their_own_index(tmp_path):
    run_dir, configs = RunDir(tmp_path), {}
    write_json(run_dir.address('train_2'), {'address': 'old:1', 'attempt': '7.0.0', 'count': 5})

    def join(rank):
        configs[rank] = json.loads(learner_workers.tf_config(run_dir, rank, 3, DEADLINE_SECS))

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
        configs[name] = json.loads(learner_workers.tf_config(run_dir, rank, 2, DEADLINE_SECS))

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
        learner_workers.tf_config(run_dir, 0, 2, 0.5)


def test_names_the_workers_that_do_not_come(tmp_path):
    for rank, missing in ((0, '1, 2'), (1, '0')):
        text = f'got no address of worker(s) {missing} of 3 within 0.1 s; need all'
        with pytest.raises(TimeoutError, match=re.escape(text)):
            learner_workers.tf_config(RunDir(tmp_path), rank, 3, 0.1)


def test_becomes_the_program():
    program = "import os; print(os.environ['TF_CONFIG'])"
    command = [sys.executable, '-c', program]
    code = f"from tflearn.launch import learner_workers; learner_workers.execute({command!r}, 'this')"
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, timeout=DEADLINE_SECS)
    assert done.stdout == 'this\n'
