"""Collectors are killed while a learner trains: it continues, and never gets a partial item."""

import threading

import numpy as np
import pytest
import tensorflow as tf

from tests import fakes
from tests.replay.replay_program import EXPERIENCE
from tests.testing import forks
from tflearn.agents import dqn
from tflearn.core.train_step import create_train_step
from tflearn.core.types import EnvironmentSpecs
from tflearn.core.waiting import wait_until
from tflearn.networks.networks import NetworkOptions
from tflearn.sampling import replay_servers


@pytest.mark.parametrize('num_kills', [2, pytest.param(12, marks=pytest.mark.slow)])
def test_training_continues_without_partial_items(serve, tmp_path, num_kills):
    served = serve(EXPERIENCE)
    environment = EnvironmentSpecs(fakes.OBSERVATION_SPEC, fakes.ACTION_SPEC)
    agent = dqn.make_agent(environment, create_train_step(), EXPERIENCE, network=NetworkOptions(fc_layer_params=(8,)))
    agent.initialize()
    train = tf.function(agent.train, autograph=False)
    source = replay_servers.uniform_draws(served.address, served.storage, 16, 60.0)
    draw = tf.function(source.draw, autograph=False)

    def train_steps(count):
        for step in range(count):
            assert source.grant(1), source.error
            data, _ = draw(tf.constant(1), tf.constant(step, tf.int64))
            data = tf.nest.map_structure(lambda column: column[0], data)
            _check(data)
            assert np.isfinite(train(data).loss)

    try:
        for _ in range(num_kills):
            items = served.table().size
            log = tmp_path / 'collector.log'
            collector = forks.start('tests.replay.collector_program', served.address, log=log)
            try:
                grown = lambda items=items: served.table().size > items + 20  # noqa: E731
                wait_until(grown, 'items of the new collector', 120)
                train_steps(20)
                threading.Event().wait(0.05)
            finally:
                collector.kill()  # SIGKILL
                collector.wait(30)
            train_steps(20)
    finally:
        source.close()
    assert agent.train_step_counter == 40 * num_kills


def _check(data):
    """Both rows are consecutive steps of one episode; each field is the value that the environment returned."""
    episode, step = data.observation[..., 0].numpy(), data.observation[..., 1].numpy()
    np.testing.assert_array_equal(episode[:, 0], episode[:, 1])
    np.testing.assert_array_equal(step[:, 0] + 1, step[:, 1])
    np.testing.assert_array_equal(data.reward[:, 0], 1.0)
    np.testing.assert_array_equal(data.step_type[:, 0] == 0, step[:, 0] == 0)
    np.testing.assert_array_equal(data.next_step_type[:, 0], data.step_type[:, 1])
    np.testing.assert_array_equal(data.discount[:, 0] == 0, data.step_type[:, 1] == 2)
