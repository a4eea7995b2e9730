"""R2D2's loss equals an oracle in numpy, which steps the networks one by one and writes the equations as loops."""

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec

from tests.agents import example_data
from tests.testing import experiences
from tflearn.actors import exploration
from tflearn.agents import r2d2
from tflearn.agents.r2d2 import R2D2Loss
from tflearn.core import strategies
from tflearn.core.train_step import create_train_step
from tflearn.core.types import EnvironmentSpecs, zeros
from tflearn.networks.networks import NetworkOptions

FIRST, MID, LAST = 0, 1, 2
LENGTH, BURN_IN = 9, 2
EPSILON = 1e-3
SMALL = {'network': NetworkOptions(lstm_size=(5,), fc_layer_params=(4,))}
EXPERIENCE = experiences.changed(r2d2.EXPERIENCE, sequence_length=LENGTH, stride=LENGTH - 1 - BURN_IN)
OPTIONS = R2D2Loss(gamma=0.9, n_step=3, burn_in_steps=BURN_IN)
MASKED = EnvironmentSpecs(
    {
        'mask': tensor_spec.BoundedTensorSpec((2,), tf.int64, 0, 1, 'mask'),
        'state': example_data.DISCRETE.observation,
    },
    example_data.DISCRETE.action,
)
# What follows each row: an episode terminates, is truncated, an environment fails, and an episode goes on.
NEXT = np.array(
    [
        [MID, MID, MID, LAST, FIRST, MID, MID, MID, MID],
        [LAST, FIRST, MID, MID, MID, LAST, FIRST, MID, MID],
        [MID, MID, MID, MID, FIRST, MID, MID, LAST, FIRST],
        [MID] * LENGTH,
    ]
)
DISCOUNTS = np.where((NEXT == LAST) & (np.arange(4) == 0)[:, np.newaxis], 0.0, 1.0)


@pytest.fixture(autouse=True)
def seed():
    tf.keras.utils.set_random_seed(3)


def _agent(specs=example_data.DISCRETE, loss=OPTIONS, experience=EXPERIENCE, **changes):
    agent = r2d2.make_agent(specs, create_train_step(), experience, loss=loss, **SMALL | changes)
    for i, network in enumerate((agent._network, agent._target)):
        for j, variable in enumerate(network.trainable_variables):
            variable.assign(tf.random.stateless_normal(variable.shape, (i, j)))
    return agent


def _sequences(agent, seed=0):
    """Four sequences with stored states and the episodes above."""
    data = example_data.sequences(agent, 4, LENGTH, seed)
    before = np.concatenate([[[MID], [MID], [FIRST], [MID]], NEXT[:, :-1]], axis=1)
    spec = agent.collect_policy.policy_state_spec
    state = tf.nest.map_structure(lambda leaf: tf.random.stateless_normal((4, LENGTH, *leaf.shape), (seed, 8)), spec)
    observation = data.observation
    if isinstance(observation, dict):
        # A mask of zeros, as after an end, counts as one of ones.
        masks = np.random.default_rng(seed).integers(0, 2, (4, LENGTH, 2))
        observation = observation | {'mask': tf.constant(masks, tf.int64)}
    return data._replace(
        observation=observation,
        step_type=tf.constant(before, tf.int32),
        next_step_type=tf.constant(NEXT, tf.int32),
        discount=tf.constant(DISCOUNTS, tf.float32),
        policy_info={'policy_state': state},
    )


def _unrolled(network, data):
    """Values [B, T, A] by single steps, whose state is set to zeros here where an episode starts."""
    observation = data.observation['state'] if isinstance(data.observation, dict) else data.observation
    if isinstance(data.observation, dict):
        observation = {'state': observation}
    state = tf.nest.map_structure(lambda leaf: leaf[:, 0], data.policy_info['policy_state'])
    values = []
    for t in range(LENGTH):
        started = (data.step_type[:, t] == FIRST)[:, tf.newaxis]
        state = tf.nest.map_structure(lambda leaf, started=started: tf.where(started, 0.0, leaf), state)
        now = tf.nest.map_structure(lambda leaf, t=t: leaf[:, t], observation)
        outcome, state = network(now, tf.fill([4], MID), state)
        values.append(outcome.numpy().astype(np.float64))
    return np.stack(values, axis=1)


def _h(x, epsilon):
    return np.sign(x) * (np.sqrt(np.abs(x) + 1) - 1) + epsilon * x if epsilon else x


def _h_inverse(x, epsilon):
    if not epsilon:
        return x
    root = (np.sqrt(1 + 4 * epsilon * (np.abs(x) + 1 + epsilon)) - 1) / (2 * epsilon)
    return np.sign(x) * (root**2 - 1)


def _oracle(agent, data, options):
    """Returns the temporal-difference errors, by (sequence, row), in float64."""
    trained, target = _unrolled(agent._network, data), _unrolled(agent._target, data)
    mask = np.ones_like(trained, bool)
    if isinstance(data.observation, dict):
        mask = data.observation['mask'].numpy() != 0
        mask |= ~mask.any(axis=-1, keepdims=True)
    reward, discount = data.reward.numpy().astype(np.float64), data.discount.numpy().astype(np.float64)
    errors = {}
    for b in range(4):
        for t in range(options.burn_in_steps, LENGTH - 1):
            if NEXT[b, t] == FIRST:
                continue
            total, factor, row = 0.0, 1.0, t
            while row < t + options.n_step and row < LENGTH - 1 and NEXT[b, row] != FIRST:
                total += factor * reward[b, row]
                factor *= options.gamma * discount[b, row]
                row += 1
            chooser = np.where(mask[b, row], (trained if options.double else target)[b, row], -np.inf)
            value = _h_inverse(target[b, row, np.argmax(chooser)], options.rescaling)
            wanted = _h(total + factor * value, options.rescaling)
            errors[b, t] = wanted - trained[b, t, data.action[b, t]]
    return errors


@pytest.mark.parametrize(
    ('specs', 'changes'),
    [
        pytest.param(example_data.DISCRETE, {}, id='default'),
        pytest.param(MASKED, {}, id='default-masked'),
        # The mask is of the actions that the target chooses from, by either network.
        pytest.param(MASKED, {'double': False, 'n_step': 1}, id='single-masked'),
        pytest.param(example_data.DISCRETE, {'rescaling': None, 'n_step': 20}, id='not rescaled'),
        pytest.param(example_data.DISCRETE, {'burn_in_steps': 0, 'priority_eta': 0.5}, id='without burn-in'),
    ],
)
def test_the_loss_equals_the_oracle(specs, changes):
    options = R2D2Loss(**{'gamma': 0.9, 'n_step': 3, 'burn_in_steps': BURN_IN} | changes)
    agent = _agent(specs, options, action_mask='mask' if specs is MASKED else None)
    data = _sequences(agent)
    # What an invalid row holds has no effect.
    data = data._replace(reward=tf.where(NEXT == FIRST, np.nan, data.reward))
    errors = _oracle(agent, data._replace(reward=tf.where(NEXT == FIRST, 0.0, data.reward)), options)
    weights = np.array([0.5, 1.0, 2.0, 0.25])
    loss, extra = agent.loss(data)
    weighted = agent.loss(data, tf.constant(weights, tf.float32)).loss
    assert float(loss) == pytest.approx(0.5 * np.mean(np.square(list(errors.values()))), rel=1e-4)
    expected = sum(0.5 * weights[b] * error**2 for (b, _), error in errors.items()) / len(errors)
    assert float(weighted) == pytest.approx(expected, rel=1e-4)
    eta = options.priority_eta
    for b in range(4):
        own = [abs(error) for (index, _), error in errors.items() if index == b]
        assert float(extra['td_error'][b]) == pytest.approx(eta * max(own) + (1 - eta) * np.mean(own), rel=1e-4)
    assert float(extra['td_loss']) == pytest.approx(float(loss), rel=1e-5)
    assert float(extra['mean_abs_td_error']) == pytest.approx(np.mean(np.abs(list(errors.values()))), rel=1e-4)
    assert float(extra['valid_share']) == len(errors) / (4 * (LENGTH - 1 - options.burn_in_steps))


def test_rescaling_is_inverted():
    x = np.concatenate([-np.logspace(-4, 5, 40), [0.0], np.logspace(-4, 5, 40)])
    got = r2d2.rescaled_values(tf.constant(x, tf.float32), EPSILON)
    np.testing.assert_allclose(got, _h(x, EPSILON), rtol=1e-5)
    np.testing.assert_allclose(r2d2.unscaled(got, EPSILON), x, rtol=1e-3, atol=1e-6)
    np.testing.assert_allclose(_h_inverse(_h(x, EPSILON), EPSILON), x, rtol=1e-6, atol=1e-9)


def test_only_the_state_of_the_burn_in_counts():
    """Its rewards and actions have no effect, its observations only without gradients."""
    agent = _agent()
    data = _sequences(agent)
    first = np.arange(LENGTH) < BURN_IN
    other = data._replace(
        reward=tf.where(first, 100.0, data.reward), action=tf.where(first, 1 - data.action, data.action)
    )
    assert float(agent.loss(other).loss) == float(agent.loss(data).loss)
    with tf.GradientTape() as tape:
        tape.watch(data.observation)
        loss = agent.loss(data).loss
    gradient = tape.gradient(loss, data.observation).numpy()
    assert not gradient[:, :BURN_IN].any()
    assert gradient[3, BURN_IN:-1].all()
    moved = data._replace(observation=tf.where(first[:, np.newaxis], 1.0, data.observation))
    assert float(agent.loss(moved).loss) != float(loss)


def test_stored_states_are_used_unless_there_are_none():
    agent = _agent()
    data = _sequences(agent)
    blank = tf.nest.map_structure(tf.zeros_like, data.policy_info)
    zero_state = _agent(experience=experiences.changed(EXPERIENCE, store_policy_state=False))
    for ours, theirs in zip(zero_state._network.variables, agent._network.variables, strict=True):
        ours.assign(theirs)
    loss = float(zero_state.loss(data._replace(policy_info=())).loss)
    assert float(agent.loss(data._replace(policy_info=blank)).loss) == pytest.approx(loss, rel=1e-5)
    assert float(agent.loss(data).loss) != pytest.approx(loss, rel=1e-3)


def _weights(network):
    return np.concatenate([variable.numpy().ravel() for variable in network.variables])


def test_the_target_network_follows_at_its_interval():
    agent = _agent(target_update_period=2, target_update_tau=0.25)
    agent.initialize()
    initial = _weights(agent._target)
    np.testing.assert_array_equal(initial, _weights(agent._network))
    data = _sequences(agent)
    loss = agent.loss(data).loss
    assert float(agent.train(data).loss) == pytest.approx(float(loss), rel=1e-5)
    np.testing.assert_array_equal(_weights(agent._target), initial)
    agent.train(data)
    np.testing.assert_allclose(_weights(agent._target), 0.75 * initial + 0.25 * _weights(agent._network), atol=1e-6)
    assert agent.train_step_counter.numpy() == 2


def test_the_loss_is_a_share_of_the_global_batch():
    """Two replicas, whose sequences have different numbers of valid steps, have the loss of one."""
    agent = _agent()
    data = _sequences(agent)
    whole = agent.loss(data)
    strategy = strategies.make('mirrored:2')
    with strategy.scope():
        other = _agent()

    def own(number):
        part = tf.nest.map_structure(lambda leaf: leaf[2 * number : 2 * number + 2], data)
        return other.loss(part)

    parts = strategy.run(
        lambda: own(tf.distribute.get_replica_context().replica_id_in_sync_group),
    )
    assert sum(float(loss) for loss in parts.loss.values) == pytest.approx(float(whole.loss), rel=1e-5)
    assert float(parts.extra['td_loss'].values[0]) == pytest.approx(float(whole.extra['td_loss']), rel=1e-5)


def test_random_actions_leave_the_state_alone():
    """A ladder of epsilons, as for DQN: the state is that of the greedy policy."""
    agent = _agent()
    ladder = exploration.with_epsilons(agent.collect_policy, np.float32([0.0, 1.0]))
    time_step = zeros(example_data.DISCRETE.time_step, (2,))
    state = ladder.get_initial_state(2)
    step = ladder.action(time_step, state)
    greedy = agent.policy.action(time_step, state)
    assert step.action[0] == greedy.action[0]
    for ours, theirs in zip(tf.nest.flatten(step.state), tf.nest.flatten(greedy.state), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)


def test_a_network_of_ones_own_gets_a_memory():
    agent = _agent(
        network=NetworkOptions(
            lstm_size=(5,), make_network=lambda spec, name: tf.keras.Sequential([tf.keras.layers.Dense(3)])
        )
    )
    assert [leaf.shape for leaf in tf.nest.flatten(agent.policy.policy_state_spec)] == [(5,), (5,)]
    data = _sequences(agent)
    errors = _oracle(agent, data, OPTIONS)
    assert float(agent.loss(data).loss) == pytest.approx(0.5 * np.mean(np.square(list(errors.values()))), rel=1e-4)
