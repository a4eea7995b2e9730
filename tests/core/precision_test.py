"""Precision of layers, and of a complete train step; tests/networks/networks_test.py tests the networks."""

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.agents.dqn import dqn_agent
from tf_agents.networks import q_network
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts
from tf_agents.trajectories import trajectory

from tests.agents import example_data
from tests.testing.algorithms import ALGORITHMS
from tflearn.core import agent_data, precision
from tflearn.networks import networks
from tflearn.optimization.optimizers import Optimizer, OptimizerOptions

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


# Small layers: a CPU computes in float16 slowly.
@pytest.mark.parametrize(
    ('name', 'layers'), [('dqn', ()), pytest.param('sac', ('critic_fc_layer_params',), marks=pytest.mark.slow)]
)
def test_float16_with_scaled_losses_stays_near_float32(name, layers):
    """Gradients below 1e-8 would be 0 in float16 without a scale; and a step that overflows is skipped."""
    found = {}
    for dtype in ('float32', 'float16'):
        algorithm = ALGORITHMS[name]
        with precision.use(dtype):
            optimizer = OptimizerOptions(1e-3, arguments={'epsilon': 1e-12})
            agent = algorithm.make(layers=dict.fromkeys(('fc_layer_params', *layers), (16,)), optimizer=optimizer)
        precision.check_agent(agent, dtype)
        for i, variable in enumerate(agent.trainable_variables):
            if variable.shape.rank > 1:
                variable.assign(tf.random.stateless_uniform(variable.shape, (i, 7), -0.1, 0.1))
        agent.initialize()
        train = tf.function(agent.train, autograph=False)
        data, weights = example_data.sequences(agent, 32, algorithm.length, 1), tf.fill([32], 1e-7)
        before = [variable.numpy() for variable in agent.trainable_variables]
        for _ in range(10):
            train(data, weights)
        after = [variable.numpy() for variable in agent.trainable_variables]
        found[dtype] = [np.abs(new - old).max() for new, old in zip(after, before, strict=True)]
    (optimizer, *_) = (each for each in agent.submodules if isinstance(each, Optimizer))
    assert optimizer.num_skipped == 0
    np.testing.assert_allclose(found['float16'], found['float32'], rtol=0.5)
    assert max(found['float32']) > 0
    scale = float(optimizer._loss_scale.value)
    train(data._replace(observation=tf.fill(data.observation.shape, 1e6)), weights)  # beyond float16
    assert optimizer._loss_scale.value < scale and optimizer.num_skipped == 1
    assert all(np.isfinite(variable.numpy()).all() for variable in agent.trainable_variables)


def test_float16_is_for_optimizers_that_scale_losses():
    agent, _ = _train('bfloat16')
    with pytest.raises(ValueError, match="got precision='float16' for a DdqnAgent; need an agent of tflearn.agents"):
        precision.check_agent(agent, 'float16')
    wrapped = agent_data.WrappedAgent(agent, agent.policy, agent.collect_policy, 'transformed')
    with pytest.raises(ValueError, match="got precision='float16' for a DdqnAgent"):
        precision.check_agent(wrapped, 'float16')


def test_restores_the_previous_precision():
    with pytest.raises(KeyError), precision.use('bfloat16'):
        assert _dtype().name == 'mixed_bfloat16'
        with precision.use('float32'):
            assert _dtype().name == 'float32'
        assert _dtype().name == 'mixed_bfloat16'
        raise KeyError
    assert _dtype().name == 'float32'


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
