"""An agent of TF-Agents that writes summaries of its own, for the data of conftest."""

import tensorflow as tf
from tf_agents.agents.dqn import dqn_agent
from tf_agents.networks import q_network
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts

from tflearn.core.train_step import create_train_step
from tflearn.core.types import EnvironmentSpecs

SPECS = EnvironmentSpecs(  # of conftest's data
    tensor_spec.BoundedTensorSpec((3,), tf.float32, -1.0, 1.0, 'observation'),
    tensor_spec.BoundedTensorSpec((), tf.int64, 0, 1, 'action'),
)


def make(counts_twice=False):
    """Returns a DQN agent; one that `counts_twice` has the optimizer's `iterations` for its train step."""
    optimizer = tf.keras.optimizers.Adam()
    return dqn_agent.DqnAgent(
        ts.time_step_spec(SPECS.observation),
        SPECS.action,
        q_network=q_network.QNetwork(SPECS.observation, SPECS.action, fc_layer_params=(7,)),
        optimizer=optimizer,
        debug_summaries=True,
        train_step_counter=optimizer.iterations if counts_twice else create_train_step(),
    )
