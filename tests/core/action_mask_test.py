"""The mask of legal actions: shapes, single draws, and errors."""

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts

from tflearn.core.action_mask import ActionMask
from tflearn.core.types import EnvironmentSpecs


def bounded(shape, dtype, low, high):
    return tensor_spec.BoundedTensorSpec(shape, dtype, low, high, 'leaf')


STATE = bounded((3,), tf.float32, -1.0, 1.0)
DISCRETE, SEVERAL = bounded((), tf.int64, 0, 3), bounded((2,), tf.int32, [0, 0], [1, 2])
CONTINUOUS = bounded((2,), tf.float32, -1.0, 1.0)


def specs(action=DISCRETE, num_choices=4):
    return EnvironmentSpecs({'robot': {'legal': tf.TensorSpec((num_choices,), tf.int8), 'arm': STATE}}, action)


def observation(mask):
    return {'robot': {'legal': np.asarray(mask, np.int8), 'arm': np.zeros((len(mask), 3), np.float32)}}


def time_step(mask, step_type=ts.StepType.MID):
    size = len(mask)
    return ts.TimeStep(np.full(size, step_type), np.zeros(size), np.ones(size), observation(mask))


def test_divides_observations_and_specs():
    mask = ActionMask(specs(), 'robot.legal')
    rest, legal = mask(observation([[0, 1, 1, 0], [0, 0, 0, 0]]))
    assert rest.keys() == {'robot.arm'} and rest['robot.arm'].shape == (2, 3)
    np.testing.assert_array_equal(legal, [[0, 1, 1, 0], [1, 1, 1, 1]], 'where nothing is legal, everything is')
    assert mask(specs().observation)[0] == {'robot.arm': STATE}
    several = ActionMask(specs(SEVERAL, 5), 'robot.legal')
    np.testing.assert_array_equal(several(observation([[0, 1, 0, 0, 0]]))[1], [[0, 1, 1, 1, 1]])


def test_names_the_environment_and_the_step_in_which_nothing_is_legal():
    mask = ActionMask(specs(SEVERAL, 5), 'robot.legal')
    mask.check(time_step([[0, 1, 0, 0, 1], [1, 1, 1, 1, 1]]), 7)
    stuck = [[0, 1, 0, 0, 1], [0, 1, 0, 0, 0]]
    mask.check(time_step(stuck, ts.StepType.LAST), 7)
    with pytest.raises(ValueError, match=r"^got no legal action in 'robot.legal' of environment 1 in step 7; need"):
        mask.check(time_step(stuck), 7)


@pytest.mark.parametrize(('action', 'legal'), [(DISCRETE, [0, 1, 0, 1]), (SEVERAL, [0, 1, 1, 0, 1])])
def test_draws_are_legal_and_alike(action, legal):
    mask = ActionMask(specs(action, len(legal)), 'robot.legal')
    drawn = mask.sample(observation([legal] * 2000), np.random.default_rng(1))
    assert drawn.dtype == action.dtype.as_numpy_dtype and drawn.shape == (2000, *action.shape)
    if action is SEVERAL:
        assert (drawn[:, 0] == 1).all()
        drawn = drawn[:, 1] + 1
    values, counts = np.unique(drawn, return_counts=True)
    assert values.tolist() == [1, 3] and 900 < counts[0] < 1100


@pytest.mark.parametrize(
    ('given', 'path', 'message'),
    [
        (specs(), 'legal', "got action_mask='legal' and .* the parts robot.arm, robot.legal; need one of several"),
        (specs(num_choices=3), 'robot.legal', r'of shape \(3,\); need \(4,\): a number for each choice of the action'),
        (specs(SEVERAL, 4), 'robot.legal', r'of shape \(4,\); need \(5,\)'),
        (specs(CONTINUOUS), 'robot.legal', 'for the action .*; need a Discrete or MultiDiscrete one'),
        (specs({'a': DISCRETE}), 'robot.legal', 'for the action .*; need a Discrete or MultiDiscrete one'),
        (EnvironmentSpecs(tf.TensorSpec((4,), tf.int8), DISCRETE), 'observation', 'need one of several parts'),
    ],
)
def test_rejects_what_does_not_fit(given, path, message):
    with pytest.raises(ValueError, match=message) as error:
        ActionMask(given, path)
    assert '\n' not in str(error.value)
