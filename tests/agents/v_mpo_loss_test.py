"""V-MPO's weights, temperature loss and divergences against float64 numpy, and their properties."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from tflearn.agents import v_mpo

RANDOM = np.random.default_rng(0)


def _weights(advantages, counts, eta):
    """The definition, in float64: the weights and the temperature's loss without its bound."""
    advantages, counts = np.float64(advantages), np.float64(counts)
    valid = np.sort(advantages[counts > 0])[::-1]
    inside = (counts > 0) & (advantages >= valid[(len(valid) + 1) // 2 - 1])
    exponentials = np.where(inside, counts * np.exp(advantages / eta), 0.0)
    total = exponentials.sum()
    psi = np.where(inside, np.exp(advantages / eta), 0.0) / total
    return psi, eta * np.log(total / counts[inside].sum())


@pytest.mark.parametrize('eta', [0.3, 1.0, 20.0])
@pytest.mark.parametrize('size', [1, 2, 9, 10])
def test_equals_the_papers(size, eta):
    advantages = RANDOM.normal(0, 3, size).astype(np.float32)
    counts = np.array([1, 1, 0, 1, 2, 1, 0, 1, 1, 1], np.float32)[:size]
    expected, loss = _weights(advantages, counts, eta)
    temperature = tf.Variable(eta)
    with tf.GradientTape() as tape:
        half = v_mpo.better_half(tf.constant(advantages), tf.constant(counts), temperature)
        seen = v_mpo.eta_loss(temperature, half, 0.1)
    psi = np.where(counts > 0, v_mpo.psi_weights(tf.constant(advantages), temperature, half), 0.0)
    np.testing.assert_allclose(psi, np.where(counts > 0, expected, 0.0), rtol=1e-4)
    assert float(seen) == pytest.approx(0.1 * eta + loss, rel=1e-4)
    step = 1e-5 * eta
    above, below = (_weights(advantages, counts, eta + sign * step)[1] for sign in (1, -1))
    assert float(tape.gradient(seen, temperature)) == pytest.approx(0.1 + (above - below) / (2 * step), abs=1e-3)
    assert float(half.count) == counts.sum()


def test_only_the_better_half_has_weights():
    advantages = RANDOM.permutation(np.arange(20, dtype=np.float32)).reshape(4, 5)
    half = v_mpo.better_half(tf.constant(advantages.ravel()), tf.ones(20), tf.constant(2.0))
    psi = v_mpo.psi_weights(tf.constant(advantages), tf.constant(2.0), half).numpy()
    assert psi.sum() == pytest.approx(1.0)
    np.testing.assert_array_equal(psi > 0, advantages >= 10)
    order = advantages[advantages >= 10].argsort()
    assert (np.diff(psi[advantages >= 10][order]) > 0).all()


@pytest.mark.parametrize(
    ('advantages', 'eta', 'expected'),
    [
        ([5.0, 5.0, 5.0], 1.0, [1 / 3, 1 / 3, 1 / 3]),  # equal ones are all in the half
        ([1e6, 0.0, -1e6, -2e6], 1e-8, [1.0, 0.0, 0.0, 0.0]),
        ([1e6, 1e6, -1e6, -2e6], 1e-8, [0.5, 0.5, 0.0, 0.0]),
    ],
)
def test_extremes(advantages, eta, expected):
    advantages, eta = tf.constant(advantages), tf.constant(eta)
    half = v_mpo.better_half(advantages, tf.ones_like(advantages), eta)
    np.testing.assert_allclose(v_mpo.psi_weights(advantages, eta, half), expected)
    assert np.isfinite(v_mpo.eta_loss(eta, half, 0.1))


def test_no_valid_step():
    advantages, eta = tf.constant([np.nan, 1.0]), tf.Variable(1.0)
    with tf.GradientTape() as tape:
        half = v_mpo.better_half(advantages, tf.zeros(2), eta)
        loss = v_mpo.eta_loss(eta, half, 0.1)
    assert (float(loss), float(half.count)) == (pytest.approx(0.1), 0.0)
    assert float(tape.gradient(loss, eta)) == pytest.approx(0.1)


def test_divergences_are_those_of_the_distributions():
    """Of means with the deviations before, of deviations with the means before; of categories all of it."""
    means, deviations = RANDOM.normal(0, 1, (2, 3, 4, 2)), RANDOM.uniform(0.3, 2.0, (2, 3, 4, 2))
    logits = RANDOM.normal(0, 1, (2, 3, 4, 2, 5))
    parts = [
        {
            'floats': tfp.distributions.MultivariateNormalDiag(np.float32(means[i]), np.float32(deviations[i])),
            'integers': tfp.distributions.Categorical(logits=np.float32(logits[i])),
        }
        for i in range(2)
    ]
    seen = v_mpo.policy_divergences(*parts, outer_rank=2)
    ratio = (deviations[0] / deviations[1]) ** 2
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    expected = {
        'kl_mean': (0.5 * ((means[1] - means[0]) / deviations[0]) ** 2).sum(-1),
        'kl_covariance': (0.5 * (ratio - 1 - np.log(ratio))).sum(-1),
        'kl': (np.exp(log_probs[0]) * (log_probs[0] - log_probs[1])).sum((-1, -2)),
    }
    assert set(seen) == set(expected)
    for kind, values in expected.items():
        np.testing.assert_allclose(seen[kind], values, rtol=1e-4, atol=1e-5)
    assert all((value.numpy() == 0).all() for value in v_mpo.policy_divergences(parts[0], parts[0], 2).values())


@pytest.mark.parametrize(
    'changes', [{'gamma': 1.1}, {'lambda_': -0.1}, {'epsilon_eta': 0.0}, {'initial_alpha': -1.0}], ids=str
)
def test_rejects_invalid_options(changes):
    name, value = next(iter(changes.items()))
    with pytest.raises(ValueError, match=f'got VMPOLoss.{name}={value!r}; need'):
        v_mpo.VMPOLoss(**changes)
