"""A time limit is no end: what DQN learns through the replay of a task whose value is known.

Two states, A then B, and a reward of 1 for each step. After one step from B the episode ends. Where that is a time
limit, the task goes on from where it was cut, B again: Q(A) = Q(B) = 1 / (1 - gamma). Where it is termination, Q(B) = 1
and Q(A) = 1 + gamma.
"""

import threading

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts
from tf_agents.trajectories import trajectory

from tests.testing.replay import DATA_SPEC
from tflearn.agents import dqn
from tflearn.core.experience import BatchItems, Experience, Uniform
from tflearn.core.train_step import create_train_step
from tflearn.core.types import EnvironmentSpecs
from tflearn.networks.networks import NetworkOptions
from tflearn.optimization.optimizers import OptimizerOptions
from tflearn.replay.writers import ReplayWriter
from tflearn.sampling import replay_servers

GAMMA = 0.5
A, B = [1.0, 0.0], [0.0, 1.0]
FIRST, MID, LAST = 0, 1, 2


def _episode(truncated):
    """The rows of an episode: (step type, observation, next step type, reward, discount)."""
    yield FIRST, A, MID, 1.0, 1.0
    yield MID, B, LAST, 1.0, 1.0 if truncated else 0.0
    yield LAST, B, FIRST, 0.0, 1.0  # the boundary row shows where it ended


def _write(writer, truncated):
    for _ in range(40):
        for step_type, observation, next_step_type, reward, discount in _episode(truncated):
            row = trajectory.Trajectory(
                step_type=np.array([step_type], np.int32),
                observation=np.array([observation], np.float32),
                action=np.zeros(1, np.int64),
                policy_info=(),
                next_step_type=np.array([next_step_type], np.int32),
                reward=np.array([reward], np.float32),
                discount=np.array([discount], np.float32),
            )
            writer(row, 0)
    writer.flush()


@pytest.mark.parametrize('truncated', [True, False])
def test_learns_the_value_of_two_states(serve, truncated):
    tf.random.set_seed(1)
    experience = Experience(replay=Uniform(min_size=1, sampling='server'), batch=BatchItems(32))
    served = serve(experience)
    _write(ReplayWriter(served.address, served.storage, 1, threading.Event()), truncated)
    action = DATA_SPEC.action
    specs = EnvironmentSpecs(
        DATA_SPEC.observation, tensor_spec.BoundedTensorSpec(action.shape, action.dtype, 0, 0, 'action')
    )
    agent = dqn.make_agent(
        specs,
        create_train_step(),
        experience,
        network=NetworkOptions(fc_layer_params=()),
        optimizer=OptimizerOptions(0.05),
        gamma=GAMMA,
        huber=False,
        target_update_period=5,
    )
    agent.initialize()
    source = replay_servers.uniform_draws(served.address, served.storage, 32, 60.0)
    train = tf.function(agent.train, autograph=False)
    try:
        steps = 0
        while steps < 400:
            granted = source.grant(min(20, source.max_draw_steps))
            assert granted, source.error
            data, _ = source.draw(tf.constant(granted), tf.constant(steps, tf.int64))
            for i in range(granted):
                train(tf.nest.map_structure(lambda column, i=i: column[i], data))
            steps += granted
    finally:
        source.close()
    step = ts.restart(tf.constant([A, B]), batch_size=2)
    values = agent.policy.wrapped_policy.distribution(step).action.logits
    known = [1 / (1 - GAMMA)] * 2 if truncated else [1 + GAMMA, 1.0]
    np.testing.assert_allclose(values[:, 0], known, atol=0.05)
