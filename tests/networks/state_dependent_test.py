"""Noise that depends on the observation: its distribution, how long it is held, and whole runs that explore by it."""

import functools
import re

import numpy as np
import pytest
import tensorflow as tf

import tflearn
from tests.agents import example_data
from tests.testing import experiences, plain_loader
from tflearn.agents import ppo, sac, tqc
from tflearn.core.train_step import create_train_step
from tflearn.core.types import EnvironmentSpecs, zeros
from tflearn.environments import gymnasium_env
from tflearn.networks.networks import NetworkOptions
from tflearn.networks.state_dependent import StateDependentNoise
from tflearn.policies import loader
from tflearn.policies.exporter import PolicyExporter

SPECS, NETWORK = example_data.CONTINUOUS, NetworkOptions((8,))
NESTED = EnvironmentSpecs(SPECS.observation, {'choice': example_data.DISCRETE.action, 'force': SPECS.action})


def _agent(module, specs=SPECS, experience=None, network=NETWORK, **noise):
    settings = {'network': network, 'state_dependent_noise': StateDependentNoise(**noise)}
    agent = module.make_agent(specs, create_train_step(), experience or module.EXPERIENCE, **settings)
    agent.initialize()
    return agent


def _weights(network):
    """Returns the encoder's, the means' and the deviations' weights, float64, by the ends of their names."""
    names = [
        re.sub(r'.*?(dense|means|sigma)[_0-9]*/(.*):0', r'\1/\2', each.name) for each in network.trainable_variables
    ]
    return {
        name: np.float64(value) for name, value in reversed([*zip(names, network.trainable_variables, strict=True)])
    }


def _log_density(values, mean, deviation):
    return -np.square((values - mean) / deviation) / 2 - np.log(deviation) - np.log(2 * np.pi) / 2


def _steps(specs, size, seed=0, step_type=1):
    steps = zeros(specs.time_step, (size,))
    observation = tf.random.stateless_uniform((size, 3), (seed, 1), -1.0, 1.0)
    return steps._replace(observation=observation, step_type=tf.fill((size,), step_type))


def test_log_probabilities_of_ppos_actions_are_those_of_the_papers_distribution():
    """In float64, from the weights: N(mean, z^2 sigma^2) of the features z."""
    agent = _agent(ppo, initial_deviation=2.0)
    names = _weights(agent._network)
    np.testing.assert_allclose(names['sigma/log_sigma'], np.log(2 / np.sqrt(8)), rtol=1e-6)
    (log_sigma,) = (v for v in agent._network.trainable_variables if 'sigma' in v.name)
    log_sigma.assign_add(tf.random.stateless_normal(log_sigma.shape, (1, 2)))
    data = example_data.sequences(agent, 4, 9)
    samples, _ = agent.prepare(data)
    weights = _weights(agent._network)
    (distribution, _), _ = agent._network(samples.observation)
    z = np.tanh(np.float64(samples.observation) @ weights['dense/kernel'] + weights['dense/bias'])
    mean = np.tanh(z @ weights['means/kernel'] + weights['means/bias'])
    deviation = np.sqrt(np.square(z) @ np.exp(2 * weights['sigma/log_sigma']) + 1e-6)
    expected = _log_density(np.float64(samples.action), mean, deviation).sum(axis=-1)
    np.testing.assert_allclose(agent._log_prob(distribution, samples.action), expected, rtol=1e-4, atol=1e-4)
    entropy = (np.log(deviation) + np.log(2 * np.pi * np.e) / 2).sum(axis=-1)
    np.testing.assert_allclose(distribution.entropy(), entropy, rtol=1e-4)


def test_the_variance_trains_the_deviations_but_not_the_features():
    agent = _agent(ppo)
    with tf.GradientTape() as tape:
        (distribution, _), _ = agent._network(_steps(SPECS, 5).observation)
        entropy = tf.reduce_sum(distribution.entropy())
    variables = agent._network.trainable_variables
    gradients = tape.gradient(entropy, variables)
    assert [each.name for each, found in zip(variables, gradients, strict=True) if found is not None] == [
        'ActorValueNetwork/StateDependentHead/sigma/log_sigma:0'
    ]


@pytest.mark.parametrize('module', [sac, tqc], ids=['sac', 'tqc'])
def test_log_probabilities_of_squashed_actions(module):
    """By the density of tanh's argument and its derivative; drawn actions have it too."""
    agent = _agent(module)
    weights, steps = _weights(agent._actor), _steps(SPECS, 20_000)
    one = steps.observation[:1]
    observation = tf.repeat(one, 20_000, axis=0)
    agent._draws.restart()
    action, log_probs, _ = agent._drawn(agent._distribution(observation))
    z = np.maximum(np.float64(one) @ weights['dense/kernel'] + weights['dense/bias'], 0.0)
    mean = (z @ weights['means/kernel'] + weights['means/bias'])[0]
    deviation = np.sqrt(np.square(z) @ np.exp(2 * weights['sigma/log_sigma']) + 1e-6)[0]
    before = np.arctanh(np.float64(action))
    expected = _log_density(before, mean, deviation) - np.log1p(-np.square(np.float64(action)))
    np.testing.assert_allclose(log_probs, expected.sum(axis=1), rtol=1e-3, atol=2e-3)
    np.testing.assert_allclose(before.std(axis=0), deviation, rtol=0.05)
    steps, policy = steps._replace(observation=observation), agent.collect_policy
    acted = np.arctanh(np.float64(policy.action(steps, policy.get_initial_state(20_000)).action))
    np.testing.assert_allclose(acted.mean(axis=0), mean, atol=0.05 * deviation.max())
    np.testing.assert_allclose(acted.std(axis=0), deviation, rtol=0.05)
    greedy = agent.policy.action(steps).action
    np.testing.assert_allclose(greedy[0], np.tanh(mean), rtol=1e-4)


@pytest.mark.parametrize('interval', [3, None])
def test_an_exported_collect_policy_holds_the_noise_of_each_environment(interval, tmp_path):
    """While it is held, the action is a function of the observation; a new episode has noise of its own."""
    agent = _agent(ppo, NESTED, interval_steps=interval)
    PolicyExporter(agent.collect_policy, tmp_path / 'policy').export(1, {})
    exported = loader.load(tmp_path / 'policy' / '1')
    state, seen = exported.initial_state(6), []
    for seed in (0, 1, 0, 0, 1, 0, 0):
        action, state = exported.action(_steps(NESTED, 6, seed), state)
        seen.append(np.asarray(action['force']))
    assert np.unique(seen[0][:, 0]).size == 6
    np.testing.assert_allclose(seen[2], seen[0])
    assert (seen[1] != seen[0]).all()
    np.testing.assert_allclose(seen[5], seen[3])
    assert np.array_equal(seen[3], seen[2]) == np.array_equal(seen[6], seen[5]) == (interval is None)
    step_type = np.array([0, 1, 1, 1, 1, 1], np.int32)
    again, kept = exported.action(_steps(NESTED, 6)._replace(step_type=step_type), state)
    changed = (np.asarray(again['force']) != seen[6]).any(axis=1)
    np.testing.assert_array_equal(changed, step_type == 0)
    expected = [1, 2, 2, 2, 2, 2] if interval else [1, 8, 8, 8, 8, 8]
    np.testing.assert_array_equal(kept['steps'], expected)


def test_actions_are_means_and_linear_in_the_features():
    agent = _agent(ppo)
    policy, steps = agent.collect_policy, _steps(SPECS, 5)
    state = policy.get_initial_state(5)
    (distribution, _), _ = agent._network(agent._normalized(steps.observation, tf.zeros(()))[0])
    weights = _weights(agent._network)
    z = np.tanh(np.float64(steps.observation) @ weights['dense/kernel'] + weights['dense/bias'])
    noise = np.einsum('bf,fa,bfa->ba', z, np.exp(weights['sigma/log_sigma']), np.float64(state['noise']))
    step = policy.action(steps, state)
    np.testing.assert_allclose(step.action, np.float64(distribution.mean()) + noise, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(step.info['dist_params']['scale'], distribution.stddev())
    np.testing.assert_allclose(policy.distribution(steps, state).action.stddev(), distribution.stddev())


@pytest.mark.parametrize(
    ('module', 'changes', 'message'),
    [
        (ppo, {'specs': example_data.DISCRETE}, 'got state_dependent_noise for the action .*; PPO needs vectors'),
        (ppo, {'network': NetworkOptions((8,), lstm_size=(4,))}, 'got state_dependent_noise for a network with memory'),
        (sac, {'network': NetworkOptions((8,), lstm_size=(4,))}, 'got state_dependent_noise with lstm_size'),
        (sac, {'interval_steps': 0}, 'got StateDependentNoise.interval_steps=0; need an integer of at least 1'),
        (sac, {'initial_deviation': 0.0}, 'got StateDependentNoise.initial_deviation=0.0; need a number above 0'),
    ],
)
def test_what_does_not_fit_is_refused(module, changes, message):
    experience = module.EXPERIENCE
    if 'network' in changes:
        experience = experiences.changed(experience, sequence_length=33, stride=32, store_policy_state=True)
    with pytest.raises(ValueError, match=message):
        _agent(module, **{'experience': experience, **changes})


def test_a_network_of_ones_own_has_no_such_noise():
    actor = sac.make_agent(SPECS, create_train_step(), sac.EXPERIENCE, network=NETWORK)._actor
    settings = {'actor_network': actor, 'state_dependent_noise': StateDependentNoise()}
    with pytest.raises(ValueError, match='got state_dependent_noise with actor_network; need one of them'):
        sac.make_agent(SPECS, create_train_step(), sac.EXPERIENCE, network=NETWORK, **settings)


def test_a_trained_agent_exports_a_greedy_policy_without_it(tmp_path):
    """Its greedy policy draws nothing; that of collection is exported above, and both by the whole runs below."""
    agent = _agent(ppo, interval_steps=2, initial_deviation=2.0)
    samples, counts = agent.prepare(example_data.sequences(agent, 4, 9))
    before = [variable.numpy() for variable in agent._network.trainable_variables]
    assert np.isfinite(agent.train(*(_flat(each) for each in (samples, counts))).loss)
    for old, new in zip(before, agent._network.trainable_variables, strict=True):
        assert (new.numpy() != old).any(), new.name
    steps = _steps(SPECS, 5)
    greedy = loader.load(PolicyExporter(agent.policy, tmp_path / 'policy').export(1, {}))
    assert greedy.initial_state(5) == ()
    for _ in range(2):
        np.testing.assert_allclose(greedy.action(steps)[0], agent.policy.action(steps).action, rtol=1e-5)


def _flat(nest):
    return tf.nest.map_structure(lambda leaf: tf.reshape(leaf, [-1, *leaf.shape[2:]]), nest)


@pytest.mark.slow
@pytest.mark.parametrize('mode', ['synchronous', 'processes'])
def test_a_run_explores_by_it_and_its_policies_need_only_tensorflow(mode, tmp_path):
    noise = StateDependentNoise(interval_steps=2, initial_deviation=2.0)
    run = tflearn.train(
        make_environment=functools.partial(gymnasium_env.make, 'Pendulum-v1'),
        make_agent=functools.partial(ppo.make_agent, network=NETWORK, state_dependent_noise=noise),
        experience=tflearn.Experience(
            tflearn.Slicing(9, 8, cross_episodes=True),
            tflearn.Queue(max_size=8, versions_ahead=1, training=tflearn.Iteration(2, 8)),
            tflearn.BatchItems(2),
        ),
        num_train_steps=40,
        num_environments=2,
        num_episodes=2,
        max_secs=300.0,
        seed=5,
        mode=mode,
        root_dir=tmp_path,
    )
    assert run.train_step == 40
    observation = np.array([[1.0, 0.0, 0.5]], np.float32)
    with plain_loader.started() as plain:
        for name, interval in (('greedy_policy', 4), ('collect_policy', 2)):
            plain.load(max(run.run_dir.policy(name).glob('[0-9]*'), key=lambda path: int(path.name)))
            actions = [float(plain.act({'observation': observation})['action'][0, 0]) for _ in range(4)]
            assert len(set(actions)) == 4 // interval, (name, actions)
            assert actions[0] == actions[1] and actions[2] == actions[3]
