import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts

from tests.agents import example_data
from tests.testing import deterministic_oracle as oracle
from tflearn.agents import ddpg, td3
from tflearn.core.experience import Slicing
from tflearn.core.train_step import create_train_step
from tflearn.core.types import EnvironmentSpecs, zeros
from tflearn.networks.networks import NetworkOptions
from tflearn.optimization import schedules
from tflearn.optimization.optimizers import OptimizerOptions
from tflearn.policies import exporter, loader

SPECS = EnvironmentSpecs(
    example_data.CONTINUOUS.observation,
    tensor_spec.BoundedTensorSpec((2,), tf.float32, [-2.0, 0.0], [2.0, 0.5], 'action'),
)
NESTED = EnvironmentSpecs(
    {'a': SPECS.observation, 'b': tensor_spec.BoundedTensorSpec((), tf.int64, 0, 4)},
    {
        'arm': (SPECS.action, tensor_spec.BoundedTensorSpec((2, 2), tf.float64, -1.0, 3.0)),
        'grip': tensor_spec.BoundedTensorSpec((), tf.float32, 0.0, 1.0),
    },
)
SMALL = {'network': NetworkOptions(fc_layer_params=(8,), critic_fc_layer_params=(9,))}


def _agent(specs=example_data.CONTINUOUS, length=2, **changes):
    experience = dataclasses.replace(td3.EXPERIENCE, slicing=Slicing(sequence_length=length))
    agent = td3.make_agent(specs, create_train_step(), experience, **SMALL | changes)
    agent.initialize()
    return agent


def _spread(agent):
    """Gives all variables, those of the targets too, weights that differ."""
    for i, variable in enumerate(agent.variables):
        if variable.dtype.is_floating and variable.shape.rank:
            variable.assign(tf.random.stateless_uniform(variable.shape, (i, 3), -0.7, 0.7))


@pytest.mark.parametrize(('alpha', 'beta'), [(None, 0.0), (2.5, 0.0), (2.5, 0.8)])
@pytest.mark.parametrize('length', [2, 4])
def test_losses_are_the_papers(alpha, beta, length):
    more = {'behavior_cloning_alpha': alpha, 'target_cloning_beta': beta}
    loss = td3.TD3Loss(gamma=0.9, reward_scale=3.0, target_policy_noise=0.4, **more)
    agent = _agent(loss=loss, length=length)
    _spread(agent)
    data = _cut_off(example_data.sequences(agent, 16, length), 5)
    noise = np.random.default_rng(5).normal(size=(16, 2))
    agent._noise = lambda actions: tf.constant(noise, tf.float32)
    weights = tf.linspace(0.5, 1.5, 16)
    losses = oracle.Losses(gamma=0.9, reward_scale=3.0, sigma=0.4, clip=0.5, alpha=alpha, beta=beta)
    assert float(agent.loss(data, weights).loss) == pytest.approx(
        sum(losses(agent, data, noise, weights.numpy())), rel=1e-5
    )
    critic, actor = losses(agent, data, noise, 1.0)
    extra = agent.loss(data).extra
    assert float(extra['critic_loss']) == pytest.approx(critic, rel=1e-5)
    assert float(extra['actor_loss']) == pytest.approx(actor, rel=1e-5)


def _cut_off(data, item):
    """The episode of one of the items is cut off with its last step: no action follows."""
    types, following = data.step_type.numpy(), data.next_step_type.numpy()
    types[item, -1] = following[item, -2] = ts.StepType.LAST
    following[item, -1] = ts.StepType.FIRST
    return data._replace(step_type=tf.constant(types), next_step_type=tf.constant(following))


def test_critics_with_normalized_layers_are_those_of_rebrac():
    agent = _agent(critic_layer_norm=True)
    assert len(agent._critics.trainable_variables) == len(_agent()._critics.trainable_variables) + 2


def test_actor_and_targets_are_updated_each_second_step():
    agent = _agent(target_update_tau=0.25)
    data, train = example_data.sequences(agent, 8, 2), tf.function(agent.train, autograph=False)
    slow = lambda: [variable.numpy() for variable in (*agent._actor.variables, *_targets(agent))]  # noqa: E731
    for step in range(1, 5):
        before, critic = slow(), agent._critics.variables[0].numpy()
        train(data)
        changed = [np.any(a != b) for a, b in zip(before, slow(), strict=True)]
        assert all(changed) if step % 2 == 0 else not any(changed)
        assert np.any(critic != agent._critics.variables[0].numpy())
        if step % 2 == 0:
            new = zip(before[len(agent._actor.variables) :], _targets(agent), _trained(agent), strict=True)
            for old, target, trained in new:
                np.testing.assert_allclose(target, 0.75 * old + 0.25 * trained, rtol=1e-5, atol=1e-7)
    assert [int(agent._optimizers[name].keras.iterations) for name in ('critic', 'actor')] == [4, 2]


def _targets(agent):
    return [variable for part in (agent._target_actor, agent._target_critics) for variable in part.variables]


def _trained(agent):
    return [variable for part in (agent._actor, agent._critics) for variable in part.variables]


def test_the_actors_learning_rate_follows_the_train_step():
    agent = _agent(optimizer=OptimizerOptions({'actor': schedules.linear(1.0, 0.0, 10)}))
    data = example_data.sequences(agent, 4, 2)
    for _ in range(4):
        agent.train(data)
    # Its second update is in the train step that begins at 3.
    assert agent._optimizers['actor'].learning_rate.numpy() == pytest.approx(0.7)


def test_noise_is_a_share_of_half_the_range_and_actions_are_within_their_bounds():
    agent = _agent(SPECS, exploration_noise=0.1)
    steps = zeros(SPECS.time_step, (2_000,))
    greedy = agent.policy.action(steps).action.numpy()
    assert (greedy == greedy[0]).all()
    np.testing.assert_allclose(greedy[0], [0.0, 0.25], atol=0.01)
    np.testing.assert_allclose(agent.collect_policy.action(steps).action.numpy().std(axis=0), [0.2, 0.025], rtol=0.1)
    wild = _agent(SPECS, exploration_noise=5.0).collect_policy.action(steps).action.numpy()
    assert (wild.min(axis=0), wild.max(axis=0)) == (pytest.approx([-2.0, 0.0]), pytest.approx([2.0, 0.5]))


def test_damped_noise_is_an_ornstein_uhlenbeck_process_of_each_episode(tmp_path):
    """Its first deviation, its stationary one, and its correlation; exported as well."""
    damping, size = 0.25, 20_000
    agent = _agent(SPECS, exploration_noise=0.1, exploration_damping=damping)
    exporter.PolicyExporter(agent.collect_policy, tmp_path / 'policy').export(1, {})
    policy, steps = loader.load(tmp_path / 'policy' / '1'), zeros(SPECS.time_step, (size,))
    later = steps._replace(step_type=tf.ones(size, tf.int32))
    middle, half = agent.policy.action(steps).action.numpy(), np.array([2.0, 0.25])
    state, noise = policy.initial_state(size), []
    np.testing.assert_array_equal(state, 0.0)
    for _ in range(20):
        action, state = policy.action(later, state)
        noise.append((np.asarray(action) - middle) / half)
        np.testing.assert_allclose(noise[-1], 0.1 * np.asarray(state), atol=1e-5)
    np.testing.assert_allclose(noise[0].std(axis=0), 0.1, rtol=0.1)
    np.testing.assert_allclose(noise[-1].std(axis=0), 0.1 / np.sqrt(1 - (1 - damping) ** 2), rtol=0.1)
    correlation = (noise[-1] * noise[-2]).mean(axis=0) / np.square(noise[-1]).mean(axis=0)
    np.testing.assert_allclose(correlation, 1 - damping, atol=0.05)
    distribution = agent.collect_policy.distribution(later, tf.constant(state)).action
    np.testing.assert_allclose(distribution.mean(), middle + half * 0.1 * (1 - damping) * np.asarray(state), atol=1e-5)
    first, _ = policy.action(steps, state)
    np.testing.assert_allclose(((np.asarray(first) - middle) / half).std(axis=0), 0.1, rtol=0.1)
    wild = _agent(SPECS, exploration_noise=5.0, exploration_damping=damping).collect_policy
    assert np.abs(wild.action(steps, wild.get_initial_state(size)).action / half - [0.0, 1.0]).max() <= 1.0
    for damping in (0.0, 1.1):
        with pytest.raises(ValueError, match=f'got exploration_damping={damping}; need a number above 0 and at most 1'):
            _agent(SPECS, exploration_damping=damping)


@pytest.mark.parametrize('units', [(8,), (256, 256)])
def test_the_export_of_a_vector_is_bit_equal(tmp_path, units):
    """`PolicyExporter` compares; TensorFlow fuses some layers in the one program and not in the other."""
    agent = _agent(network=NetworkOptions(fc_layer_params=units))
    for variable in agent.policy.variables():
        variable.assign(tf.random.stateless_normal(variable.shape, (1, 2), stddev=0.3))
    exporter.PolicyExporter(agent.policy, tmp_path).export(1, {})


def test_a_nested_action_is_learned():
    """The reward is the sum of the action's numbers, half of them with the other sign; episodes have one step."""
    agent = _agent(NESTED, optimizer=OptimizerOptions({'actor': 1e-2, 'critic': 1e-2}), loss=td3.TD3Loss(gamma=0.0))
    signs = np.float32([1, -1, 1, -1, 1, -1, 1])
    data = example_data.sequences(agent, 64, 2)
    actions = tensor_spec.sample_spec_nest(NESTED.action, seed=4, outer_dims=(64,))
    reward = tf.reduce_sum(signs * _shares(actions), axis=1)
    data = data._replace(
        action=tf.nest.map_structure(lambda leaf: tf.stack([leaf, leaf], axis=1), actions),
        reward=tf.stack([reward, reward], axis=1),
    )
    train = tf.function(agent.train, autograph=False)
    for _ in range(200):
        train(data)
    found = _shares(agent.policy.action(zeros(NESTED.time_step, (1,))).action)[0].numpy()
    assert (signs * found > 0.7).all(), found


def _shares(actions):
    """Returns the numbers of actions [N, ...] as shares of half their range, from the middle, float32 [N, numbers]."""
    shares = []
    for spec, leaf in zip(tf.nest.flatten(NESTED.action), tf.nest.flatten(actions), strict=True):
        middle, half = (spec.maximum + spec.minimum) / 2, (spec.maximum - spec.minimum) / 2
        shares.append(tf.reshape(tf.cast((leaf - middle) / half, tf.float32), (len(leaf), -1)))
    return tf.concat(shares, axis=1)


def _ddpg(**changes):
    agent = ddpg.make_agent(example_data.CONTINUOUS, create_train_step(), ddpg.EXPERIENCE, **SMALL | changes)
    agent.initialize()
    return agent


def test_losses_are_the_papers_of_ddpg():
    agent = _ddpg(gamma=0.9, reward_scale=2.0)
    for i, variable in enumerate(agent.variables):
        if variable.dtype.is_floating and variable.shape.rank:
            variable.assign(tf.random.stateless_uniform(variable.shape, (i, 3), -0.7, 0.7))
    data = example_data.sequences(agent, 16, 2)
    critic, actor = oracle.Losses(gamma=0.9, reward_scale=2.0, sigma=0.0, clip=0.0, alpha=None)(agent, data, 0.0, 1.0)
    info = agent.loss(data)
    assert float(info.extra['critic_loss']) == pytest.approx(critic, rel=1e-5)
    assert float(info.extra['actor_loss']) == pytest.approx(actor, rel=1e-5)
    assert agent._critics._options.num == 1


def test_all_networks_are_updated_in_each_step():
    agent = _ddpg(target_update_tau=0.5)
    parts = (agent._actor, agent._target_actor, agent._critics, agent._target_critics)
    variables = [variable for part in parts for variable in part.variables]
    before = [variable.numpy() for variable in variables]
    agent.train(example_data.sequences(agent, 8, 2))
    assert len(variables) == 16
    assert all(np.any(a != b.numpy()) for a, b in zip(before, variables, strict=True))
