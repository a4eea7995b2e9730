import collections
import functools

import numpy as np
import pytest
import tensorflow as tf

from tests import fakes
from tflearn.core.types import (
    EnvironmentSpecs,
    check_agent_factory,
    check_batch,
    leaf_paths,
    named_leaves,
    specs_of,
    zeros,
)

SPEC = {'a': tf.TensorSpec((2,), tf.float32, 'a'), 'b': tf.TensorSpec((), tf.int64, 'b')}


def test_time_step_spec():
    spec = EnvironmentSpecs(SPEC, tf.TensorSpec((), tf.int64)).time_step
    assert spec.observation == SPEC
    assert (spec.reward.dtype, spec.discount.dtype, spec.step_type.dtype) == (tf.float32, tf.float32, tf.int32)


def test_check_batch_accepts_what_fits():
    check_batch({'a': np.zeros((3, 2), np.float32), 'b': np.zeros(3, np.int64)}, SPEC, 3, 'value')


@pytest.mark.parametrize(
    'value',
    [
        {'a': np.zeros((3, 2), np.float64), 'b': np.zeros(3, np.int64)},
        {'a': np.zeros((2, 2), np.float32), 'b': np.zeros(3, np.int64)},
        {'a': np.zeros((3, 2), np.float32)},
    ],
)
def test_check_batch_names_what_differs(value):
    with pytest.raises(ValueError, match='got a? ?value'):
        check_batch(value, SPEC, 3, 'value')


def test_leaf_paths_are_in_the_order_of_the_leaves():
    pair = collections.namedtuple('pair', 'z a')
    nest = {'robot': {'tools': (1, [2]), 'arm': 0}, 'pair': pair(-2, -1)}
    paths = leaf_paths(nest)
    assert paths == ['pair.z', 'pair.a', 'robot.arm', 'robot.tools.0', 'robot.tools.1.0']
    assert tf.nest.flatten(nest) == [-2, -1, 0, 1, 2]
    assert leaf_paths(0) == ['observation']


def test_leaves_of_the_same_path_are_refused():
    with pytest.raises(ValueError, match=r'got several parts called a\.b; need names of their own'):
        named_leaves({'a.b': 1, 'a': {'b': 2}})


def test_zeros():
    value = zeros(SPEC, (4, 5))
    assert (value['a'].shape, value['b'].shape) == ((4, 5, 2), (4, 5))


def test_specs_of_closes_the_environment():
    environment = fakes.CheckedEnvironment()
    assert specs_of(lambda num_environments, seed: environment) is environment.specs
    assert environment.closed


def test_what_wraps_a_factory_may_add_its_arguments():
    def factory(specs, train_step, experience, *, size):
        return specs, train_step, experience, size

    with pytest.raises(TypeError, match="missing a required .*argument: 'size'"):
        check_agent_factory('make_agent', factory)
    check_agent_factory('make_agent', functools.wraps(factory)(lambda *given: factory(*given, size=8)))  # as gin does
    with pytest.raises(TypeError, match='too many positional arguments'):
        check_agent_factory('make_agent', functools.wraps(specs_of)(lambda *given: None))
