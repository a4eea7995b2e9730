import numpy as np
import pytest
import tensorflow as tf
from tf_agents.trajectories import time_step as ts
from tf_agents.utils import common

from tests.agents import example_data, oracles
from tests.testing import deterministic_oracle as oracle
from tests.testing import experiences
from tflearn.agents import droq, sac, tqc
from tflearn.core.train_step import create_train_step
from tflearn.core.types import zeros
from tflearn.networks import heads
from tflearn.networks.networks import NetworkOptions
from tflearn.optimization import ensemble
from tflearn.optimization.conservative import Conservative
from tflearn.optimization.optimizers import OptimizerOptions

SPECS = example_data.CONTINUOUS
SMALL = {'network': NetworkOptions(fc_layer_params=(16,), critic_fc_layer_params=(16,))}


def _agent(specs=SPECS, length=2, **changes):
    experience = experiences.changed(sac.EXPERIENCE, sequence_length=length)
    agent = sac.make_agent(specs, create_train_step(), experience, **SMALL | changes)
    agent.initialize()
    return agent


def test_actions_are_within_their_bounds():
    agent = _agent()
    steps = zeros(SPECS.time_step, (500,))
    actions = agent.collect_policy.action(steps).action.numpy()
    assert actions.shape == (500, 2)
    assert (np.abs(actions) <= 1).all()
    assert actions.std() > 0.3
    greedy = agent.policy.action(steps).action.numpy()
    assert (greedy == greedy[0]).all()


def test_the_temperature_is_learned_for_the_papers_entropy():
    """-dim(A): the temperature falls while the entropy is above it, and rises while it is below."""
    falling, rising = (
        _agent(optimizer=OptimizerOptions({'alpha': 0.1})),
        _agent(optimizer=OptimizerOptions({'alpha': 0.1}), loss=sac.SACLoss(target_entropy=50.0)),
    )
    for agent in (falling, rising):
        agent.train(example_data.sequences(agent, 32, 2))
    assert falling._target_entropy == -2.0
    assert float(falling._log_alpha) < 0.0 < float(rising._log_alpha)


def test_an_item_s_error_is_that_of_its_values():
    agent = _agent(loss=sac.SACLoss(gamma=0.0, reward_scale=2.0))
    data = example_data.sequences(agent, 8, 2)
    values = agent._critics(data.observation[:, 0], data.action[:, 0])[..., 0]
    expected = np.abs(2.0 * data.reward.numpy()[:, :1] - values.numpy()).mean(axis=1)
    np.testing.assert_allclose(agent.train(data).extra['td_error'], expected, rtol=1e-4)


def test_target_networks_are_updated():
    agent = _agent(target_update_tau=1.0, target_update_period=2)
    data = example_data.sequences(agent, 8, 2)
    first = agent._target_critics.variables[0].numpy()
    agent.train(data)
    np.testing.assert_array_equal(agent._target_critics.variables[0].numpy(), first)
    agent.train(data)
    for critic, target in zip(agent._critics.variables, agent._target_critics.variables, strict=True):
        np.testing.assert_array_equal(critic.numpy(), target.numpy())


# CQL as a setting of SAC.


def _gaps(agent, data, actions, log_densities, returns=None):
    """Returns the sum of both critics' gaps [B], in float64; Cal-QL's with returns [B]."""
    observation, own = (np.asarray(part, np.float64)[:, 0] for part in (data.observation, data.action))
    total = 0.0
    for critic in oracles.members(agent._critics):
        value = lambda action, critic=critic: oracle.network(  # noqa: E731
            critic.variables, np.concatenate([observation, action], axis=1)
        )[:, 0]
        drawn = np.stack([value(actions[:, k]) for k in range(actions.shape[1])], axis=1)
        if returns is not None:
            half = actions.shape[1] // 2
            drawn[:, half:] = np.maximum(drawn[:, half:], returns[:, None])
        total += np.log(np.exp(drawn - log_densities).mean(axis=1)) - value(own)
    return total


@pytest.mark.parametrize('target', [None, 4.0])
def test_the_regularizer_is_the_papers(target):
    agent, plain = (
        _agent(conservative=Conservative(5.0, target, num_actions=3)),
        _agent(),
    )
    data = example_data.sequences(agent, 8, 2)
    generator = np.random.default_rng(1)
    actions, densities = generator.uniform(-1, 1, (8, 6, 2)), generator.normal(size=(8, 6))
    agent._draw_others = lambda batch: (tf.constant(actions, tf.float32), tf.constant(densities, tf.float32))
    weights = np.linspace(0.5, 1.5, 8)
    excess = _gaps(agent, data, actions, densities) - 2 * (target or 0.0)
    np.testing.assert_allclose(agent._excess_gaps(agent._transitions(data)), excess, rtol=1e-4)
    losses = []
    for each in (agent, plain):
        for name in ('_actor', '_critics'):
            for mine, other in zip(getattr(each, name).variables, getattr(agent, name).variables, strict=True):
                mine.assign(other)
        each.initialize()
        each._draws = agent._draws
        losses.append(float(each.loss(data, tf.constant(weights, tf.float32)).loss))
    of_weight = 0.0 if target is None else -5.0 * (weights * excess).mean() / 2
    assert losses[0] - losses[1] == pytest.approx(5.0 * (weights * excess).mean() + of_weight, rel=1e-3)


def test_values_of_the_policys_actions_fall_to_the_return_of_the_data_in_cal_ql():
    agent = _agent(conservative=Conservative(5.0, num_actions=3, calibrated=True), length=4)
    data = example_data.sequences(agent, 8, 4)
    # The first item's episode terminates in its second step, and then there are copies of its boundary row.
    types, following, discount = (part.numpy() for part in (data.step_type, data.next_step_type, data.discount))
    types[0, 2:], following[0, 1], following[0, 2:] = ts.StepType.LAST, ts.StepType.LAST, ts.StepType.FIRST
    discount[0, 1] = 0.0
    data = data._replace(step_type=types, next_step_type=following, discount=discount, reward=2.0 * data.reward)
    data = tf.nest.map_structure(tf.constant, data)
    generator = np.random.default_rng(1)
    actions, densities = generator.uniform(-1, 1, (8, 6, 2)), generator.normal(size=(8, 6))
    agent._draw_others = lambda batch: (tf.constant(actions, tf.float32), tf.constant(densities, tf.float32))
    reward = np.asarray(data.reward, np.float64)
    returns = reward[:, 0] + 0.99 * reward[:, 1] + np.where(np.arange(8) > 0, 0.99**2 * reward[:, 2], 0.0)
    batch = agent._transitions(data)
    found = agent._excess_gaps(batch)
    np.testing.assert_allclose(found, _gaps(agent, data, actions, densities, returns), rtol=1e-4)
    assert (found > 1e-3 + _gaps(agent, data, actions, densities)).numpy().any()
    # What else is learned is of the first step.
    np.testing.assert_allclose(batch.reward, reward[:, 0], rtol=1e-6)
    np.testing.assert_array_equal(batch.next_observation, data.observation[:, 1])


def test_returns_need_items_of_several_steps():
    with pytest.raises(ValueError, match='got Conservative.calibrated=True with Slicing.sequence_length=2; need an ep'):
        _agent(conservative=Conservative(5.0, calibrated=True))
    with pytest.raises(ValueError, match='got Conservative.calibrated=True with weight=0.0; need a weight above 0'):
        Conservative(calibrated=True)


def test_actions_are_drawn_from_the_densities_that_are_reported():
    agent = _agent(conservative=Conservative(1.0, num_actions=3))
    batch = agent._transitions(example_data.sequences(agent, 4, 2))
    agent._draws.restart()
    actions, log_densities = (part.numpy().astype(np.float64) for part in agent._draw_others(batch))
    assert actions.shape == (4, 6, 2) and log_densities.shape == (4, 6)
    np.testing.assert_allclose(log_densities[:, :3], -2 * np.log(2.0), rtol=1e-6)
    distribution = agent._distribution(batch.observation, training=True).input_distribution
    mean, deviation = distribution.mean().numpy()[:, None], distribution.stddev().numpy()[:, None]
    shares = actions[:, 3:]
    normal = -0.5 * ((np.arctanh(shares) - mean) / deviation) ** 2 - np.log(deviation * np.sqrt(2 * np.pi))
    expected = (normal - np.log(1 - shares**2)).sum(axis=2)
    np.testing.assert_allclose(log_densities[:, 3:], expected, rtol=1e-3, atol=1e-3)


def test_the_weight_is_adapted_to_the_target_gap():
    """The gap of critics without weights is the log of the actions' volume, log 4."""
    for target, grows in ((1.0, True), (10.0, False)):
        agent = _agent(
            optimizer=OptimizerOptions({'critic': 0.01}), conservative=Conservative(1.0, target, num_actions=3)
        )
        for variable in agent._critics.variables:
            variable.assign(tf.zeros_like(variable))
        agent.train(example_data.sequences(agent, 8, 2))
        assert (float(agent._log_conservative_weight) > 0) == grows


def test_without_it_the_agent_has_the_same_variables():
    assert len(_agent().variables) == len(_agent(conservative=Conservative(1.0, num_actions=3)).variables)


def test_is_not_for_memory():
    with pytest.raises(ValueError, match='got Conservative.weight with lstm_size; need one of them'):
        _agent(network=NetworkOptions(lstm_size=(4,)), conservative=Conservative(1.0, num_actions=3))


# TQC and DroQ: losses of their agent, learning, refusals; tests/optimization/ensemble_test.py has the equations.

QUANTILES = {'num_critics': 3, 'truncated': ensemble.Truncated(5, 2)}
LEAST = {'num_critics': 3, 'critic_dropout': 0.0}
SAC_N = {**LEAST, 'critic_layer_norm': False, 'least': ensemble.Least(3, for_actor=True)}
ALL = pytest.mark.parametrize(
    ('module', 'arguments'), [(tqc, QUANTILES), (droq, LEAST), (droq, SAC_N)], ids=['tqc', 'redq', 'sac_n']
)


def make_agent(module=tqc, specs=SPECS, experience=None, **changes):
    agent = module.make_agent(specs, create_train_step(), experience or module.EXPERIENCE, **{**SMALL, **changes})
    agent.initialize()
    return agent


@ALL
def test_losses_are_the_papers(module, arguments):
    """With what the policy draws, which is the same again for the same train step."""
    loss = sac.SACLoss(0.9, reward_scale=3.0, target_entropy=-1.5, initial_log_alpha=-0.5)
    agent, alpha = make_agent(module, loss=loss, **arguments), np.exp(-0.5)
    data = example_data.sequences(agent, 6, 2)
    data = data._replace(discount=tf.constant([[0.0, 1.0]] * 2 + [[1.0, 1.0]] * 4))
    row = lambda i: tf.nest.map_structure(lambda leaf: leaf[:, i], data)  # noqa: E731
    now, following = row(0), row(1).observation

    def drawn(observation):
        distribution, _ = agent._actor(observation, step_type=(), network_state=())
        action = heads.sample(distribution, agent._draws)
        return action, common.log_probability(distribution, action, SPECS.action).numpy()

    agent._draws.restart()
    next_action, next_log_probs = drawn(following)
    kept = agent._rule.bootstraps(
        agent._target_critics(following, next_action, draws=agent._draws), agent._draws
    ).numpy()
    if arguments is SAC_N:
        np.testing.assert_array_equal(kept, agent._target_critics(following, next_action).numpy().min(axis=1))
    action, log_probs = drawn(now.observation)
    discount = 0.9 * np.array([0.0] * 2 + [1.0] * 4)
    targets = 3.0 * now.reward.numpy()[:, None] + discount[:, None] * (kept - alpha * next_log_probs[:, None])
    critic_loss = agent._rule.losses(agent._critics(now.observation, now.action), tf.cast(targets, tf.float32))
    values = agent._critics(now.observation, now.action).numpy().mean(axis=2)
    errors = np.abs(targets.mean(axis=1, keepdims=True) - values).mean(axis=1)
    value = agent._critics(now.observation, action).numpy()
    value = value.min(axis=(1, 2)) if arguments is SAC_N else value.mean(axis=(1, 2))
    expected = {
        'critic_loss': critic_loss.numpy().mean(),
        'actor_loss': (alpha * log_probs - value).mean(),
        'value': value.mean(),
        'alpha_loss': (-0.5 * (-log_probs + 1.5)).mean(),
        'entropy': -log_probs.mean(),
        'alpha': alpha,
        'valid_share': 1.0,
    }
    info = agent.loss(data)
    np.testing.assert_allclose(info.extra.pop('td_error'), errors, rtol=1e-4)
    assert {name: float(value) for name, value in info.extra.items()} == pytest.approx(expected, rel=1e-4)


def test_returns_of_several_steps_and_rows_between_episodes():
    agent = make_agent(experience=experiences.changed(tqc.EXPERIENCE, sequence_length=4), **QUANTILES)
    assert np.isfinite(agent.train(example_data.sequences(agent, 6, 4)).loss)
