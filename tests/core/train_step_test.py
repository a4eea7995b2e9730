import itertools

import numpy as np
import pytest
import tensorflow as tf

from tflearn.core.train_step import Draws, create_train_step, crossed


def test_train_step_starts_at_zero():
    step = create_train_step()
    assert (int(step.numpy()), step.dtype.name, step.trainable) == (0, 'int64', False)


@pytest.mark.parametrize(
    ('interval', 'before', 'after', 'expected'),
    [
        (10, 0, 9, False),
        (10, 0, 10, True),
        (10, 10, 19, False),
        (10, 10, 45, True),
        (10, 9, 10, True),
        (1, 3, 3, False),
    ],
)
def test_crossed(interval, before, after, expected):
    assert crossed(interval, before, after) is expected


def test_crossed_neither_drifts_nor_misses():
    steps = range(0, 3001, 300)
    fired = [after for before, after in itertools.pairwise(steps) if crossed(1000, before, after)]
    assert fired == [1200, 2100, 3000]


@pytest.mark.parametrize(('interval', 'before', 'after'), [(0, 0, 1), (5, 2, 1)])
def test_crossed_rejects_invalid_arguments(interval, before, after):
    with pytest.raises(ValueError, match='got .*need'):
        crossed(interval, before, after)


def _draws(seed):
    tf.random.set_seed(seed)
    train_step = create_train_step()
    return Draws(train_step), train_step


def test_each_draw_each_step_and_each_agent_has_its_own():
    draws, train_step = _draws(3)
    other, _ = _draws(4)
    found = []
    for step in range(2):
        train_step.assign(step)
        draws.restart()
        found += [draws.normal([600]), draws.normal([600])]
    other.restart()
    flat = [leaf.numpy() for leaf in [*found, other.normal([600])]]
    np.testing.assert_allclose(np.corrcoef(flat), np.eye(5), atol=0.2)


@pytest.mark.parametrize(('name', 'moments'), [('normal', (0, 1, 0, 3)), ('uniform', (1 / 2, 1 / 3, 1 / 4, 1 / 5))])
def test_the_moments_are_those_of_the_distribution(name, moments):
    draws, _ = _draws(3)
    draws.restart()
    drawn = getattr(draws, name)([200_000]).numpy().astype(np.float64)
    np.testing.assert_allclose([np.mean(drawn**power) for power in range(1, 5)], moments, atol=0.06)
    assert np.isfinite(drawn).all()
    assert name != 'uniform' or (drawn.min() >= 0 and drawn.max() < 1)


def test_the_same_step_draws_the_same_with_and_without_xla():
    draws, train_step = _draws(3)

    def take():
        draws.restart()
        first = draws.normal(tf.constant([200, 3]))
        train_step.assign_add(1)
        draws.restart()
        return first, draws.uniform([50])

    found = []
    for jit_compile in (False, True):
        train_step.assign(5)
        found.append([part.numpy() for part in tf.function(take, jit_compile=jit_compile, autograph=False)()])
    for plain, xla in zip(*found, strict=True):
        np.testing.assert_allclose(xla, plain, rtol=1e-4, atol=1e-5)


def test_replicas_draw_their_own():
    strategy = tf.distribute.MirroredStrategy(['CPU:0', 'CPU:1'])
    with strategy.scope():
        draws, _ = _draws(3)

    @tf.function(autograph=False)
    def take():
        def replica():
            draws.restart()
            return draws.normal([400])

        return strategy.experimental_local_results(strategy.run(replica))

    first, second = take()
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.2
