"""The workers of a learner on one machine, as one job."""

import dataclasses
import json
import os
import pathlib
import signal
import sys

import pytest

from tests.launch.fake_run import RUNNING, WAIT, ended, gone, launched, pids, topology, wait_for
from tflearn.core.errors import TRY_AGAIN_EXIT_STATUS
from tflearn.launch import worker_group
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
    assert worker_group.exit_status(statuses) == worker_group.exit_status(statuses[::-1]) == status


def test_each_worker_has_its_own_configuration_and_devices():
    one, other = worker_group.environments(2, {'HOME': '/', 'CUDA_VISIBLE_DEVICES': '0,2,3,5'})
    assert (one['CUDA_VISIBLE_DEVICES'], other['CUDA_VISIBLE_DEVICES'], one['HOME']) == ('0,3', '2,5', '/')
    configs = [json.loads(each['TF_CONFIG']) for each in (one, other)]
    assert [config['task'] for config in configs] == [{'type': 'worker', 'index': 0}, {'type': 'worker', 'index': 1}]
    assert configs[0]['cluster'] == configs[1]['cluster'] and len(set(configs[0]['cluster']['worker'])) == 2
    assert all(each.get('CUDA_VISIBLE_DEVICES') is None for each in worker_group.environments(2, {}))


def test_only_jobs_of_several_workers_become_groups():
    jobs = {job.name: job.command for job in run_topology(package='p', flags=[], num_collectors=1, num_workers=3).jobs}
    here = run_topology(package='p', flags=[], num_collectors=1, num_workers=3)
    grouped = {job.name: job.command for job in on_one_machine(here).jobs}
    program = (sys.executable, '-m', 'tflearn.launch.worker_group', '3')
    assert grouped == jobs | {'train': (*program, *jobs['train'])}


def test_the_death_of_a_worker_ends_the_others_and_restarts_the_group(run_dir):
    """Workers that do not notice it are killed; the group then starts again, as one job."""
    program = 'import sys; from tflearn.launch import worker_group as g; sys.exit(g.run(sys.argv[1:], 2, 0.5))'
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


def siblings(pid):
    """The children of a process's parent."""
    parent = pathlib.Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[1]
    return [int(each) for each in pathlib.Path(f'/proc/{parent}/task/{parent}/children').read_text().split()]
