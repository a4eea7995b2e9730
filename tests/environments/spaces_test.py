import numpy as np
import pytest
import tensorflow as tf
from gymnasium import spaces as gym_spaces
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate
from tf_agents.specs import tensor_spec

from tests.environments import example_environments
from tflearn.core.types import integer_bounds
from tflearn.environments import spaces

Rover = example_environments.Rover


def _batch(space, elements):
    return concatenate(space, elements, create_empty_array(space, len(elements)))


@pytest.mark.parametrize(
    ('space', 'shape', 'dtype', 'minimum', 'maximum'),
    [
        (gym_spaces.Discrete(4), (), tf.int64, 0, 3),
        (gym_spaces.Discrete(4, start=-2), (), tf.int64, -2, 1),
        (gym_spaces.MultiDiscrete([2, 5], start=[1, -3]), (2,), tf.int64, [1, -3], [2, 1]),
        (gym_spaces.MultiBinary((2, 3)), (2, 3), tf.int64, 0, 1),
        (gym_spaces.Box(-1.0, 2.0, (3,), np.float32), (3,), tf.float32, -1, 2),
        (gym_spaces.Box(np.array([0.0, -np.inf]), np.array([1e300, 5.0]), dtype=np.float64), (2,), tf.float32,
         [0, -np.inf], [np.inf, 5]),
        (gym_spaces.Box(0, 255, (84, 84, 1), np.uint8), (84, 84, 1), tf.uint8, 0, 255),
    ],
)  # fmt: skip
def test_spec(space, shape, dtype, minimum, maximum):
    spec = spaces.to_spec(space, 'observation')
    assert spec == tensor_spec.BoundedTensorSpec(shape, dtype, minimum, maximum, 'observation')
    assert spec.name == 'observation'


def test_equal_bounds_are_one_number():
    assert spaces.to_spec(gym_spaces.Box(0, 255, (84, 84, 4), np.uint8), 'observation').maximum.shape == ()


def test_both_bounds_of_several_categories_have_one_shape():
    """Otherwise TF-Agents cannot add a dimension to a spec."""
    spec = spaces.to_spec(gym_spaces.MultiDiscrete([2, 5]), 'observation')
    assert tensor_spec.add_outer_dim(spec, 3).shape == (3, 2)


def test_nested_spec():
    spec = spaces.to_spec(Rover.observation_space, 'observation')
    assert set(spec) == {'position', 'wheels', 'camera'}
    assert spec['position'].dtype == tf.float32
    assert isinstance(spec['wheels'], tuple)
    assert [leaf.name for leaf in spec['wheels']] == ['observation/wheels/0', 'observation/wheels/1']


@pytest.mark.parametrize(
    'space', [gym_spaces.Text(5), gym_spaces.Dict(words=gym_spaces.Sequence(gym_spaces.Discrete(3)))]
)
def test_rejects_unsupported_spaces(space):
    with pytest.raises(ValueError, match=r'got the observation\S* space .*; need a Box .*; wrap the environment'):
        spaces.to_spec(space, 'observation')


def test_read_casts_into_new_arrays():
    space = Rover.observation_space
    position = np.array([0.25, 0.5])
    wheels = (np.array([1, 0], np.int8), -1)
    batch = _batch(space, [{'position': position, 'wheels': wheels, 'camera': np.full((4, 4, 1), 9, np.uint8)}] * 2)
    read = spaces.reader(space)(batch)
    for leaf in tf.nest.flatten(batch):
        leaf[...] = 0
    np.testing.assert_array_equal(read['position'], np.array([position, position], np.float32))
    np.testing.assert_array_equal(read['wheels'][0], [[1, 0], [1, 0]])
    np.testing.assert_array_equal(read['wheels'][1], [-1, -1])
    assert (read['camera'] == 9).all()
    spec = spaces.to_spec(space, 'observation')
    assert [leaf.dtype for leaf in tf.nest.flatten(read)] == [
        leaf.dtype.as_numpy_dtype for leaf in tf.nest.flatten(spec)
    ]


def test_written_actions_are_in_the_space():
    space = Rover.action_space
    spec = spaces.to_spec(space, 'action')
    write = spaces.writer(space, 2)
    for bound in ('minimum', 'maximum'):
        action = tf.nest.map_structure(
            lambda leaf, bound=bound: np.full((2, *leaf.shape), getattr(leaf, bound), leaf.dtype.as_numpy_dtype), spec
        )
        written = list(iterate(batch_space(space, 2), write(action)))
        assert len(written) == 2
        assert all(space.contains(one) for one in written), written
    assert written[0]['gear'] == 7
    np.testing.assert_array_equal(written[0]['speeds'], [2, 2])


def test_write_checks_shape_and_dtype():
    write = spaces.writer(gym_spaces.Discrete(2), 3)
    for wrong in (np.zeros(2, np.int64), np.zeros((3, 1), np.int64), np.zeros(3, np.int32), np.zeros(3)):
        with pytest.raises(ValueError, match=r'got an action with shape .*; need \(3,\), int64'):
            write(wrong)


def test_floats_are_clipped_to_their_bounds():
    space = gym_spaces.Box(np.array([-0.1, -np.inf, 0.0]), np.array([0.1, np.inf, np.inf]), dtype=np.float64)
    action = np.array([[0.5, -3e38, -2.0], [-0.5, 3e38, 2.0], [0.05, 0.0, 0.0]], np.float32)
    given = action.copy()
    written = spaces.writer(space, 3)(action)
    np.testing.assert_array_equal(
        written, np.array([[0.1, np.float32(-3e38), 0.0], [-0.1, np.float32(3e38), 2.0], [np.float32(0.05), 0.0, 0.0]])
    )
    assert all(space.contains(one) for one in written)
    np.testing.assert_array_equal(action, given)


@pytest.mark.parametrize('wrong', [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize('bound', [1.0, np.inf])
def test_rejects_floats_that_are_not_finite(wrong, bound):
    write = spaces.writer(gym_spaces.Dict({'move': gym_spaces.Box(-bound, bound, (2,), np.float32)}), 2)
    with pytest.raises(ValueError, match=r'got (nan|inf|-inf) in action/move; need finite numbers; check that weights'):
        write({'move': np.array([[0.0, 0.0], [0.0, wrong]], np.float32)})


@pytest.mark.parametrize(
    ('space', 'wrong', 'message'),
    [
        (gym_spaces.Discrete(3, start=5), [5, 3], 'got 3 in action; need values from 5 to 7'),
        (gym_spaces.Discrete(3), [-1, 0], 'got -1 in action; need values from 0 to 2'),
        (gym_spaces.MultiDiscrete([2, 3]), [[0, 2], [1, 3]], r'got 3 in action; need values from \[0 0\] to \[1 2\]'),
        (gym_spaces.MultiBinary(1), [[0], [2]], 'got 2 in action; need values from 0 to 1'),
    ],
)
def test_rejects_integers_out_of_bounds(space, wrong, message):
    with pytest.raises(ValueError, match=message):
        spaces.writer(space, 2)(np.array(wrong))


@pytest.mark.parametrize(
    ('given', 'dtype', 'bounds'),
    [
        ('int8', 'int32', (-7, 7)),
        ('uint16', 'int32', (0, 7)),
        ('uint32', 'int64', (0, 7)),
        ('uint64', 'int64', (0, 7)),
        ('float16', 'float32', (-7, 7)),
        ('bool', 'int64', (0, 1)),
    ],
)
def test_dtypes_without_operations_become_larger_ones(given, dtype, bounds):
    space = gym_spaces.Box(*bounds, (2,), np.dtype(given).type)
    spec = spaces.to_spec(space, 'observation')
    assert spec.dtype.name == dtype
    np.testing.assert_array_equal(np.stack([spec.minimum, spec.maximum]).reshape(2, -1)[:, 0], bounds)
    values = np.array([[0, 1]], given)
    read = spaces.reader(space)(values)
    assert (read.dtype.name, read.tolist()) == (dtype, [[0, 1]])
    written = spaces.writer(space, 1)(read)
    assert written.dtype == values.dtype
    np.testing.assert_array_equal(written, values)


@pytest.mark.parametrize('dtype', [np.int8, np.int16, np.uint16, np.uint32, np.uint64])
def test_the_limits_of_such_a_dtype_are_no_bounds(dtype):
    limits = np.iinfo(dtype)
    spec = spaces.to_spec(gym_spaces.Box(limits.min, limits.max, (2,), dtype), 'observation')
    assert integer_bounds(spec) is None


def test_large_uint64_are_refused():
    space = gym_spaces.Box(0, 2**64 - 1, (1,), np.uint64)
    with pytest.raises(ValueError, match='got 9223372036854775808 of an environment; need at most 2.63 - 1'):
        spaces.reader(space)(np.array([[2**63]], np.uint64))


@pytest.mark.parametrize(
    ('space', 'message'),
    [
        (gym_spaces.Box(0, 1, (0,)), 'got the observation space Box.* without numbers; need at least one'),
        (gym_spaces.Dict({'a': gym_spaces.Box(0, 1, (3, 0))}), 'got the observation/a space Box.* without numbers'),
        (gym_spaces.Dict({1: gym_spaces.Discrete(2)}), 'got the key 1 in the observation space; need names'),
        (gym_spaces.Dict({1: gym_spaces.Discrete(2), 'a': gym_spaces.Discrete(2)}), 'got the key 1 in the obs'),
    ],
)
def test_refuses_spaces_without_numbers_or_names(space, message):
    with pytest.raises(ValueError, match=message):
        spaces.to_spec(space, 'observation')
