"""A PPO agent of TF-Agents and data for it, for comparisons of PPO learners."""

import tensorflow as tf
from tf_agents.agents.ppo import ppo_clip_agent
from tf_agents.networks import actor_distribution_network, value_network
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts
from tf_agents.trajectories import trajectory as trajectories

from tflearn.core.train_step import create_train_step

OBSERVATION = tf.TensorSpec((3,), tf.float32, 'observation')
ACTION = tensor_spec.BoundedTensorSpec((2,), tf.float32, -1.0, 1.0, 'action')


def make():
    """Returns a PPOClipAgent for PPOLearner with fixed weights, all of whose losses count."""
    agent = ppo_clip_agent.PPOClipAgent(
        ts.time_step_spec(OBSERVATION),
        ACTION,
        optimizer=tf.keras.optimizers.Adam(),
        actor_net=actor_distribution_network.ActorDistributionNetwork(OBSERVATION, ACTION, fc_layer_params=(5,)),
        value_net=value_network.ValueNetwork(OBSERVATION, fc_layer_params=(5,)),
        importance_ratio_clipping=0.2,
        entropy_regularization=0.01,
        policy_l2_reg=0.1,
        value_function_l2_reg=0.1,
        num_epochs=1,
        compute_value_and_advantage_in_train=False,
        update_normalizers_in_train=False,
        normalize_observations=False,
        normalize_rewards=False,
        train_step_counter=create_train_step(),
    )
    agent.initialize()
    for i, variable in enumerate(agent.collect_policy.variables()):
        if variable.dtype.is_floating:
            variable.assign(tf.random.stateless_uniform(variable.shape, (i, 1), -0.5, 0.5))
    return agent


def trajectory(num_steps):
    """Returns one sequence [1, T] as PPO's collectors and its preprocessing make it; returns are about 10."""

    def normal(*shape):
        return tf.random.stateless_normal((1, num_steps, *shape), (5, len(shape)))

    ones = tf.ones((1, num_steps), tf.int32)
    return trajectories.Trajectory(
        step_type=ones,
        observation=normal(3),
        action=tf.clip_by_value(normal(2), -1.0, 1.0),
        policy_info={
            'dist_params': {'loc': normal(2), 'scale': tf.ones((1, num_steps, 2))},
            'value_prediction': normal(),
            'return': 10.0 + normal(),
            'advantage': normal(),
        },
        next_step_type=ones,
        reward=normal(),
        discount=tf.ones((1, num_steps)),
    )
