"""A small agent and data that depend on nothing but the step."""

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import trajectory

from tflearn.agents import dqn
from tflearn.core.experience import Experience
from tflearn.core.train_step import create_train_step
from tflearn.core.types import EnvironmentSpecs
from tflearn.networks.networks import NetworkOptions

SPECS = EnvironmentSpecs(
    tensor_spec.BoundedTensorSpec((3,), tf.float32, -1.0, 1.0, 'observation'),
    tensor_spec.BoundedTensorSpec((), tf.int64, 0, 1, 'action'),
)
BATCH_SIZE = 8


def saved_variables(run_dir):
    """Returns the agent's variables, its optimizers' too, and the train step, in a run's newest checkpoint, by name."""
    reader = tf.train.load_checkpoint(str(run_dir.checkpoints))
    names = [name for name in reader.get_variable_to_shape_map() if name.startswith(('agent', 'train_step'))]
    return {name: reader.get_tensor(name) for name in names}


def assert_same_variables(one, other):
    """Checks that the newest checkpoints of two runs are equal bit for bit."""
    mine, theirs = saved_variables(one), saved_variables(other)
    assert len(mine) > 10
    assert mine.keys() == theirs.keys()
    for name, value in mine.items():
        np.testing.assert_array_equal(value, theirs[name], name)


@pytest.fixture
def make_agent():
    """Returns a function (strategy) -> a DQN agent whose first weights are always the same."""

    def make(strategy=None, units=(7,), **changes):
        tf.random.set_seed(1)
        with (strategy or tf.distribute.get_strategy()).scope():
            agent = dqn.make_agent(
                SPECS,
                create_train_step(),
                Experience(),
                network=NetworkOptions(fc_layer_params=units),
                **{'double': False, **changes},
            )
            for i, variable in enumerate(agent.policy.variables()):
                value = tf.random.stateless_uniform(variable.shape, (i, 2), -0.5, 0.5)
                variable.assign(value)
        return agent

    return make


def batch(step, size=BATCH_SIZE, first=0):
    """Rows `first`.. of the global batch of a step: transitions that differ from each other."""
    rows = tf.range(size, dtype=tf.int64) + tf.cast(first, tf.int64) + BATCH_SIZE * tf.cast(step, tf.int64)
    # Not random numbers of a seed for each row, whose loop would take longest of a short test's programs.
    phases = tf.cast(rows, tf.float64)[:, tf.newaxis, tf.newaxis] * 10.0 * np.sqrt([[2.0, 3.0, 5.0], [7.0, 11.0, 13.0]])
    observation = tf.cast(tf.sin(phases), tf.float32)
    ones = tf.ones((size, 2), tf.int32)
    return trajectory.Trajectory(
        step_type=ones,
        observation=observation,
        action=tf.cast(observation[..., 0] > 0, tf.int64),
        policy_info=(),
        next_step_type=ones,
        reward=observation[..., 1],
        discount=tf.ones((size, 2)),
    )


def without_autotuning(dataset):
    """Returns the dataset without the thread that would hold up the end of an iterator for up to a minute."""
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


@pytest.fixture
def make_dataset_fn():
    """Returns a function (start, stop) -> dataset_fn whose replicas share the global batch of each step."""

    def make(start=0, stop=1 << 40):
        def dataset_fn(context):
            replicas = context.num_replicas_in_sync
            size = BATCH_SIZE // replicas
            # A replica's batches come one after the other from the pipeline that feeds them all.
            dataset = tf.data.Dataset.range(start * replicas, stop * replicas).map(
                lambda i: (
                    batch(i // replicas, size, (i % replicas) * size),
                    {'policy_version': tf.fill((size, 2), i // replicas)},
                )
            )
            return without_autotuning(dataset)

        return dataset_fn

    return make
