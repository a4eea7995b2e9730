import numpy as np
import pytest
import tensorflow as tf
from tf_agents.policies import random_tf_policy
from tf_agents.trajectories import trajectory

from tests import fakes
from tflearn.actors.actor import Actor
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
