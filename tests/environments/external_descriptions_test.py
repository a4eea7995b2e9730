"""Descriptions of observations and actions, and their values in JSON."""

import base64

import numpy as np
import pytest
import tensorflow as tf

from tflearn.environments import external_descriptions

NEST = {
    'image': {'shape': (2, 2), 'dtype': 'uint8', 'low': 0, 'high': 255},
    'gear': {'choices': 3},
    'arm': {'position': {'shape': (2,), 'low': -1.0, 'high': 1.0}, 'counts': {'choices': (2, 4)}},
}
SPEC = external_descriptions.to_spec(NEST, 'observation')
VALUE = {'image': [[0, 255], [1, 2]], 'gear': 2, 'arm': {'position': [0.5, -1], 'counts': [1, 3]}}


def test_specs():
    assert [(leaf.name, leaf.dtype, tuple(leaf.shape)) for leaf in tf.nest.flatten(SPEC)] == [
        ('observation/arm/counts', tf.int64, (2,)),
        ('observation/arm/position', tf.float32, (2,)),
        ('observation/gear', tf.int64, ()),
        ('observation/image', tf.uint8, (2, 2)),
    ]
    assert SPEC['gear'].maximum == 2
    assert SPEC['arm']['counts'].maximum.tolist() == [1, 3]
    plain = external_descriptions.to_spec({'shape': (4,)}, 'observation')
    assert np.all(plain.maximum == np.finfo(np.float32).max)


def test_values_of_a_nest():
    arrays = external_descriptions.from_json(VALUE, SPEC, 'observation')
    for array, spec in zip(tf.nest.flatten(arrays), tf.nest.flatten(SPEC), strict=True):
        assert (array.dtype, array.shape) == (spec.dtype.as_numpy_dtype, tuple(spec.shape))
    assert arrays['arm']['position'].tolist() == [0.5, -1.0]
    assert external_descriptions.to_json(arrays, SPEC) == VALUE


def test_bytes_in_base64():
    spec = external_descriptions.to_spec({'shape': (3,)}, 'observation')
    text = base64.b64encode(np.array([1, -2, 0.5], '<f4').tobytes()).decode()
    assert external_descriptions.from_json(text, spec, 'observation').tolist() == [1, -2, 0.5]


def test_floats_of_actions_are_clipped_and_their_array_is_kept():
    spec = external_descriptions.to_spec({'shape': (2,), 'low': -1.0, 'high': 1.0}, 'action')
    action = np.array([3.0, -0.5], np.float32)
    assert external_descriptions.to_json(action, spec) == [1.0, -0.5]
    assert action[0] == 3


def test_clients_get_the_description():
    assert external_descriptions.describe(SPEC)['gear'] == {'shape': [], 'dtype': 'int64', 'low': 0, 'high': 2}
    assert external_descriptions.describe(external_descriptions.to_spec({'shape': (4,)}, 'o')) == {
        'shape': [4],
        'dtype': 'float32',
    }


@pytest.mark.parametrize(
    ('part', 'message'),
    [
        ({'gear': 3}, r'got observation.gear from 3 to 3; need 0 to 2'),
        ({'gear': 1.5}, 'got observation.gear with float64 values; need int64'),
        ({'gear': [1]}, r'got observation.gear with shape \[1\]; need \[\]'),
        ({'gear': None}, 'got observation.gear with object values'),
        ({'image': [[0, 256], [0, 0]]}, 'got observation.image with numbers beyond uint8'),
        ({'image': [[0, 1], [0]]}, 'got observation.image as lists of different lengths'),
        ({'image': 'AAA='}, 'got observation.image of 2 bytes; need 4'),
        ({'image': '!'}, 'got observation.image as a string that is no base64'),
        ({'arm': {'position': [0.0, float('nan')], 'counts': [0, 0]}}, 'numbers that are not finite'),
        ({'arm': {'position': [0.0, 1e300], 'counts': [0, 0]}}, 'numbers that are not finite'),
        ({'arm': {'position': [0.0, 0.0]}}, r"got observation.arm with the keys \['position'\]; need an object"),
        ({'arm': 3}, 'got observation.arm with int; need an object with the keys'),
    ],
)
def test_wrong_values_are_named(part, message):
    with pytest.raises(ValueError, match=message):
        external_descriptions.from_json(VALUE | part, SPEC, 'observation')


@pytest.mark.parametrize(
    ('description', 'message'),
    [
        (4, 'got 4 as description of action; need a dict'),
        ({}, 'got {} as description of action'),
        ({'choices': 0}, 'choices=0'),
        ({'shape': (2,), 'dtype': 'float64'}, 'not float32 or an integer'),
        ({'shape': (2,), 'size': 3}, 'size'),
        ({'shape': (2,), 'low': 2.0, 'high': 1.0}, 'low=2.0 above high=1.0'),
        ({'arm': {'choices': (2, 0)}}, r'as description of action/arm'),
    ],
)
def test_wrong_descriptions_are_refused(description, message):
    with pytest.raises(ValueError, match=message):
        external_descriptions.to_spec(description, 'action')
