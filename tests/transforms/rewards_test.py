import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts
from tf_agents.trajectories import trajectory

from tflearn.core.types import EnvironmentSpecs
from tflearn.transforms import rewards

SPECS = EnvironmentSpecs(
    tf.TensorSpec((2,), tf.float32, 'observation'), tensor_spec.BoundedTensorSpec((), tf.int64, 0, 1, 'action')
)
# The fourth row lies between two episodes.
STEP_TYPE = np.int32([[0, 1, 1, 2, 0, 1]])
NEXT_STEP_TYPE = np.int32([[1, 1, 2, 0, 1, 1]])
REWARD = np.float32([[3.0, -0.5, -7.0, 0.0, 0.25, 1.0]])


def experience():
    observation = np.arange(12, dtype=np.float32).reshape(1, 6, 2)
    return trajectory.Trajectory(
        *(tf.constant(leaf) for leaf in (STEP_TYPE, observation, np.int64([[0, 1, 0, 1, 1, 0]]))),
        (),
        *(tf.constant(leaf) for leaf in (NEXT_STEP_TYPE, REWARD, np.ones((1, 6), np.float32))),
    )


def changed(transform):
    specs = transform.transform_specs(SPECS)
    assert specs.reward.shape == () and specs.observation == SPECS.observation
    return transform.transform_experience(experience()).reward.numpy()[0]


@pytest.mark.parametrize(
    'transform, expected',
    [
        (rewards.Clip(), [1.0, -0.5, -1.0, 0.0, 0.25, 1.0]),
        (rewards.Clip(0.5, 2.0), [2.0, 0.5, 0.5, 0.0, 0.5, 1.0]),
        (rewards.Scale(2.0), [6.0, -1.0, -14.0, 0.0, 0.5, 2.0]),
        (rewards.Shift(-1.0), [2.0, -1.5, -8.0, 0.0, -0.75, 0.0]),
    ],
)
def test_rewards_change_but_between_episodes(transform, expected):
    np.testing.assert_allclose(changed(transform), expected)
    steps = ts.TimeStep(tf.constant([0, 1, 2]), tf.constant([0.0, 3.0, -7.0]), tf.ones(3), tf.zeros((3, 2)))
    acting, state = transform.transform_time_step(steps, ())
    np.testing.assert_allclose(acting.reward, [0.0, *np.take(expected, [0, 2])])
    assert state == ()


def test_function_gets_observation_action_and_next_observation():
    function = lambda now, action, after: 100.0 * tf.cast(action, tf.float32) + after[..., 0] - now[..., 1]  # noqa: E731
    # Observations grow by 2 per row; a reward for the last row would need the next one.
    np.testing.assert_allclose(changed(rewards.Function(function)), [1.0, 101.0, 1.0, 0.0, 101.0, 0.0])


@pytest.mark.parametrize(
    'make, message',
    [
        (lambda: rewards.Clip(1.0, -1.0), 'need low < high'),
        (lambda: rewards.Scale(0.0), 'another number than 0'),
        (lambda: rewards.Function(lambda now, action, after: after), r'got rewards of shape \(2, 3, 2\), float32'),
        (lambda: rewards.Function(lambda now, action, after: action), r'got rewards of shape \(2, 3\), int64'),
    ],
)
def test_refuses_what_does_not_fit(make, message):
    with pytest.raises(ValueError, match=message):
        make().transform_specs(SPECS)


def test_weighted_sum_of_several_rewards():
    """Its weights are variables that policies and checkpoints have; they can be assigned."""
    specs = EnvironmentSpecs(SPECS.observation, SPECS.action, tf.TensorSpec((2,), tf.float32, 'reward'))
    transform = rewards.Weighted([0.5, -1.0])
    assert transform.transform_specs(specs).reward.shape == ()
    several = tf.stack([tf.constant(REWARD), tf.ones_like(REWARD)], axis=-1)
    data = experience()._replace(reward=several)
    is_step = NEXT_STEP_TYPE[0] != 0
    np.testing.assert_allclose(transform.transform_experience(data).reward[0], (0.5 * REWARD[0] - 1.0) * is_step)
    transform.weights.assign([0.0, 2.0])
    np.testing.assert_allclose(transform.transform_experience(data).reward[0], 2.0 * is_step)
    assert transform.statistics.variables == (transform.weights,)
    with pytest.raises(ValueError, match='got rewards.Weighted of 2 weights for the reward .* a weight for each'):
        rewards.Weighted([0.5, -1.0]).transform_specs(SPECS)
