"""Nests survive the conversion to plain nests and back, and their leaves have readable names."""

import collections

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec

from tflearn.policies import signatures

Pair = collections.namedtuple('Pair', ['second', 'first'])


def test_named_tuples_become_dicts_and_come_back():
    nest = {'a': Pair(second=[1, 2], first=(3,)), 'b': ()}
    plain = signatures.to_plain(nest)
    assert plain == {'a': {'second': [1, 2], 'first': (3,)}, 'b': ()}
    assert type(plain['a']) is dict
    back = signatures.from_plain(plain, nest)
    assert back == nest
    assert type(back['a']) is Pair


def test_leaves_have_the_order_of_tf_nest():
    plain = {'b': [1, (2, 3)], 'a': {'y': 4, 'x': 5}}
    assert [leaf for _, leaf in signatures.flat(plain)] == tf.nest.flatten(plain)


@pytest.mark.parametrize(
    ('spec', 'names'),
    [
        (tf.TensorSpec((4,)), ['observation']),
        (
            {'position': tf.TensorSpec((4,)), 'goal-2': tf.TensorSpec(())},
            ['observation_goal_2', 'observation_position'],
        ),
        ([tf.TensorSpec(()), (tf.TensorSpec(()),)], ['observation_0', 'observation_1_0']),
        ((tf.TensorSpec(()),) * 11, [f'observation_{i}' for i in range(11)]),  # the last is the third by name
    ],
)
def test_names_are_paths_and_valid_keywords(spec, names):
    batched = signatures.batched(spec, 'observation')
    assert [leaf.name for leaf in tf.nest.flatten(batched)] == names
    assert all(leaf.shape[0] is None for leaf in tf.nest.flatten(batched))
    assert all(name.isidentifier() for name in names)
    assert signatures.names_in_order(spec, 'observation') == names


def test_names_of_a_named_tuple_have_the_order_of_its_fields():
    state = collections.namedtuple('State', ['velocity', 'position'])
    spec = {'b': state(tf.TensorSpec(()), (tf.TensorSpec(()),)), 'a': tf.TensorSpec(())}
    names = ['x_a', 'x_b_velocity', 'x_b_position_0']
    assert signatures.names_in_order(spec, 'x') == names
    values = tf.nest.map_structure(lambda leaf: leaf.name, signatures.from_plain(signatures.batched(spec, 'x'), spec))
    assert tf.nest.flatten(values) == names


def test_rejects_colliding_names():
    with pytest.raises(ValueError, match='a_b'):
        signatures.flat_dict({'a_b': 1, 'a': {'b': 2}})


def test_specs_are_described_in_json():
    spec = tensor_spec.BoundedTensorSpec((2,), tf.float32, [-1, -np.inf], [np.inf, np.inf])
    assert signatures.describe([spec, tf.TensorSpec((), tf.int64)]) == [
        {'shape': [2], 'dtype': 'float32', 'minimum': [-1.0, None], 'maximum': None},
        {'shape': [], 'dtype': 'int64'},
    ]
