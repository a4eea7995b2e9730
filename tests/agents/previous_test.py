"""The previous action and reward as inputs of memories: training sees what acting saw, and exports act alike."""

import gymnasium
import numpy as np
import pytest
import tensorflow as tf
from gymnasium import spaces
from tf_agents.trajectories import time_step as ts

import tflearn
from tests.testing import experiences
from tests.testing.algorithms import ALGORITHMS
from tflearn.actors import exploration
from tflearn.actors.actor import Actor, CompiledPolicy
from tflearn.agents.previous import ACTION, PREVIOUS, REWARD
from tflearn.core.agent_data import innermost
from tflearn.environments import vector_env
from tflearn.files.run_dir import RunDir
from tflearn.jobs.policy_exports import ExportOptions, PolicyExports
from tflearn.policies import versions

LAYERS = {'lstm_size': (4,), 'previous_action': True, 'previous_reward': True}
ACTIONS = {
    'discrete': spaces.Discrete(3, start=1),
    'continuous': spaces.Box(-2.0, 2.0, (2,), np.float32),
    'nested': spaces.Dict(kinds=spaces.MultiDiscrete([2, 3]), move=spaces.Box(-1.0, 1.0, (1,), np.float32)),
}
NUM_ROWS = 12


class Counting(gymnasium.Env):
    """Episodes of 5 steps, whose rewards are 1, 2, ...; nothing else is to be seen of them."""

    observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)

    def __init__(self, action_space):
        self.action_space = action_space

    def reset(self, *, seed=None, options=None):
        self._step = 0
        return np.ones(1, np.float32), {}

    def step(self, action):
        assert self.action_space.contains(action)
        self._step += 1
        return np.ones(1, np.float32), float(self._step), self._step == 5, False, {}


def make_environment(action):
    return vector_env.in_process(lambda: Counting(ACTIONS[action]), 2, 1)


def make(name, action, stored=True, **changes):
    """An agent whose memory's first layer has large weights, so that it depends on its inputs."""
    algorithm = ALGORITHMS[name]
    experience = experiences.changed(algorithm.experience, store_policy_state=stored)
    environment = make_environment(action)
    agent = algorithm.make(environment.specs, experience, LAYERS, **changes)
    for i, variable in enumerate(agent.policy.variables()):
        if variable.shape.rank == 2:
            variable.assign(tf.random.stateless_normal(variable.shape, (i, 7)))
    return agent, environment


def collect(policy, environment):
    """Rows [2, NUM_ROWS - 3, ...] that begin in the middle of an episode."""
    rows = []
    Actor(environment, policy, [rows.append], stores_policy_state=True).run(NUM_ROWS)
    return tf.nest.map_structure(lambda *leaves: tf.stack(leaves[3:], axis=1), *rows)


def check_stored(data, encoded):
    """What the networks saw is of the rows before, and zeros in an episode's first step."""
    seen, first = data.policy_info[PREVIOUS], data.is_first().numpy()
    assert first.any() and not first[:, 0].any()
    late = ~first[:, 1:]
    np.testing.assert_allclose(seen[ACTION].numpy()[:, 1:][late], encoded[:, :-1][late], atol=1e-6)
    np.testing.assert_array_equal(seen[REWARD].numpy()[:, 1:][late], data.reward.numpy()[:, :-1][late])
    assert not seen[ACTION].numpy()[first].any() and not seen[REWARD].numpy()[first].any()
    np.testing.assert_array_equal(seen[REWARD][:, 0], 3.0)


@pytest.mark.parametrize('action', ACTIONS)
def test_training_sees_what_acting_saw(action):
    agent, environment = make('impala', action)
    data = collect(agent.collect_policy, environment)
    if action == 'discrete':
        encoded = np.eye(3)[data.action.numpy() - 1]
    elif action == 'continuous':
        encoded = data.action.numpy() / 2
    else:
        kinds = data.action['kinds'].numpy()
        encoded = np.concatenate([np.eye(2)[kinds[..., 0]], np.eye(3)[kinds[..., 1]], data.action['move']], axis=-1)
    check_stored(data, encoded)
    assert float(agent.loss(data).extra['mean_abs_log_rho']) < 1e-4, 'the policy is the one that acted'
    for name in (ACTION, REWARD):
        seen = data.policy_info[PREVIOUS]
        others = {**data.policy_info, PREVIOUS: {**seen, name: tf.zeros_like(seen[name])}}
        assert float(agent.loss(data._replace(policy_info=others)).extra['mean_abs_log_rho']) > 1e-3
    # The first step takes what was stored, not zeros.
    begins = tf.nest.map_structure(lambda leaf: leaf[:, :1] * tf.zeros_like(leaf[:, :1]), data.policy_info[PREVIOUS])
    cut = tf.nest.map_structure(lambda one, rest: tf.concat([one, rest[:, 1:]], 1), begins, data.policy_info[PREVIOUS])
    others = data._replace(policy_info={**data.policy_info, PREVIOUS: cut})
    assert float(agent.loss(others).extra['mean_abs_log_rho']) > 1e-4


@pytest.mark.parametrize('name', ['ppo', 'recurrent_sac'])
def test_other_agents_train_with_them(name):
    agent, environment = make(name, 'continuous')
    info = agent.train(collect(agent.collect_policy, environment))
    assert np.isfinite(info.loss) and abs(float(info.extra.get('kl_to_behaviour', 0.0))) < 1e-6


def test_without_stored_states_sequences_begin_with_zeros():
    agent, environment = make('reinforce', 'discrete', stored=False)
    assert PREVIOUS not in (agent.collect_data_spec.policy_info or {})
    stored, _ = make('impala', 'discrete')
    data = collect(stored.collect_policy, environment)
    seen, rows = data.policy_info[PREVIOUS], agent._agent.convert(data._replace(action=data.action - 1))[0].observation
    for name in (ACTION, REWARD):
        np.testing.assert_array_equal(rows[name][:, 1:], seen[name][:, 1:])
        assert not rows[name].numpy()[:, 0].any()


def test_values_after_the_burn_in_are_those_of_acting():
    """R2D2 explores: what was done counts, not what is greedy."""
    agent, environment = make('r2d2', 'discrete', epsilon=0.5)
    data = collect(agent.collect_policy, environment)
    check_stored(data, np.eye(3)[data.action.numpy() - 1])
    inner, (batch, _) = innermost(agent), agent._agent.convert(agent.convert(data)[0])
    values, _ = inner._values(batch, training=False)
    for row in range(1, NUM_ROWS - 3):
        at = lambda leaf: leaf[:, row]  # noqa: B023, E731
        state = tf.nest.map_structure(at, batch.policy_info['policy_state'])
        acted, _ = inner._network(tf.nest.map_structure(at, batch.observation), batch.step_type[:, row], state)
        np.testing.assert_allclose(values[:, row - 1], acted, atol=1e-4)


def test_random_steps_are_remembered():
    agent, environment = make('r2d2', 'discrete')
    data = collect(exploration.uniform(agent.collect_policy), environment)
    check_stored(data, np.eye(3)[data.action.numpy() - 1])


def test_an_exported_policy_acts_as_the_live_one(tmp_path):
    agent, _ = make('impala', 'discrete')
    exports = PolicyExports(agent, RunDir(tmp_path), ExportOptions(('greedy_policy',)), dict)
    exports.export(1)
    exports.wait()
    folder = RunDir(tmp_path).policy('greedy_policy')
    policy = tflearn.load_policy(folder / str(versions.newest_version(folder)))
    plain, live = tf.saved_model.load(str(policy.path)).signatures, CompiledPolicy(agent.policy, 2)
    random, actions = np.random.default_rng(1), set()
    for step in range(50):
        if step % 10 == 0:
            state, served = live.initial_state(2), plain['get_initial_state'](batch_size=tf.constant(2))
            policy.reset()
        kind, reward = np.int32([bool(step % 10)] * 2), np.float32(random.normal(0, 9, 2)) * bool(step % 10)
        observation = np.float32(random.uniform(size=(2, 1)))
        action, state = live.action(ts.TimeStep(kind, reward, np.ones(2, np.float32), observation), state)
        np.testing.assert_array_equal(policy(observation, reward if step % 10 else None), action)
        served = plain['serving_default'](observation=tf.constant(observation), reward=tf.constant(reward), **served)
        np.testing.assert_array_equal(served.pop('action'), action)
        actions |= {*action.tolist()}
    assert len(actions) > 1
    with pytest.raises(ValueError, match='got no reward for a policy whose memory takes it; need'):
        policy(observation)


@pytest.mark.parametrize(
    ('name', 'layers', 'message'),
    [
        ('dqn', {'previous_action': True}, 'got previous_action=True.* in DQN without memory; need'),
        ('ppo', {'previous_reward': True}, 'got .*previous_reward=True in PPO without memory; need'),
        ('sac', {'previous_reward': True}, 'got .*previous_reward=True in SAC without memory; need'),
    ],
)
def test_needs_a_memory(name, layers, message):
    with pytest.raises(ValueError, match=message):
        ALGORITHMS[name].make(layers=layers)
