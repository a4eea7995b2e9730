import random

import numpy as np
import pytest
import tensorflow as tf

from tflearn.learner.checkpoints import Checkpoints, random_state


@pytest.fixture(autouse=True)
def _global_states():
    """Restores the random states of other tests."""
    python, numpy_state = random.getstate(), np.random.get_state()
    yield
    random.setstate(python)
    np.random.set_state(numpy_state)


def _draw():
    random.gauss(0.0, 1.0)  # after an odd number of calls, `random` keeps a second value
    np.random.normal()
    numbers = [random.random(), random.gauss(0.0, 1.0), np.random.normal(), np.random.rand()]
    return [*numbers, *tf.random.get_global_generator().normal((3,)).numpy().tolist()]


@pytest.mark.parametrize('asynchronous', [False, True])
def test_restored_state_repeats_the_draws(tmp_path, asynchronous):
    _draw()
    checkpoints = Checkpoints(tmp_path, {'rng': random_state()}, asynchronous=asynchronous)
    checkpoints.save(5)
    first, more = _draw(), _draw()
    assert first != more
    checkpoints.wait()
    Checkpoints(tmp_path, {'rng': random_state()}).restore_newest()
    assert [_draw(), _draw()] == [first, more]


def test_checkpoint_without_random_state_does_not_change_it(tmp_path):
    Checkpoints(tmp_path, {'a': tf.Variable(0.0)}).save(5)
    checkpoints = Checkpoints(tmp_path, {'a': tf.Variable(0.0), 'rng': random_state()}, optional=['rng'])
    before = random.getstate()
    checkpoints.restore_newest()
    assert random.getstate() == before
