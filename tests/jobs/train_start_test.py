"""How a run begins: the precision of its networks, and another run's weights."""

import functools
import threading

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.agents.dqn import dqn_agent
from tf_agents.networks import q_network

from tests.testing import golden_runs, lanes
from tflearn.agents import dqn
from tflearn.core.train_step import create_train_step
from tflearn.core.types import specs_of, zeros
from tflearn.core.waiting import PeerStopped, StopEvent, wait_until
from tflearn.files.run_dir import read_json
from tflearn.jobs.collect import collect
from tflearn.jobs.train import train
from tflearn.networks.networks import NetworkOptions
from tflearn.optimization.optimizers import OptimizerOptions
from tflearn.policies import external

FEW = {'steps_per_call': 20, 'checkpoint_interval_steps': 50, 'export_interval_steps': 50, 'publish_interval_steps': 20}


def _weights(run_dir):
    reader = tf.train.load_checkpoint(str(run_dir.checkpoints))
    names = sorted(name for name in reader.get_variable_to_shape_map() if name.startswith('agent/_q_network/'))
    assert names
    return [reader.get_tensor(name) for name in names]


@pytest.mark.slow  # tests/core/precision_test.py trains in bfloat16, too
def test_bfloat16_for_the_learner_alone(small_run):
    small_run.start_replay()
    small_run.start(collect, num_environments=2)
    small_run.start(train, num_train_steps=60, precision='bfloat16', **FEW).join()
    assert read_json(small_run.dir.train_result)['train_step'] == 60
    assert {weight.dtype for weight in _weights(small_run.dir)} == {np.dtype(np.float32)}
    # The exported policy has float32 inputs and outputs.
    policy = external.load(small_run.dir.greedy_policy)
    specs = specs_of(small_run.factories()['make_environment'])
    policy.check(specs)
    actions, _ = policy.action(zeros(specs.time_step, (3,)))
    assert actions.shape == (3,)
    # A learner in float32 continues from the checkpoint.
    small_run.start(collect, num_environments=2)
    small_run.start(train, num_train_steps=80, **FEW).join()
    assert read_json(small_run.dir.train_result)['train_step'] == 80


def _deaf_agent(specs, train_step, experience):
    """TF-Agents' network, which computes in float32 whatever the precision."""
    return dqn_agent.DqnAgent(
        specs.time_step,
        specs.action,
        q_network=q_network.QNetwork(specs.observation, specs.action),
        optimizer=tf.keras.optimizers.Adam(1e-3),
        train_step_counter=train_step,
    )


def test_rejects_bfloat16_without_effect(small_run):
    with pytest.raises(ValueError, match='got no layer that computes in bfloat16'):
        small_run.start(train, num_train_steps=60, precision='bfloat16', make_agent=_deaf_agent).join()


@lanes.classic
def test_starts_with_another_runs_weights(small_run, tmp_path):
    other, run = golden_runs.dqn(tmp_path / 'other'), small_run
    run.start_replay()
    run.start(collect, num_environments=2)
    still = functools.partial(
        dqn.make_agent, network=NetworkOptions(fc_layer_params=(8,)), optimizer=OptimizerOptions(0.0)
    )
    given = {'checkpoint': str(other.root), 'make_agent': still}
    run.start(train, num_train_steps=20, **FEW | given).join()
    for ours, theirs in zip(_weights(run.dir), _weights(other), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    # A run that has a checkpoint continues from it, even if the other run was deleted.
    given['checkpoint'] = str(tmp_path / 'deleted')
    run.start(collect, num_environments=2)
    run.start(train, num_train_steps=40, **FEW | given).join()
    assert read_json(run.dir.train_result)['train_step'] == 40
    for ours, theirs in zip(_weights(run.dir), _weights(other), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_rejects_checkpoints_that_cannot_be_loaded(small_run, tmp_path):
    agent = dqn.make_agent(*_parts(small_run), network=NetworkOptions(fc_layer_params=(8,)))
    path = tf.train.Checkpoint(agent=agent, train_step=agent.train_step_counter).write(str(tmp_path / 'ckpt-1'))
    small_run.start_replay()
    for changes, message in (
        ({'checkpoint': 'nowhere'}, 'which cannot be read'),
        ({'checkpoint': 'gs://bucket/run'}, 'which is a URL'),
        ({'prefixes': ('agent/_critic',)}, 'nothing is called agent/_critic here'),
    ):
        with pytest.raises(ValueError, match=message):
            small_run.start(train, num_train_steps=20, **{'checkpoint': path} | changes, **FEW).join()
    assert not small_run.dir.checkpoints.exists()


def _parts(run):
    return specs_of(run.factories()['make_environment']), create_train_step(), run.experience


@lanes.classic
def test_process_may_be_ended_before_the_first_train_step(small_run):
    """There is nothing to save yet, and tracing cannot be interrupted."""
    small_run.start_replay()
    begun, goes_on, stop = threading.Event(), threading.Event(), StopEvent()

    def traces_for_long(specs, train_step, experience):
        begun.set()
        assert goes_on.wait(60)
        return small_run.factories()['make_agent'](specs, train_step, experience)

    job = small_run.start(train, num_train_steps=60, make_agent=traces_for_long, stop=stop, **FEW)
    assert begun.wait(60)
    stop.before_exit()
    assert small_run.status('train')['state'] == 'stopped'
    goes_on.set()
    wait_until(lambda: small_run.status('train')['state'] == 'waiting for data' or job.ended, 'the learner', 60)
    wait_until(lambda: stop.before_exit is None or job.ended, 'the loop', 60)
    stop.set()
    job.join()
    assert small_run.status('train')['state'] == 'stopped'
    assert (small_run.dir.checkpoints / 'ckpt-0.index').exists()


def test_can_be_stopped_before_the_start(small_run):
    stop = threading.Event()
    stop.set()
    small_run.start(train, num_train_steps=60, stop=stop, **FEW).join()
    assert small_run.status('train')['state'] == 'stopped'


@pytest.mark.slow
def test_a_notice_of_maintenance_saves_and_asks_for_another_start(small_run, metadata):
    small_run.start_replay()
    small_run.start(collect, num_environments=2)
    job = small_run.start(train, num_train_steps=1_000_000, watch_maintenance=True, **FEW)
    wait_until(lambda: small_run.status('train').get('train_step', 0) > 60 or job.ended, 'train steps', 60)
    metadata.values['maintenance-event'] = 'TERMINATE_ON_HOST_MAINTENANCE'
    with pytest.raises(PeerStopped, match='maintenance-event=TERMINATE_ON_HOST_MAINTENANCE; start it again'):
        job.join()
    step = small_run.status('train')['train_step']
    assert tf.train.latest_checkpoint(str(small_run.dir.checkpoints)).endswith(str(step)), 'and not of an interval'
    assert not small_run.dir.train_result.exists()
    metadata.values['maintenance-event'] = 'NONE'
    small_run.start(train, num_train_steps=step + 20, watch_maintenance=True, **FEW).join()
    assert read_json(small_run.dir.train_result)['train_step'] == step + 20
