"""Actions of agents: an illegal one is never chosen, counted or bootstrapped from, and their unit changes nothing."""

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts
from tf_agents.trajectories import trajectory

from tests.agents import example_data
from tests.testing import algorithms
from tests.testing.algorithms import ALGORITHMS, names
from tflearn.actors import exploration
from tflearn.actors.actor import Actor
from tflearn.actors.exploration import EpsilonPolicy
from tflearn.agents.rescaled_actions import ActionRescaling
from tflearn.core.action_mask import mask_of
from tflearn.core.errors import UserValueError
from tflearn.core.types import EnvironmentSpecs
from tflearn.learner.checkpoints import Checkpoints


def bounded(shape, dtype, low, high):
    return tensor_spec.BoundedTensorSpec(shape, dtype, low, high, 'leaf')


STATE = bounded((3,), tf.float32, -1.0, 1.0)
ONE = EnvironmentSpecs({'mask': bounded((4,), tf.int64, 0, 1), 'state': STATE}, bounded((), tf.int64, 0, 3))
TWO = EnvironmentSpecs({'mask': bounded((5,), tf.int64, 0, 1), 'state': STATE}, bounded((2,), tf.int64, [0, 0], [1, 2]))
NAMES = names('dqn', 'r2d2', 'bc', 'ppo', 'impala', 'reinforce', argument='action_mask', action='discrete')
SEVERAL = names(action='multi-discrete')
# So that all actions are drawn.
EXPLORING = {'dqn': {'epsilon': 0.5}, 'r2d2': {'epsilon': 0.5}}


def make_agent(name, specs=ONE, **changes):
    return ALGORITHMS[name].make(specs, action_mask='mask', **EXPLORING.get(name, {}), **changes)


def time_steps(masks):
    states = tf.random.stateless_uniform((len(masks), 3), (1, 2))
    return ts.restart({'mask': tf.constant(masks, tf.int64), 'state': states}, len(masks))


def actions_of(policy, masks):
    return policy.action(time_steps(masks), policy.get_initial_state(len(masks))).action.numpy()


@pytest.mark.parametrize('name', NAMES)
def test_actions_are_legal(name):
    agent = make_agent(name)
    assert mask_of(agent.policy).path == mask_of(agent.collect_policy).path == 'mask'
    masks = np.random.default_rng(1).integers(0, 2, (500, 4))
    masks[np.arange(500), np.arange(500) % 4] = 1
    for policy in (agent.policy, agent.collect_policy):
        chosen = actions_of(policy, masks)
        assert masks[np.arange(500), chosen].all()
    assert len(np.unique(actions_of(agent.collect_policy, masks))) == 4


@pytest.mark.parametrize('name', SEVERAL)
def test_several_actions_are_legal(name):
    agent = make_agent(name, TWO)
    masks = np.random.default_rng(1).integers(0, 2, (500, 5))
    masks[np.arange(500), np.arange(500) % 2] = masks[np.arange(500), 2 + np.arange(500) % 3] = 1
    for policy in (agent.policy, agent.collect_policy):
        chosen = actions_of(policy, masks)
        assert masks[np.arange(500), chosen[:, 0]].all() and masks[np.arange(500), 2 + chosen[:, 1]].all()


@pytest.mark.parametrize('name', SEVERAL)
def test_entropy_and_probabilities_are_of_legal_actions(name):
    agent = make_agent(name)
    policy = agent.collect_policy
    steps = time_steps([[0, 1, 0, 0], [1, 0, 0, 1], [1, 1, 1, 1]])
    distribution = policy.distribution(steps, policy.get_initial_state(3)).action
    probabilities = distribution.probs_parameter().numpy()
    assert (probabilities[:2] > 0).tolist() == [[False, True, False, False], [True, False, False, True]]
    assert distribution.entropy().numpy() == pytest.approx(
        -np.nansum(probabilities * np.log(probabilities + 1e-30), axis=1), abs=1e-4
    )
    assert distribution.log_prob([1, 0, 0])[0].numpy() == 0


@pytest.mark.parametrize('name', NAMES)
def test_training_is_finite_and_ignores_illegal_logits(name):
    """Padding has a mask of zeros; a step with one legal action has no policy gradient."""
    agent = make_agent(name)
    data = example_data.sequences(agent, 8, ALGORITHMS[name].length)
    mask = np.zeros(data.observation['mask'].shape)
    mask[:4, :, 1] = 1
    if name == 'r2d2':
        state = tf.nest.map_structure(
            lambda leaf: tf.zeros((8, ALGORITHMS[name].length, *leaf.shape)), agent.collect_policy.policy_state_spec
        )
        data = data._replace(policy_info={'policy_state': state})
    data = data._replace(
        observation=data.observation | {'mask': tf.constant(mask, tf.int64)}, action=tf.ones_like(data.action)
    )
    assert np.isfinite(agent.train(data).loss)
    assert all(np.isfinite(variable).all() for variable in agent.policy.variables())


@pytest.mark.parametrize('double', [True, False])
def test_targets_are_of_legal_actions(double):
    agent = make_agent('dqn', double=double)
    steps = time_steps([[0, 1, 0, 0], [0, 0, 1, 1], [0, 0, 0, 0]])
    values, _ = agent._target_q_network({'state': steps.observation['state']})
    targets = agent._compute_next_q_values(steps, ()).numpy()
    assert targets[0] == values[0, 1]
    assert targets[1] == max(values[1, 2:])
    assert targets[2] == max(values[2]), 'after an end, in which nothing is legal, the value is one of the others'


def test_random_actions_are_legal():
    masks = [[0, 1, 0, 0], [1, 0, 0, 1]] * 100
    for policy in (
        exploration.uniform(make_agent('dqn').collect_policy),
        exploration.with_epsilons(make_agent('dqn').collect_policy, np.ones(200, np.float32)),
        exploration.uniform(make_agent('reinforce').collect_policy),
    ):
        drawn = actions_of(policy, masks)
        assert set(drawn[::2]) == {1} and set(drawn[1::2]) == {0, 3}
    with pytest.raises(ValueError, match='got random actions for a mask of the action .*; need one Discrete'):
        exploration.uniform(make_agent('reinforce', TWO).collect_policy)


class Zeros:
    def initial_state(self, batch_size):
        return ()

    def action(self, time_step, policy_state):
        return np.zeros(len(time_step.step_type), np.int64), policy_state


def test_evaluations_with_epsilon_draw_legal_actions():
    mask = mask_of(make_agent('dqn').policy)
    policy = EpsilonPolicy(Zeros(), 0.5, ONE.action, seed=1, action_mask=mask)
    steps = tf.nest.map_structure(lambda leaf: np.asarray(leaf), time_steps([[1, 0, 1, 0]] * 400))
    actions, _ = policy.action(steps, ())
    assert set(actions) == {0, 2} and 60 < np.count_nonzero(actions) < 140
    stuck = tf.nest.map_structure(lambda leaf: np.asarray(leaf), time_steps([[1, 0, 0, 0], [0, 0, 0, 0]]))
    with pytest.raises(ValueError, match="got no legal action in 'mask' of environment 1 in step 1; need"):
        policy.action(stuck, ())


class Stuck:
    """Two environments; in step 3 nothing is legal in the second."""

    num_environments, specs, info, num_rebuilt = 2, ONE, {}, 0

    def reset(self):
        self._steps = 0
        return self._time_step()

    def step(self, action):
        self._steps += 1
        return self._time_step()

    def _time_step(self):
        mask = np.ones((2, 4), np.int64)
        mask[1] = self._steps != 3
        observation = {'mask': mask, 'state': np.zeros((2, 3), np.float32)}
        step_type = np.full(2, min(self._steps, 1), np.int32)
        return ts.TimeStep(step_type, np.zeros(2, np.float32), np.ones(2, np.float32), observation)


def test_an_actor_refuses_a_step_in_which_nothing_is_legal():
    actor = Actor(Stuck(), make_agent('dqn').collect_policy)
    actor.run(3)
    with pytest.raises(ValueError, match="got no legal action in 'mask' of environment 1 in step 3; need"):
        actor.run(1)


# Agents learn the same whatever the unit of actions is, and leave out numbers whose bounds are equal.

OBSERVATION = tf.TensorSpec((2,), tf.float32, 'observation')
UNITS = np.array([2.0**-7, 1.0, 2.0**7], np.float32)
AGENTS = algorithms.names('ppo', 'sac', action='continuous')


def _box(low, high, dtype=tf.float32):
    low, high = np.broadcast_arrays(np.asarray(low, np.float32), np.asarray(high, np.float32))
    return tensor_spec.BoundedTensorSpec(low.shape, dtype, low, high, 'action')


def _agent(name, action):
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


@pytest.mark.parametrize('name', AGENTS)  # conformance_test.py trains all
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


@pytest.mark.parametrize('name', ['sac', *(pytest.param(name, marks=pytest.mark.slow) for name in ('td3', 'awac'))])
def test_a_number_with_equal_bounds_is_a_constant(name):
    low, high = [0.0, 3.0, -1.0], [1000.0, 3.0, 1.0]
    actions, losses, _ = _trained(name, _box(low, high), lambda action: action[:, 0] / 1000, 2)
    assert np.isfinite(losses).all()
    values = np.array(actions).reshape(-1, 3)
    assert (values[:, 1] == 3.0).all()
    assert np.ptp(values[:, 0]) > 10 and np.ptp(values[:, 2]) > 0.01
    _, expected, _ = _trained(name, _box(low[::2], high[::2]), lambda action: action[:, 0] / 1000, 2)
    np.testing.assert_allclose(losses, expected, rtol=1e-6)


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
