"""How a machine is divided among jobs."""

import dataclasses
import os
import re
import sys

import pytest

from tflearn.launch.topology import Machine, Placement, Resources, place, run_topology, this_machine

SERVE = """
import runpy, socket, sys
from tflearn.launch import warm_parent
module, *sys.argv[1:] = warm_parent.serve(socket.socket(fileno=int(sys.argv[1])))
runpy.run_module(module, run_name='__main__', alter_sys=True)
"""
MACHINE = Machine(cores=[2, 3, 5, 7, 11, 13], memory_gb=16.0, gpus=['0', '3'])


def placed(machine=MACHINE, num_collectors=2, num_workers=1, **resources):
    topology = run_topology(
        package='p', flags=[], num_collectors=num_collectors, resources=resources, num_workers=num_workers
    )
    return place(topology, machine)


def test_jobs_without_resources_run_anywhere():
    machine = dataclasses.replace(MACHINE, gpus=[])
    assert all(placement == Placement() for placement in placed(machine).values())


def devices(found):
    return {name: item.environment.get('CUDA_VISIBLE_DEVICES') for name, item in found.items()}


def growth(found):
    return {name for name, item in found.items() if item.environment.get('TF_FORCE_GPU_ALLOW_GROWTH') == 'true'}


def test_the_learner_has_the_gpus_and_the_others_none(monkeypatch):
    monkeypatch.delenv('TF_FORCE_GPU_ALLOW_GROWTH', raising=False)
    found = placed()
    assert devices(found) == {'replay_server': '', 'train': '0,3', 'evaluate': '', 'collect_0': '', 'collect_1': ''}
    assert growth(found) == {'train'}
    found = placed(num_collectors=1, collect=Resources(accelerators=1))
    assert devices(found) == {'replay_server': '', 'train': '3', 'evaluate': '', 'collect_0': '0'}
    assert growth(found) == {'train', 'collect_0'}
    found = placed(num_workers=2)
    assert devices(found)['train'] == '0,3', 'which its workers divide'


def test_growth_that_the_user_has_set_stays(monkeypatch):
    monkeypatch.setenv('TF_FORCE_GPU_ALLOW_GROWTH', 'false')
    assert placed()['train'].environment['TF_FORCE_GPU_ALLOW_GROWTH'] == 'false'


def test_cores_are_divided():
    cores = {name: item.cores for name, item in placed(train=Resources(cores=3), collect=Resources(cores=1)).items()}
    assert cores == {
        'replay_server': None,
        'train': {2, 3, 5},
        'evaluate': None,
        'collect_0': {7},
        'collect_1': {11},
    }


def test_gpus_are_divided_and_hidden():
    found = placed(
        train=Resources(accelerators=1), collect=Resources(accelerators=0), evaluate=Resources(accelerators=1)
    )
    assert devices(found) == {'replay_server': '', 'train': '0', 'evaluate': '3', 'collect_0': '', 'collect_1': ''}


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        (
            {'train': Resources(cores=5), 'collect': Resources(cores=1)},
            'got --resources with cores of 7 (train 5, collect_0 1, collect_1 1); need at most the 6 of this machine',
        ),
        ({'train': Resources(memory_gb=16.5)}, 'memory_gb of 16.5 (train 16.5); need at most the 16 of'),
        ({'collect': Resources(accelerators=2)}, 'accelerators of 4 (collect_0 2, collect_1 2); need at most the 2'),
        (
            {'collect': Resources(custom={'sim': 1})},
            'got the resources sim for collect_0 on one machine; need --backend',
        ),
        ({'num_workers': 2, 'train': Resources(cores=4)}, 'cores of 8 (train 8); need at most the 6 of this machine'),
    ],
)
def test_refuses_what_the_machine_does_not_have(arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        placed(**arguments)


def test_workers_get_theirs_together():
    found = placed(num_workers=2, train=Resources(cores=2, accelerators=1))['train']
    assert (found.cores, found.environment['CUDA_VISIBLE_DEVICES']) == ({2, 3, 5, 7}, '0,3')


def test_this_machine_has_something(monkeypatch):
    monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '1,2')
    machine = this_machine()
    assert set(machine.cores) == os.sched_getaffinity(0)
    assert 0.1 < machine.memory_gb < 1e5
    assert machine.gpus == ['1', '2']
    for hidden in ('', '-1', '-1,2'):
        monkeypatch.setenv('CUDA_VISIBLE_DEVICES', hidden)
        assert this_machine().gpus == []


@pytest.mark.parametrize('warm_parent', [False, True])
def test_jobs_run_on_their_cores(run, run_dir, warm_parent):
    parent = (sys.executable, '-c', SERVE) if warm_parent else None
    run(
        warm_parent=parent,
        train=['wait=0.3', 'cores', 'env=CUDA_VISIBLE_DEVICES', 'write=trained'],
        evaluate=['wait=0.3', 'cores', 'await=trained', 'done'],
        resources={'train': Resources(cores=1, accelerators=0)},
    )
    everywhere = sorted(os.sched_getaffinity(0))
    assert f'cores [{everywhere[0]}]\nCUDA_VISIBLE_DEVICES=\n' in run_dir.log('train').read_text()
    assert f'cores {everywhere}\n' in run_dir.log('evaluate').read_text()


@pytest.mark.parametrize('warm_parent', [False, True])
def test_the_processes_of_a_run_see_their_gpus_only(run, run_dir, monkeypatch, warm_parent):
    """The machine's GPUs are named by `CUDA_VISIBLE_DEVICES`; the jobs use none."""
    monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '1,2')
    monkeypatch.delenv('TF_FORCE_GPU_ALLOW_GROWTH', raising=False)
    says = ['env=CUDA_VISIBLE_DEVICES', 'env=TF_FORCE_GPU_ALLOW_GROWTH']
    run(
        warm_parent=(sys.executable, '-c', SERVE) if warm_parent else None,
        train=[*says, 'write=trained'],
        evaluate=[*says, 'await=trained', 'done'],
    )
    assert 'CUDA_VISIBLE_DEVICES=1,2\nTF_FORCE_GPU_ALLOW_GROWTH=true\n' in run_dir.log('train').read_text()
    assert 'CUDA_VISIBLE_DEVICES=\nTF_FORCE_GPU_ALLOW_GROWTH=None\n' in run_dir.log('evaluate').read_text()
