"""TQC and DroQ: losses of their agent, learning, refusals; tests/optimization/ensemble_test.py has the equations."""

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.utils import common

from tests.agents import example_data
from tests.testing import experiences
from tflearn.agents import droq, sac, tqc
from tflearn.core.experience import Experience, Queue
from tflearn.core.train_step import create_train_step
from tflearn.core.types import zeros
from tflearn.networks import heads
from tflearn.networks.networks import NetworkOptions
from tflearn.optimization import ensemble
from tflearn.optimization.optimizers import OptimizerOptions

SPECS = example_data.CONTINUOUS
SMALL = {'network': NetworkOptions(fc_layer_params=(16,), critic_fc_layer_params=(16,))}
QUANTILES = {'num_critics': 3, 'truncated': ensemble.Truncated(5, 2)}
BOTH = pytest.mark.parametrize(
    ('module', 'arguments'), [(tqc, QUANTILES), (droq, {'num_critics': 3, 'critic_dropout': 0.0})], ids=['tqc', 'droq']
)


def make_agent(module=tqc, specs=SPECS, experience=None, **changes):
    agent = module.make_agent(specs, create_train_step(), experience or module.EXPERIENCE, **{**SMALL, **changes})
    agent.initialize()
    return agent


@BOTH
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
    action, log_probs = drawn(now.observation)
    discount = 0.9 * np.array([0.0] * 2 + [1.0] * 4)
    targets = 3.0 * now.reward.numpy()[:, None] + discount[:, None] * (kept - alpha * next_log_probs[:, None])
    critic_loss = agent._rule.losses(agent._critics(now.observation, now.action), tf.cast(targets, tf.float32))
    values = agent._critics(now.observation, now.action).numpy().mean(axis=2)
    errors = np.abs(targets.mean(axis=1, keepdims=True) - values).mean(axis=1)
    value = agent._critics(now.observation, action).numpy().mean(axis=(1, 2))
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


@BOTH
def test_it_learns_a_bandit(module, arguments):
    """Episodes of one step, whose reward is minus the distance of the first action from 0.5."""
    agent = make_agent(module, target_update_tau=0.1, optimizer=OptimizerOptions(1e-2), **arguments)
    train = tf.function(agent.train, autograph=False)
    data = example_data.sequences(agent, 64, 2)
    data = data._replace(
        discount=tf.zeros_like(data.discount),
        reward=-4 * tf.abs(2 * data.action[..., 0] - 1.0),
        observation=tf.zeros_like(data.observation),
    )
    for _ in range(400):
        train(data)
    action = agent.policy.action(zeros(SPECS.time_step, (1,))).action
    assert action.numpy()[0, 0] == pytest.approx(0.5, abs=0.175)
    assert int(agent.train_step_counter) == 400


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        ({'specs': example_data.DISCRETE}, 'TQC needs one vector of continuous actions'),
        (
            {'experience': Experience(replay=Queue())},
            'got a Queue as Experience.replay; TQC needs Uniform or Prioritized',
        ),
        ({'num_critics': 0}, 'got CriticOptions.num=0; need an integer of at least 1'),
    ],
)
def test_refuses_what_it_cannot_learn_from(changes, message):
    with pytest.raises(ValueError, match=message):
        make_agent(**changes)


def test_returns_of_several_steps_and_rows_between_episodes():
    agent = make_agent(experience=experiences.changed(tqc.EXPERIENCE, sequence_length=4), **QUANTILES)
    assert np.isfinite(agent.train(example_data.sequences(agent, 6, 4)).loss)
