"""Publications as bytes: what comes back, what is left out of a difference, and what is refused."""

import random

import numpy as np
import pytest
import tensorflow as tf

from tests.conftest import SEED
from tflearn.coordinator import weights_transport

BFLOAT16 = tf.bfloat16.as_numpy_dtype


def dtype_of(name):
    return np.dtype(tf.as_dtype(name).as_numpy_dtype)


def made(values, step=1, narrow=None):
    names = [f'v{i}' for i in range(len(values))]
    return weights_transport.make({'train_step': step, 'finished': False}, names, values, narrow)


def sent(message, than=None):
    return weights_transport.parse(memoryview(b''.join(message.parts(than))))


VALUES = [np.arange(6, dtype=np.float32).reshape(2, 3), np.float64(3.5), np.zeros((0, 4), np.int64), np.array([True])]


def test_all_comes_back():
    message = made([np.asarray(value) for value in VALUES])
    back = sent(message)
    assert back.tag == message.tag and back.counters == {'train_step': 1, 'finished': False}
    for value, found in zip(VALUES, weights_transport.values(back), strict=True):
        np.testing.assert_array_equal(found, value)
        assert found.dtype == np.asarray(value).dtype and found.shape == np.asarray(value).shape


def test_float32_is_sent_as_bfloat16_and_comes_back_as_float32():
    message = made([np.array([1.0, 1 / 3], np.float32), np.array([1 / 3])], narrow=BFLOAT16)
    assert [variable.num_bytes for variable in message.variables] == [4, 8]
    narrow, wide = weights_transport.values(sent(message), dtype_of)
    assert narrow.dtype == np.float32 and narrow[0] == 1.0 and abs(narrow[1] - 1 / 3) < 2**-8 / 3
    assert wide[0] == 1 / 3


def test_the_tag_is_that_of_the_content():
    assert made(VALUES[:1]).tag == made(VALUES[:1]).tag
    assert made(VALUES[:1]).tag != made(VALUES[:1], step=2).tag
    assert made(VALUES[:1]).tag != made([VALUES[0] + 1]).tag


def test_a_difference_has_only_the_variables_that_changed():
    large, small = np.ones(10_000, np.float32), np.ones(3, np.float32)
    first, second = made([large, small]), made([large, small + 1], step=2)
    difference = sent(second, first)
    assert sum(map(len, second.parts(first))) < 1_000 < sum(map(len, second.parts()))
    assert difference.data[0] is None and difference.tag == second.tag
    whole = difference.completed(sent(first))
    np.testing.assert_array_equal(weights_transport.values(whole)[0], large)
    np.testing.assert_array_equal(weights_transport.values(whole)[1], small + 1)
    for base in (None, made([small])):
        with pytest.raises(ValueError, match='got a part of a publication'):
            difference.completed(base)


@pytest.mark.parametrize('case', range(300))
def test_damaged_bytes_are_refused_in_one_line(case):
    rng = random.Random(SEED * 1000 + case)
    data = bytearray(b''.join(made([np.asarray(value) for value in VALUES]).parts()))
    kind = rng.choice(['cut', 'flip', 'more', 'noise', 'length'])
    if kind == 'cut':
        del data[rng.randrange(len(data)) :]
    elif kind == 'more':
        data += rng.randbytes(rng.randrange(1, 50))
    elif kind == 'noise':
        data = bytearray(rng.randbytes(rng.randrange(200)))
    elif kind == 'length':
        data[8:16] = rng.randbytes(8)
    else:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    try:
        weights_transport.parse(memoryview(bytes(data)))
    except ValueError as error:
        assert str(error).startswith('got ') and '\n' not in str(error)
    else:
        assert kind == 'flip', 'a bit of a value, or of a number in the header'
