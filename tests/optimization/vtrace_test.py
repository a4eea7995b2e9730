"""V-trace against its definition, as sums of products in float64."""

import functools
import itertools

import numpy as np
import pytest
import tensorflow as tf

from tflearn.optimization import vtrace

SLOW = pytest.mark.slow
BOUNDS = [
    {},
    {'rho_bar': 3.7, 'c_bar': 2.2, 'pg_rho_bar': 1.3},
    {'rho_bar': 1.0, 'c_bar': 0.6, 'pg_rho_bar': 2.0, 'lambda_': 0.7},
    {'rho_bar': None, 'c_bar': 1.0, 'pg_rho_bar': None, 'lambda_': 0.9},
    {'lambda_': 0.0},
]


def _oracle(data, rho_bar=1.0, c_bar=1.0, pg_rho_bar=1.0, lambda_=1.0):
    """The paper's equation 1, a sum of products for each step, which ends at an invalid step."""
    log_ratios, rewards, discounts, values, valid = (np.asarray(part, np.float64) for part in data)
    clip = lambda bound: np.exp(log_ratios) if bound is None else np.minimum(np.exp(log_ratios), bound)  # noqa: E731
    rho, c = valid * clip(rho_bar), valid * lambda_ * clip(c_bar)
    delta = rho * (rewards + discounts * values[:, 1:] - values[:, :-1])
    size, length = rewards.shape
    targets = values.copy()
    for b in range(size):
        for s in range(length):
            for t in range(s, length):
                targets[b, s] += np.prod(discounts[b, s:t] * c[b, s:t]) * delta[b, t]
    advantages = valid * clip(pg_rho_bar) * (rewards + discounts * targets[:, 1:] - values[:, :-1])
    return targets[:, :-1], advantages


def _data(size=5, length=12, seed=0, log_ratio=1.5):
    """Ratios on both sides of all bounds, terminations and truncations inside the window, padding at the end."""
    generator = np.random.default_rng(seed)
    log_ratios = generator.uniform(-log_ratio, log_ratio, (size, length))
    rewards, values = generator.normal(size=(size, length)), generator.normal(size=(size, length + 1))
    discounts = np.full((size, length), 0.95)
    valid = np.ones((size, length), bool)
    if length > 4:
        discounts[0, 3] = 0.0  # termination, and the row between the episodes after it
        valid[0, 4] = False
        valid[1, length // 2] = False  # truncation: discount 1, bootstrapped from the row between the episodes
        valid[2, length - 3 :] = False  # padding
        discounts[3, [0, length - 1]] = 0.0
    parts = [part.astype(np.float32) for part in (log_ratios, rewards, discounts, values)]
    return (*parts, valid)


def _eager(data, **bounds):
    return vtrace.targets(*map(tf.constant, data), **bounds)


@functools.cache
def _compiled(shapes, jit, bounds):
    function = tf.function(functools.partial(vtrace.targets, **dict(bounds)), autograph=False, jit_compile=jit)
    return function.get_concrete_function(*itertools.starmap(tf.TensorSpec, shapes))


def _program(data, dynamic, jit, **bounds):
    tensors = list(map(tf.constant, data))
    shapes = tuple(((None, None) if dynamic else tuple(tensor.shape), tensor.dtype) for tensor in tensors)
    return _compiled(shapes, jit, tuple(bounds.items()))(*tensors)


RUNS = {
    'eager': _eager,
    'static': functools.partial(_program, dynamic=False, jit=False),
    'dynamic': functools.partial(_program, dynamic=True, jit=False),
    'static_xla': functools.partial(_program, dynamic=False, jit=True),
    'dynamic_xla': functools.partial(_program, dynamic=True, jit=True),
}


# The others differ from these in their shapes alone.
@pytest.fixture(
    params=['eager', 'dynamic', 'static_xla', *(pytest.param(name, marks=SLOW) for name in ('static', 'dynamic_xla'))]
)
def run(request):
    return RUNS[request.param]


def _close(got, expected):
    for ours, theirs in zip(got, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize('bounds', BOUNDS, ids=str)
@pytest.mark.parametrize('length', [1, 12, *(pytest.param(length, marks=SLOW) for length in (2, 5, 33))])
def test_equals_the_definition(run, bounds, length):
    data = _data(length=length)
    ratios = np.exp(data[0])
    for name in ('rho_bar', 'c_bar', 'pg_rho_bar'):
        bound = bounds.get(name, 1.0)
        assert bound is None or length < 12 or ratios.min() < bound < ratios.max(), 'or clipping would not be tested'
    _close(run(data, **bounds), _oracle(data, **bounds))


def test_extreme_ratios_stay_finite(run):
    """Ratios as far from 1 as after some updates, and where exp overflows."""
    data = _data(log_ratio=2.5)
    _close(run(data), _oracle(data))
    far = (np.where(data[0] > 0, 120.0, -120.0).astype(np.float32), *data[1:])
    ones = (np.where(data[0] > 0, 0.0, -120.0).astype(np.float32), *data[1:])
    _close(run(far), _oracle(ones))


def test_on_policy_it_is_the_n_step_return(run):
    log_ratios, rewards, discounts, values, valid = _data()
    got = run((np.zeros_like(log_ratios), rewards, discounts, values, np.ones_like(valid)))
    returns = np.zeros_like(values)
    returns[:, -1] = values[:, -1]
    for t in reversed(range(rewards.shape[1])):
        returns[:, t] = rewards[:, t] + discounts[:, t] * returns[:, t + 1]
    _close(got, (returns[:, :-1], returns[:, :-1] - values[:, :-1]))


def test_without_bounds_it_is_exact_importance_sampling(run):
    """v_0 = V(x_0) + the sum over t of the ratios' product up to t times the discounted error of t."""
    log_ratios, rewards, discounts, values, valid = _data(length=8, log_ratio=0.8)
    got = run((log_ratios, rewards, discounts, values, np.ones_like(valid)), rho_bar=None, c_bar=None)
    weights = np.exp(np.cumsum(np.float64(log_ratios), axis=1))
    before = np.cumprod(np.hstack([np.ones((5, 1)), discounts[:, :-1]]), axis=1)
    errors = rewards + discounts * values[:, 1:] - values[:, :-1]
    np.testing.assert_allclose(got[0][:, 0], values[:, 0] + (before * weights * errors).sum(1), rtol=1e-4)
    large = run((log_ratios, rewards, discounts, values, np.ones_like(valid)), rho_bar=1e6, c_bar=1e6)
    np.testing.assert_allclose(large[0], got[0], rtol=1e-5)


def test_the_order_of_the_batch_does_not_matter(run):
    data, order = _data(), [3, 1, 4, 0, 2]
    straight, permuted = run(data), run(tuple(part[order] for part in data))
    for ours, theirs in zip(permuted, straight, strict=True):
        np.testing.assert_allclose(ours, theirs.numpy()[order], rtol=1e-6)


def test_invalid_steps_change_nothing(run):
    log_ratios, rewards, discounts, values, valid = _data()
    spoilt = [np.where(valid, part, np.float32(np.nan)) for part in (log_ratios, rewards, discounts)]
    _close(run((*spoilt, values, valid)), _oracle((log_ratios, rewards, discounts, values, valid)))


def test_padding_is_as_if_it_were_not_there(run):
    """A sequence that ends before the window does, with and without padding."""
    log_ratios, rewards, discounts, values, _ = _data(length=9)
    short = (log_ratios[:, :5], rewards[:, :5], discounts[:, :5], values[:, :6], np.ones((5, 5), bool))
    valid = np.broadcast_to(np.arange(9) < 5, (5, 9))
    # Between the episodes is a row with the last observation.
    for long, alone in zip(run((log_ratios, rewards, discounts, values, valid)), run(short), strict=True):
        np.testing.assert_allclose(long[:, :5], alone, rtol=1e-6)


def test_gradients_stop():
    log_ratios, rewards, discounts, values, valid = map(tf.constant, _data())
    with tf.GradientTape() as tape:
        tape.watch([log_ratios, values])
        total = tf.add_n(
            [tf.reduce_sum(part) for part in vtrace.targets(log_ratios, rewards, discounts, values, valid)]
        )
    assert tape.gradient(total, [log_ratios, values]) == [None, None]


def test_a_program_of_a_long_sequence_is_short():
    """An unrolled loop of 512 steps would have thousands of operations."""
    specs = [tf.TensorSpec((4, length)) for length in (512, 512, 512, 513)]
    program = tf.function(vtrace.targets, autograph=False).get_concrete_function(*specs)
    assert len(program.graph.get_operations()) < 200


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        ({'rewards': np.zeros((5, 12, 1), np.float32)}, r'got rewards \(5, 12, 1\) with'),
        ({'values': np.zeros((5, 12), np.float32)}, 'need .* including the bootstrap value'),
        ({'rho_bar': 0.0}, 'got rho_bar=0.0; need a number above 0'),
        ({'lambda_': 1.5}, 'got lambda_=1.5'),
    ],
)
def test_rejects_invalid_arguments(change, message):
    names = ('log_ratios', 'rewards', 'discounts', 'values')
    arguments = dict(zip(names, _data(), strict=False)) | change
    tensors = {name: tf.constant(value) if name in names else value for name, value in arguments.items()}
    with pytest.raises(ValueError, match=message):
        vtrace.targets(**tensors)
