import numpy as np
import pytest
import tensorflow as tf
from tf_agents.networks import q_rnn_network
from tf_agents.policies import q_policy, random_tf_policy

from tests import fakes
from tflearn.actors.compiled_policy import CompiledPolicy
from tflearn.core.types import EnvironmentSpecs, check_batch

SPECS = EnvironmentSpecs(fakes.OBSERVATION_SPEC, fakes.ACTION_SPEC)


def test_policy_state_restarts_with_each_episode():
    policy = CompiledPolicy(fakes.CountingPolicy(SPECS), 2)
    environment = fakes.CheckedEnvironment(lengths=(2, 3))
    time_step, state = environment.reset(), policy.initial_state(2)
    infos = []
    for _ in range(5):
        step = policy.step(time_step, state)
        infos.append(step.info)
        time_step, state = environment.step(step.action), step.state
    # Environment 0 restarts after LAST (its third time step), environment 1 after its fourth.
    np.testing.assert_array_equal(infos, [[0, 0], [1, 1], [2, 2], [0, 3], [1, 0]])


def test_traced_once_and_reads_current_variables():
    policy = fakes.CountingPolicy(SPECS)
    compiled = CompiledPolicy(policy, 2)
    time_step = fakes.CheckedEnvironment().reset()
    action, _ = compiled.action(time_step, compiled.initial_state(2))
    np.testing.assert_array_equal(action, [0, 0])
    assert action.dtype == np.int64
    policy.actions_changed.assign(True)
    action, _ = compiled.action(time_step, compiled.initial_state(2))
    np.testing.assert_array_equal(action, [1, 1])
    assert policy.num_traces == 1


def test_acts_as_the_policy_does():
    network = q_rnn_network.QRnnNetwork(
        SPECS.observation, SPECS.action, input_fc_layer_params=(8,), lstm_size=(8,), output_fc_layer_params=(8,)
    )
    policy = q_policy.QPolicy(SPECS.time_step, SPECS.action, network, emit_log_probability=True)
    compiled = CompiledPolicy(policy, 3)
    environment = fakes.make_environment(3, seed=None)
    time_step = environment.reset()
    state = expected_state = compiled.initial_state(3)
    for _ in range(10):
        expected = policy.action(tf.nest.map_structure(tf.constant, time_step), expected_state)
        step = compiled.step(time_step, state)
        state, expected_state = step.state, expected.state
        for got, want in zip(tf.nest.flatten(state), tf.nest.flatten(expected_state), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
        assert step.info.log_probability.shape == (3,)
        assert isinstance(step.info.log_probability, np.ndarray)
        time_step = environment.step(step.action)


def test_random_policies_act_within_bounds_and_differ_from_call_to_call():
    compiled = CompiledPolicy(random_tf_policy.RandomTFPolicy(SPECS.time_step, SPECS.action), 64)
    time_step = fakes.make_environment(64, seed=None).reset()
    some, others = (compiled.action(time_step, ())[0] for _ in range(2))
    assert set(some) == {0, 1}
    assert not np.array_equal(some, others)


def test_nested_actions():
    spec = {'turn': fakes.ACTION_SPEC, 'go': (fakes.ACTION_SPEC, fakes.ACTION_SPEC)}
    compiled = CompiledPolicy(random_tf_policy.RandomTFPolicy(SPECS.time_step, spec), 2)
    action, state = compiled.action(fakes.CheckedEnvironment().reset(), ())
    check_batch(action, spec, 2, 'action')
    assert state == ()


def test_rejects_another_batch_size():
    compiled = CompiledPolicy(fakes.CountingPolicy(SPECS), 2)
    with pytest.raises(ValueError, match='got batch_size=3; need 2'):
        compiled.initial_state(3)
    with pytest.raises(ValueError, match=r'got time step .* with shape \(3,\)'):
        compiled.check(fakes.make_environment(3, seed=None).reset())
