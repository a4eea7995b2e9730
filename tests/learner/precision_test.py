"""Precision of layers, and of a complete train step; tests/networks/networks_test.py tests the networks."""

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.agents.dqn import dqn_agent
from tf_agents.networks import q_network
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts
from tf_agents.trajectories import trajectory

from tflearn.learner import precision
from tflearn.networks import networks

OBSERVATION = tensor_spec.BoundedTensorSpec((3,), tf.float32, -1.0, 1.0, 'observation')
DISCRETE = tensor_spec.BoundedTensorSpec((), tf.int64, 0, 1, 'action')


def _dtype():
    return tf.keras.mixed_precision.global_policy()


def _q_network():
    return networks.QNetwork(OBSERVATION, DISCRETE, networks.NetworkOptions(fc_layer_params=(64, 32)))


def _fix_weights(net):
    for i, variable in enumerate(net.variables):
        variable.assign(tf.random.stateless_normal(variable.shape, (i, 9), stddev=variable.shape[0] ** -0.5))


def _train(name):
    with precision.use(name):
        net = _q_network()
        agent = dqn_agent.DdqnAgent(
            ts.time_step_spec(OBSERVATION), DISCRETE, q_network=net, optimizer=tf.keras.optimizers.Adam(3e-3)
        )
    _fix_weights(net)
    agent.initialize()
    train = tf.function(agent.train, autograph=False)
    ones = tf.ones((64, 2), tf.int32)
    losses = []
    for step in range(60):
        rows = tf.random.stateless_uniform((64, 2, 3), (step, 1), -1.0, 1.0)
        action = tf.cast(rows[..., 0] > 0, tf.int64)
        data = trajectory.Trajectory(ones, rows, action, (), ones, rows[..., 1], tf.zeros((64, 2)))
        info = train(data)
        assert info.loss.dtype == info.extra.td_loss.dtype == tf.float32
        losses.append(float(info.loss))
    return agent, np.asarray(losses)


def test_training_stays_near_float32():
    _, exact = _train('float32')
    agent, rough = _train('bfloat16')
    assert {variable.dtype for variable in agent.policy.variables()} == {tf.float32}
    assert np.mean(rough[-10:]) < 0.3 * np.mean(rough[:10]), 'it learns'
    np.testing.assert_allclose(rough, exact, atol=0.02)
    precision.check_agent(agent, 'bfloat16')


def test_restores_the_previous_precision():
    with pytest.raises(KeyError), precision.use('bfloat16'):
        assert _dtype().name == 'mixed_bfloat16'
        with precision.use('float32'):
            assert _dtype().name == 'float32'
        assert _dtype().name == 'mixed_bfloat16'
        raise KeyError
    assert _dtype().name == 'float32'


def test_rejects_unknown_precision():
    with (
        pytest.raises(ValueError, match="got precision='float16'; need 'float32' or 'bfloat16'"),
        precision.use('float16'),
    ):
        pass


def test_tf_agents_networks_do_not_compute_in_bfloat16_by_default():
    with precision.use('bfloat16'):
        net = q_network.QNetwork(OBSERVATION, DISCRETE)
        net.create_variables()
    precision.check_agent(net, 'float32')
    with pytest.raises(ValueError, match='got no layer that computes in bfloat16; .*global_policy'):
        precision.check_agent(net, 'bfloat16')


def test_rejects_variables_in_bfloat16():
    net = q_network.QNetwork(OBSERVATION, DISCRETE, dtype='bfloat16')
    net.create_variables()
    with pytest.raises(ValueError, match=r"got the variable .*kernel.* in bfloat16; need float32; .*'mixed_bfloat16'"):
        precision.check_agent(net, 'bfloat16')
