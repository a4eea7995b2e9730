"""One side of a comparison in benchmarks/clients.py: losses of a client's own learner class, over TF-Agents' or ours.

Run in the checkout of the client; prints one JSON object.
"""

import argparse
import collections
import importlib
import json
import sys
import tempfile
from typing import Any

from tflearn.networks import heads  # before TensorFlow, which then has the Keras of TF-Agents

# isort: split
import tensorflow as tf
import tf_agents.train
from tf_agents.networks import actor_distribution_network, value_network
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts

# Client -> its module with a learner, its class, and the argument with the function that makes datasets; its agent.
LEARNERS = {
    'circuit_training': ('circuit_training.learning.learner', 'CircuittrainingPPOLearner', 'experience_datasets_fn'),
    'ml-compiler-opt': ('compiler_opt.rl.distributed.learner', 'MLGOPPOLearner', 'experience_dataset_fn'),
}
AGENTS = {
    'circuit_training': ('circuit_training.learning.agent', 'CircuitPPOAgent'),
    'ml-compiler-opt': ('compiler_opt.rl.distributed.agent', 'MLGOPPOAgent'),
}
EPISODE, EPISODES, MINIBATCH, EPOCHS = 16, 4, 8, 2
# A dict of integers, as both have.
OBSERVATION = {name: tf.TensorSpec((), tf.int64, name) for name in ('callee_users', 'node_count')}
ACTION = tensor_spec.BoundedTensorSpec((), tf.int64, 0, 1, 'inlining_decision')

Sample = collections.namedtuple('Sample', ['info', 'data'])
Info = collections.namedtuple('Info', ['key', 'priority'])


def take_over() -> None:
    """Puts our learner in the place of TF-Agents', for modules that are imported later."""
    from tflearn.extensions.tf_agents import tf_agents_learner as learner
    from tflearn.extensions.tf_agents import tf_agents_ppo_learner

    for module in (learner, tf_agents_ppo_learner):
        name = module.__name__.rpartition('.')[2]
        sys.modules[f'tf_agents.train.{name}'] = module
        setattr(tf_agents.train, name, module)


def main() -> int:
    """Trains for a few iterations of the client's learner."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--client', choices=LEARNERS, required=True)
    parser.add_argument('--side', choices=['tf_agents', 'tflearn'], required=True)
    parser.add_argument('--replicas', type=int, default=1)
    parser.add_argument('--iterations', type=int, default=3)
    options = parser.parse_args()
    if options.side == 'tflearn':
        take_over()
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices('CPU')[0], [tf.config.LogicalDeviceConfiguration()] * options.replicas
    )
    tf.keras.utils.set_random_seed(1)
    tf.config.experimental.enable_op_determinism()  # the clients' datasets are not deterministic otherwise
    devices = [f'CPU:{i}' for i in range(options.replicas)]
    strategy = tf.distribute.get_strategy() if options.replicas == 1 else tf.distribute.MirroredStrategy(devices)
    with tempfile.TemporaryDirectory() as root_dir:
        learner, train_step = _learner(options.client, strategy, root_dir)
        losses = [learner.run() for _ in range(options.iterations)]
        found = {
            'losses': [float(info.loss).hex() for info in losses],
            'extras': [
                [float(value).hex() for value in tf.nest.flatten(info.extra) if value is not None] for info in losses
            ],
            'train_step': int(train_step.numpy()),
        }
    print(json.dumps(found))
    return 0


def _learner(client: str, strategy: tf.distribute.Strategy, root_dir: str) -> tuple[Any, tf.Variable]:
    """Returns the client's learner, and its train step."""
    with strategy.scope():
        train_step = tf.Variable(0, dtype=tf.int64, name='train_step')
        model_id = tf.Variable(0, dtype=tf.int64, name='model_id')
        agent = _agent(client, train_step)
    episodes = _episodes(agent.collect_data_spec, EPISODES)

    def make_dataset() -> tf.data.Dataset:
        data = tf.data.Dataset.from_tensor_slices(episodes).repeat()
        # Newer data than any model, which the learners take as of the present one.
        return data.map(lambda data: Sample(Info(tf.zeros([EPISODE], tf.int64), _priority(model_id)), data))

    module, name, datasets = LEARNERS[client]
    made = (lambda: [make_dataset()]) if datasets == 'experience_datasets_fn' else make_dataset
    learner = getattr(importlib.import_module(module), name)(
        root_dir,
        train_step,
        model_id,
        agent,
        sequence_length=EPISODE,
        num_episodes_per_iteration=EPISODES,
        minibatch_size=MINIBATCH,
        shuffle_buffer_size=EPISODE,
        num_epochs=EPOCHS,
        summary_interval=5,
        strategy=strategy,
        per_sequence_fn=lambda sample: (sample.data, sample.info),
        **{datasets: made},
    )
    return learner, train_step


def _priority(model_id: tf.Variable) -> tf.Tensor:
    return tf.fill([EPISODE], tf.cast(model_id, tf.float64))


def _agent(client: str, train_step: tf.Variable) -> Any:
    def join(features: Any) -> tf.Tensor:
        return tf.stack([tf.cast(features[name], tf.float32) for name in sorted(features)], axis=-1)

    layers = {'preprocessing_combiner': tf.keras.layers.Lambda(join), 'fc_layer_params': (16,)}
    module, name = AGENTS[client]
    agent = getattr(importlib.import_module(module), name)(
        ts.time_step_spec(OBSERVATION),
        ACTION,
        optimizer=tf.keras.optimizers.Adam(1e-3),
        # The head with which theirs is made with NumPy 2 too.
        actor_net=actor_distribution_network.ActorDistributionNetwork(
            OBSERVATION, ACTION, discrete_projection_net=heads.categorical, **layers
        ),
        value_net=value_network.ValueNetwork(OBSERVATION, **layers),
        train_step_counter=train_step,
    )
    agent.initialize()
    return agent


def _episodes(spec: Any, number: int) -> Any:
    """Draws episodes [number, EPISODE, ...], with the policy info that the agents train on."""
    episodes = tensor_spec.sample_spec_nest(tf.nest.map_structure(_narrow, spec), outer_dims=(number, EPISODE), seed=1)
    info = dict(episodes.policy_info)
    shape = [number, EPISODE]
    for i, name in enumerate(('value_prediction', 'return', 'advantage')):
        info[name] = tf.random.stateless_normal(shape, [i, 1])
    middle = tf.ones(shape, tf.int32)
    return episodes._replace(policy_info=info, step_type=middle, next_step_type=middle, discount=tf.ones(shape))


def _narrow(spec: Any) -> Any:
    """Returns a spec with bounds that a network can train on."""
    if isinstance(spec, tensor_spec.BoundedTensorSpec) and spec.dtype.is_integer:
        return spec
    return tensor_spec.BoundedTensorSpec(spec.shape, spec.dtype, 0, 3, spec.name)


if __name__ == '__main__':
    sys.exit(main())
