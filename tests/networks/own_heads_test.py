"""Heads of one's own: densities against float64, estimates against integrals, and training by several algorithms."""

import functools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
from tf_agents.specs import tensor_spec

from tests.agents import example_data
from tests.testing import lanes
from tests.testing.algorithms import ALGORITHMS
from tflearn.core.train_step import Draws, create_train_step
from tflearn.core.types import EnvironmentSpecs, zeros
from tflearn.networks import heads, own_heads
from tflearn.networks.state_dependent import StateDependentNoise

tfd = tfp.distributions
SPEC = example_data.CONTINUOUS.action
NUMBER = tensor_spec.BoundedTensorSpec((1,), tf.float32, -1.0, 1.0)
THREE = functools.partial(own_heads.mixture, num_components=3)
HEADS = {'beta': own_heads.beta, 'squashed': own_heads.squashed_normal, 'mixture': THREE}


def laplace(spec):
    """Of TensorFlow Probability, without bounds."""
    size = spec.shape[0]

    def distribution(numbers):
        return tfd.Independent(tfd.Laplace(numbers[..., :size], 0.1 + tf.nn.softplus(numbers[..., size:])), 1)

    return 2 * size, distribution


def drawn_mixture(spec):
    """A narrow part and a wide one, by a draw that has no gradient."""
    size = spec.shape[0]

    def distribution(numbers):
        locs, raw = (tf.stack(tf.split(part, 2, axis=-1), axis=-2) for part in tf.split(numbers[..., 2:], 2, axis=-1))
        scales = [[0.5], [2.0]] * tf.nn.softplus(raw)
        return Drawn(tfd.Categorical(numbers[..., :2]), tfd.Independent(tfd.Laplace(locs, scales), 1))

    return 2 + 4 * size, distribution


class Drawn(tfd.MixtureSameFamily):
    def _mode(self):
        return self.components_distribution.mean()[..., 0, :]


def _made(make, spec=SPEC, size=6, seed=1):
    count, distribution = make(spec)
    numbers = 0.5 * tf.random.stateless_normal((size, count), (seed, 2))
    return numbers, own_heads.ByNumbers(numbers, distribution)


def _softplus(values):
    return np.log1p(np.exp(values))


def _normal_log_prob(before, loc, raw):
    scale = _softplus(raw + np.log(np.expm1(0.35))) + 1e-4
    return -np.square((before - loc) / scale) / 2 - np.log(scale * np.sqrt(2 * np.pi))


def _expected(name, numbers, action):
    """Returns log-probabilities and modes, by the formulas, float64."""
    numbers, action = np.float64(numbers), np.float64(action)
    if name == 'beta':
        one, zero = np.split(_softplus(numbers) + 1.0001, 2, axis=-1)
        densities = tfd.Beta(one, zero).log_prob((action + 1) / 2).numpy() - np.log(2)
        return densities.sum(axis=-1), 2 * (one - 1) / (one + zero - 2) - 1
    before, jacobian = np.arctanh(action), np.log1p(-np.square(action)).sum(axis=-1)
    if name == 'squashed':
        loc, raw = np.split(numbers, 2, axis=-1)
        return _normal_log_prob(before, loc, raw).sum(axis=-1) - jacobian, np.tanh(loc)
    logits, parts = numbers[:, :3], numbers[:, 3:].reshape(-1, 2, 3, 2)
    loc = parts[:, 0] + np.array([-0.5, 0.0, 0.5])[:, np.newaxis]
    each = _normal_log_prob(before[:, np.newaxis], loc, parts[:, 1]).sum(axis=-1)
    weights = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    likeliest = loc[np.arange(len(loc)), logits.argmax(axis=-1)]
    return np.log(np.exp(weights + each).sum(axis=-1)) - jacobian, np.tanh(likeliest)


@pytest.mark.parametrize('name', HEADS)
def test_densities_and_modes_are_those_of_the_formulas(name):
    numbers, made = _made(HEADS[name])
    action = made.sample(seed=(3, 4))
    assert np.abs(action).max() < 1
    log_prob, mode = _expected(name, numbers, action)
    np.testing.assert_allclose(made.log_prob(action), log_prob, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(made.mode(), mode, rtol=1e-4, atol=1e-5)
    for bound in (-1.0, 1.0):  # which float32 rounds to
        assert np.isfinite(made.log_prob(tf.fill(action.shape, bound))).all()


@pytest.mark.parametrize('make', [*HEADS.values(), laplace, drawn_mixture], ids=[*HEADS, 'laplace', 'drawn_mixture'])
def test_entropies_and_divergences_are_the_integrals(make):
    """Those without a formula are estimated by drawn actions, whose mean is compared; so are its gradients."""
    count = 20_000
    both = [_made(make, NUMBER, 1, seed) for seed in (1, 2)]
    grid = np.linspace(-1, 1, 200_001)[1:-1] if make in HEADS.values() else np.linspace(-30, 30, 200_001)
    logs = [np.float64(made.log_prob(tf.constant(grid[:, np.newaxis], tf.float32))) for _, made in both]
    density, step = np.exp(logs[0]), grid[1] - grid[0]
    assert density.sum() * step == pytest.approx(1, abs=2e-3)
    draws = Draws(create_train_step())
    draws.restart()
    (first, _), (second, _) = both
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([first, second])
        many = [own_heads.ByNumbers(tf.repeat(each, count, axis=0), make(NUMBER)[1]) for each in (first, second)]
        entropy = tf.reduce_mean(heads.entropy(many[0], 1, draws))
        divergences = heads.divergence(*many, 1, draws)
        divergence = tf.reduce_mean(divergences)
        log_p, log_q = (
            own_heads.ByNumbers(each, make(NUMBER)[1]).log_prob(tf.constant(grid[:, np.newaxis], tf.float32))
            for each in (first, second)
        )
        integral = -tf.reduce_sum(tf.exp(log_p) * log_p) * step
        between = tf.reduce_sum(tf.stop_gradient(tf.exp(log_p)) * (tf.stop_gradient(log_p) - log_q)) * step
    assert float(entropy) == pytest.approx(-(density * logs[0]).sum() * step, abs=0.03)
    expected = (density * (logs[0] - logs[1])).sum() * step
    assert float(divergence) == pytest.approx(expected, rel=0.1) and divergences.numpy().min() >= 0
    np.testing.assert_allclose(tape.gradient(entropy, first), tape.gradient(integral, first), atol=0.05)
    np.testing.assert_allclose(tape.gradient(divergence, second), tape.gradient(between, second), rtol=0.1, atol=0.1)


def test_policies_act_in_the_unit_of_the_environment():
    """A constant among the numbers has no part in densities."""
    action = tensor_spec.BoundedTensorSpec((3,), tf.float32, [0.0, 7.0, -2.0], [10.0, 7.0, 2.0])
    specs = EnvironmentSpecs(SPEC, action)
    agent = ALGORITHMS['ppo'].make(specs, layers={'make_head': own_heads.beta})
    steps = zeros(specs.time_step, (4,))
    step = agent.collect_policy.action(steps)
    assert step.action.shape == (4, 3) and (step.action[:, 1].numpy() == 7).all()
    numbers = step.info['dist_params']['numbers']
    distribution = agent.collect_policy.distribution(steps).action
    shares = (step.action.numpy()[:, [0, 2]] - [0.0, -2.0]) / [10.0, 4.0]
    log_prob, mode = _expected('beta', numbers, 2 * shares - 1)
    np.testing.assert_allclose(distribution.log_prob(step.action), log_prob - np.log(5.0 * 2.0), rtol=1e-3, atol=1e-4)
    greedy = agent.policy.action(steps).action
    np.testing.assert_allclose(greedy[:, ::2], [5.0, 0.0] + mode * [5.0, 2.0], rtol=1e-3)


NAMES = ['ppo', 'sac', 'impala', 'reinforce', 'bc', 'iql', 'appo', 'tqc', 'recurrent_sac', 'awac']
FAST = {('ppo', 'mixture'), ('sac', 'beta'), ('impala', 'laplace')}


@lanes.compiles
@pytest.mark.parametrize(
    ('name', 'head'),
    [
        pytest.param(name, head, marks=() if (name, head) in FAST else pytest.mark.slow)
        for name in NAMES
        for head in (*HEADS, 'laplace')
    ],
)
def test_algorithms_train_it(name, head):
    """Compiled; all of the last layer's weights change."""
    make = {**HEADS, 'laplace': laplace}[head]
    agent = ALGORITHMS[name].make(example_data.CONTINUOUS, layers={'make_head': make})
    data = example_data.sequences(agent, 4, ALGORITHMS[name].length)
    if isinstance(data.policy_info, dict) and 'dist_params' in data.policy_info:
        # The numbers of a policy as it is at first, not of any one, which would be infinitely unlike it.
        parameters = tf.nest.map_structure(lambda leaf: 0.1 * leaf, data.policy_info['dist_params'])
        data = data._replace(policy_info={'dist_params': parameters}, action=0.5 * data.action)
    if ALGORITHMS[name].experience.slicing.store_policy_state:
        data = example_data.with_stored_states(data, agent)
    data = example_data.complete_episodes(data)
    policy = [each for each in agent.policy.variables() if 'numbers/' in each.name]
    before = [each.numpy() for each in policy]
    info = tf.function(agent.train, autograph=False, jit_compile=name == 'ppo')(data)
    assert np.isfinite(info.loss) and len(policy) == 2
    for old, new in zip(before, policy, strict=True):
        assert (old != new.numpy()).any(), new.name


def _of(distribution):
    return lambda spec: (4, distribution)


def _normal_of_all(numbers):
    return tfd.Independent(tfd.Normal(numbers, 1.0), 1)


class Without(tfd.MixtureSameFamily):
    """A distribution without a mode."""


def _without_a_mode(numbers):
    return Without(tfd.Categorical(numbers[..., :1]), tfd.MultivariateNormalDiag(numbers[..., tf.newaxis, :2]))


@pytest.mark.parametrize(
    ('name', 'make', 'changes', 'message'),
    [
        ('dqn', own_heads.beta, {'specs': example_data.DISCRETE}, 'make_head=.*; DQN has no use for it'),
        ('td3', own_heads.beta, {}, 'got NetworkOptions.make_head=.*; TD3 has no use for it'),
        ('mpo', own_heads.beta, {}, 'got NetworkOptions.make_head=.*; MPO has no use for it'),
        ('v_mpo', own_heads.beta, {}, 'got NetworkOptions.make_head=.*; V-MPO has no use for it'),
        ('ppo', own_heads.beta, {'specs': example_data.DISCRETE}, 'got NetworkOptions.make_head for the action'),
        ('ppo', own_heads.beta, {'initial_deviation': 1.0}, 'got NetworkOptions.make_head with initial_deviation'),
        ('ppo', own_heads.beta, {'state_dependent_noise': StateDependentNoise()}, 'make_head with state_dependent_noi'),
        ('sac', own_heads.beta, {'state_dependent_noise': StateDependentNoise()}, 'make_head with state_dependent_noi'),
        ('ppo', lambda: None, {}, 'make_head'),
        ('sac', drawn_mixture, {}, 'got the distribution Drawn from make_head, whose draws have no gradient'),
        ('tqc', drawn_mixture, {}, 'got the distribution Drawn from make_head, whose draws have no gradient'),
        ('ppo', lambda spec: 4, {}, r'got 4 from make_head; need \(n, distribution\)'),
        ('ppo', _of(lambda numbers: numbers), {}, 'need one of TensorFlow Probability'),
        ('ppo', _of(_normal_of_all), {}, r'got a distribution of actions float32 \(4,\) from make_head; need'),
        ('ppo', _of(_without_a_mode), {}, 'got the distribution Without from make_head, without a mode'),
        ('ppo', functools.partial(own_heads.mixture, num_components=0), {}, 'got num_components=0; need at least 1'),
    ],
)
def test_what_does_not_fit_is_refused(name, make, changes, message):
    with pytest.raises((ValueError, TypeError), match=message):
        ALGORITHMS[name].make(**{'specs': example_data.CONTINUOUS, **changes}, layers={'make_head': make})
