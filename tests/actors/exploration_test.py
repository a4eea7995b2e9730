import numpy as np
import pytest
import tensorflow as tf
from tf_agents.networks import q_network, q_rnn_network
from tf_agents.policies import epsilon_greedy_policy, q_policy, random_tf_policy
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts

from tests import fakes
from tflearn.actors import exploration
from tflearn.actors.actor import Actor, CompiledPolicy
from tflearn.actors.exploration import EpsilonLadder, EpsilonPolicy
from tflearn.core.types import EnvironmentSpecs

SPECS = EnvironmentSpecs(fakes.OBSERVATION_SPEC, fakes.ACTION_SPEC)


def _epsilon_greedy(epsilon=0.5, emit_log_probability=False):
    network = q_network.QNetwork(SPECS.observation, SPECS.action, fc_layer_params=(4,))
    policy = q_policy.QPolicy(SPECS.time_step, SPECS.action, network, emit_log_probability=emit_log_probability)
    return epsilon_greedy_policy.EpsilonGreedyPolicy(policy, epsilon)


def test_ladder_equals_the_papers():
    # Horgan et al. 2018: N = 360 actors, epsilon 0.4, alpha 7.
    epsilons = EpsilonLadder().epsilons(0, 360)
    assert epsilons.dtype == np.float32
    np.testing.assert_allclose(epsilons[[0, 1, -1]], [0.4, 0.4 ** (1 + 7 / 359), 0.4**8], rtol=1e-5)
    assert EpsilonLadder(base=0.3).epsilons(0, 1) == np.float32(0.3)


def test_collectors_share_the_ladder():
    ladder = EpsilonLadder(num_collectors=3)
    together = np.concatenate([ladder.epsilons(i, 4) for i in range(3)])
    np.testing.assert_array_equal(together, EpsilonLadder().epsilons(0, 12))
    with pytest.raises(ValueError, match=r'got the collector number 3 .* need 0 \.\.\. 2'):
        ladder.epsilons(3, 4)


def test_each_environment_has_its_epsilon():
    policy = _epsilon_greedy()
    epsilons = np.array([1.0, 1e-9] * 32, np.float32)
    ladder = CompiledPolicy(exploration.with_epsilons(policy, epsilons), 64)
    greedy = CompiledPolicy(exploration.with_epsilons(policy, np.zeros(64, np.float32)), 64)
    time_step = fakes.make_environment(64, seed=None).reset()
    best, _ = greedy.action(time_step, ())
    others = np.mean([ladder.action(time_step, ())[0] != best for _ in range(50)], axis=0)
    assert not others[1::2].any()
    assert others[::2].mean() == pytest.approx(0.5, abs=0.1)


def test_the_weights_are_shared_in_the_publishers_order():
    policy = _epsilon_greedy()
    laddered = exploration.with_epsilons(policy, np.zeros(2, np.float32))
    for one, other in zip(policy.variables(), laddered.variables(), strict=True):
        assert one is other


def test_log_probabilities_account_for_epsilon():
    policy = exploration.with_epsilons(_epsilon_greedy(emit_log_probability=True), np.array([1.0, 0.25], np.float32))
    step = CompiledPolicy(policy, 2).step(fakes.CheckedEnvironment().reset(), ())
    assert step.info.log_probability[0] == pytest.approx(np.log(0.5))
    assert step.info.log_probability[1] in (pytest.approx(np.log(0.75)), pytest.approx(np.log(0.25 * 0.5)))


def test_rejects_policies_that_are_not_epsilon_greedy():
    policy = random_tf_policy.RandomTFPolicy(SPECS.time_step, SPECS.action)
    with pytest.raises(ValueError, match='for the collect policy RandomTFPolicy; need an epsilon-greedy one'):
        exploration.with_epsilons(policy, np.zeros(2, np.float32))


def test_random_actions_within_bounds():
    action = tensor_spec.BoundedTensorSpec((2,), tf.float32, [-1.0, 0.0], [1.0, 5.0], 'action')
    policy = random_tf_policy.RandomTFPolicy(SPECS.time_step, action, emit_log_probability=True)
    step = CompiledPolicy(exploration.uniform(policy), 200).step(fakes.make_environment(200, seed=None).reset(), ())
    np.testing.assert_allclose(step.action.min(0), [-1, 0], atol=0.3)
    np.testing.assert_allclose(step.action.max(0), [1, 5], atol=0.3)
    np.testing.assert_allclose(step.info.log_probability, np.full(200, -np.log(2 * 5)), rtol=1e-6)


def test_random_actions_keep_the_data_of_a_recurrent_policy():
    network = q_rnn_network.QRnnNetwork(
        SPECS.observation, SPECS.action, input_fc_layer_params=(4,), lstm_size=(4,), output_fc_layer_params=None
    )
    policy = q_policy.QPolicy(SPECS.time_step, SPECS.action, network)
    random = exploration.uniform(policy)
    assert random.trajectory_spec == policy.trajectory_spec
    actor = Actor(fakes.CheckedEnvironment(), random, stores_policy_state=True)
    actor.run(3)
    actor.set_policy(policy)
    actor.run(3)
    assert actor.env_steps > 8


@pytest.mark.parametrize('spec', [fakes.OBSERVATION_SPEC, tf.TensorSpec((), tf.float32, 'action')])
def test_random_actions_require_bounds(spec):
    unbounded = tensor_spec.BoundedTensorSpec((2,), tf.float32, -np.inf, 1.0, 'action')
    policy = fakes.CountingPolicy(SPECS)
    policy = random_tf_policy.RandomTFPolicy(policy.time_step_spec, unbounded if spec.shape.rank else spec)
    with pytest.raises(ValueError, match='got random actions for the action spec .* need finite bounds'):
        exploration.uniform(policy)


def test_rejects_random_actions_for_policies_that_record_info():
    with pytest.raises(ValueError, match='a policy that records count; need one that records nothing'):
        exploration.uniform(fakes.CountingPolicy(SPECS))


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
