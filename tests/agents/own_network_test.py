"""Every agent with a network of one's own: a Keras model, a TF-Agents network, attention over a set of nodes."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.networks import encoding_network, lstm_encoding_network
from tf_agents.specs import tensor_spec

from tests.agents import example_data
from tests.testing import lanes
from tests.testing.algorithms import ALGORITHMS, names
from tflearn.agents import ppo
from tflearn.core.train_step import create_train_step
from tflearn.core.types import EnvironmentSpecs
from tflearn.networks import sets
from tflearn.networks.networks import NetworkOptions

CONTINUOUS, DISCRETE = example_data.CONTINUOUS, example_data.DISCRETE
NAMES = names('dqn', 'sac', 'iql', 'bc', 'td3', 'ppo', 'impala', 'reinforce', argument='network')


def make_agent(name, make_network, observation=None, shared=False, **changes):
    algorithm = ALGORITHMS[name]
    specs = algorithm.specs if observation is None else EnvironmentSpecs(observation, algorithm.specs.action)
    layers = {'make_network': make_network, 'lstm_size': None, 'shared': shared}
    return algorithm.make(specs, layers=layers, **changes)


def model(spec, name):
    return tf.keras.Sequential([tf.keras.layers.Dense(7, 'relu'), tf.keras.layers.Dropout(0.1)], name=name)


def tf_agents_network(spec, name):
    return encoding_network.EncodingNetwork(spec, fc_layer_params=(7,), name=name)


SET = {
    'nodes': tensor_spec.BoundedTensorSpec((4, 3), tf.float32, -1.0, 1.0, 'nodes'),
    'present': tensor_spec.BoundedTensorSpec((4,), tf.int64, 0, 1, 'present'),
}
attention = functools.partial(
    sets.make_network, nodes='nodes', mask='present', units=8, num_heads=2, num_blocks=1, fc_layer_params=(7,)
)


@pytest.mark.parametrize('kind', [model, pytest.param(tf_agents_network, marks=pytest.mark.slow)])
@pytest.mark.parametrize('name', lanes.sample(NAMES, 'sac', 'ppo'))  # conformance_test.py has all
def test_every_agent_trains_it(name, kind):
    check_training(name, kind)


# An agent with critics of actions and one without: to the others it is a model like any other.
@pytest.mark.parametrize('name', names('sac', 'ppo', argument='network'))
def test_every_agent_trains_attention_over_a_set(name):
    check_training(name, attention, SET)


def check_training(name, make_network, observation=None):
    agent = make_agent(name, make_network, observation)
    data = example_data.complete_episodes(example_data.sequences(agent, 4, ALGORITHMS[name].length))
    before = [variable.numpy() for variable in agent.policy.variables()]
    for _ in range(4):  # an actor may be trained in some steps only
        assert np.isfinite(agent.train(data).loss)
        changed = [not np.array_equal(a, b) for a, b in zip(before, agent.policy.variables(), strict=True)]
        if any(changed[:2]):
            break
    assert any(changed[:2]), 'the first layer'


def test_each_network_has_variables_of_its_own():
    """Online and target; policy and value, or one for both."""
    names = []

    def count(spec, name):
        names.append(name)
        return model(spec, name)

    agent = make_agent('dqn', count)
    own = {id(variable) for variable in agent._q_network.variables}
    assert len(names) == 2 and own.isdisjoint(id(variable) for variable in agent._target_q_network.variables)
    names.clear()
    make_agent('ppo', count)
    assert names == ['actor', 'value']
    names.clear()
    make_agent('ppo', count, shared=True)
    assert names == ['encoder']
    one = model(None, 'one')
    with pytest.raises(ValueError, match="^got the network 'one' twice; need a new one from each call"):
        make_agent('dqn', lambda spec, name: one)


class LogitsAndValue(tf.keras.Model):
    """A body for both, and a head of its own for each."""

    def __init__(self, num_choices):
        super().__init__()
        layers = tf.keras.layers
        self.body, self.logits, self.value = layers.Dense(7, 'relu'), layers.Dense(num_choices), layers.Dense(1)

    def call(self, inputs):
        features = self.body(inputs)
        return self.logits(features), self.value(features)[:, 0]


TWO = EnvironmentSpecs(DISCRETE.observation, tensor_spec.BoundedTensorSpec((2,), tf.int64, [0, 0], [1, 2]))


@pytest.mark.parametrize('name', ['ppo', 'impala'])  # APPO's has IMPALA's
@pytest.mark.parametrize('specs', [DISCRETE, TWO])
def test_heads_of_its_own(name, specs):
    made = []

    def make_network(spec, name):
        made.append(LogitsAndValue(2 if specs is DISCRETE else 5))
        return made[-1]

    agent = ALGORITHMS[name].make(specs, layers={'shared': True, 'make_network': make_network, 'lstm_size': None})
    own = {variable.ref() for variable in made[0].trainable_variables}
    assert own == {variable.ref() for variable in agent._network.trainable_variables}, 'no other layers'
    if specs is TWO:  # as the network has it, the impossible choice apart
        observation = tf.constant([[1.0, -1.0, 0.5]])
        (distribution, value), _ = agent._network(observation)
        logits, expected = made[0](observation)
        np.testing.assert_allclose(distribution.logits[0], [[*logits[0, :2], -1e9], logits[0, 2:]])
        np.testing.assert_allclose(value, expected)
    before = [variable.numpy() for variable in made[0].trainable_variables]
    data = example_data.complete_episodes(example_data.sequences(agent, 4, ALGORITHMS[name].length))
    assert np.isfinite(agent.train(data).loss)
    assert all(not np.array_equal(a, b) for a, b in zip(before, made[0].trainable_variables, strict=True))


def test_heads_of_its_own_take_a_mask():
    legal = {'mask': tensor_spec.BoundedTensorSpec((2,), tf.int64, 0, 1, 'mask'), 'state': DISCRETE.observation}

    def make_network(spec, name):
        return tf.keras.Sequential([tf.keras.layers.Lambda(lambda parts: parts['state']), LogitsAndValue(2)])

    network = NetworkOptions(shared=True, make_network=make_network)
    specs = EnvironmentSpecs(legal, DISCRETE.action)
    agent = ppo.make_agent(specs, create_train_step(), ppo.EXPERIENCE, network=network, action_mask='mask')
    observation = {'mask': tf.constant([[0, 1], [1, 0]], tf.int64), 'state': tf.ones((2, 3))}
    (distribution, _), _ = agent._network(observation)
    np.testing.assert_array_equal(distribution.probs_parameter(), [[0, 1], [1, 0]])


@pytest.mark.parametrize(
    ('shared', 'specs', 'num_choices'), [(False, DISCRETE, 2), (True, DISCRETE, 3), (True, CONTINUOUS, 2)]
)
def test_heads_that_do_not_fit_are_refused(shared, specs, num_choices):
    network = NetworkOptions(shared=shared, make_network=lambda spec, name: LogitsAndValue(num_choices))
    with pytest.raises(ValueError, match='^got the network .*; need a vector of floats'):
        ppo.make_agent(specs, create_train_step(), ppo.EXPERIENCE, network=network)


def test_it_gets_the_observation_without_the_mask():
    legal = {'mask': tensor_spec.BoundedTensorSpec((2,), tf.int64, 0, 1, 'mask'), 'state': DISCRETE.observation}
    specs = []

    def make_network(spec, name):
        specs.append(spec)
        return tf.keras.layers.Lambda(lambda parts: parts['state'])

    agent = make_agent('dqn', make_network, legal, action_mask='mask')
    assert specs[0].keys() == {'state'}
    assert np.isfinite(agent.train(example_data.sequences(agent, 4, 2)).loss)


def memory(spec, name):
    return lstm_encoding_network.LSTMEncodingNetwork(spec, lstm_size=(4,), input_fc_layer_params=(8,), name=name)


def test_memory_is_for_algorithms_that_can_have_one():
    agent = make_agent('impala', memory)
    assert agent.collect_policy.policy_state_spec
    assert np.isfinite(agent.train(example_data.sequences(agent, 4, ALGORITHMS['impala'].length)).loss)
    for name in ('dqn', 'sac', 'td3'):
        with pytest.raises(ValueError, match='^got .*; need one without memory.*choose an algorithm with memory'):
            make_agent(name, memory)
    with pytest.raises(ValueError, match='^got a network with memory and Slicing.store_policy_state=False; need True'):
        make_agent('ppo', memory)


@pytest.mark.parametrize('name', NAMES)
def test_a_network_that_does_not_fit_is_refused_in_one_line(name):
    wrong = {
        r'which does not take the observation \(observation: float32 \(3,\)\); need': tf.keras.layers.Conv2D(4, 3),
        'which returns .* for an observation; need a vector of floats': tf.keras.layers.Reshape((3, 1)),
    }
    for message, layer in wrong.items():
        copies = lambda spec, name, layer=layer: type(layer).from_config(layer.get_config())  # noqa: E731
        with pytest.raises(ValueError, match=message) as error:
            make_agent(name, copies)
        assert str(error.value).startswith('got the network') and '\n' not in str(error.value)
