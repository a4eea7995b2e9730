import numpy as np
import pytest
import tensorflow as tf
from tf_agents.agents.dqn import dqn_agent
from tf_agents.networks import q_network
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts
from tf_agents.trajectories import trajectory
from tf_agents.utils import common

from tests.agents import example_data
from tflearn.agents import dqn
from tflearn.core import agent_data
from tflearn.core.experience import Experience, Prioritized, Slicing
from tflearn.core.train_step import create_train_step
from tflearn.core.types import EnvironmentSpecs
from tflearn.networks.networks import NetworkOptions
from tflearn.optimization import distributional, schedules
from tflearn.optimization.optimizers import OptimizerOptions

SPECS = EnvironmentSpecs(
    tensor_spec.BoundedTensorSpec((2,), tf.float32, -1.0, 1.0, 'observation'),
    tensor_spec.BoundedTensorSpec((), tf.int64, 0, 1, 'action'),
)


def _sequence(discounts, rewards):
    """One item [1, T] whose actions are all 0 and whose observation is its index in the sequence."""
    length = len(discounts)
    steps = np.arange(length, dtype=np.float32)
    return tf.nest.map_structure(
        lambda value: tf.constant(value)[tf.newaxis],
        trajectory.Trajectory(
            step_type=np.full(length, ts.StepType.MID, np.int32),
            observation=np.stack([steps, steps], axis=1),
            action=np.zeros(length, np.int64),
            policy_info=(),
            next_step_type=np.full(length, ts.StepType.MID, np.int32),
            reward=np.array(rewards, np.float32),
            discount=np.array(discounts, np.float32),
        ),
    )


def _agent(sequence_length, **changes):
    changes = {'network': NetworkOptions(fc_layer_params=(5,)), 'gamma': 0.5, 'huber': False} | changes
    return dqn.make_agent(
        SPECS, create_train_step(), Experience(slicing=Slicing(sequence_length=sequence_length)), **changes
    )


def _q(network, index):
    return network(tf.constant([[index, index]], tf.float32))[0].numpy()[0]


@pytest.mark.parametrize(
    ('discounts', 'rewards', 'expected_reward', 'bootstrap'),
    [
        ([1.0, 1.0], [2.0, 9.0], 2.0, 0.5),
        ([0.0, 1.0], [2.0, 9.0], 2.0, 0.0),
        ([1.0, 1.0, 1.0, 1.0], [1.0, 2.0, 4.0, 9.0], 1.0 + 0.5 * 2 + 0.25 * 4, 0.125),
        # Termination within the window, then the boundary row, which the replay writer repeats.
        ([1.0, 0.0, 1.0, 1.0], [1.0, 2.0, 0.0, 0.0], 1.0 + 0.5 * 2, 0.0),
    ],
)
@pytest.mark.parametrize('double', [True, False])
def test_the_target_is_the_n_step_return(discounts, rewards, expected_reward, bootstrap, double):
    agent = _agent(len(discounts), double=double)
    agent.initialize()
    last = len(discounts) - 1
    target = expected_reward + bootstrap * _q(agent._target_q_network, last).max()
    expected = (target - _q(agent._q_network, 0)[0]) ** 2
    # TF-Agents' agent.loss() ignores gamma and the kind of error.
    assert float(agent.loss(_sequence(discounts, rewards)).loss) == pytest.approx(expected, rel=1e-4)
    assert float(agent.train(_sequence(discounts, rewards)).loss) == pytest.approx(expected, rel=1e-4)


def test_demonstrations_have_the_large_margin_loss():
    """Equation 2 of DQfD, for the items that are demonstrations."""
    agent = _agent(2, demonstration_margin=0.8)
    data = example_data.sequences(agent, 3, 2)._replace(observation=tf.random.stateless_uniform((3, 2, 2), (1, 2)))
    shown = tf.constant([True, False, True])
    values = agent._q_network(data.observation[:, 0])[0].numpy()
    action = data.action[:, 0].numpy()
    own = values[np.arange(3), action]
    gaps = np.max(values + 0.8 * (1 - np.eye(2)[action]), axis=1) - own
    plain = agent.loss(data).loss
    with agent_data.demonstrated_by({'demonstrated': shown}):
        assert agent_data.demonstrated() is shown
        found = agent.loss(data).loss
    np.testing.assert_allclose(found - plain, np.sum(gaps * shown.numpy()) / 3, rtol=1e-4)
    assert agent_data.demonstrated() is None and agent.loss(data).loss == plain


@pytest.mark.parametrize('double', [True, False])
def test_conservative_penalty(double):
    """alpha (log sum exp q - q(a)), by numpy in float64; nothing for a row between two episodes."""
    plain, penalized = _agent(2, double=double), _agent(2, double=double, conservative_weight=0.7)
    for agent in (plain, penalized):
        agent.initialize()
    for one, other in zip(plain._q_network.variables, penalized._q_network.variables, strict=True):
        other.assign(one)
    penalized._target_q_network.set_weights(plain._target_q_network.get_weights())
    batch = tf.nest.map_structure(lambda leaf: tf.repeat(leaf, 3, axis=0), _sequence([1.0, 1.0], [2.0, 9.0]))
    last = np.full((3, 2), ts.StepType.MID, np.int32)
    last[2, 0] = ts.StepType.LAST
    batch = batch._replace(action=tf.constant([[0, 0], [1, 0], [1, 0]], tf.int64), step_type=tf.constant(last))
    q = np.float64(_q(plain._q_network, 0))
    items = np.log(np.exp(q).sum()) - q[[0, 1]]
    weights = np.array([1.0, 2.0, 4.0], np.float32)
    wanted = 0.7 * (items * weights[:2]).sum() / 3
    extra = penalized.loss(batch, weights).loss - plain.loss(batch, weights).loss
    assert extra.numpy() == pytest.approx(wanted, rel=1e-4)


def test_double_chooses_with_the_online_network():
    agent = _agent(2, double=True)
    assert isinstance(agent, dqn_agent.DdqnAgent)
    agent.initialize()
    # The online network prefers one action, the target network the other.
    for network, bias in ((agent._q_network, [1.0, 0.0]), (agent._target_q_network, [0.0, 7.0])):
        for variable in network.variables:
            variable.assign(tf.zeros_like(variable))
        network.variables[-1].assign(bias)
    loss = float(agent.train(_sequence([1.0, 1.0], [0.0, 0.0])).loss)
    assert loss == pytest.approx((0.5 * 0.0 - 1.0) ** 2)


def test_epsilon_follows_the_train_step():
    train_step = create_train_step()
    agent = dqn.make_agent(SPECS, train_step, Experience(), epsilon=schedules.linear(1.0, 0.0, 100))
    agent.initialize()
    zeros = tensor_spec.zero_spec_nest(SPECS.time_step, outer_dims=(4000,))
    train_step.assign(100)
    greedy = agent.policy.action(zeros).action.numpy()
    assert (agent.collect_policy.action(zeros).action.numpy() == greedy).all()
    train_step.assign(50)
    # Half of the actions are random, and half of those are the other action.
    different = (agent.collect_policy.action(zeros).action.numpy() != greedy).mean()
    assert different == pytest.approx(0.25, abs=0.05)


def test_it_learns_a_bandit():
    agent = _agent(2, optimizer=OptimizerOptions(5e-2))
    agent.initialize()
    train = tf.function(agent.train, autograph=False)
    for _ in range(300):
        train(_sequence([0.0, 1.0], [3.0, 0.0]))
    assert _q(agent._q_network, 0)[0] == pytest.approx(3.0, abs=0.1)
    assert int(agent.train_step_counter) == 300


def test_weights_of_prioritized_items():
    agent = dqn.make_agent(
        SPECS,
        create_train_step(),
        Experience(replay=Prioritized()),
        network=NetworkOptions(fc_layer_params=(5,)),
        gamma=0.5,
        huber=False,
    )
    agent.initialize()
    batch = tf.nest.map_structure(
        lambda *items: tf.concat(items, axis=0), _sequence([0.0, 1.0], [2.0, 0.0]), _sequence([0.0, 1.0], [5.0, 0.0])
    )
    errors = np.array([2.0, 5.0]) - _q(agent._q_network, 0)[0]
    loss, extra = agent.train(batch, weights=tf.constant([0.25, 1.0]))
    assert extra.td_error.shape == (2,)
    np.testing.assert_allclose(extra.td_error, errors, rtol=1e-5)
    assert float(loss) == pytest.approx((0.25 * errors[0] ** 2 + errors[1] ** 2) / 2, rel=1e-5)


@pytest.mark.parametrize('double', [True, False])
def test_train_steps_equal_tf_agents_bit_for_bit(double):
    ours = _agent(3, double=double, huber=True, target_update_period=2, reward_scale=0.1)
    agent_class = dqn_agent.DdqnAgent if double else dqn_agent.DqnAgent
    theirs = agent_class(
        SPECS.time_step,
        SPECS.action,
        q_network=q_network.QNetwork(SPECS.observation, SPECS.action, fc_layer_params=(5,)),
        optimizer=tf.keras.optimizers.Adam(1e-3),
        n_step_update=2,
        target_update_period=2,
        td_errors_loss_fn=common.element_wise_huber_loss,
        gamma=0.5,
        reward_scale_factor=0.1,
        train_step_counter=create_train_step(),
    )
    for a, b in zip(theirs.policy.variables(), ours.policy.variables(), strict=True):
        a.assign(b)
    for agent in (ours, theirs):
        agent.initialize()
    for seed in range(5):
        data = example_data.sequences(ours, 8, 3, seed)
        data = data._replace(observation=data.observation[..., :2])
        weights = tf.random.stateless_uniform((8,), (seed, 1))
        infos = [agent.train(data, weights=weights) for agent in (ours, theirs)]
        for a, b in zip(*map(tf.nest.flatten, infos), strict=True):
            np.testing.assert_array_equal(a, b)
        for a, b in zip(ours.policy.variables(), theirs.policy.variables(), strict=True):
            np.testing.assert_array_equal(a.numpy(), b.numpy())
    assert ours.train_step_counter.numpy() == 5


def test_learns_from_images():
    image = tensor_spec.BoundedTensorSpec((12, 12, 2), tf.uint8, 0, 255, 'observation')
    agent = dqn.make_agent(
        EnvironmentSpecs(image, SPECS.action),
        create_train_step(),
        Experience(),
        network=NetworkOptions(conv_layer_params=((4, 4, 2),)),
    )
    agent.initialize()
    weights = [variable for variable in agent.policy.variables() if variable.shape.rank == 4]
    assert [variable.shape.as_list() for variable in weights] == [[4, 4, 2, 4]]
    before = weights[0].numpy()
    data = example_data.sequences(agent, 4, 2)
    assert data.observation.dtype == tf.uint8
    assert np.isfinite(float(agent.train(data).loss))
    assert (weights[0].numpy() != before).any()
    with pytest.raises(ValueError, match=r'got conv_layer_params for the observation .*; need images'):
        _agent(2, network=NetworkOptions(conv_layer_params=((4, 4, 2),)))


class TestDistributions:
    """QR-DQN and C51; tests/optimization/distributional_test.py checks their losses."""

    @pytest.mark.parametrize('double', [True, False])
    @pytest.mark.parametrize('dueling', [True, False])
    def test_the_target_is_the_n_step_return_of_the_best_action(self, double, dueling):
        quantiles = distributional.Quantiles(4)
        agent = _agent(4, double=double, dueling=dueling, distribution=quantiles)
        agent.initialize()
        generator = np.random.default_rng(1)
        for network in (agent._q_network, agent._target_q_network):
            for variable in network.variables:
                variable.assign(generator.normal(0.0, 1.0, variable.shape))
        batch = _sequence([1.0, 1.0, 1.0, 1.0], [1.0, 2.0, 4.0, 9.0])
        first, last = (tf.constant([[step, step]], tf.float32) for step in (0.0, 3.0))
        chooses = agent._q_network if double else agent._target_q_network
        best = int(np.argmax(chooses(last)[0]))
        own = agent._q_network.outputs(first)[:, 0]
        following = agent._target_q_network.outputs(last)[:, best]
        wanted = quantiles.losses(own, following, tf.constant([1.0 + 0.5 * 2 + 0.25 * 4]), tf.constant([0.125]))
        np.testing.assert_allclose(agent._q_network(last)[0], tf.reduce_mean(agent._q_network.outputs(last), axis=2))
        loss, extra = agent.train(batch)
        assert float(loss) == pytest.approx(float(wanted[0]), rel=1e-4)
        error = 3.0 + 0.125 * tf.reduce_mean(following) - tf.reduce_mean(own)
        assert float(extra.td_error[0]) == pytest.approx(float(error), rel=1e-4)

    @pytest.mark.parametrize(
        'distribution', [distributional.Quantiles(8, 0.1), distributional.Categorical(21, 0.0, 10.0)]
    )
    def test_they_learn_both_returns_of_a_gamble(self, distribution):
        agent = _agent(2, optimizer=OptimizerOptions(3e-2), distribution=distribution)
        agent.initialize()
        train = tf.function(agent.train, autograph=False)
        batch = tf.nest.map_structure(
            lambda *items: tf.concat(items, axis=0),
            _sequence([0.0, 1.0], [2.0, 0.0]),
            _sequence([0.0, 1.0], [7.0, 0.0]),
        )
        for _ in range(300):
            train(batch)
        outputs = agent._q_network.outputs(tf.zeros([1, 2]))[0, 0].numpy()
        if isinstance(distribution, distributional.Quantiles):  # between the two returns any median is right
            np.testing.assert_allclose(np.sort(outputs)[[0, -1]], [2.0, 7.0], atol=0.3)
            assert 3.0 < _q(agent._q_network, 0)[0] < 6.0
        else:
            np.testing.assert_allclose(tf.nn.softmax(outputs).numpy()[[4, 14]], [0.5, 0.5], atol=0.05)
            assert _q(agent._q_network, 0)[0] == pytest.approx(4.5, abs=0.3)
