"""Prioritized draws from the learner's memory, with a real server: draws, weights, and errors."""

import contextlib

import numpy as np
import pytest
import tensorflow as tf

from tests.sampling.prioritized_test import BATCH, ErrorsOfData, fill, learner_of, run
from tflearn.core.experience import BatchItems, Experience, Prioritization, Prioritized
from tflearn.sampling.mirror import ReplayMirror


@pytest.fixture
def open_mirror():
    """Returns a function servers -> ReplayMirror; all are closed at the end."""
    with contextlib.ExitStack() as stack:

        def start(served, *others):
            addresses = [each.address for each in (served, *others)]
            mirror = ReplayMirror(addresses, served.storage, BATCH, 60.0, seed=1)
            stack.callback(mirror.close)
            return mirror

        yield start


def experience(max_size=100_000, min_size=20, **prioritization):
    replay = Prioritized(max_size, min_size, None, 0, Prioritization(**prioritization), 'learner')
    return Experience(replay=replay, batch=BatchItems(BATCH))


def draw(mirror, num_steps=8, step=0):
    """Draws batches; returns their observations of the first rows [num_steps, B, ...] and their weights.

    Eagerly, since to trace takes longer than all else here; the learners' programs are compiled.
    """
    count = mirror.grant(num_steps)
    data, info = mirror.batch(mirror.draw(count, tf.constant(step, tf.int64)), tf.range(count))
    return data.observation[:, :, 0].numpy(), info['weights'].numpy()


@pytest.mark.parametrize('num_servers', [pytest.param(1, marks=pytest.mark.slow), 2])
def test_draws_follow_priorities_and_weights_are_the_papers(tmp_path, serve, open_mirror, num_servers):
    """Weights against (N P)^-beta in float64 (Schaul et al. 2016, section 3.4); draws by a chi-squared test."""
    settings = experience(alpha=0.7, beta=0.6, epsilon=0.01, max_error=2.0)
    servers = [serve(settings, checkpoints=tmp_path / str(i) / 'checkpoints') for i in range(num_servers)]
    for served in servers:
        fill(served, 33)
    mirror = open_mirror(*servers)
    _, weights = draw(mirror)
    np.testing.assert_allclose(weights, 1.0)  # of new items
    oldest, newest = mirror._by_priority._known
    size = newest - oldest
    errors = np.random.default_rng(0).normal(size=size)
    mirror._by_priority._drawn = np.arange(oldest, newest)[None]
    mirror.update(1, errors[None].astype(np.float32))
    assert mirror.metrics()['priorities_clipped'] == np.sum(np.abs(errors) >= 2.0) > 0
    priority = (np.minimum(np.abs(errors) + 0.01, 2.0) / 2.0) ** 0.7
    probability = priority / priority.sum()
    counts = np.zeros(size)
    for step in range(100):
        _, weights = draw(mirror, 16, step)
        items = mirror._by_priority._drawn - oldest
        np.testing.assert_allclose(weights, (size * probability[items]) ** -0.6, rtol=1e-4)
        np.add.at(counts, items, 1)
    assert mirror._by_priority._known == (oldest, newest)
    chi_squared = ((counts - counts.sum() * probability) ** 2 / (counts.sum() * probability)).sum()
    assert abs(chi_squared - (size - 1)) < 6 * np.sqrt(2 * (size - 1))


@pytest.mark.parametrize('jit_compile', [False, True])
def test_errors_become_the_priorities_of_their_own_items(tmp_path, serve, open_mirror, jit_compile):
    served = serve(experience(alpha=0.5, epsilon=0.0))
    fill(served, 33)
    mirror = open_mirror(served)
    learner = learner_of(mirror, tmp_path, ErrorsOfData(), jit_compile=jit_compile)
    run(learner, 83)  # also fewer train steps than a draw has
    assert learner.jit_compiles == jit_compile
    assert mirror.metrics()['priorities_updated'] == 83 * BATCH
    for step in range(10):
        observation, _ = draw(mirror, 16, 1000 + step)
        found = mirror._by_priority._tree.get(mirror._by_priority._drawn % mirror._by_priority._max_size)
        # Float32 errors; all items were drawn.
        np.testing.assert_allclose(found, (0.1 + 0.1 * observation[..., 1]) ** 0.5, rtol=1e-5)


def test_each_draw_knows_the_errors_of_the_train_steps_before_it(tmp_path, serve, open_mirror):
    """So a priority is at most as many train steps late as a draw has."""
    served = serve(experience())
    fill(served, 33)
    mirror = open_mirror(served)
    known, choose = [], mirror._by_priority._choose

    def recorded(*arguments):
        known.append(mirror.metrics()['priorities_updated'] // BATCH)
        return choose(*arguments)

    mirror._by_priority._choose = recorded  # before the learner traces its program
    run(learner_of(mirror, tmp_path, ErrorsOfData()), 100)
    assert known[:3] == [0, 16, 32] and len(known) == 7


def test_dropped_sequences_are_not_drawn(serve, open_mirror):
    served = serve(experience(max_size=64, min_size=10, alpha=1.0))
    mirror = open_mirror(served)
    fill(served, 30)
    draw(mirror)
    mirror.update(1, np.full((8, BATCH), 0.01, np.float32))
    old = mirror._by_priority._drawn
    fill(served, 60)
    for _ in range(500):
        draw(mirror, 1)
        if mirror._by_priority._known[0] > old.max():
            break
        mirror._readers.each[0].wait(0.02)
    oldest, newest = mirror._by_priority._known
    assert oldest > old.max() and newest - oldest <= 64
    mirror._by_priority._drawn = old
    mirror.update(2, np.full((8, BATCH), 0.5, np.float32))  # of items that are gone
    assert mirror._by_priority._tree.total == newest - oldest
    draw(mirror, 16)
    oldest, newest = mirror._by_priority._known  # more sequences may have arrived
    assert mirror._by_priority._drawn.min() >= oldest and mirror._by_priority._drawn.max() < newest


def test_draws_uniformly_without_a_priority_above_0(serve, open_mirror):
    served = serve(experience(epsilon=0.0))
    fill(served, 33)
    mirror = open_mirror(served)
    draw(mirror)
    oldest, newest = mirror._by_priority._known
    mirror._by_priority._drawn = np.arange(oldest, newest)[None]
    mirror.update(1, np.full((1, newest - oldest), np.nan, np.float32))
    assert mirror._by_priority._tree.total == newest - oldest
    assert mirror.metrics()['priorities_not_finite'] == newest - oldest
    mirror.update(1, np.zeros((1, newest - oldest), np.float32))
    _, weights = draw(mirror, 16, 5)
    np.testing.assert_array_equal(weights, 1.0)
    assert len(np.unique(mirror._by_priority._drawn)) > 0.8 * (newest - oldest)
