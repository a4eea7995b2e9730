"""Dry runs of the train job: no server, no file, the real agent and source of batches."""

import dataclasses
import functools
import logging
import os
import re

import pytest
import tensorflow as tf

from tests.testing import forks, lanes
from tflearn.agents import ppo
from tflearn.core.experience import Iteration
from tflearn.core.types import EnvironmentSpecs
from tflearn.jobs.train import train
from tflearn.learner import tpu_compiler
from tflearn.networks.networks import NetworkOptions


def _dry(run, shape='2x4', **given):
    run.start(train, num_train_steps=10, dry_run=True, cluster_shape=shape, **given).join()


def test_reports_the_step_and_writes_nothing(small_run, caplog):
    before = sorted(small_run.dir.root.rglob('*'))
    with caplog.at_level(logging.INFO):
        _dry(small_run, strategy='tpu:10.0.0.2:8470')  # which is not connected to
    assert 'cluster shape 2x4: 8 replica(s) on 2 host(s)\nbatch of one replica; 64 in the global batch:' in caplog.text
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


def _with_operation(make_agent, operation, specs, train_step, experience):
    agent = make_agent(specs, train_step, experience)
    train_alone = agent.train

    def train_with_operation(data, weights=None):
        operation(data.reward)
        return train_alone(data, weights)

    agent.train = train_with_operation
    return agent


@lanes.compiles
@pytest.mark.parametrize(
    ('operation', 'kind'),
    [
        (lambda x: tf.numpy_function(lambda y: y, [x], tf.float32), 'PyFunc'),
        (lambda x: tf.py_function(lambda y: y, [x], tf.float32), 'EagerPyFunc'),
        (tf.print, 'StringFormat'),
    ],
)
def test_names_an_operation_of_the_host(small_run, operation, kind):
    make = functools.partial(_with_operation, small_run.factories()['make_agent'], operation)
    with pytest.raises(
        ValueError, match=rf'got the host operation {kind} .*, made by \S+ in \S*dry_run_test\.py:\d+\);'
    ):
        _dry(small_run, make_agent=make)


@pytest.mark.parametrize('settings', [{'cluster_shape': '2x4'}, {'tpu': 'v5e'}])
def test_rejects_settings_of_a_dry_run_without_one(small_run, settings):
    with pytest.raises(
        ValueError, match=r'got \(False, .*\) as dry_run, cluster_shape and tpu in a job that trains; need a'
    ):
        small_run.start(train, num_train_steps=10, **settings).join()


def test_says_how_to_make_the_compiler(small_run, monkeypatch):
    monkeypatch.delenv(tpu_compiler.VARIABLE, raising=False)
    line = "got TFLEARN_TPU_COMPILER=''; need .*; make it by python3.12 -m venv .* requirements/tpu_compiler/hashed/"
    if not lanes.IS_CURRENT:
        line = "got TensorFlow 2.15.* for a TPU's compiler; need 2.20 at least, .*; use the current lane"
    with pytest.raises(ValueError, match='got 3x8 .* for a TPU v5e; need a slice that exists'):
        _dry(small_run, '3x8', tpu='v5e')
    with pytest.raises(ValueError, match=line) as error:
        _dry(small_run, tpu='v5e')
    assert '\n' not in str(error.value)


@pytest.mark.slow
@pytest.mark.skipif(not lanes.IS_CURRENT, reason='TensorFlow 2.15 does not lower reductions over replicas')
@pytest.mark.skipif(tpu_compiler.VARIABLE not in os.environ, reason=f'needs {tpu_compiler.VARIABLE}')
def test_compiles_for_a_tpu(small_run, caplog):
    with caplog.at_level(logging.INFO):
        _dry(small_run, '2x4', tpu='v5e')
    report = r'compiled for TPU v5e in .*, with [1-9]\d* sums over 8 replicas; of each core:\n  HBM: ([\d,]+) of [\d,]+'
    (hbm,) = re.findall(report, caplog.text)
    (flops,) = re.findall(r'a train step: ([\d,]+) FLOPs', caplog.text)
    # At least the batch of one replica, 8 x 2 steps of 32 bytes; and at most what a chip has.
    assert 512 < int(hbm.replace(',', '')) < 16e9
    # The network's products, 4 -> 8 -> 2 for 8 steps: forward, the target network's, and the weights' gradients.
    assert int(flops.replace(',', '')) > 3 * 2 * 8 * (4 * 8 + 8 * 2)
    make = functools.partial(
        _with_operation,
        small_run.factories()['make_agent'],
        lambda x: tf.py_function(lambda y: y, [x], tf.float32),
    )
    with pytest.raises(ValueError, match='got the host operation EagerPyFunc in the train step .*; need operations'):
        _dry(small_run, '2x4', tpu='v5e', make_agent=make)


@pytest.mark.slow
def test_program(tmp_path):
    root = tmp_path / 'run'
    given = 'scripts.train', f'--root_dir={root}', '--gin_file=dqn_cartpole', '--dry_run'
    done = forks.run(*given, '--cluster_shape=2x2', timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    assert 'cluster shape 2x2: 4 replica(s) on 2 host(s)' in done.stderr
    assert not root.exists()
    done = forks.run(*given, '--cluster_shape=4', timeout=200)
    assert done.returncode == 2
    assert "error: got the cluster shape '4'; need HOSTSxREPLICAS" in done.stderr
