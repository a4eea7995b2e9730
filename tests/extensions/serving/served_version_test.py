"""A served version computes what the exported one does, and rejects invalid requests with a reason."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.testing import example_policies
from tflearn.extensions.serving import served_version, tensor_protos
from tflearn.extensions.serving.served_version import InvalidRequest, ServedVersion
from tflearn.policies import signatures
from tflearn.policies.exporter import PolicyExporter


def export(kind, directory):
    policy = getattr(example_policies, kind)()
    return policy, PolicyExporter(policy, directory).export(1, {})


@pytest.fixture(scope='module')
def exported(tmp_path_factory):
    """Returns a function kind -> a policy and its exported version, which stay as they are."""
    return functools.cache(lambda kind: export(kind, tmp_path_factory.mktemp(kind)))


@pytest.mark.parametrize('options', [None, served_version.BatchOptions(max_batch_size=4)], ids=['single', 'batched'])
@pytest.mark.parametrize(
    'kind',
    ['greedy', 'recurrent', *(pytest.param(kind, marks=pytest.mark.slow) for kind in ('nested', 'greedy_actor'))],
)
def test_outputs_equal_those_of_the_saved_model(exported, kind, options):
    policy, path = exported(kind)
    served, model = ServedVersion(path, options), tf.saved_model.load(str(path))
    for batch_size in (1, 3, 9):  # the last is more than one batch
        inputs = signatures.flat_dict(signatures.to_plain(example_policies.time_step(policy, batch_size)))
        if 'get_initial_state' in served.signatures:
            inputs |= served.signature('get_initial_state').run({'batch_size': np.int32(batch_size)})
        for signature in ('serving_default', 'action'):
            own = {name: inputs[name] for name in served.signature(signature).inputs}
            served.signature(signature).check({name: value.shape for name, value in own.items()})
            expected = model.signatures[signature](**{name: tf.constant(value) for name, value in own.items()})
            got = served.signature(signature).run(own)
            assert set(got) == set(expected)
            for name, value in got.items():
                np.testing.assert_allclose(value, expected[name], atol=1e-5)


@pytest.fixture(scope='module')
def signature(exported):
    _, path = exported('nested')
    return ServedVersion(path, max_rows=8).signature('serving_default')


GOOD = {'observation_position': (2, 2), 'observation_speeds_0': (2, 2), 'observation_speeds_1': (2, 1)}


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        ({'observation': (2, 2)}, "got the input 'observation'; need one of ['observation_position', "),
        ({'observation_position': None}, 'got no input observation_position; need ['),
        ({'observation_position': (2,)}, 'got observation_position of shape [2]; need [any, 2]'),
        ({'observation_position': (2, 3)}, 'got observation_position of shape [2, 3]; need [any, 2]'),
        ({'observation_position': (3, 2)}, 'got inputs of several batch sizes'),
        (dict.fromkeys(GOOD, (9, 2)) | {'observation_speeds_1': (9, 1)}, 'got a batch of 9; need 1 to 8 rows'),
        (dict.fromkeys(GOOD, (0, 2)) | {'observation_speeds_1': (0, 1)}, 'got a batch of 0; need 1 to 8 rows'),
    ],
)
def test_rejects_inputs_that_do_not_fit_the_signature(signature, change, message):
    signature.check(GOOD)
    assert signature.max_waiting_rows == 16 * 8
    shapes = {name: shape for name, shape in (GOOD | change).items() if shape is not None}
    with pytest.raises(InvalidRequest) as raised:
        signature.check(shapes)
    assert message.replace("'", '') in str(raised.value).replace("'", '')


def proto(**fields):
    tensor = tf.make_tensor_proto(0.0)
    tensor.Clear()
    tensor.dtype = fields.pop('dtype', 1)
    for size in fields.pop('shape', ()):
        tensor.tensor_shape.dim.add().size = size
    tensor.tensor_content = fields.pop('content', b'')
    for name, values in fields.items():
        getattr(tensor, name).extend(values)
    return tensor


@pytest.mark.parametrize(
    'dtype', ['float32', 'float64', 'float16', 'int8', 'int32', 'int64', 'uint8', 'uint64', 'bool']
)
@pytest.mark.parametrize('content', [False, True])
def test_arrays_survive_conversion_to_protos(dtype, content):
    array = np.array([[0, 1, 3], [1, 0, 100]]).astype(dtype)
    tensor = proto(dtype=0)
    tensor_protos.fill(tensor, array, content)
    for form in (tensor, tf.make_tensor_proto(array)):
        got = tensor_protos.to_array('x', form, tf.as_dtype(dtype))
        assert got.dtype == array.dtype
        np.testing.assert_array_equal(got, array)
    np.testing.assert_array_equal(tf.make_ndarray(tensor), array)


def test_last_value_fills_the_rest_of_the_tensor():
    got = tensor_protos.to_array('x', proto(shape=(2, 2), float_val=[1.0, 2.0]), tf.float32)
    np.testing.assert_array_equal(got, [[1, 2], [2, 2]])


@pytest.mark.parametrize(
    ('tensor', 'dtype', 'message'),
    [
        (proto(dtype=2, shape=(1,), double_val=[1.0]), tf.float32, 'got x of float64; need float32'),
        (proto(dtype=99, shape=(1,)), tf.float32, 'got x of the unknown dtype 99; need float32'),
        (proto(shape=(2,), content=b'1234'), tf.float32, 'got x with 4 bytes of tensor_content; need 8 for [2]'),
        (proto(shape=(2,)), tf.float32, 'got x with 0 values in float_val; need 2 for [2]'),
        (proto(shape=(1,), float_val=[1.0, 2.0]), tf.float32, 'got x with 2 values in float_val; need 1 for [1]'),
        (proto(dtype=4, shape=(1,), int_val=[300]), tf.uint8, 'got x with values from 300 to 300; need uint8'),
        (proto(shape=(-1,), float_val=[1.0]), tf.float32, 'got x of an unknown shape; need a tensor_shape'),
    ],
)
def test_rejects_malformed_protos(tensor, dtype, message):
    with pytest.raises(InvalidRequest) as raised:
        tensor_protos.to_array('x', tensor, dtype)
    assert str(raised.value).startswith(message)


def test_batch_settings_are_checked_and_written_for_tensorflow_serving():
    assert served_version.BatchOptions(batch_timeout_micros=7).serving_config().splitlines()[:2] == [
        'max_batch_size { value: 64 }',
        'batch_timeout_micros { value: 7 }',
    ]
