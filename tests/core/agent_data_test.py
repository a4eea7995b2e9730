"""What agents of any origin train on, and what is refused before a job starts."""

import functools
import importlib
import inspect
import pkgutil

import numpy as np
import pytest
import tensorflow as tf
from tf_agents import agents
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts

import gin
from tests.testing import foreign_agents, lanes
from tflearn.agents import dqn
from tflearn.core import agent_data, strategies
from tflearn.core.experience import Experience, Iteration, Queue, Slicing
from tflearn.core.train_step import create_train_step
from tflearn.core.types import EnvironmentSpecs, zeros
from tflearn.policies.variables import published_variables

SPECS = EnvironmentSpecs(
    tf.TensorSpec((2,), tf.float32, 'observation'), tensor_spec.BoundedTensorSpec((), tf.int64, 0, 1, 'action')
)
ITERATION = Experience(
    slicing=Slicing(sequence_length=5, stride=4), replay=Queue(training=Iteration(num_epochs=2, minibatch_steps=8))
)


CONTINUOUS = EnvironmentSpecs(SPECS.observation, tensor_spec.BoundedTensorSpec((1,), tf.float32, -1.0, 1.0, 'action'))


def made(make_agent, experience=Experience(), specs=SPECS, **settings):  # noqa: B008 - it is frozen
    train_step = create_train_step()
    return make_agent(specs, train_step, experience, **settings), train_step, experience


@pytest.fixture(scope='module')
def ppo():
    return made(foreign_agents.ppo, ITERATION, **foreign_agents.FOR_ITERATIONS)


def refused(make_agent, experience=Experience(), **settings):  # noqa: B008 - it is frozen
    with pytest.raises((ValueError, TypeError)) as raised:
        agent_data.check(*made(make_agent, experience, **settings))
    assert '\n' not in str(raised.value)
    return str(raised.value)


def test_refuses_what_is_no_agent():
    message = refused(lambda *arguments: 'an agent')
    assert message.startswith('got make_agent that returned a str without policy, collect_policy')


def test_refuses_another_train_step():
    message = refused(lambda specs, train_step, experience: foreign_agents.c51(specs, create_train_step(), experience))
    assert 'got a CategoricalDqnAgent with a train step of its own' in message


def test_refuses_sequences_of_another_length():
    longer = Experience(slicing=Slicing(sequence_length=4))
    assert 'trains on sequences of 2 steps; need 2; set Slicing.sequence_length = 2' in refused(
        foreign_agents.c51, longer
    )
    assert 'trains on single steps; need 2' in refused(foreign_agents.behavioral_cloning, longer)


def test_refuses_unknown_dimensions():
    class Unknown:
        def __init__(self, agent):
            self._agent = agent
            self.collect_data_spec = agent.collect_data_spec._replace(
                observation=tf.TensorSpec((None, 2), tf.float32, 'nodes')
            )

        def __getattr__(self, name):
            return getattr(self._agent, name)

    def make_agent(specs, train_step, experience):
        return Unknown(foreign_agents.c51(specs, train_step, experience))

    message = refused(make_agent)
    assert 'whose data have nodes of the shape (None, 2); need all dimensions known' in message


@lanes.numpy_1
def test_refuses_iterations_of_agents_that_cannot_prepare_them():
    assert 'need an agent that prepares sequences' in refused(foreign_agents.recurrent_dqn, ITERATION)
    assert 'need them computed from complete sequences' in refused(foreign_agents.ppo, ITERATION)
    settings = foreign_agents.FOR_ITERATIONS
    assert 'with memory; need complete sequences' in refused(foreign_agents.ppo, ITERATION, memory=True, **settings)
    updates = {**settings, 'update_normalizers_in_train': True}
    assert 'need update_normalizers_in_train=False' in refused(foreign_agents.ppo, ITERATION, **updates)


@lanes.numpy_1
def test_accepts_others(ppo):
    agent_data.check(*ppo)
    agent_data.check(*made(foreign_agents.behavioral_cloning))
    agent_data.check(*made(dqn.make_agent))


def test_leaves_data_as_they_are_where_the_agent_takes_them():
    for make_agent in (foreign_agents.c51, dqn.make_agent):
        assert agent_data.preprocessing(made(make_agent)[0]) is None


def test_single_steps_are_the_first_of_two():
    agent, *_ = made(foreign_agents.behavioral_cloning)
    pairs = zeros(agent.collect_data_spec, (3, 2))
    pairs = pairs._replace(reward=tf.constant([[1.0, 2.0]] * 3))
    assert agent_data.preprocessing(agent)(pairs).reward.numpy().tolist() == [1.0, 1.0, 1.0]


@lanes.numpy_1
def test_prepares_steps_with_advantages(ppo):
    agent, *_ = ppo
    data = zeros(agent.collect_data_spec, (2, 5))
    # The second sequence has a boundary between two episodes.
    types = tf.constant([[1, 1, 1, 1, 1], [1, 1, ts.StepType.LAST, ts.StepType.FIRST, 1]])
    following = tf.constant([[1, 1, 1, 1, 1], [1, ts.StepType.LAST, ts.StepType.FIRST, 1, 1]])
    data = data._replace(step_type=types, next_step_type=following, reward=tf.ones((2, 5)), discount=tf.ones((2, 5)))
    before = [value.numpy() for value in agent._observation_normalizer.variables]
    samples, weights = agent_data.preparation(agent)(data)
    assert weights.numpy()[..., 0].tolist() == [[1, 1, 1, 1], [1, 1, 0, 1]]
    assert samples.policy_info['advantage'].shape == (2, 4, 1)
    expected = agent.preprocess_sequence(data).policy_info['advantage'].numpy()[:, :4]
    np.testing.assert_array_equal(samples.policy_info['advantage'].numpy()[..., 0], expected)
    assert np.any(expected)
    after = [value.numpy() for value in agent._observation_normalizer.variables]
    assert any(np.any(one != other) for one, other in zip(before, after, strict=True))


@pytest.mark.slow
def test_two_replicas_add_all_their_sequences_to_the_normalizers():
    strategy = strategies.make('mirrored:2')
    with strategy.scope():
        agent, *_ = made(foreign_agents.ppo, ITERATION, **foreign_agents.FOR_ITERATIONS)
    prepare = agent_data.preparation(agent)
    data = zeros(agent.collect_data_spec, (3, 5))
    # Each replica has tensors of its own.
    own = lambda: prepare(tf.nest.map_structure(tf.identity, data))  # noqa: E731
    samples, _ = tf.function(lambda: strategy.run(own))()
    assert samples.reward.values[1].shape == (3, 4, 1)
    (count,) = agent._observation_normalizer._count
    assert [value.numpy().max().round() for value in count.values] == [2 * 3 * 5] * 2


@lanes.numpy_1
def test_whole_sequences_are_preprocessed_in_replica():
    agent, *_ = made(functools.partial(foreign_agents.ppo, num_epochs=2, compute_value_and_advantage_in_train=False))
    preprocessed = agent_data.preprocessing(agent)(zeros(agent.collect_data_spec, (2, 5)))
    assert preprocessed.policy_info['return'].shape == (2, 5)


def test_slots_have_the_same_order_in_all_agents():
    """TF-Agents' TD3 hands its optimizers the variables in the order of memory addresses."""
    shapes = []
    for _ in range(2):
        agent, *_ = made(foreign_agents.td3, specs=CONTINUOUS)
        agent_data.make_slots(agent)
        slots = agent._critic_optimizer.variables
        shapes.append([variable.shape.as_list() for variable in slots])
        networks = agent._actor_network, agent._critic_network_1, agent._critic_network_2
        trained = sum(len(network.trainable_variables) for network in networks)
        assert len(slots) == 1 + 2 * trained, 'the iterations, and two for each variable'
    assert shapes[0] == shapes[1]
    agent, *_ = made(foreign_agents.c51)
    agent_data.make_slots(agent)
    assert len(agent._optimizer.variables) <= 2


def test_the_agents_that_collect_variables_in_a_set_are_known():
    every = pkgutil.walk_packages(agents.__path__, f'{agents.__name__}.')
    with gin.unlock_config():  # an earlier test may have read a gin file
        modules = [importlib.import_module(each.name) for each in every if each.name.endswith('_agent')]
    found = {
        kind.__name__
        for module in modules
        for kind in vars(module).values()
        if isinstance(kind, type) and '_train' in vars(kind)
        if 'ObjectIdentitySet(' in (source := inspect.getsource(vars(kind)['_train'])) and 'sorted(' not in source
    }
    assert found == set(agent_data.UNORDERED)


def test_the_state_of_noise_is_made_and_not_published():
    agent, *_ = made(foreign_agents.ddpg, specs=CONTINUOUS)
    before = published_variables(agent.collect_policy)
    agent_data.make_policy_variables(agent)
    assert len(agent.collect_policy.variables()) == len(before) + 1
    assert [id(variable) for variable in published_variables(agent.collect_policy)] == list(map(id, before))


def test_packaged_agents_are_known():
    assert agent_data.is_packaged(made(dqn.make_agent)[0])
    assert not agent_data.is_packaged(made(foreign_agents.c51)[0])
