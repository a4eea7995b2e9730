"""V-MPO's agent; v_mpo_loss_test.py has the equations, ppo_test.py how samples are prepared."""

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.trajectories import time_step as ts

from tests.agents import example_data, oracles
from tflearn.agents import v_mpo
from tflearn.agents.v_mpo import VMPOLoss
from tflearn.core.train_step import create_train_step
from tflearn.networks.networks import NetworkOptions
from tflearn.optimization.optimizers import OptimizerOptions

SPECS = pytest.mark.parametrize('specs', [example_data.DISCRETE, example_data.CONTINUOUS], ids=['integers', 'floats'])
PLAIN = {'normalize_observations': False, 'normalize_rewards': False}


def _agent(specs, **changes):
    network = NetworkOptions(fc_layer_params=(16,))
    agent = v_mpo.make_agent(specs, create_train_step(), v_mpo.EXPERIENCE, network=network, **changes)
    agent.initialize()
    return agent


@SPECS
def test_loss_equals_the_papers(specs):
    """All parts, by a network and distributions in float64."""
    options = VMPOLoss(0.9, 0.8, 0.3, 0.2, 0.03, 0.04, 0.05, initial_eta=0.7, initial_alpha=2.0)
    agent = _agent(specs, loss=options, **PLAIN)
    data = example_data.sequences(agent, 4, 9)
    policy = oracles.Policy(agent._network, data.observation)
    reward, value = np.float64(data.reward), policy.value
    advantage = np.zeros((4, 9))
    for t in reversed(range(8)):
        delta = reward[:, t] + 0.9 * value[:, t + 1] - value[:, t]
        advantage[:, t] = delta + 0.9 * 0.8 * advantage[:, t + 1]
    advantage = advantage[:, :-1]
    best = advantage >= np.sort(advantage.ravel())[16]
    exponentials = np.where(best, np.exp(advantage / 0.7), 0.0)
    log_probs = policy.log_prob(data.action)[:, :-1]
    expected = {
        'policy_loss': -(exponentials / exponentials.sum() * log_probs).sum(),
        'temperature_loss': 0.7 * 0.2 + 0.7 * np.log(exponentials.sum() / 16),
        'value_loss': np.square(advantage).mean(),  # lambda-returns less values
        'entropy': policy.entropy()[:, :-1].mean(),
    }
    if policy.log_probs is not None:
        logits = np.float64(data.policy_info['dist_params']['logits'])[:, :-1]
        acted = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
        expected['kl'] = (np.exp(acted) * (acted - policy.log_probs[:, :-1])).sum(-1).mean()
    else:
        acted = agent._network.distribution(data.policy_info)
        mean, deviation = (np.float64(part)[:, :-1] for part in (acted.mean(), acted.stddev()))
        ratio = (deviation / policy.scale) ** 2
        expected['kl_mean'] = (0.5 * ((policy.mode[:, :-1] - mean) / deviation) ** 2).sum(-1).mean()
        expected['kl_covariance'] = (0.5 * (ratio - 1 - np.log(ratio))).sum(-1).mean()
    epsilons = {'kl': 0.03, 'kl_mean': 0.04, 'kl_covariance': 0.05}
    kinds = [kind for kind in epsilons if kind in expected]
    loss = expected['policy_loss'] + expected['temperature_loss'] + 0.3 * expected['value_loss']
    loss += sum(2.0 * (epsilons[kind] - expected[kind]) + 2.0 * expected[kind] for kind in kinds)
    info = agent.loss(data)
    assert float(info.loss) == pytest.approx(loss, rel=1e-4)
    assert {name: float(value) for name, value in info.extra.items()} == pytest.approx(
        expected
        | {f'{kind}_alpha': 2.0 for kind in kinds}
        | {'kl_to_behaviour': sum(expected[kind] for kind in kinds), 'eta': 0.7, 'valid_share': 1.0}
        | {'explained_variance': 1 - np.var(advantage) / np.var(advantage + value[:, :-1])},
        rel=1e-3,
    )


def test_multipliers_descend_on_their_losses():
    """One rises while its divergence exceeds the bound, and falls otherwise, but not below 1e-8."""
    loss = VMPOLoss(epsilon_mean=1e-9, epsilon_covariance=1e9)
    agent = _agent(example_data.CONTINUOUS, optimizer=OptimizerOptions({'v_mpo_dual': 6.0}), loss=loss, **PLAIN)
    agent.train(example_data.sequences(agent, 4, 9))
    alphas = {kind: float(alpha) for kind, alpha in agent._alphas.items()}
    assert alphas == pytest.approx({'kl_mean': 5.0 + 6.0, 'kl_covariance': 1e-8}, rel=1e-4)


def test_the_loss_does_not_depend_on_invalid_steps():
    agent, losses = _agent(example_data.DISCRETE, **PLAIN), []
    for reward in (0.0, 1e6):
        data = example_data.sequences(agent, 4, 6)
        types = np.full((4, 6), ts.StepType.MID, np.int32)
        types[:, 2], types[:, 3] = ts.StepType.LAST, ts.StepType.FIRST
        rewards = data.reward.numpy()
        rewards[:, 3] = reward
        data = data._replace(next_step_type=tf.constant(types), reward=tf.constant(rewards))
        losses.append(float(agent.loss(data).loss))
    assert losses[0] == losses[1]
