"""What a local run is made of."""

import sys

import pytest

from tflearn.launch.restarts import RULES
from tflearn.launch.topology import Job, Topology, local_topology


def make(num_collectors):
    return local_topology(package='some_scripts', flags=['--a=1', '--b=x y'], num_collectors=num_collectors)


def test_every_job_of_a_run_gets_the_same_flags():
    commands = {job.name: job.command for job in make(num_collectors=2).jobs}
    assert list(commands) == ['replay_server', 'train', 'evaluate', 'collect_0', 'collect_1']
    for name, command in commands.items():
        program, *own = ('collect', f'--collector_name={name}') if name.startswith('collect') else (name,)
        assert command == (sys.executable, '-m', f'some_scripts.{program}', '--a=1', '--b=x y', *own)


def test_train_stops_first_and_the_replay_server_last():
    stages = {job.name: job.stop_stage for job in make(num_collectors=1).jobs}
    assert sorted(stages, key=lambda name: stages[name]) == ['train', 'evaluate', 'collect_0', 'replay_server']


def test_a_run_lasts_for_train_and_evaluate():
    jobs = make(num_collectors=1).jobs
    assert [job.name for job in jobs if job.serves is None] == ['train', 'evaluate']
    assert all(job.restart == RULES[job.kind] for job in jobs)


def test_a_run_without_collectors_is_refused():
    with pytest.raises(ValueError, match='got num_collectors=0; need at least 1'):
        make(num_collectors=0)


def test_names_must_differ_and_served_jobs_exist():
    train = Job('train', ('true',), kind='train')
    with pytest.raises(ValueError, match='need names that differ'):
        Topology((train, train))
    with pytest.raises(ValueError, match="collect that serves 'trian'; need one of train, collect"):
        Topology((train, Job('collect', ('true',), kind='collect', serves='trian')))
