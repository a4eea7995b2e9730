"""Agents of TF-Agents that tflearn has no module for, made as a user would make them."""

import tensorflow as tf
from tf_agents.agents.behavioral_cloning.behavioral_cloning_agent import BehavioralCloningAgent
from tf_agents.agents.categorical_dqn.categorical_dqn_agent import CategoricalDqnAgent
from tf_agents.agents.ddpg.actor_network import ActorNetwork
from tf_agents.agents.ddpg.critic_network import CriticNetwork
from tf_agents.agents.ddpg.ddpg_agent import DdpgAgent
from tf_agents.agents.dqn.dqn_agent import DqnAgent
from tf_agents.agents.ppo.ppo_clip_agent import PPOClipAgent
from tf_agents.agents.td3.td3_agent import Td3Agent
from tf_agents.networks.actor_distribution_network import ActorDistributionNetwork
from tf_agents.networks.actor_distribution_rnn_network import ActorDistributionRnnNetwork
from tf_agents.networks.categorical_q_network import CategoricalQNetwork
from tf_agents.networks.q_network import QNetwork
from tf_agents.networks.q_rnn_network import QRnnNetwork
from tf_agents.networks.value_network import ValueNetwork
from tf_agents.networks.value_rnn_network import ValueRnnNetwork

UNITS = (8,)
MEMORY = {'input_fc_layer_params': UNITS, 'lstm_size': (4,), 'output_fc_layer_params': UNITS}
# For shuffled minibatches of several epochs, which the job makes.
FOR_ITERATIONS = {
    'num_epochs': 1,
    'compute_value_and_advantage_in_train': False,
    'update_normalizers_in_train': False,
}


def _adam():
    return tf.keras.optimizers.Adam(1e-3)


def c51(specs, train_step, experience):
    return CategoricalDqnAgent(
        specs.time_step,
        specs.action,
        CategoricalQNetwork(specs.observation, specs.action, num_atoms=5, fc_layer_params=UNITS),
        _adam(),
        min_q_value=0,
        max_q_value=10,
        train_step_counter=train_step,
    )


def _actor_critic(agent_class, specs, train_step):
    return agent_class(
        specs.time_step,
        specs.action,
        ActorNetwork(specs.observation, specs.action, fc_layer_params=UNITS),
        CriticNetwork((specs.observation, specs.action), joint_fc_layer_params=UNITS),
        _adam(),
        _adam(),
        train_step_counter=train_step,
    )


def ddpg(specs, train_step, experience):
    return _actor_critic(DdpgAgent, specs, train_step)


def td3(specs, train_step, experience):
    return _actor_critic(Td3Agent, specs, train_step)


def behavioral_cloning(specs, train_step, experience, **settings):
    network = QNetwork(specs.observation, specs.action, fc_layer_params=UNITS)
    return BehavioralCloningAgent(
        specs.time_step,
        specs.action,
        cloning_network=network,
        optimizer=_adam(),
        train_step_counter=train_step,
        **settings,
    )


def recurrent_dqn(specs, train_step, experience):
    network = QRnnNetwork(specs.observation, specs.action, **MEMORY)
    return DqnAgent(specs.time_step, specs.action, network, _adam(), train_step_counter=train_step)


def ppo(specs, train_step, experience, *, memory=False, **settings):
    if memory:
        actor = ActorDistributionRnnNetwork(specs.observation, specs.action, **MEMORY)
        value = ValueRnnNetwork(specs.observation, **MEMORY)
    else:
        actor = ActorDistributionNetwork(specs.observation, specs.action, fc_layer_params=UNITS)
        value = ValueNetwork(specs.observation, fc_layer_params=UNITS)
    return PPOClipAgent(
        specs.time_step,
        specs.action,
        optimizer=_adam(),
        actor_net=actor,
        value_net=value,
        train_step_counter=train_step,
        **settings,
    )
