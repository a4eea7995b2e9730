import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts

from tflearn.actors.exploration import EpsilonPolicy

SPEC = {
    'turn': tensor_spec.BoundedTensorSpec((), tf.int64, 0, 3, 'turn'),
    'push': tensor_spec.BoundedTensorSpec((2,), tf.float32, (-1, -2), (1, 2), 'push'),
}


class Constant:
    def initial_state(self, batch_size):
        return 0

    def action(self, time_step, policy_state):
        size = len(time_step.step_type)
        return {'turn': np.full(size, 2), 'push': np.zeros((size, 2), np.float32)}, policy_state + 1


def test_share_of_random_actions_is_epsilon():
    size = 20_000
    policy = EpsilonPolicy(Constant(), 0.25, SPEC, seed=1)
    time_step = ts.TimeStep(np.ones(size, np.int32), np.zeros(size), np.ones(size), np.zeros((size, 1)))
    action, state = policy.action(time_step, policy.initial_state(size))
    assert state == 1
    assert (action['turn'].dtype, action['push'].dtype) == (np.int64, np.float32)
    explores = (action['push'] != 0).all(axis=1)
    assert explores.mean() == pytest.approx(0.25, abs=0.02)
    assert (action['turn'][~explores] == 2).all(), 'a row explores in all of its actions or in none'
    np.testing.assert_allclose(np.bincount(action['turn'][explores]) / explores.sum(), 0.25, atol=0.04)
    assert (np.abs(action['push']) <= (1, 2)).all() and np.abs(action['push'][:, 1]).max() > 1.9


def test_rejects_unbounded_actions():
    with pytest.raises(ValueError, match='need finite bounds, or epsilon=0'):
        EpsilonPolicy(Constant(), 0.5, tf.TensorSpec((), tf.float32))
