import numpy as np
import pytest
import tensorflow as tf
from tf_agents.networks import q_rnn_network
from tf_agents.policies import q_policy, random_tf_policy, tf_policy
from tf_agents.trajectories import policy_step, trajectory

from tests import fakes
from tflearn.actors import actor
from tflearn.actors.actor import Actor, CompiledPolicy
from tflearn.agents import impala, ppo, reinforce
from tflearn.core.train_step import create_train_step
from tflearn.core.types import EnvironmentSpecs, check_batch
from tflearn.environments import gymnasium_env

LENGTHS = (2, 3)


def _actor(observers=(), **kwargs):
    environment = fakes.CheckedEnvironment(LENGTHS, **kwargs)
    return environment, Actor(environment, fakes.CountingPolicy(environment.specs), observers)


def test_trajectories_of_known_episodes():
    rows = []
    environment, actor = _actor([rows.append], truncated=(False, True))
    actor.run(5)
    spec = fakes.CountingPolicy(environment.specs).trajectory_spec
    for row in rows:
        assert all(isinstance(leaf, np.ndarray) for leaf in tf.nest.flatten(row))
        check_batch(row, spec, 2, 'trajectory')
    columns = trajectory.Trajectory(*(np.stack(column) for column in zip(*rows, strict=True)))
    np.testing.assert_array_equal(columns.step_type, [[0, 0], [1, 1], [2, 1], [0, 2], [1, 0]])
    np.testing.assert_array_equal(columns.next_step_type, [[1, 1], [2, 1], [0, 2], [1, 0], [2, 1]])
    np.testing.assert_array_equal(columns.observation[:, :, 1], [[0, 0], [1, 1], [2, 2], [0, 3], [1, 0]])
    np.testing.assert_array_equal(columns.policy_info, [[0, 0], [1, 1], [2, 2], [0, 3], [1, 0]])
    np.testing.assert_array_equal(columns.action, columns.policy_info % 2)
    np.testing.assert_array_equal(columns.reward, [[0, 0], [1, 1], [0, 0], [0, 0], [1, 0]])
    np.testing.assert_array_equal(columns.discount, [[1, 1], [0, 1], [1, 1], [1, 1], [0, 1]])
    # Five batched steps of two environments, without the two boundary rows.
    assert actor.env_steps == 8


def test_run_continues_where_it_stopped():
    in_one, in_parts = [], []
    _actor([in_one.append])[1].run(7)
    environment, actor = _actor([in_parts.append])
    for num_steps in (3, 0, 4):
        actor.run(num_steps)
    assert environment.num_resets == 1
    for one, other in zip(in_one, in_parts, strict=True):
        tf.nest.map_structure(np.testing.assert_array_equal, one, other)


def test_the_time_of_its_parts(monkeypatch):
    # By a clock that only the parts advance: a busy machine delays any of them.
    secs, now = {'policy_secs': 2.0, 'environment_secs': 3.0, 'writing_secs': 5.0}, [0.0]
    monkeypatch.setattr('tflearn.actors.actor.time.perf_counter', lambda: now[0])

    def take(part):
        now[0] += secs[part]

    environment, actor = _actor([lambda _: take('writing_secs')])
    step, act = environment.step, actor._policy.step
    environment.step = lambda action: (take('environment_secs'), step(action))[1]
    actor._policy.step = lambda *given: (take('policy_secs'), act(*given))[1]
    actor.run(3)
    assert actor.secs == {part: 3 * each for part, each in secs.items()}


def test_observers_are_called_in_order():
    calls = []
    _, actor = _actor([lambda _: calls.append('writer'), lambda _: calls.append('metrics')])
    actor.run(2)
    assert calls == ['writer', 'metrics'] * 2


def test_observer_exception_propagates_and_the_step_counts():
    rows = []

    def observer(row):
        rows.append(row)
        if len(rows) == 2:
            raise TimeoutError('the replay server is gone')

    _, actor = _actor([observer])
    with pytest.raises(TimeoutError):
        actor.run(5)
    assert actor.env_steps == 4
    actor.run(1)
    np.testing.assert_array_equal(rows[-1].observation[:, 1], [2, 2])


def test_runs_a_random_policy():
    environment = fakes.make_environment(4, seed=None)
    rows = []
    policy = random_tf_policy.RandomTFPolicy(environment.specs.time_step, environment.specs.action)
    Actor(environment, policy, [rows.append]).run(20)
    assert {action for row in rows for action in row.action.tolist()} == {0, 1}
    assert rows[0].policy_info == ()


def test_rejects_a_policy_of_another_environment():
    environment = fakes.CheckedEnvironment()
    other = EnvironmentSpecs(tf.TensorSpec((3,), tf.float32, 'observation'), fakes.ACTION_SPEC)
    with pytest.raises(ValueError, match=r'got time step observation with shape \(2, 2\), float32; need \(2, 3\)'):
        Actor(environment, fakes.CountingPolicy(other)).run(1)


class OverridingEnvironment(fakes.CheckedEnvironment):
    """Always executes 1, and reports that; environment 0 fails in its second step, and is rebuilt."""

    executed = np.ones(2, np.int64)

    def step(self, action):
        time_step = super().step(np.ones_like(action))
        self.info = {'executed_action': self.executed}
        if self.num_rebuilt == 0 and time_step.step_type[0] == 1 and time_step.observation[0, 1] == 2:
            self.num_rebuilt = 1
            self._episode[0] += 1
            self._step[0] = 0
            return self._time_step(np.array([0.0, time_step.reward[1]]))
        return time_step


def test_the_executed_action_is_recorded():
    rows = []
    environment = OverridingEnvironment((3, 5))
    Actor(environment, fakes.CountingPolicy(environment.specs), [rows.append]).run(3)
    np.testing.assert_array_equal([row.action for row in rows], np.ones((3, 2)))
    np.testing.assert_array_equal(rows[0].policy_info, [0, 0])  # that of the policy's action


def test_rejects_an_executed_action_of_another_type():
    environment = OverridingEnvironment((3, 5))
    environment.executed = np.ones(2, np.float32)
    with pytest.raises(ValueError, match=r'got executed action action with shape \(2,\), float32; need \(2,\), int64'):
        Actor(environment, fakes.CountingPolicy(environment.specs)).run(1)


def test_rebuilt_environment_starts_a_new_episode():
    rows = []
    environment = OverridingEnvironment((3, 5))
    actor = Actor(environment, fakes.CountingPolicy(environment.specs), [rows.append])
    actor.run(4)
    np.testing.assert_array_equal([row.step_type[0] for row in rows], [0, 1, 0, 1])
    np.testing.assert_array_equal([row.next_step_type[0] for row in rows], [1, 0, 1, 1])
    # The policy's state in its info: that of environment 0 restarts with its episode.
    np.testing.assert_array_equal([row.policy_info for row in rows], [[0, 0], [1, 1], [0, 2], [1, 3]])
    assert actor.env_steps == 3 + 4


def test_another_policy_takes_over():
    rows = []
    environment, actor = _actor([rows.append])
    actor.run(1)
    policy = fakes.CountingPolicy(environment.specs)
    policy.actions_changed.assign(True)
    actor.set_policy(policy)
    actor.run(1)
    np.testing.assert_array_equal([row.policy_info for row in rows], [[0, 0], [1, 1]])
    np.testing.assert_array_equal([row.action for row in rows], [[0, 0], [0, 0]])
    assert environment.num_resets == 1


@pytest.mark.parametrize('algorithm', [ppo, impala, reinforce])
def test_actions_out_of_bounds_are_recorded_unclipped(algorithm):
    environment = gymnasium_env.make('MountainCarContinuous-v0', 64, seed=0)
    agent = algorithm.make_agent(environment.specs, create_train_step(), algorithm.EXPERIENCE)
    agent.initialize()
    (bias,) = (v for v in agent.collect_policy.variables() if 'means_projection' in v.name and 'bias' in v.name)
    bias.assign([10.0])  # each mean is the upper bound, 1, so half of the draws exceed it
    rows = []
    Actor(environment, agent.collect_policy, [rows.append]).run(3)
    greedy = agent.policy.action(tf.nest.map_structure(tf.constant, environment.reset())).action
    environment.close()
    assert float(tf.reduce_max(greedy)) == 1.0
    for row in rows:
        assert 8 < np.count_nonzero(row.action > 1) < 56
        # A step costs 0.1 times the square of the action that the environment got.
        np.testing.assert_allclose(row.reward, -0.1 * np.clip(row.action[:, 0], -1, 1) ** 2, rtol=1e-5)


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
    before = actor.state_before_step(np.array([0, 1]), state, initial)
    np.testing.assert_array_equal(before['h'], [[0, 0, 0], [1, 1, 1]])
    np.testing.assert_array_equal(before['n'], [0, 1])


def test_state_is_added_to_empty_or_dict_info_only():
    assert actor.with_policy_state((), 1) == {'policy_state': 1}
    assert actor.with_policy_state({'dist_params': 2}, 1) == {'dist_params': 2, 'policy_state': 1}
    with pytest.raises(ValueError, match='got a policy without a state'):
        actor.with_policy_state((), ())
    for info in ({'policy_state': 1}, policy_step.PolicyInfo(1.0), 1.0):
        with pytest.raises(ValueError, match=r'got the policy info .*; need \(\) or a dictionary'):
            actor.with_policy_state(info, 1)


@pytest.mark.parametrize('num_calls', [3, 4, 9, 11])
def test_a_resumed_policy_goes_on_with_the_same_random_numbers_without_all_calls_again(monkeypatch, num_calls):
    monkeypatch.setattr(actor, '_CALLS_BY_SEED', 4)
    policy = random_tf_policy.RandomTFPolicy(SPECS.time_step, SPECS.action)
    tf.random.set_seed(1)
    first, rows = Actor(fakes.make_environment(64, seed=None), policy), []
    first.run(num_calls)
    content = first.content()
    first.run(6, rows.append)
    tf.random.set_seed(1)
    second, again = Actor(first._environment, policy), []
    acting = second._policy
    step, calls = acting.step, []
    acting.step = lambda *given: (calls.append(1), step(*given))[1]
    second._time_step = first.time_step
    second.set_content(content)
    assert len(calls) == num_calls % 4
    second.run(6, again.append)
    drawn = [tuple(row.action.tolist()) for row in rows]
    assert drawn == [tuple(row.action.tolist()) for row in again]
    assert len(set(drawn)) == 6, 'each seed draws others'
