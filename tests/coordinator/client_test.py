"""What jobs of a run and its coordinator owe each other: contract, fencing, restarts. All of it over HTTP."""

import contextlib
import dataclasses
import threading
import time

import numpy as np
import pytest

from tests.coordinator.weights_transport_test import made
from tflearn.coordinator import control
from tflearn.coordinator.client import Coordinator, LearnerWatch, Role
from tflearn.coordinator.reports import CreditReader
from tflearn.coordinator.weights_transport import CoordinatorLost, RequestRefused
from tflearn.core.access import Access
from tflearn.core.table_counts import TableCounts
from tflearn.core.waiting import PeerLost, Stopped, wait_until
from tflearn.launch.local import free_address

CREDITS = control.Credits(5, 8)
ONE = [np.ones(3, np.float32)]
CONTRACT = {
    'variables': {'0000': 'float32[2, 3]', '0001': 'float32[3]'},
    '_names': {'0000': 'kernel:0', '0001': 'bias:0'},
    'settings': {'gamma': '0.99'},
    'shards': {'number': 2},
}


def message(version, step=1):
    one = made(ONE, step=step)
    return dataclasses.replace(one, counters={**one.counters, 'policy_version': version})


def report(owner='a', counts=None, **given):
    return control.Report(control.Lease('collect_0', owner), counts or {}, **given)


def test_replay_servers_are_found_by_index(coordinating):
    server = coordinating.serve()
    second = coordinating.job(server, 'replay_server_1', 'replay', contract=CONTRACT, index=1, address='b:2')
    assert second.addresses('replay') == ['', 'b:2']
    with pytest.raises(TimeoutError, match='waiting for the replay servers of the coordinator at localhost'):
        second.replay(0.3)
    coordinating.job(server, 'replay_server', 'replay', contract=CONTRACT, index=0, address='a:1')
    assert second.replay(5.0) == ('a:1', 'b:2')
    coordinating.job(server, 'replay_server', 'replay', contract=CONTRACT, index=0, address='c:3')
    assert second.replay(5.0) == ('c:3', 'b:2'), 'it moved'
    assert second.addresses('relay') == []


@pytest.mark.parametrize(
    ('changed', 'error'),
    [
        (
            {'variables': {'0000': 'float32[2, 4]', '0001': 'float32[3]'}},
            r'for another network: kernel:0 is float32\[2, 3\] there, float32\[2, 4\] here; need equal ones',
        ),
        ({'variables': {'0000': 'float32[2, 3]'}}, r'for another network: bias:0 is float32\[3\] there, absent here'),
        ({'settings': {'gamma': '0.9'}}, 'for other settings: gamma is 0.99 there, 0.9 here'),
        ({'shards': {'number': 3}}, 'for another number of replay servers: number is 2 there, 3 here'),
    ],
)
def test_a_job_with_another_contract_is_refused_in_one_line(coordinating, changed, error):
    server = coordinating.serve()
    coordinating.job(server, 'replay_server', 'replay', contract=CONTRACT, address='a:1')
    with pytest.raises(ValueError, match=f'got the coordinator at localhost:{server.port} {error}'):
        coordinating.job(server, contract={**CONTRACT, **changed})
    renamed = {**CONTRACT, '_names': {'0000': 'other', '0001': 'bias:0'}}
    coordinating.job(server, contract={name: renamed[name] for name in ('variables', '_names')})


def test_a_job_that_comes_first_waits_and_says_for_whom(coordinating):
    address = free_address()
    early = Coordinator(Access(address), 'collect_0')
    with pytest.raises(TimeoutError, match=f'waiting for the coordinator at {address}, which does not answer'):
        early.join(Role('collect', contract=CONTRACT), 0.3)
    server = coordinating.serve()
    server.state.phase = 'restoring the replay'
    early = Coordinator(Access(f'localhost:{server.port}'), 'collect_0')
    with (
        contextlib.closing(early),
        pytest.raises(TimeoutError, match=r'where no replay server has registered yet \(restoring the replay\)'),
    ):
        early.join(Role('collect', contract=CONTRACT), 0.3)
    stop = threading.Event()
    threading.Timer(0.2, stop.set).start()
    with pytest.raises(Stopped):
        Coordinator(Access(address), 'collect_0', stop).join(Role('collect'), 60.0)


def test_the_learner_makes_a_contract_that_replay_servers_complete(coordinating):
    server = coordinating.serve()
    learner = coordinating.learner(server, contract={'settings': {'gamma': '1'}})
    assert learner.addresses('replay') == []
    coordinating.job(
        server, 'replay_server', 'replay', contract={'settings': {'gamma': '1'}, 'shards': CONTRACT['shards']}
    )
    assert learner.addresses('replay') == ['', '']
    with pytest.raises(ValueError, match='other settings'):
        coordinating.job(server, 'replay_server', 'replay', contract={'settings': {'gamma': '2'}})


def test_an_older_learner_is_refused_and_a_newer_one_takes_over(coordinating):
    server = coordinating.serve()
    old = coordinating.learner(server, epoch=1)
    old.put_weights(message(1))
    new = coordinating.learner(server, epoch=2)
    new.put_weights(message(2, step=5))
    for write in (
        lambda: old.put_weights(message(9, step=9)),
        lambda: old.put_credits(CREDITS),
        lambda: old.reports(0, {}),
        lambda: old.beat(),
    ):
        with pytest.raises(RequestRefused, match='409: .*another learner has taken over this run'):
            write()
    with pytest.raises(TimeoutError, match=r'where another learner is .* epoch 1 .*; need a greater epoch than 2'):
        coordinating.learner(server, epoch=1, timeout_secs=0.5)
    assert new.status()['train_step'] == 5


def test_a_learner_with_a_directory_of_its_own_gets_the_next_epoch(coordinating):
    server = coordinating.serve()
    first = coordinating.learner(server, epoch=7)
    with pytest.raises(TimeoutError, match='another learner has taken over this run'):
        coordinating.learner(server, epoch=7, timeout_secs=0.5)  # while the other one lives
    first.close()
    assert coordinating.learner(server, epoch=1).epoch == 8


def test_an_epoch_far_ahead_is_refused_without_a_token(coordinating):
    server = coordinating.serve()
    with pytest.raises(RuntimeError, match='got epoch 1152921504606846976; need at most 1000 without --coordinator'):
        coordinating.learner(server, epoch=2**60)
    assert coordinating.learner(server, epoch=3).epoch == 3


def test_epochs_are_not_pushed_ahead_step_by_step_without_a_token(coordinating):
    server = coordinating.serve()
    coordinating.learner(server, epoch=3)
    coordinating.learner(server, epoch=1003)
    with pytest.raises(RuntimeError, match='got epoch 1004; need at most 1003 without --coordinator_token'):
        coordinating.learner(server, epoch=1004)


def test_policy_versions_never_go_back(coordinating):
    server = coordinating.serve()
    learner, collector = coordinating.learner(server), coordinating.job(server)
    learner.put_weights(message(4))
    learner.put_weights(message(4, step=2))
    with pytest.raises(RequestRefused, match='got policy version 3; need at least 4') as refused:
        learner.put_weights(message(3))
    assert refused.value.facts['newest_version'] == 4
    collector.report(report(policy_version=6))
    assert learner.status()['newest_version'] == 6, 'after a restart too, which forgets the weights'
    with pytest.raises(RequestRefused, match='need at least 6'):
        learner.put_weights(message(5))
    learner.put_weights(message(-1))  # before collection


def test_a_restarted_coordinator_gets_everything_again(coordinating):
    server = coordinating.serve()
    learner, collector = coordinating.learner(server, epoch=4), coordinating.job(server)
    replay = coordinating.job(server, 'replay_server', 'replay', address='a:1')
    learner.put_weights(message(4))
    before = learner.incarnation
    server.close()
    with pytest.raises(CoordinatorLost, match='does not answer'):
        collector.addresses('replay')
    server = coordinating.serve(port=server.port)
    replay.put_counts(0, {})  # it registers again
    assert collector.addresses('replay') == ['a:1']
    with pytest.raises(CoordinatorLost, match='was started again'):
        learner.reports(0, {})
    learner.put_weights(message(4))
    assert learner.incarnation != before and (learner.epoch, learner.status()['policy_version']) == (4, 4)
    with pytest.raises(TimeoutError, match='another learner'):
        coordinating.learner(server, epoch=4, timeout_secs=0.5)


def test_the_coordinator_of_another_run_is_refused(coordinating):
    server = coordinating.serve(run_id='one')
    coordinating.learner(server).close()
    collector = coordinating.job(server)
    server.close()
    coordinating.serve(port=server.port, run_id='two')
    coordinating.learner(server)
    with pytest.raises(ValueError, match='of the run two; need that of one, to which this job belongs'):
        collector.addresses('replay')


def test_newest_credits_reach_all_collectors(coordinating):
    server = coordinating.serve()
    learner = coordinating.learner(server)
    with contextlib.ExitStack() as stack:
        jobs = [coordinating.job(server, f'collect_{i}') for i in range(2)]
        readers = [stack.enter_context(contextlib.closing(CreditReader(job))) for job in jobs]
        for number in range(3):
            newest = dataclasses.replace(CREDITS, policy_version=number)
            learner.put_credits(newest)
            for reader in readers:
                wait_until(
                    lambda reader=reader, newest=newest: reader.newest == newest, 'the credits', 20, poll_secs=0.01
                )
        server.close()
        coordinating.serve(port=server.port)
        newest = dataclasses.replace(CREDITS, policy_version=9)
        learner.put_credits(newest)
        for reader in readers:
            wait_until(lambda reader=reader, newest=newest: reader.newest == newest, 'credits after a restart', 20)


def test_counts_of_replay_servers_are_summed(coordinating):
    server = coordinating.serve()
    learner = coordinating.learner(server)
    assert learner.counts() is None
    for index in range(2):
        job = coordinating.job(server, f'replay_server_{index}', 'replay', index=index, address=f'a:{index}')
        job.put_counts(index, {'replay': TableCounts(10 + index, 100, 20, 5)})
    counts = learner.counts()['replay']
    assert (counts.size, counts.max_size, counts.inserts, counts.samples) == (21, 200, 40, 10)
    server.close()
    assert learner.counts() is None


def test_a_replay_server_knows_since_when_it_has_heard_no_learner(coordinating):
    server, now = coordinating.serve(), [0.0]
    replay = coordinating.job(server, 'replay_server', 'replay', address='a:1')
    watch = LearnerWatch(clock=lambda: now[0])

    def silent_secs(secs=1.0, lost=False):
        now[0] += secs
        watch.update(None if lost else replay.put_counts(0, {}))
        return watch.silent_secs

    assert silent_secs() == silent_secs() == 0.0, 'there was no learner yet'
    learner = coordinating.learner(server)
    learner.beat()
    assert silent_secs() == 0.0
    learner._closed.set()  # killed: it does not say that it ends
    learner._thread.join(20)
    silent_secs()
    before = silent_secs()
    assert silent_secs(70.0) == before + 30.0, 'the server stood still'
    assert silent_secs(lost=True) == before + 31.0
    assert watch.is_lost(before) and not watch.is_lost(before + 32.0)
    learner.beat('ended')
    assert silent_secs() == silent_secs(100.0) == 0.0, 'it ended in order: the next one is waited for'


def test_gives_up_when_nothing_answers_but_not_while_the_machine_refuses(coordinating, monkeypatch, caplog):
    server = coordinating.serve()
    job, now = coordinating.job(server, 'replay_server', 'replay'), [time.monotonic()]
    start = now[0]
    monkeypatch.setattr('tflearn.coordinator.client.time.monotonic', lambda: now[0])
    job.status()
    failure = [TimeoutError('timed out')]

    def ask(*_):
        raise failure[0]

    monkeypatch.setattr('tflearn.coordinator.client.HttpClient.ask', ask)

    def at(secs, error):
        now[0], failure[0] = start + secs, error
        with pytest.raises(CoordinatorLost):
            job.status()
        job.check('acting continues', 100.0, 'its last state')

    at(5.0, TimeoutError('timed out'))
    at(90.0, TimeoutError('timed out'))
    assert 'has not answered for 90 s; acting continues' in caplog.text
    at(102.0, ConnectionRefusedError('refused'))  # its machine is there: it may be started again
    at(110.0, TimeoutError('timed out'))
    at(209.0, TimeoutError('timed out'))
    with pytest.raises(PeerLost, match=r'for 100 s; need one within 100 s .*last answered: its last state'):
        at(210.0, TimeoutError('timed out'))
