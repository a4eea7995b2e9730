"""A script of TF-Agents: its environment, agents, driver, replay buffer and trigger, with our Learner."""

# First: TF-Agents needs Keras 2, which it chooses on Python 3.12 and later.
import tflearn  # noqa: F401

# isort: split

import tensorflow as tf
from tf_agents.agents.dqn import dqn_agent
from tf_agents.agents.ppo import ppo_clip_agent
from tf_agents.drivers import dynamic_step_driver
from tf_agents.environments import suite_gym, tf_py_environment
from tf_agents.networks import actor_distribution_network, q_network, value_network
from tf_agents.replay_buffers import tf_uniform_replay_buffer
from tf_agents.train import triggers
from tf_agents.train.utils import train_utils

# from tf_agents.train import learner
from tflearn.extensions.tf_agents import tf_agents_learner as learner
from tflearn.networks import heads

environment = tf_py_environment.TFPyEnvironment(suite_gym.load('CartPole-v0'))
train_step = train_utils.create_train_step()
agent = dqn_agent.DqnAgent(
    environment.time_step_spec(),
    environment.action_spec(),
    q_network=q_network.QNetwork(environment.observation_spec(), environment.action_spec(), fc_layer_params=(64,)),
    optimizer=tf.keras.optimizers.Adam(1e-3),
    train_step_counter=train_step,
)
agent.initialize()
replay = tf_uniform_replay_buffer.TFUniformReplayBuffer(agent.collect_data_spec, batch_size=1, max_length=10_000)
collect = dynamic_step_driver.DynamicStepDriver(
    environment, agent.collect_policy, observers=[replay.add_batch], num_steps=100
)
collect.run()
trainer = learner.Learner(
    'runs/their_dqn',
    train_step,
    agent,
    experience_dataset_fn=lambda: replay.as_dataset(sample_batch_size=64, num_steps=2),
    triggers=[triggers.PolicySavedModelTrigger('runs/their_dqn/policies', agent, train_step, interval=100)],
    checkpoint_interval=100,
)
for _ in range(2):
    collect.run()
    loss = trainer.run(iterations=50).loss
trainer.close()

# PPO's actor of integer actions needs one argument more with NumPy 2.
actor = actor_distribution_network.ActorDistributionNetwork(
    environment.observation_spec(),
    environment.action_spec(),
    fc_layer_params=(64,),
    discrete_projection_net=heads.categorical,
)
ppo = ppo_clip_agent.PPOClipAgent(
    environment.time_step_spec(),
    environment.action_spec(),
    actor_net=actor,
    value_net=value_network.ValueNetwork(environment.observation_spec(), fc_layer_params=(64,)),
    optimizer=tf.keras.optimizers.Adam(1e-3),
)
ppo.initialize()
step = ppo.collect_policy.action(environment.reset())
