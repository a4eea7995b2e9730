"""What a local run is made of."""

import re
import sys

import pytest

from tflearn.files.run_dir import RunDir
from tflearn.launch.topology import (
    COORDINATOR_ADDRESS,
    OWN_ADDRESS,
    RULES,
    Addresses,
    Job,
    Resources,
    Topology,
    load,
    read_resources,
    run_topology,
)


def make(num_collectors):
    return run_topology(package='some_scripts', flags=['--a=1', '--b=x y'], num_collectors=num_collectors)


def test_every_job_of_a_run_gets_the_same_flags():
    commands = {job.name: job.command for job in make(num_collectors=2).jobs}
    assert list(commands) == ['replay_server', 'train', 'evaluate', 'collect_0', 'collect_1']
    for name, command in commands.items():
        program, *own = ('collect', f'--collector_name={name}') if name.startswith('collect') else (name,)
        own += [f'--replay_address={OWN_ADDRESS}'] if name == 'replay_server' else []
        shared = ('--a=1', '--b=x y', f'--coordinator_address={COORDINATOR_ADDRESS}')
        assert command == (sys.executable, '-m', f'some_scripts.{program}', *shared, *own)


def test_servers_are_stopped_last_and_all_others_at_once():
    """So what may move a robot stops when the user asks for it, not when train has saved."""
    stages = {job.name: job.stop_stage for job in make(num_collectors=1).jobs}
    assert stages == {'train': 0, 'evaluate': 0, 'collect_0': 0, 'replay_server': 1}


def test_a_run_lasts_for_train_and_evaluate():
    jobs = make(num_collectors=1).jobs
    assert [job.name for job in jobs if job.serves is None] == ['train', 'evaluate']
    assert all(job.restart == RULES[job.kind] for job in jobs)


def test_each_replay_server_is_watched_alone_and_saves_last():
    addresses = Addresses('c:1', ('a:1', 'b:1', 'c:1'))
    topology = run_topology(package='some_scripts', flags=['--a=1'], num_collectors=1, addresses=addresses)
    servers = [job for job in topology.jobs if job.kind == 'replay_server']
    assert topology.host == 'replay_server'
    assert [job.name for job in servers] == ['replay_server', 'replay_server_1', 'replay_server_2']
    shared = ('--a=1', '--coordinator_address=c:1')
    assert [job.command[3:] for job in servers] == [
        (*shared, '--replay_address=a:1', '--num_shards=3'),
        (*shared, '--replay_address=b:1', '--num_shards=3', '--shard=1'),
        (*shared, '--replay_address=c:1', '--num_shards=3', '--shard=2'),
    ]
    assert {(job.restart, job.stop_stage, job.serves) for job in servers} == {(RULES['replay_server'], 1, 'train')}


def test_a_coordinator_alone_comes_first_and_relays_before_the_learner():
    addresses = Addresses('h:1', relays=('h:2', OWN_ADDRESS), alone=True, flags=('--coordinator_token=env:T',))
    topology = run_topology(package='p', flags=['--a=1'], num_collectors=1, addresses=addresses)
    assert topology.host == 'coordinator'
    commands = {job.name: job.command[3:] for job in topology.jobs}
    assert list(commands)[:5] == ['coordinator', 'replay_server', 'relay_0', 'relay_1', 'train']
    where = '--coordinator_address=h:1'
    assert commands['coordinator'] == (where, '--name=coordinator', '--coordinator_token=env:T')
    assert commands['relay_0'] == (
        *(where, '--name=relay_0', '--coordinator_token=env:T', '--relay_address=h:2', '--index=0'),
    )
    assert commands['replay_server'][2:] == (f'--replay_address={OWN_ADDRESS}', '--noserve_coordinator')
    jobs = {job.name: job for job in topology.jobs}
    assert {jobs[name].serves for name in ('coordinator', 'relay_0')} == {'train'}


@pytest.mark.parametrize('name', ['num_collectors', 'num_workers'])
def test_refuses_more_jobs_than_anybody_can_mean(name):
    counts = {'num_collectors': 1, name: 10**400}
    with pytest.raises(ValueError, match=f'got {name}=10{{99}}; need an integer of at least 1'):
        run_topology(package='some_scripts', flags=[], **counts)


def test_names_must_differ_and_served_jobs_exist():
    train = Job('train', ('true',), kind='train')
    with pytest.raises(ValueError, match='need names that differ'):
        Topology((train, train))
    with pytest.raises(ValueError, match="collect that serves 'trian'; need one of train, collect"):
        Topology((train, Job('collect', ('true',), kind='collect', serves='trian')))


def test_reads_resources_by_kind_of_job():
    texts = ['train:cores=4,memory_gb=8.5,accelerators=2,accelerator=a100', 'collect:cores=1,license/sim=1']
    assert read_resources(texts) == {
        'train': Resources(cores=4, memory_gb=8.5, accelerators=2, accelerator='a100'),
        'collect': Resources(cores=1, custom={'license/sim': 1}),
    }
    assert read_resources(['train:accelerators=0'])['train'].accelerators == 0


@pytest.mark.parametrize(
    ('texts', 'message'),
    [
        (
            ['trian:cores=1'],
            'need one for each kind of job (replay_server, train, collect, evaluate, coordinator, relay, feed, '
            'feed_worker), such as',
        ),
        (['train:cores=1', 'train:memory_gb=1'], 'got --resources=train:memory_gb=1; need one for each kind'),
        (['train:cores=0'], 'got cores=0 in --resources=train:cores=0; need a number above 0'),
        (['train:cores=1.5'], 'got cores=1.5'),
        (['train:memory_gb=0'], 'got memory_gb=0'),
        (['train:cores'], 'got cores= in'),
        (['train'], 'got --resources=train; need'),
        (['train:accelerator=a100'], 'an accelerator without a number'),
        (['train:custom=1'], 'got custom=1'),
    ],
)
def test_refuses_wrong_resources(texts, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        read_resources(texts)


def test_a_saved_topology_is_the_same(tmp_path):
    resources = {'collect': Resources(cores=2, custom={'sim': 1}), 'train': Resources(memory_gb=4.0)}
    topology = run_topology(package='p', flags=['--a=1'], num_collectors=3, resources=resources, num_workers=2)
    topology.save(RunDir(tmp_path))
    assert load(RunDir(tmp_path)) == topology
    assert [job.resources.cores for job in topology.group('collect')] == [2] * 3
    assert topology.group('train')[0].command[-1] == '--strategy=multi_worker'
    with pytest.raises(ValueError, match='need a run that was submitted there'):
        load(RunDir(tmp_path / 'other'))
    for text in ('{}', '{"jobs": 3}', '{"jobs": [{"command": []}]}', '{"jobs": [], "warm_parent": 3}'):
        RunDir(tmp_path).topology.write_text(text)
        with pytest.raises(ValueError, match='got a damaged .*topology.json.*; submit the run again'):
            load(RunDir(tmp_path))
