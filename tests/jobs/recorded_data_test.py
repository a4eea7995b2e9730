"""Batches hold exactly the data that collectors write, with behaviour statistics, policy versions and policy states."""

import threading

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.agents.dqn import dqn_agent
from tf_agents.networks import q_network, q_rnn_network
from tf_agents.policies import q_policy

from tests import fakes
from tflearn.actors.actor import Actor
from tflearn.actors.exploration import uniform
from tflearn.agents import dqn, ppo, sac
from tflearn.core.experience import Experience, Queue, Slicing
from tflearn.core.train_step import create_train_step
from tflearn.core.types import EnvironmentSpecs
from tflearn.environments import gymnasium_env
from tflearn.jobs import initial_agent
from tflearn.replay import backend, stored_episodes
from tflearn.replay.storage import Storage
from tflearn.replay.writers import ReplayWriter

QUEUE = Experience(slicing=Slicing(sequence_length=5, stride=4), replay=Queue(max_size=100))


@pytest.fixture
def read_back(tmp_path):
    """Returns a function that writes 9 steps of an environment, a version each, and reads its sequences."""

    def read_back(environment, policy, data_spec, experience=QUEUE, stores_policy_state=False):
        storage = Storage(experience, data_spec)
        server = backend.serve(storage.make_tables(), 0, tmp_path / 'checkpoints')
        written = []
        try:
            writer = ReplayWriter(server.address, storage, environment.num_environments, threading.Event())
            write = lambda row: (writer(row, len(written)), written.append(row))  # noqa: E731
            Actor(environment, policy, [write], stores_policy_state).run(9)
            writer.flush()
            server.checkpoint()
            chunks = np.stack(stored_episodes.read_chunks(tmp_path / 'checkpoints', storage))
            assert len(chunks) == 2 * environment.num_environments
        finally:
            server.close()
        chunks = chunks.reshape(-1, *storage.chunk_shape)
        columns = tf.nest.map_structure(lambda *leaves: np.stack(leaves, 1), *written)  # [B, 9, ...]
        return storage.layout.unpack(tf.constant(chunks)), columns

    return read_back


def _check(read, columns):
    """Each sequence equals the steps written with its versions, in the environment with its observations."""
    assert len(read['policy_version']) > 2
    for i, versions in enumerate(read['policy_version'].numpy()):
        sequence = tf.nest.map_structure(lambda leaf, i=i: leaf[i].numpy(), read['trajectory'])
        assert versions.tolist() in ([0, 1, 2, 3, 4], [4, 5, 6, 7, 8])
        seen = columns.observation[:, versions]
        (environment,) = np.flatnonzero((seen == sequence.observation).reshape(len(seen), -1).all(1))
        written = tf.nest.map_structure(lambda leaf, e=environment, v=versions: leaf[e, v], columns)
        tf.nest.map_structure(np.testing.assert_array_equal, sequence, written)


def test_records_distribution_parameters_and_versions(read_back):
    environment = gymnasium_env.make('Pendulum-v1', num_environments=2, seed=3)
    agent = ppo.make_agent(environment.specs, create_train_step(), QUEUE)
    read, columns = read_back(environment, agent.collect_policy, initial_agent.data_spec(agent, QUEUE))
    _check(read, columns)
    assert np.ptp(columns.policy_info['dist_params']['loc']) > 0
    environment.close()


@pytest.mark.parametrize('random', [False, True])
def test_records_log_probabilities(read_back, random):
    environment = gymnasium_env.make('CartPole-v1', num_environments=2, seed=3)
    own = environment.specs
    network = q_network.QNetwork(own.observation, own.action, fc_layer_params=(4,))
    policy = q_policy.QPolicy(own.time_step, own.action, network, emit_log_probability=True)
    read, columns = read_back(environment, uniform(policy) if random else policy, policy.trajectory_spec)
    _check(read, columns)
    recorded = columns.policy_info.log_probability
    if random:
        np.testing.assert_allclose(recorded, np.full(recorded.shape, np.log(0.5)), rtol=1e-6)
    else:
        time_step = own.time_step._replace(
            **{
                name: tf.constant(getattr(columns, name)[0])
                for name in ('step_type', 'reward', 'discount', 'observation')
            }
        )
        distribution = policy.distribution(time_step).action
        np.testing.assert_allclose(recorded[0], distribution.log_prob(columns.action[0]), rtol=1e-4)
    environment.close()


def test_sac_records_no_policy_info(read_back):
    environment = gymnasium_env.make('Pendulum-v1', num_environments=2, seed=3)
    agent = sac.make_agent(environment.specs, create_train_step(), Experience())
    read, columns = read_back(environment, agent.collect_policy, initial_agent.data_spec(agent, QUEUE))
    _check(read, columns)
    environment.close()


def test_recurrent_agent_trains_on_stored_policy_states(read_back):
    own = EnvironmentSpecs(fakes.OBSERVATION_SPEC, fakes.ACTION_SPEC)
    network = q_rnn_network.QRnnNetwork(
        own.observation, own.action, input_fc_layer_params=(4,), lstm_size=(3,), output_fc_layer_params=None
    )
    optimizer = tf.keras.optimizers.Adam()
    agent = dqn_agent.DqnAgent(own.time_step, own.action, q_network=network, optimizer=optimizer, epsilon_greedy=0.1)
    agent.initialize()
    experience = Experience(
        slicing=Slicing(sequence_length=5, stride=4, store_policy_state=True), replay=Queue(max_size=100)
    )
    spec = initial_agent.data_spec(agent, experience)
    assert [leaf.shape.as_list() for leaf in spec.policy_info['policy_state']] == [[3], [3]]
    read, columns = read_back(_Long(), agent.collect_policy, spec, experience, stores_policy_state=True)
    _check(read, columns)
    states = read['trajectory'].policy_info['policy_state'][0].numpy()
    begins = read['policy_version'].numpy()[:, 0] == 0
    assert not states[begins, 0].any()  # an episode's start
    assert states[~begins, 0].any()
    assert np.isfinite(agent.train(read['trajectory']).loss)


def test_policy_state_is_stored_only_on_request():
    own = EnvironmentSpecs(fakes.OBSERVATION_SPEC, fakes.ACTION_SPEC)
    agent = dqn.make_agent(own, create_train_step(), Experience())
    assert initial_agent.data_spec(agent, Experience()) is agent.collect_data_spec
    with pytest.raises(ValueError, match='got a policy without a state to be stored'):
        initial_agent.data_spec(agent, Experience(slicing=Slicing(store_policy_state=True)))


class _Long(fakes.CheckedEnvironment):
    """Episodes that do not end within the test."""

    def __init__(self):
        super().__init__((100, 100))

    def reset(self):
        time_step = super().reset()
        self._episode += np.arange(self.num_environments)  # so that environments have different observations
        return time_step._replace(observation=self._time_step(np.zeros(self.num_environments)).observation)
