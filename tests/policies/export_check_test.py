"""Results of another graph are those of a policy but for rounding: another action is accepted for a tie alone."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tflearn.policies.export_check import Program

ROWS = np.random.default_rng(0).normal(size=(16, 8)).astype(np.float32)


def scores(gap, dtype=tf.float32):
    """A program of scores of two actions that differ by `gap`, as a share, and of the better one; with its kernel."""
    column = np.ones((8, 1), np.float32)
    kernel = tf.Variable(np.hstack([column, column * (1 + gap)]))

    @functools.partial(tf.function, input_signature=[tf.TensorSpec([None, 8])])
    def best(rows):
        computed = tf.cast(tf.cast(rows, dtype) @ tf.cast(kernel, dtype), tf.float32)
        return tf.argmax(computed, -1), computed

    return Program(best.get_concrete_function(), [tf.constant(ROWS)], [kernel], [kernel.read_value()])


@pytest.mark.parametrize(('gap', 'is_tie'), [(1e-7, True), (1e-2, False)])
def test_another_action_is_accepted_for_a_tie_alone(gap, is_tie):
    program = scores(gap)
    actions, values = program.results()
    assert program.differing([actions, values], [actions, values]) == []
    assert program.differing([1 - actions, values], [actions, values]) == ([] if is_tie else [0])
    assert program.differing([actions + 2, values], [actions, values]) == [0]


@pytest.mark.parametrize(('dtype', 'share'), [(tf.float32, 1e-5), (tf.bfloat16, 1e-2)])
@pytest.mark.parametrize('unit', [1e-6, 1.0, 1e6])
def test_floats_may_differ_by_a_share_of_their_magnitude(dtype, share, unit):
    program = scores(0.5, dtype)
    program._leaves = [tf.constant(ROWS * unit)]
    actions, values = program.results()
    assert program.differing([actions, values * (1 + share)], [actions, values]) == []
    assert program.differing([actions, values * (1 + 30 * share)], [actions, values]) == [1]


def test_numbers_that_are_not_finite_must_be_the_same():
    program = scores(0.5)
    actions, values = program.results()
    odd = tf.concat([[[np.nan, np.inf]], values[1:]], 0)
    assert program.differing([actions, odd], [actions, odd]) == []
    assert program.differing([actions, odd], [actions, values]) == [1]
    assert program.differing([actions, values], [actions, odd]) == [1]
