"""The losses of SAC with memory equal an oracle in numpy, which steps the networks one by one."""

import numpy as np
import pytest
import tensorflow as tf

from tests.agents import example_data, oracles
from tests.testing import deterministic_oracle as oracle
from tests.testing import experiences
from tflearn.agents import sac
from tflearn.core.train_step import create_train_step
from tflearn.core.types import EnvironmentSpecs, zeros
from tflearn.networks.networks import NetworkOptions

SPECS = example_data.CONTINUOUS
FIRST, MID, LAST = 0, 1, 2
LENGTH, BURN_IN, SIZE = 7, 2, 3
SMALL = {
    'network': NetworkOptions(fc_layer_params=(4, 3), critic_fc_layer_params=(5,), lstm_size=(4,)),
    'loss': sac.SACLoss(burn_in_steps=BURN_IN, initial_log_alpha=-0.5, gamma=0.9, reward_scale=2.0),
}
EXPERIENCE = experiences.changed(
    sac.EXPERIENCE, sequence_length=LENGTH, stride=LENGTH - 1 - BURN_IN, cross_episodes=True, store_policy_state=True
)
# What follows each row: an episode terminates, is truncated, and goes on.
NEXT = np.array([[MID, MID, LAST, FIRST, MID, MID, MID], [MID, MID, MID, LAST, FIRST, MID, MID], [MID] * LENGTH])
STEPS = np.concatenate([[[MID], [FIRST], [MID]], NEXT[:, :-1]], axis=1)
DISCOUNTS = np.where((NEXT == LAST) & (np.arange(SIZE) == 0)[:, np.newaxis], 0.0, 1.0)
VALID = NEXT[:, BURN_IN:-1] != FIRST


def _agent(specs=SPECS, experience=EXPERIENCE, **changes):
    return sac.make_agent(specs, create_train_step(), experience, **SMALL | changes)


@pytest.fixture(scope='module')
def agent():
    made = _agent()
    parts = (made._actor, made._critics, made._target_critics)
    for i, part in enumerate(parts):
        for j, variable in enumerate(part.trainable_variables):
            variable.assign(0.7 * tf.random.stateless_normal(variable.shape, (i, j)))
    return made


def _sequences(agent, seed=0):
    data = example_data.sequences(agent, SIZE, LENGTH, seed)
    spec = agent.collect_policy.policy_state_spec
    state = tf.nest.map_structure(lambda leaf: tf.random.stateless_normal((SIZE, LENGTH, *leaf.shape), (seed, 8)), spec)
    return data._replace(
        step_type=tf.constant(STEPS, tf.int32),
        next_step_type=tf.constant(NEXT, tf.int32),
        discount=tf.constant(DISCOUNTS, tf.float32),
        policy_info={'policy_state': state},
    )


def _stepped(network, data, state):
    """Calls a network step by step; the state is set to zeros here where an episode starts."""
    outcomes = []
    for t in range(LENGTH):
        started = (STEPS[:, t] == FIRST)[:, np.newaxis]
        state = tf.nest.map_structure(lambda leaf, started=started: tf.where(started, 0.0, leaf), state)
        outcome, state = network(data.observation[:, t], tf.fill([SIZE], MID), state)
        outcomes.append(outcome)
    return outcomes


def _memories(critics, data):
    """What each critic's memory is after each row."""
    found = []
    for memory in critics.encoders:
        zero = tf.nest.map_structure(lambda leaf: tf.zeros((SIZE, *leaf.shape)), memory.state_spec)
        found.append(np.stack([outcome.numpy() for outcome in _stepped(memory, data, zero)], axis=1))
    return found


def _value(critic, memory, action):
    """The layers after the memory, in numpy."""
    joined = np.concatenate([memory, action], axis=-1)
    return oracle.network(critic.variables, joined.astype(np.float64))[..., 0]


def test_the_actor_is_the_one_that_acts_step_by_step(agent):
    data = _sequences(agent)
    state = tf.nest.map_structure(lambda leaf: leaf[:, 0], data.policy_info['policy_state'])
    stepped = [outcome.mode().numpy() for outcome in _stepped(agent._actor, data, state)]
    unrolled, _ = agent._actor(data.observation, data.step_type, state)
    np.testing.assert_allclose(unrolled.mode(), np.stack(stepped, axis=1), rtol=1e-4, atol=1e-5)
    time_step = zeros(SPECS.time_step, (SIZE,))._replace(
        observation=data.observation[:, 0], step_type=data.step_type[:, 0]
    )
    greedy = agent.policy.action(time_step, state)
    np.testing.assert_allclose(greedy.action, unrolled.mode()[:, 0], rtol=1e-4, atol=1e-5)
    assert (np.abs(agent.collect_policy.action(time_step, state).action) <= 2).all()


def test_the_losses_equal_the_oracle(agent):
    data = _sequences(agent)
    data = data._replace(reward=tf.where(NEXT == FIRST, np.nan, data.reward))
    alpha = np.exp(-0.5)
    losses = agent.loss(data).extra
    agent._draws.restart()
    batch = agent._transitions(data)
    drawn = []
    for following in (True, False):  # in the order of the losses
        action, log_prob = (part.numpy() for part in agent._draw(batch, following=following)[:2])
        drawn.append((action.reshape(SIZE, -1, 2), log_prob.reshape(SIZE, -1)))
    critics, targets = (
        list(zip(oracles.members(part), _memories(part, data), strict=True))
        for part in (agent._critics, agent._target_critics)
    )
    after = slice(BURN_IN + 1, None)

    action, log_prob = drawn[0]
    values = np.min([_value(critic, memory[:, after], action) for critic, memory in targets], axis=0)
    rows = slice(BURN_IN, LENGTH - 1)
    wanted = 2.0 * data.reward.numpy()[:, rows] + 0.9 * DISCOUNTS[:, rows] * (values - alpha * log_prob)
    taken = data.action.numpy()[:, rows]
    errors = sum(np.square(wanted - _value(critic, memory[:, rows], taken)) for critic, memory in critics)
    assert float(losses['critic_loss']) == pytest.approx(errors[VALID].mean(), rel=1e-3)

    action, log_prob = drawn[1]
    values = np.min([_value(critic, memory[:, rows], action) for critic, memory in critics], axis=0)
    assert float(losses['actor_loss']) == pytest.approx((alpha * log_prob - values)[VALID].mean(), rel=1e-3)

    assert float(losses['alpha_loss']) == pytest.approx((0.5 * (log_prob - 2.0))[VALID].mean(), rel=1e-3)


def test_a_train_step_changes_what_it_trains_and_the_targets_follow():
    agent = _agent(target_update_tau=0.25)
    agent.initialize()
    data = _sequences(agent)
    read = lambda *parts: [variable.numpy() for part in parts for variable in part.trainable_variables]  # noqa: E731
    actor, critics, targets = read(agent._actor), read(agent._critics), read(agent._target_critics)
    for ours, theirs in zip(critics, targets, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    info = agent.train(data)
    assert np.isfinite(info.loss)
    assert agent.train_step_counter.numpy() == 1
    for before, after in ((actor, read(agent._actor)), (critics, read(agent._critics))):
        assert all((ours != theirs).any() for ours, theirs in zip(before, after, strict=True))
    for before, trained, after in zip(targets, read(agent._critics), read(agent._target_critics), strict=True):
        np.testing.assert_allclose(after, 0.75 * before + 0.25 * trained, atol=1e-6)
    assert float(agent._log_alpha) != -0.5


def test_the_burn_in_has_no_gradient(agent):
    data = _sequences(agent)
    agent._draws.restart()
    with tf.GradientTape() as tape:
        tape.watch(data.observation)
        _, made = agent._losses(data, None, True)
        assert np.isfinite(made['critic']({})[0]).all()
        value = made['actor']({})[0]
    gradient = tape.gradient(value, data.observation).numpy()
    assert not gradient[:, :BURN_IN].any()
    assert gradient[2, BURN_IN:-1].any()


def test_nested_observations_enter_both(agent):
    del agent
    nested = EnvironmentSpecs({'a': SPECS.observation, 'b': tf.TensorSpec((2,), tf.float32, 'b')}, SPECS.action)
    made = _agent(nested)
    data = _sequences(made)
    assert np.isfinite(made.train(data).loss)
