"""Agents learn the same whatever the unit of actions is, and leave out numbers whose bounds are equal."""

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts
from tf_agents.trajectories import trajectory

from tests.testing import algorithms, lanes
from tflearn.agents.rescaled_actions import ActionRescaling
from tflearn.core.errors import UserValueError
from tflearn.core.types import EnvironmentSpecs
from tflearn.learner.checkpoints import Checkpoints

OBSERVATION = tf.TensorSpec((2,), tf.float32, 'observation')
UNITS = np.array([2.0**-7, 1.0, 2.0**7], np.float32)
AGENTS = algorithms.names(action='continuous')


def _box(low, high, dtype=tf.float32):
    low, high = np.broadcast_arrays(np.asarray(low, np.float32), np.asarray(high, np.float32))
    return tensor_spec.BoundedTensorSpec(low.shape, dtype, low, high, 'action')


def _agent(name, action):
    tf.random.set_seed(3)
    tf.keras.utils.set_random_seed(3)
    algorithm = algorithms.ALGORITHMS[name]
    return algorithm.make(EnvironmentSpecs(OBSERVATION, action)), algorithm.length


def _nested(low, high):
    return {
        'arm': _box([low, 2.0, low], [high, 2.0, high]),
        'button': tensor_spec.BoundedTensorSpec((), tf.int64, 0, 2, 'button'),
        'fixed': _box([0.5, 0.25], [0.5, 0.25]),
        'grip': tensor_spec.BoundedTensorSpec((), tf.float16, 0.0, 0.1, 'grip'),
    }


def _collected(agent, length, size, reward):
    """Returns sequences [size, length] of the collect policy's actions, as the replay holds them."""
    policy = agent.collect_policy
    observation = tf.random.stateless_uniform((size * length, 2), (1, 2))
    step = policy.action(ts.restart(observation, size * length), policy.get_initial_state(size * length), seed=5)
    middle = tf.fill((size * length,), tf.constant(ts.StepType.MID))
    rewards = reward(step.action)
    info = {'episode_return': rewards} if 'episode_return' in agent.collect_data_spec.policy_info else step.info
    rows = trajectory.Trajectory(middle, observation, step.action, info, middle, rewards, tf.ones_like(rewards))
    return tf.nest.map_structure(lambda leaf: tf.reshape(leaf, (size, length, *leaf.shape[1:])), rows)


def _trained(name, action, reward, steps):
    """Returns the actions and the losses of train steps on what the agent collects, and the agent."""
    agent, length = _agent(name, action)
    actions, losses = [], []
    for _ in range(steps):  # not compiled: a few steps take less time than tracing them
        data = _collected(agent, length, 3, reward)
        actions.append(data.action)
        losses.append(float(agent.train(data).loss))
    return actions, losses, agent


@pytest.mark.parametrize('name', lanes.sample(AGENTS, 'ppo', 'sac'))  # conformance_test.py has all
def test_learns_the_same_in_all_units(name):
    runs = []
    for units in (UNITS, np.ones(3, np.float32)):

        def reward(action, units=units):
            return -tf.reduce_sum(tf.square(action / units - 0.5), axis=1)

        # CrossQ's actor takes its first step in the third.
        actions, losses, _ = _trained(name, _box(-units, units), reward, 4)
        runs.append((np.array(actions) / units, losses))
    np.testing.assert_allclose(runs[0][0], runs[1][0], rtol=0, atol=1e-5)
    np.testing.assert_allclose(runs[0][1], runs[1][1], rtol=1e-5, atol=1e-5)
    assert np.isfinite(runs[0][1]).all() and np.ptp(runs[0][0]) > 0


@pytest.mark.parametrize('name', ['sac', 'td3', 'awac'])
def test_a_number_with_equal_bounds_is_a_constant(name):
    low, high = [0.0, 3.0, -1.0], [1000.0, 3.0, 1.0]
    actions, losses, _ = _trained(name, _box(low, high), lambda action: action[:, 0] / 1000, 2)
    assert np.isfinite(losses).all()
    values = np.array(actions).reshape(-1, 3)
    assert (values[:, 1] == 3.0).all()
    assert np.ptp(values[:, 0]) > 10 and np.ptp(values[:, 2]) > 0.01
    _, expected, _ = _trained(name, _box(low[::2], high[::2]), lambda action: action[:, 0] / 1000, 2)
    np.testing.assert_allclose(losses, expected, rtol=1e-6)


@pytest.mark.filterwarnings('ignore:Conversion of an array with ndim > 0:DeprecationWarning')
def test_nests_of_scaled_constant_and_discrete_actions():
    reward = lambda action: tf.cast(action['button'], tf.float32)  # noqa: E731
    actions, losses, agent = _trained('ppo', _nested(0.0, 5.0), reward, 2)
    assert np.isfinite(losses).all()
    for action in actions:
        assert action['grip'].dtype == tf.float16
        assert (action['arm'].numpy()[..., 1] == 2.0).all()
        assert (action['fixed'].numpy() == [0.5, 0.25]).all()
        assert set(action['button'].numpy().flat) <= {0, 1, 2}
    parameters = agent.collect_data_spec.policy_info['dist_params']
    assert parameters['fixed'] == () and parameters['arm']['loc'].shape == (3,)


def test_refuses_an_action_of_constants_only():
    with pytest.raises(UserValueError, match='whose bounds are equal: all its numbers are constants; need at least'):
        ActionRescaling(EnvironmentSpecs(OBSERVATION, _box([1.0, 2.0], [1.0, 2.0])))


def test_agents_whose_bounds_are_units_stay_as_they_are():
    specs = EnvironmentSpecs(OBSERVATION, _box([-1.0, -1.0], [1.0, 1.0]))
    agent = object()
    assert ActionRescaling(specs).wrapped(agent) is agent and ActionRescaling(specs).specs is specs
    unbounded = EnvironmentSpecs(OBSERVATION, _box([0.0], [np.inf]))
    assert ActionRescaling(unbounded).specs is unbounded


def test_rounding_stays_within_the_bounds():
    generator = np.random.default_rng(4)
    low = generator.uniform(-1e3, 1e3, 400)
    box = _box(low, low + generator.uniform(1e-3, 1e3, 400))
    rescaling = ActionRescaling(EnvironmentSpecs(OBSERVATION, box))
    for edge in (-1.0, 1.0):
        action = rescaling.to_environment(tf.fill((1, 400), edge)).numpy()
        assert (action >= box.minimum).all() and (action <= box.maximum).all()
        assert (np.abs(rescaling.to_agent(action).numpy()) <= 1).all()
    beyond = rescaling.to_environment(tf.fill((1, 400), 2.0)).numpy()
    assert (beyond > box.maximum).all()  # a draw of a normal distribution, whose probability refers to it


def test_densities_are_of_the_environments_unit():
    units = np.array([0.5, 200.0], np.float32)
    agent, _ = _agent('sac', _box(-units, units))
    step = ts.restart(tf.constant([[0.3, -0.2]]), 1)
    inner = agent.collect_policy.wrapped_policy.distribution(step, ()).action
    outer = agent.collect_policy.distribution(step, ()).action
    action = tf.constant([[0.25, -0.5]])
    expected = inner.log_prob(action) - np.log(units).sum()
    np.testing.assert_allclose(outer.log_prob(action * units), expected, rtol=1e-5)


def test_refuses_a_checkpoint_whose_weights_are_for_other_units(tmp_path):
    """Before actions were rescaled, checkpoints held the agent itself."""
    agent, _ = _agent('td3', _box([-2.0], [2.0]))
    Checkpoints(tmp_path, {'agent': agent._agent}).save(1)
    with pytest.raises(UserValueError, match='of another agent: ') as error:
        Checkpoints(tmp_path, {'agent': agent}).restore_newest()
    assert '\n' not in str(error.value)
