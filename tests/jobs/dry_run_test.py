"""Dry runs of the train job: no server, no file, the real agent and source of batches."""

import dataclasses
import functools
import logging

import pytest
import tensorflow as tf

from tests.testing import forks
from tflearn.agents import ppo
from tflearn.core.experience import Iteration
from tflearn.core.types import EnvironmentSpecs
from tflearn.jobs.train import train
from tflearn.networks.networks import NetworkOptions


def _dry(run, shape='2x4', **given):
    run.start(train, num_train_steps=10, dry_run=shape, **given).join()


def test_reports_the_step_and_writes_nothing(small_run, caplog):
    before = sorted(small_run.dir.root.rglob('*'))
    with caplog.at_level(logging.INFO):
        _dry(small_run, strategy='tpu:10.0.0.2:8470')  # which is not connected to
    assert 'cluster shape 2x4: 8 replica(s) on 2 host(s)' in caplog.text
    assert '0/observation: float32 (8, 2, 4)' in caplog.text
    assert 'XLA compiled the train step of one replica for a CPU' in caplog.text
    assert 'host to host, batches: 3,072' in caplog.text, 'one process reads the batches of both hosts'
    assert sorted(small_run.dir.root.rglob('*')) == before
    with pytest.raises(ValueError, match="got the cluster shape '2'; need HOSTSxREPLICAS"):
        _dry(small_run, '2')


class _Environment:
    """An environment with another observation, of which nothing but the specs is asked."""

    def __init__(self, observation):
        self.specs = EnvironmentSpecs({'seen': observation}, tf.TensorSpec((), tf.int64, 'action'))

    def close(self):
        pass


@pytest.mark.parametrize(
    ('observation', 'line'),
    [
        (tf.TensorSpec((), tf.string), 'got strings in observation/seen of the environment; need numbers on a TPU; '),
        (tf.TensorSpec((None, 3)), r'got the shape \(None, 3\) of observation/seen in the environment; need all '),
        (tf.TensorSpec((3,), tf.float64), 'got float64 in observation/seen of the environment; need float32 on a '),
    ],
)
def test_names_what_a_tpu_refuses(small_run, observation, line):
    with pytest.raises(ValueError, match=line) as error:
        _dry(small_run, make_environment=lambda num_environments, seed: _Environment(observation))
    assert '\n' not in str(error.value)


def _ppo(**settings):
    return functools.partial(ppo.make_agent, network=NetworkOptions(fc_layer_params=(4,)), **settings)


def _minibatches(steps):
    replay = dataclasses.replace(ppo.EXPERIENCE.replay, training=Iteration(num_epochs=2, minibatch_steps=steps))
    slicing = dataclasses.replace(ppo.EXPERIENCE.slicing, sequence_length=5, stride=4)
    return dataclasses.replace(ppo.EXPERIENCE, replay=replay, slicing=slicing)


def test_names_a_batch_that_does_not_divide(small_run):
    with pytest.raises(ValueError, match='got Iteration.minibatch_steps=20 for 8 replicas; need a number that 8 div'):
        _dry(small_run, make_agent=_ppo(), experience=_minibatches(20))


@pytest.mark.slow
def test_minibatches_are_those_of_one_replica(small_run, caplog):
    with caplog.at_level(logging.INFO):
        _dry(small_run, make_agent=_ppo(), experience=_minibatches(16))
    assert '0/observation: float32 (2, 4)' in caplog.text


def _printing_agent(make_agent, specs, train_step, experience):
    agent = make_agent(specs, train_step, experience)
    train_alone = agent.train

    def train_and_print(data, weights=None):
        tf.print('in the step')
        return train_alone(data, weights)

    agent.train = train_and_print
    return agent


def test_names_an_operation_of_the_host(small_run):
    make = functools.partial(_printing_agent, small_run.factories()['make_agent'])
    with pytest.raises(ValueError, match='got the host operation PrintV2 in the train step .*; need operations that'):
        _dry(small_run, make_agent=make)


@pytest.mark.slow
def test_program(tmp_path):
    root = tmp_path / 'run'
    done = forks.run('scripts.train', f'--root_dir={root}', '--gin_file=dqn_cartpole', '--dry_run=2x2', timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    assert 'cluster shape 2x2: 4 replica(s) on 2 host(s)' in done.stderr
    assert not root.exists()
    done = forks.run('scripts.train', f'--root_dir={root}', '--gin_file=dqn_cartpole', '--dry_run=4', timeout=200)
    assert done.returncode == 2
    assert "error: got the cluster shape '4'; need HOSTSxREPLICAS" in done.stderr
