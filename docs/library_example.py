"""The Learner as a library: any TF-Agents agent, any tf.data dataset; no gin, no Reverb, no jobs."""

# First: TF-Agents needs Keras 2, which it chooses on Python 3.12 and later.
import tflearn  # isort: split

import tensorflow as tf
from tf_agents.agents.behavioral_cloning.behavioral_cloning_agent import BehavioralCloningAgent
from tf_agents.networks.q_network import QNetwork
from tf_agents.specs.tensor_spec import BoundedTensorSpec
from tf_agents.trajectories import time_step, trajectory

from tflearn.core.train_step import create_train_step

observation_spec = BoundedTensorSpec((2,), tf.float32, -1.0, 1.0, 'observation')
action_spec = BoundedTensorSpec((), tf.int64, 0, 1, 'action')
agent = BehavioralCloningAgent(
    time_step.time_step_spec(observation_spec),
    action_spec,
    cloning_network=QNetwork(observation_spec, action_spec, fc_layer_params=(16,)),
    optimizer=tf.keras.optimizers.Adam(1e-2),
    train_step_counter=create_train_step(),
)


def expert_data(context: tf.distribute.InputContext) -> tf.data.Dataset:
    """An expert that chooses the greater of two numbers; endless batches [64, ...] for one replica."""

    def decide(seed: tf.Tensor) -> trajectory.Trajectory:
        pair = tf.random.stateless_uniform((2,), (seed, 0), -1.0, 1.0)
        return trajectory.single_step(pair, tf.argmax(pair), (), 0.0, 1.0)

    return tf.data.Dataset.random(seed=1).map(decide).batch(64)


report = tflearn.PeriodicAction(lambda step: print(f'train step {step}'), every_steps=100)
learner = tflearn.Learner(agent, expert_data, tflearn.RunDir('runs/expert'), triggers=[report])
for _ in range(3):
    print(f'loss {learner.run(100).loss:.3f}')
learner.close()  # saves a checkpoint; run again, it goes on from there
