"""Random batches for agents, of the spec of their collect policies' data."""

from collections.abc import Mapping

import numpy as np
import tensorflow as tf
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts

from tflearn.core.types import EnvironmentSpecs

CONTINUOUS = EnvironmentSpecs(
    tensor_spec.BoundedTensorSpec((3,), tf.float32, -1.0, 1.0, 'observation'),
    tensor_spec.BoundedTensorSpec((2,), tf.float32, -1.0, 1.0, 'action'),
)
DISCRETE = EnvironmentSpecs(CONTINUOUS.observation, tensor_spec.BoundedTensorSpec((), tf.int64, 0, 1, 'action'))


def sequences(agent, size, length, seed=0):
    """Returns trajectories [size, length] of an agent's collect data, within an episode; rewards in [-1, 1]."""
    spec = agent.collect_data_spec
    generator = np.random.default_rng(seed)

    def draw(leaf):
        if leaf.dtype.is_integer:
            return tf.constant(generator.integers(0, 2, (size, length, *leaf.shape)), leaf.dtype)
        return tf.constant(generator.uniform(-1.0, 1.0, (size, length, *leaf.shape)), leaf.dtype)

    data = tf.nest.map_structure(draw, spec)
    middle = tf.fill((size, length), tf.constant(ts.StepType.MID))
    data = data._replace(step_type=middle, next_step_type=middle, discount=tf.ones((size, length)))
    if not isinstance(data.policy_info, Mapping) or 'dist_params' not in data.policy_info:
        return data
    # Scales are positive; other parameters do not change.
    parameters = dict(data.policy_info['dist_params'])
    parameters |= {name: tf.exp(value) for name, value in parameters.items() if 'scale' in name}
    return data._replace(policy_info={'dist_params': parameters})


def with_stored_states(data, agent):
    """Returns the sequences with zeros as the policy's states before their steps."""
    spec, shape = agent.collect_policy.policy_state_spec, data.step_type.shape
    state = tf.nest.map_structure(lambda leaf: tf.zeros((*shape, *leaf.shape), leaf.dtype), spec)
    return data._replace(policy_info={**(data.policy_info or {}), 'policy_state': state})


def complete_episodes(data):
    """Returns the sequences as episodes: each has its first and its last step."""
    size, length = data.step_type.shape
    types = [np.full((size, length), ts.StepType.MID, np.int32) for _ in range(2)]
    types[0][:, 0], types[1][:, -1] = ts.StepType.FIRST, ts.StepType.LAST
    return data._replace(step_type=tf.constant(types[0]), next_step_type=tf.constant(types[1]))
