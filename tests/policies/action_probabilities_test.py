"""The log-probabilities of exported policies equal those of the live ones."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.policies import greedy_policy
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts

from tests.testing import structured
from tflearn.agents import dqn, ppo, sac
from tflearn.core.action_mask import ActionMask
from tflearn.core.train_step import create_train_step
from tflearn.core.types import EnvironmentSpecs
from tflearn.environments import gymnasium_env
from tflearn.networks import own_heads
from tflearn.networks.networks import NetworkOptions
from tflearn.policies import loader
from tflearn.policies.action_probabilities import ActionProbabilities, NoDensityError, _log_probability
from tflearn.policies.exporter import ACTION_MASK, PolicyExporter

CARTPOLE = functools.partial(gymnasium_env.make, 'CartPole-v1')
PENDULUM = functools.partial(gymnasium_env.make, 'Pendulum-v1')
MAKE = {
    'ppo_discrete': (CARTPOLE, functools.partial(ppo.make_agent), ppo.EXPERIENCE),
    'ppo_normal': (PENDULUM, functools.partial(ppo.make_agent), ppo.EXPERIENCE),
    'ppo_own': (
        PENDULUM,
        functools.partial(ppo.make_agent, network=NetworkOptions(make_head=own_heads.mixture)),
        ppo.EXPERIENCE,
    ),
    'sac': (PENDULUM, functools.partial(sac.make_agent), sac.EXPERIENCE),
    'masked': (
        functools.partial(structured.make_environment, 'masked discrete'),
        functools.partial(dqn.make_agent, network=NetworkOptions(fc_layer_params=(8,)), action_mask='mask'),
        dqn.EXPERIENCE,
    ),
}
SIZE = 12


@functools.cache
def made(name):
    """Returns the agent, the environment's specs, and time steps of a few random steps."""
    make_environment, make_agent, experience = MAKE[name]
    environment = make_environment(num_environments=SIZE, seed=0)
    try:
        time_step = environment.reset()
        return make_agent(environment.specs, create_train_step(), experience), environment.specs, time_step
    finally:
        environment.close()


@pytest.fixture(scope='module')
def exported(tmp_path_factory):
    @functools.cache
    def load(name, kind):
        agent, _, _ = made(name)
        policy = greedy_policy.GreedyPolicy(agent.policy) if kind == 'greedy' else getattr(agent, kind)
        directory = tmp_path_factory.mktemp(f'{name}_{kind}')
        PolicyExporter(policy, directory).export(0, {})
        return policy, loader.load(directory / '0')

    return load


@pytest.mark.parametrize('name', ['ppo_discrete', 'ppo_normal', 'ppo_own', 'sac'])
def test_equals_the_live_policy(exported, name):
    _, specs, time_step = made(name)
    policy, loaded = exported(name, 'collect_policy')
    known = ActionProbabilities(loaded, specs, 0.0, None)
    live = tf.nest.map_structure(tf.constant, time_step)
    action = policy.action(live).action.numpy()
    if name == 'ppo_normal':
        action = np.clip(action, -1.9, 1.9)  # within the bounds
    found, _ = known.log_probability(time_step, (), action)
    expected = policy.distribution(live).action.log_prob(action).numpy().reshape(SIZE, -1).sum(axis=1)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    assert known.num_choices == (2 if name == 'ppo_discrete' else None)
    mixed, _ = ActionProbabilities(loaded, specs, 0.3, None).log_probability(time_step, (), action)
    even = 1 / 2 if name == 'ppo_discrete' else 1 / 4
    np.testing.assert_allclose(np.exp(mixed), 0.7 * np.exp(found) + 0.3 * even, rtol=1e-6)


def test_actions_beyond_a_bound_have_the_probability_of_the_tail(exported):
    _, specs, time_step = made('ppo_normal')
    policy, loaded = exported('ppo_normal', 'collect_policy')
    distribution = policy.distribution(tf.nest.map_structure(tf.constant, time_step)).action
    known = ActionProbabilities(loaded, specs, 0.0, None)
    far, _ = known.log_probability(time_step, (), np.full((SIZE, 1), 5.0, np.float32))
    bound, _ = known.log_probability(time_step, (), np.full((SIZE, 1), 2.0, np.float32))
    drawn = distribution.sample(100_000, seed=1).numpy()[..., 0]
    np.testing.assert_allclose(np.exp(far), (drawn >= 2.0).mean(axis=0), atol=0.005)
    np.testing.assert_array_equal(far, bound)


def test_random_actions_are_none_of_those_that_a_bound_stands_for(exported):
    _, specs, time_step = made('ppo_normal')
    _, loaded = exported('ppo_normal', 'collect_policy')
    known = ActionProbabilities(loaded, specs, 0.3, None)
    density = lambda action: np.exp(known.log_probability(time_step, (), np.full((SIZE, 1), action, np.float32))[0])  # noqa: E731
    inside = np.linspace(-2, 2, 402)[1:-1]
    total = density(-2.0) + density(2.0) + np.mean([density(action) for action in inside], axis=0) * 4
    np.testing.assert_allclose(total, 1, atol=2e-3)


def test_a_greedy_policy_with_epsilon(exported):
    _, specs, time_step = made('ppo_discrete')
    _, loaded = exported('ppo_discrete', 'greedy')
    action, _ = loaded.action(time_step)
    known = ActionProbabilities(loaded, specs, 0.2, None)
    np.testing.assert_allclose(np.exp(known.log_probability(time_step, (), action)[0]), 0.9)
    np.testing.assert_allclose(np.exp(known.log_probability(time_step, (), 1 - action)[0]), 0.1)
    chosen, _ = known.probabilities(time_step, ())
    np.testing.assert_allclose(chosen[np.arange(SIZE), action], 0.9)
    never = ActionProbabilities(loaded, specs, 0.0, None).log_probability(time_step, (), 1 - action)[0]
    assert np.isneginf(never).all()


def test_a_temperature_divides_the_logits_before_random_actions_are_mixed_in(exported):
    _, specs, time_step = made('ppo_discrete')
    policy, loaded = exported('ppo_discrete', 'collect_policy')
    logits = policy.distribution(tf.nest.map_structure(tf.constant, time_step)).action.logits.numpy().reshape(SIZE, 2)
    found, _ = ActionProbabilities(loaded, specs, 0.2, None, temperature=0.25).probabilities(time_step, ())
    np.testing.assert_allclose(found, 0.8 * tf.nn.softmax(logits / 0.25).numpy() + 0.1, rtol=1e-4)
    assert np.abs(found - ActionProbabilities(loaded, specs, 0.2, None).probabilities(time_step, ())[0]).max() > 1e-3
    with pytest.raises(ValueError, match='got temperature=2 for the policy .* without logits'):
        ActionProbabilities(exported('ppo_discrete', 'greedy')[1], specs, 0.2, None, temperature=2.0)


def test_a_temperature_needs_logits(exported):
    _, specs, _ = made('sac')
    with pytest.raises(ValueError, match='got temperature=2 for the policy .* without logits; need one that draws'):
        ActionProbabilities(exported('sac', 'collect_policy')[1], specs, 0.0, None, temperature=2.0)


def test_masked_random_actions(exported):
    _, specs, time_step = made('masked')
    _, loaded = exported('masked', 'greedy')
    mask = ActionMask(specs, loaded.metadata[ACTION_MASK])
    legal = np.asarray(tf.nest.flatten(mask(time_step.observation)[1])[0])
    chosen, _ = ActionProbabilities(loaded, specs, 0.5, mask).probabilities(time_step, ())
    np.testing.assert_allclose(chosen.sum(axis=1), 1)
    assert (chosen[~legal] == 0).all() and (chosen[legal] > 0).all()
    drawn = np.stack([mask.sample(time_step.observation, np.random.default_rng(i)) for i in range(200)])
    assert np.isfinite([mask.log_probability(time_step.observation, action) for action in drawn]).all()


def test_random_actions_are_uniform():
    _, specs, time_step = made('sac')
    known = ActionProbabilities(None, specs, 1.0, None)
    found, _ = known.log_probability(time_step, (), np.zeros((SIZE, 1), np.float32))
    np.testing.assert_allclose(np.exp(found), 1 / 4)  # torques from -2 to 2


def test_the_tail_of_the_normal_distribution():
    spec = tensor_spec.BoundedTensorSpec((), tf.float32, -1.0, 100.0, 'action')
    z = np.array([0.0, -9.999999, -10.000001, -40.0, 3.0])
    found = _log_probability({'loc': -1.0 - z, 'scale_diag': np.ones(5)}, spec, np.full(5, -1.0, np.float32))
    np.testing.assert_allclose(found, [np.log(0.5), -53.231275, -53.231295, -804.608442, -0.00135081], rtol=1e-6)


def test_policies_without_probabilities_are_refused(exported):
    _, specs, _ = made('sac')
    with pytest.raises(NoDensityError, match='always takes the same floats.*need one that draws them'):
        ActionProbabilities(exported('sac', 'greedy')[1], specs, 0.0, None)
    _, specs, _ = made('masked')
    with pytest.raises(ValueError, match="exported without their probabilities; need 'greedy_policy' with an epsilon"):
        ActionProbabilities(exported('masked', 'collect_policy')[1], specs, 0.0, None)


@pytest.mark.parametrize('kind', ['normal', 'squashed'])
def test_a_number_with_equal_bounds_is_left_out(kind):
    spec = tensor_spec.BoundedTensorSpec((2,), tf.float32, [-2.0, 3.0], [2.0, 3.0], 'action')
    alone = tensor_spec.BoundedTensorSpec((1,), tf.float32, [-2.0], [2.0], 'action')
    both, one = ({'loc': np.zeros((1, n)), 'scale_diag': np.float64([[0.5, 0.0]])[:, :n]} for n in (2, 1))
    if kind == 'squashed':
        both, one = {'distribution': both}, {'distribution': one}
    found = _log_probability(both, spec, np.float32([[0.5, 3.0]]))
    assert found == pytest.approx(_log_probability(one, alone, np.float32([[0.5]])))
    uniform = EnvironmentSpecs(tf.TensorSpec((1,), tf.float32), spec)
    found, _ = ActionProbabilities(None, uniform, 1.0, None).log_probability(
        ts.restart(np.zeros((1, 1), np.float32), 1), (), np.float32([[0.5, 3.0]])
    )
    assert found == pytest.approx(-np.log(4.0))
