"""MPO's losses by their definitions in float64, and its targets."""

import numpy as np
import pytest
import tensorflow as tf

from tests.agents import example_data, oracles
from tests.testing import experiences
from tflearn.agents import mpo
from tflearn.core.train_step import create_train_step
from tflearn.networks.networks import NetworkOptions
from tflearn.optimization.optimizers import OptimizerOptions

SPECS = pytest.mark.parametrize('specs', [example_data.DISCRETE, example_data.CONTINUOUS], ids=['integer', 'floats'])
NETWORK = NetworkOptions((16, 8), activation='relu', critic_fc_layer_params=(8, 16))


def _agent(specs, sequence_length=4, **changes):
    experience = experiences.changed(mpo.EXPERIENCE, sequence_length=sequence_length)
    agent = mpo.make_agent(specs, create_train_step(), experience, **{'network': NETWORK, **changes})
    agent.initialize()
    networks = (agent._actor, agent._target_actor, agent._critics, agent._target_critics)
    for i, variable in enumerate([variable for network in networks for variable in network.variables]):
        variable.assign(tf.random.stateless_uniform(variable.shape, (i, 3), -0.9, 0.9))
    return agent


def _valued(agent, observation, draws):
    """The target policy's actions, what each counts, and the lesser value of the targets, float64 [N, R]."""
    policy = oracles.Policy(agent._target_actor, observation, activation=oracles.relu)
    members = oracles.members(agent._target_critics)
    if policy.log_probs is not None:
        values = np.min([oracles.critic(member, observation) for member in members], axis=0)
        return policy, None, np.exp(policy.log_probs).T, values.T
    actions = policy.mode + policy.scale * np.float64(draws.normal((5, *policy.mode.shape)))
    clipped = np.clip(actions, -1.0, 1.0)
    repeated = np.broadcast_to(observation, (5, *observation.shape))
    values = np.min([oracles.critic(member, repeated, clipped) for member in members], axis=0)
    return policy, actions, np.full(values.shape, 0.2), values


def _normal(action, mean, scale):
    return (-0.5 * ((action - mean) / scale) ** 2 - np.log(scale) - 0.5 * np.log(2 * np.pi)).sum(-1)


@SPECS
def test_losses_are_the_papers(specs):
    loss = mpo.MPOLoss(0.9, 3.0, 5, 0.2, 0.03, 0.04, 0.05, initial_eta=0.7, initial_alpha=2.0)
    agent = _agent(specs, loss=loss)
    data = example_data.sequences(agent, 6, 4)
    draws = agent._draws
    draws.restart()
    first, following = (np.float64(data.observation[:, step]) for step in (0, 3))
    _, _, shares, values = _valued(agent, following, draws)
    reward = 3.0 * np.float64(data.reward)
    target = reward[:, 0] + 0.9 * reward[:, 1] + 0.81 * reward[:, 2] + 0.9**3 * (shares * values).sum(0)
    is_discrete = specs is example_data.DISCRETE
    taken = [oracles.least([m] * 2, first, data.action[:, 0], is_discrete) for m in oracles.members(agent._critics)]
    before, actions, shares, values = _valued(agent, first, draws)
    now = oracles.Policy(agent._actor, first, activation=oracles.relu)
    exponentials = shares * np.exp(values / 0.7)
    weights = exponentials / exponentials.sum(0)
    if is_discrete:
        log_probs = now.log_probs.T
        divergences = {'kl': (np.exp(before.log_probs) * (before.log_probs - now.log_probs)).sum(-1)}
    else:
        log_probs = _normal(actions, now.mode, before.scale) + _normal(actions, before.mode, now.scale)
        ratio = np.broadcast_to(before.scale / now.scale, before.mode.shape) ** 2
        divergences = {
            'kl_mean': (0.5 * ((now.mode - before.mode) / before.scale) ** 2).sum(-1),
            'kl_covariance': (0.5 * (ratio - 1 - np.log(ratio))).sum(-1),
        }
    expected = {
        'critic_loss': sum((target - value) ** 2 for value in taken),
        'policy_loss': -(weights * log_probs).sum(0),
        'temperature_loss': 0.7 * (0.2 + np.log(exponentials.sum(0))),
        'value': (shares * values).sum(0),
        'eta': 0.7,
        **divergences,
        **{f'{kind}_alpha': 2.0 for kind in divergences},
    }
    epsilons = {'kl': 0.03, 'kl_mean': 0.04, 'kl_covariance': 0.05}
    total = expected['critic_loss'] + expected['policy_loss'] + expected['temperature_loss']
    total += sum(2.0 * (epsilons[kind] - each) + 2.0 * each for kind, each in divergences.items())
    info = agent.loss(data)
    assert float(info.loss) == pytest.approx(total.mean(), rel=1e-4)
    extra = {name: float(value) for name, value in info.extra.items() if name != 'td_error'}
    means = {name: np.mean(value) for name, value in expected.items()}
    assert extra == pytest.approx(means | {'valid_share': 1.0}, rel=1e-3)


def test_the_temperature_descends_to_its_bound():
    """At the least loss, the weights' divergence from equal ones is the bound."""
    values = tf.constant(np.random.default_rng(0).normal(0, 3, (20, 64)), tf.float32)
    log_eta, shares = tf.Variable(0.0), tf.constant(-np.log(20.0), tf.float32)
    for _ in range(100):
        with tf.GradientTape() as tape:
            weights, losses = mpo.weights_and_loss(values, shares, tf.exp(log_eta), 0.1)
            loss = tf.reduce_mean(losses)
        log_eta.assign_sub(0.1 * tape.gradient(loss, log_eta))
    divergence = np.sum(weights * np.log(20 * np.maximum(weights, 1e-30)), axis=0)
    assert divergence.mean() == pytest.approx(0.1, abs=1e-3)


def test_the_temperature_and_the_multipliers_have_a_least():
    agent = _agent(example_data.CONTINUOUS)
    for variable in agent._trained('dual'):
        variable.assign(-40.0)
    agent.train(example_data.sequences(agent, 4, 4))
    np.testing.assert_allclose(agent._trained('dual'), [np.log(1e-8)] * 3, rtol=1e-3)


def test_multipliers_descend_on_their_losses():
    """One rises while its divergence exceeds the bound, and falls otherwise; neither moves what the bounds are of."""
    loss = mpo.MPOLoss(epsilon_mean=1e-9, epsilon_covariance=1e9)
    agent = _agent(example_data.CONTINUOUS, loss=loss, optimizer=OptimizerOptions({'dual': 0.5}))
    agent.train(example_data.sequences(agent, 4, 4))
    alphas = {kind: float(alpha) for kind, alpha in agent._log_alphas.items()}
    assert alphas == pytest.approx({'kl_mean': np.log(10) + 0.5, 'kl_covariance': np.log(10) - 0.5}, rel=1e-4)


def test_actor_and_critics_of_the_targets_follow_together():
    agent = _agent(example_data.CONTINUOUS, target_update_period=2)
    data = example_data.sequences(agent, 4, 4)
    pairs = [(agent._actor, agent._target_actor), (agent._critics, agent._target_critics)]
    first = [target.variables[0].numpy() for _, target in pairs]
    agent.train(data)
    for (_, target), value in zip(pairs, first, strict=True):
        np.testing.assert_array_equal(target.variables[0], value)
    agent.train(data)
    for trained, target in pairs:
        for new, old in zip(trained.variables, target.variables, strict=True):
            np.testing.assert_array_equal(new, old)


@pytest.mark.parametrize(
    'changes',
    [{'epsilon_mean': 0.0}, {'num_action_samples': 1}, {'reward_scale': float('nan')}, {'initial_eta': -1.0}],
    ids=str,
)
def test_rejects_invalid_options(changes):
    name, value = next(iter(changes.items()))
    with pytest.raises(ValueError, match=f'got MPOLoss.{name}={value!r}; need'):
        mpo.MPOLoss(**changes)
