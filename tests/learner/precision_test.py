"""Mixed precision with TF-Agents' networks: what is needed around them so that losses and distributions are float32."""

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.agents.ddpg import critic_network
from tf_agents.agents.dqn import dqn_agent
from tf_agents.agents.sac import sac_agent, tanh_normal_projection_network
from tf_agents.networks import actor_distribution_network, network, q_network, value_network
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts
from tf_agents.trajectories import trajectory

from tflearn.learner import precision

OBSERVATION = tensor_spec.BoundedTensorSpec((3,), tf.float32, -1.0, 1.0, 'observation')
DISCRETE = tensor_spec.BoundedTensorSpec((), tf.int64, 0, 1, 'action')
CONTINUOUS = tensor_spec.BoundedTensorSpec((2,), tf.float32, -1.0, 1.0, 'action')
OBSERVATIONS = tf.random.stateless_uniform((8, 3), (5, 6), -1.0, 1.0)
ACTIONS = tf.random.stateless_uniform((8, 2), (7, 8), -1.0, 1.0)


class Float32Outputs(network.Network):
    """A network whose outputs are cast to float32; a copy of it is a copy of the network."""

    def __init__(self, inner):
        super().__init__(inner.input_tensor_spec, inner.state_spec, inner.name)
        self._inner = inner

    def call(self, inputs, step_type=(), network_state=(), training=False):
        outputs, state = self._inner(inputs, step_type=step_type, network_state=network_state, training=training)
        return tf.nest.map_structure(lambda value: tf.cast(value, tf.float32), outputs), state

    def copy(self, **kwargs):
        return type(self)(self._inner.copy(**kwargs))


class Float32Projection(tanh_normal_projection_network.TanhNormalProjectionNetwork):
    """Takes what an encoder computed in bfloat16; what it makes of it is float32."""

    def call(self, inputs, outer_rank, training=False, mask=None):
        return super().call(tf.cast(inputs, tf.float32), outer_rank, training, mask)


def _projection(spec):
    with precision.use('float32'):
        return Float32Projection(spec)


def _dtype():
    return tf.keras.mixed_precision.global_policy()


def _q_network():
    return Float32Outputs(q_network.QNetwork(OBSERVATION, DISCRETE, fc_layer_params=(64, 32), dtype=_dtype()))


def _value_network():
    return Float32Outputs(value_network.ValueNetwork(OBSERVATION, fc_layer_params=(64, 32), dtype=_dtype()))


def _critic_network():
    layers = {'observation_fc_layer_params': (64,), 'joint_fc_layer_params': (32,)}
    return Float32Outputs(critic_network.CriticNetwork((OBSERVATION, CONTINUOUS), **layers))


def _actor_network():
    return actor_distribution_network.ActorDistributionNetwork(
        OBSERVATION, CONTINUOUS, fc_layer_params=(64, 32), dtype=_dtype(), continuous_projection_net=_projection
    )


def _fix_weights(net):
    for i, variable in enumerate(net.variables):
        variable.assign(tf.random.stateless_normal(variable.shape, (i, 9), stddev=variable.shape[0] ** -0.5))


def _outputs(make, inputs, name):
    """Builds a network of fixed weights in a precision. Returns it and its outputs."""
    with precision.use(name):
        net = make()
        net.create_variables()
    _fix_weights(net)
    outputs, _ = net(inputs, step_type=tf.ones((8,), tf.int32), network_state=())
    return net, outputs


@pytest.mark.parametrize(
    ('make', 'inputs'),
    [(_q_network, OBSERVATIONS), (_value_network, OBSERVATIONS), (_critic_network, (OBSERVATIONS, ACTIONS))],
)
def test_outputs_are_float32_and_near(make, inputs):
    _, exact = _outputs(make, inputs, 'float32')
    net, rough = _outputs(make, inputs, 'bfloat16')
    precision.check_agent(net, 'bfloat16')
    assert exact.dtype == rough.dtype == tf.float32
    assert {variable.dtype for variable in net.variables} == {tf.float32}
    np.testing.assert_allclose(rough, exact, atol=0.03)
    assert (rough.numpy() != exact.numpy()).any(), 'it did compute in bfloat16'


def test_distributions_are_float32_and_near():
    _, exact = _outputs(_actor_network, OBSERVATIONS, 'float32')
    net, rough = _outputs(_actor_network, OBSERVATIONS, 'bfloat16')
    precision.check_agent(net, 'bfloat16')
    assert rough.log_prob(ACTIONS * 0.9).dtype == rough.sample().dtype == tf.float32
    np.testing.assert_allclose(rough.mode(), exact.mode(), atol=0.03)
    np.testing.assert_allclose(rough.log_prob(ACTIONS * 0.9), exact.log_prob(ACTIONS * 0.9), atol=0.1)


def test_a_copy_has_weights_of_its_own():
    net, _ = _outputs(_q_network, OBSERVATIONS, 'bfloat16')
    with precision.use('bfloat16'):
        other = net.copy(name='Target')
        other.create_variables()
    assert not {id(v) for v in net.variables} & {id(v) for v in other.variables}
    assert len(net.variables) == len(other.variables)


def _train(name):
    with precision.use(name):
        net = _q_network()
        agent = dqn_agent.DdqnAgent(
            ts.time_step_spec(OBSERVATION), DISCRETE, q_network=net, optimizer=tf.keras.optimizers.Adam(3e-3)
        )
    _fix_weights(net)
    agent.initialize()
    train = tf.function(agent.train)
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


def test_sac_trains():
    with precision.use('bfloat16'):
        agent = sac_agent.SacAgent(
            ts.time_step_spec(OBSERVATION),
            CONTINUOUS,
            critic_network=_critic_network(),
            actor_network=_actor_network(),
            actor_optimizer=tf.keras.optimizers.Adam(1e-3),
            critic_optimizer=tf.keras.optimizers.Adam(1e-3),
            alpha_optimizer=tf.keras.optimizers.Adam(1e-3),
        )
    agent.initialize()
    ones, rows = tf.ones((8, 2), tf.int32), tf.stack([OBSERVATIONS, OBSERVATIONS[::-1]], axis=1)
    action = tf.stack([ACTIONS, ACTIONS], axis=1)
    data = trajectory.Trajectory(ones, rows, action, (), ones, rows[..., 1], tf.ones((8, 2)))
    info = tf.function(agent.train)(data)
    assert {value.dtype for value in tf.nest.flatten(info)} == {tf.float32}
    assert np.isfinite(float(info.loss))
    precision.check_agent(agent, 'bfloat16')


def test_the_precision_before_comes_back():
    with pytest.raises(KeyError), precision.use('bfloat16'):
        assert _dtype().name == 'mixed_bfloat16'
        with precision.use('float32'):
            assert _dtype().name == 'float32'
        assert _dtype().name == 'mixed_bfloat16'
        raise KeyError
    assert _dtype().name == 'float32'


def test_nonsense():
    with (
        pytest.raises(ValueError, match="got precision='float16'; need 'float32' or 'bfloat16'"),
        precision.use('float16'),
    ):
        pass


def test_tf_agents_networks_left_to_themselves_do_not_compute_in_bfloat16():
    with precision.use('bfloat16'):
        net = q_network.QNetwork(OBSERVATION, DISCRETE)
        net.create_variables()
    precision.check_agent(net, 'float32')
    with pytest.raises(ValueError, match='got no layer that computes in bfloat16; .*global_policy'):
        precision.check_agent(net, 'bfloat16')


def test_variables_in_bfloat16_are_refused():
    net = q_network.QNetwork(OBSERVATION, DISCRETE, dtype='bfloat16')
    net.create_variables()
    with pytest.raises(ValueError, match=r"got the variable .*kernel.* in bfloat16; need float32; .*'mixed_bfloat16'"):
        precision.check_agent(net, 'bfloat16')
