import numpy as np
import pytest
import tensorflow as tf
from tf_agents.policies import tf_policy
from tf_agents.trajectories import policy_step

from tests import fakes
from tflearn.actors import recurrent_state
from tflearn.actors.actor import Actor


class RecurrentPolicy(tf_policy.TFPolicy):
    """Counts its steps in an episode, from 7 on, in its state only."""

    def __init__(self, environment_specs):
        count = tf.TensorSpec((), tf.int64, 'count')
        super().__init__(environment_specs.time_step, environment_specs.action, policy_state_spec=count)

    def _variables(self):
        return []

    def _action(self, time_step, policy_state, seed):
        return policy_step.PolicyStep(policy_state % 2, policy_state + 1, ())

    def _get_initial_state(self, batch_size):
        return tf.fill((batch_size,), tf.constant(7, tf.int64))


def test_rows_hold_the_state_before_their_step():
    rows = []
    environment = fakes.CheckedEnvironment((2, 3))
    Actor(environment, RecurrentPolicy(environment.specs), [rows.append], stores_policy_state=True).run(5)
    states = [row.policy_info['policy_state'] for row in rows]
    np.testing.assert_array_equal(states, [[7, 7], [8, 8], [9, 9], [7, 10], [8, 7]])
    assert states[0].dtype == np.int64


def test_before_step_of_nests():
    state = {'h': tf.ones((2, 3)), 'n': tf.constant([1, 1])}
    initial = {'h': tf.zeros((2, 3)), 'n': tf.constant([0, 0])}
    before = recurrent_state.before_step(np.array([0, 1]), state, initial)
    np.testing.assert_array_equal(before['h'], [[0, 0, 0], [1, 1, 1]])
    np.testing.assert_array_equal(before['n'], [0, 1])


def test_state_is_added_to_empty_or_dict_info_only():
    assert recurrent_state.add((), 1) == {'policy_state': 1}
    assert recurrent_state.add({'dist_params': 2}, 1) == {'dist_params': 2, 'policy_state': 1}
    with pytest.raises(ValueError, match='got a policy without a state'):
        recurrent_state.add((), ())
    for info in ({'policy_state': 1}, policy_step.PolicyInfo(1.0), 1.0):
        with pytest.raises(ValueError, match=r'got the policy info .*; need \(\) or a dictionary'):
            recurrent_state.add(info, 1)
