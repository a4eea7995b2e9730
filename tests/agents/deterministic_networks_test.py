import numpy as np
import tensorflow as tf
from tf_agents.specs import tensor_spec

from tests.agents import example_data
from tflearn.agents import td3
from tflearn.core.types import EnvironmentSpecs, zeros
from tflearn.networks.critics import CriticOptions
from tflearn.networks.networks import DeterministicActor, NetworkOptions

ACTION = {
    'a': tensor_spec.BoundedTensorSpec((2, 2), tf.float64, 0.1, 0.7),
    'b': tensor_spec.BoundedTensorSpec((), tf.float32, -3.0, 1.0),
}
SPECS = EnvironmentSpecs(example_data.CONTINUOUS.observation, ACTION)


def test_actions_are_within_their_bounds_and_start_in_the_middle():
    actor = DeterministicActor(SPECS.observation, ACTION, NetworkOptions((8,)))
    for observation in (tf.zeros((5, 3)), tf.zeros((5, 4, 3))):
        actions, state = actor(observation)
        assert state == ()
        for name, spec in ACTION.items():
            assert actions[name].dtype == spec.dtype
            assert actions[name].shape == (*observation.shape[:-1], *spec.shape)
            np.testing.assert_allclose(actions[name], (spec.minimum + spec.maximum) / 2, atol=0.01)
    for variable in actor.variables:
        variable.assign(tf.random.stateless_uniform(variable.shape, (1, 2), -1e3, 1e3))
    for sign in (-1.0, 1.0):
        actions, _ = actor(sign * tf.ones((1, 3)))
        for name, spec in ACTION.items():
            shares = np.abs(actions[name] - (spec.minimum + spec.maximum) / 2) / ((spec.maximum - spec.minimum) / 2)
            np.testing.assert_allclose(shares, 1.0, rtol=1e-5)


def test_no_two_networks_share_weights():
    made, target_actor = td3.make_networks(SPECS, NetworkOptions((8,), (9,)), CriticOptions(2))
    networks = made.actor, made.critics, target_actor, made.targets
    variables = [variable.ref() for network in networks for variable in network.variables]
    assert len(set(variables)) == len(variables) == 2 * (6 + 4)
    assert made.critics(tf.zeros((4, 3)), tf.zeros((4, 5))).shape == (4, 2, 1)


def test_noise_may_change():
    deviation = tf.Variable(0.0)
    actor = DeterministicActor(SPECS.observation, ACTION, NetworkOptions((8,)))
    policy = td3.NoisyPolicy(SPECS, actor, lambda: deviation.read_value())
    steps = zeros(SPECS.time_step, (300,))
    assert np.ptp(policy.action(steps).action['b']) == 0.0
    deviation.assign(0.1)
    np.testing.assert_allclose(np.std(policy.action(steps).action['b']), 0.2, rtol=0.2)
    wide = policy.distribution(steps).action
    assert wide['a'].event_shape == (2, 2) and wide['b'].event_shape == ()
