"""Several replay servers share the experience of a run."""

import functools

import pytest

from tflearn.agents import impala
from tflearn.core.experience import BatchItems, Experience, Queue, Slicing
from tflearn.core.waiting import wait_until
from tflearn.files.run_dir import RunDir, read_json, write_json
from tflearn.jobs.collect import collect
from tflearn.jobs.collect_settings import own_address
from tflearn.jobs.train import train
from tflearn.jobs.train_settings import Data, Initial
from tflearn.networks.networks import NetworkOptions
from tflearn.replay import backend
from tflearn.replay.storage import REPLAY

# One item in the queue.
QUEUE = Experience(
    slicing=Slicing(sequence_length=9, stride=8, pad_episodes=True),
    replay=Queue(max_size=1, max_policy_lag=2),
    batch=BatchItems(8),
)


def test_each_collector_writes_to_one_server_and_the_learner_reads_all(small_run, tmp_path):
    network = NetworkOptions(fc_layer_params=(8,))
    given = {'make_agent': functools.partial(impala.make_agent, network=network), 'experience': QUEUE}
    small_run.start_replay(**given)
    addresses, coordinator = [small_run.address], small_run.coordinator
    # `start_replay` waits for the status of the run's own server, which runs already; the jobs wait for this one.
    small_run.start_replay(run_dir=RunDir(tmp_path / 'other'), **given)
    addresses.append(small_run.address)
    small_run.coordinator = coordinator
    for name in ('collect_0', 'collect_1'):
        small_run.start(collect, name=name, num_environments=4, data_addresses=addresses, **given)
    job = small_run.start(train, num_train_steps=10**6, addresses=addresses, **given)

    def is_taken_from(address):
        info = backend.counts(address)
        return info is not None and info[REPLAY].samples > 0

    wait_until(lambda: all(map(is_taken_from, addresses)) or job.ended, 'items of both servers', 60)
    write_json(small_run.dir.stop_request, {'reason': 'enough'})
    job.join()
    assert read_json(small_run.dir.train_result)['reason'] == 'enough'


def test_assigns_collectors_to_servers():
    assert own_address((), 'guest') is None
    assert own_address(['a'], 'guest') == 'a'
    assert [own_address(['a', 'b'], f'collect_{i}') for i in range(4)] == ['a', 'b', 'a', 'b']
    with pytest.raises(ValueError, match="got the collector name 'guest' with several data_addresses"):
        own_address(['a', 'b'], 'guest')


@pytest.mark.slow
def test_batches_mix_the_tables_of_two_servers(small_run, tmp_path):
    addresses, coordinators = [], []
    for root in (small_run.dir, RunDir(tmp_path / 'other')):
        small_run.start_replay(run_dir=root)
        addresses.append(small_run.address)
        coordinators.append(small_run.coordinator)
    small_run.coordinator = coordinators[0]
    for name in ('collect_0', 'collect_1'):
        small_run.start(collect, name=name, num_environments=2, data_addresses=addresses)
    weights = {'addresses': addresses, 'weights': (3.0, 1.0)}
    small_run.start(train, num_train_steps=40, export_interval_steps=40, **weights).join()
    metrics = small_run.status('train')
    assert read_json(small_run.dir.train_result)['train_step'] == 40
    assert metrics['replay_size'] >= 50 and metrics['replay_size_1'] >= 50
    small_run.start(train, num_train_steps=60, **weights).join()
    assert read_json(small_run.dir.train_result)['train_step'] == 60


def test_rejects_weights_that_do_not_fit():
    with pytest.raises(ValueError, match=r'got Data.weights=\(1.0,\) for Data.addresses=\(\); need one for each'):
        Data(weights=(1.0,))
    with pytest.raises(ValueError, match=r'Data.weights with Experience.replay=Queue\(.*; need Uniform'):
        Data(addresses=('localhost:1',), weights=(1.0,)).check(QUEUE.replay, Initial())


def test_only_a_queue_can_have_several_servers(small_run):
    with pytest.raises(ValueError, match=r'Data.addresses with Experience.replay=Uniform\(.*; need a Queue'):
        small_run.start(train, num_train_steps=1, addresses=['localhost:1']).join()
