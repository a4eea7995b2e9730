"""Networks of Keras 3 in the agents, beside those of tf.keras: trained, restored, exported, on two replicas."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
from tf_agents.agents.dqn.dqn_agent import DdqnAgent
from tf_agents.distributions.utils import SquashToSpecNormal
from tf_agents.networks.sequential import Sequential
from tf_agents.trajectories import time_step as ts

from tests.agents import example_data
from tests.testing import keras_3_networks, lanes
from tflearn.agents import dqn, ppo, sac
from tflearn.core import precision, strategies
from tflearn.core.train_step import create_train_step
from tflearn.networks import encoder, keras_3
from tflearn.networks.networks import NetworkOptions
from tflearn.policies.converted import convert_tflite, run_tflite
from tflearn.policies.exporter import PolicyExporter

of_keras_3 = pytest.mark.skipif(not lanes.IS_CURRENT, reason='the package keras is Keras 2')


def _encoder_in_dqn(specs, train_step):
    network = NetworkOptions(make_network=keras_3_networks.functional)
    return dqn.make_agent(specs, train_step, dqn.EXPERIENCE, network=network)


def _policy_in_ppo(specs, train_step):
    network = NetworkOptions(shared=True, make_network=lambda spec, name: keras_3_networks.Subclass(2, True, name=name))
    return ppo.make_agent(specs, train_step, ppo.EXPERIENCE, network=network)


def _policy_in_sac(specs, train_step):
    def distribution(numbers):
        means, scales = tf.split(numbers, 2, axis=-1)
        normal = tfp.distributions.MultivariateNormalDiag(means, tf.exp(tf.clip_by_value(scales, -5.0, 2.0)))
        return SquashToSpecNormal(normal, specs.action)

    model = keras_3.Layer(lambda: keras_3_networks.Subclass(4))
    actor = Sequential([model, tf.keras.layers.Lambda(distribution)], specs.observation)
    network = NetworkOptions(make_network=keras_3_networks.functional, critic_fc_layer_params=(8,))
    return sac.make_agent(specs, train_step, sac.EXPERIENCE, network=network, actor_network=actor)


def _q_network_of_tf_agents(specs, train_step):
    network = Sequential([keras_3.Layer(lambda: keras_3_networks.Subclass(2))], specs.observation)
    adam = tf.keras.optimizers.Adam(1e-2)
    return DdqnAgent(specs.time_step, specs.action, network, adam, train_step_counter=train_step)


# The agent, the specs, and the rows of an item.
AGENTS = {
    'dqn': (_encoder_in_dqn, example_data.DISCRETE, 2),
    'ppo': (_policy_in_ppo, example_data.DISCRETE, 9),
    'sac': (_policy_in_sac, example_data.CONTINUOUS, 2),
    'q_network': (_q_network_of_tf_agents, example_data.DISCRETE, 2),
}


def _made(name, seed):
    tf.keras.utils.set_random_seed(seed)
    make, specs, length = AGENTS[name]
    agent = make(specs, create_train_step())
    agent.initialize()
    return agent, length


def _values(agent):
    views = tf.train.TrackableView(agent).descendants()
    return [view.numpy() for view in views if isinstance(view, tf.Variable)]


@of_keras_3
@pytest.mark.parametrize('name', [pytest.param('dqn', marks=pytest.mark.slow), 'ppo', 'sac', 'q_network'])
def test_trains_continues_bit_for_bit_and_acts_without_our_code(name, tmp_path):
    agent, length = _made(name, 1)
    data = example_data.complete_episodes(example_data.sequences(agent, 8, length))
    step = functools.partial(tf.function(agent.train, autograph=False), data)
    assert np.isfinite([step().loss, step().loss]).all()

    # The step after a checkpoint, twice: BatchNormalization's averages and Dropout's draws are those of the checkpoint.
    checkpoint = tf.train.Checkpoint(agent=agent)
    path, weights = checkpoint.write(str(tmp_path / 'checkpoint')), [each.numpy() for each in agent.policy.variables()]
    step()
    once = _values(agent)
    checkpoint.read(path).assert_consumed()
    step()
    for a, b in zip(once, _values(agent), strict=True):
        np.testing.assert_array_equal(a, b)
    other, _ = _made(name, 2)
    tf.train.Checkpoint(agent=other).read(path).assert_existing_objects_matched().expect_partial()
    for a, b in zip(weights, other.policy.variables(), strict=True):
        np.testing.assert_array_equal(a, b)
    layers = [view for view in tf.train.TrackableView(other).descendants() if isinstance(view, keras_3.Layer)]
    assert max(int(state[1]) for layer in layers for state in layer.model_state.others) == 2, 'draws of a dropout'

    version = PolicyExporter(agent.policy, tmp_path / 'policy').export(3, {})
    observations = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)
    live = agent.policy.action(ts.restart(tf.constant(observations), 64)).action.numpy()
    plain = tf.saved_model.load(str(version)).signatures['serving_default'](tf.constant(observations))
    lite = run_tflite(convert_tflite(version), {'observation': observations})
    assert len(np.unique(live)) > 1
    for found in (plain['action'], lite['action']):
        np.testing.assert_allclose(found, live, atol=1e-5)


@of_keras_3
def test_each_replica_draws_its_own_numbers_and_the_next_ones_are_the_same():
    strategy = strategies.make('mirrored:2')

    def make():
        return keras.Sequential([keras.layers.Dropout(0.5, seed=3)])

    with strategy.scope():
        layer = keras_3.Layer(make)
        layer(tf.ones((1, 3)))
    run = tf.function(lambda: strategy.run(lambda: layer(tf.ones((8, 4)), training=True)))
    first, second = (np.stack(strategy.experimental_local_results(run())) for _ in range(2))
    assert len(np.unique([*first, *second], axis=0)) == 4
    (state,) = layer.model_state.others
    assert [value.numpy().tolist() for value in strategy.experimental_local_results(state)] == [[3, 2], [3, 2]]
    model = make()
    with strategy.scope(), pytest.raises(ValueError, match='of Keras 3, made outside of the scope of a MirroredStr'):
        keras_3.Layer(lambda: model)


def test_frozen_layers_stay_and_penalties_count():
    def make_network(spec, name):
        model = keras.Sequential([keras.layers.Dense(8), keras.layers.Dense(8, kernel_regularizer='l2')], name=name)
        model.layers[0].trainable = False
        return model

    network = NetworkOptions(make_network=make_network, critic_fc_layer_params=())
    agent = sac.make_agent(example_data.CONTINUOUS, create_train_step(), sac.EXPERIENCE, network=network)
    agent.initialize()
    encoder = agent._critics.encoders[0]
    before = [variable.numpy() for variable in encoder.variables]
    agent.train(example_data.sequences(agent, 8, 2))
    changed = [not np.array_equal(a, b) for a, b in zip(before, encoder.variables, strict=True)]
    trained = {variable.ref() for variable in encoder.trainable_variables}
    assert changed == [variable.ref() in trained for variable in encoder.variables] and sum(changed) == 2
    kernel = next(variable for variable in encoder.trainable_variables if variable.shape.rank == 2)
    np.testing.assert_allclose(agent._critics.losses[0], 0.01 * np.sum(np.square(kernel)), rtol=1e-5)


@of_keras_3
def test_keeps_its_own_precision():
    with precision.use('bfloat16'):
        agent = _encoder_in_dqn(example_data.DISCRETE, create_train_step())
        agent.initialize()
    with pytest.raises(ValueError, match='got no layer that computes in bfloat16'):
        precision.check_agent(agent, 'bfloat16')


@of_keras_3
def test_layers_of_parts_of_the_observation():
    spec = {'arm': tf.TensorSpec((3,), tf.float32), 'kind': tf.TensorSpec((), tf.float32)}
    layers, values = {'arm': keras.layers.Dense(4)}, {'arm': tf.ones((2, 3)), 'kind': tf.ones((2,))}
    encoder.check_layers(spec, layers)
    made = [encoder.NestEncoder(spec, layers=layers) for _ in range(2)]
    assert [each(values).shape for each in made] == [(2, 5)] * 2
    assert len({variable.ref() for each in made for variable in each.variables}) == 4, 'weights of its own'
    network = NetworkOptions(preprocessing_layers={'observation': keras.layers.Dense(5, 'relu')})
    agent = dqn.make_agent(example_data.DISCRETE, create_train_step(), dqn.EXPERIENCE, network=network)
    agent.initialize()
    assert (3, 5) in [variable.shape for variable in agent.policy.variables()]
    with pytest.raises(ValueError, match='which does not take it; need a layer that does: Input 0 .* is incompatible'):
        encoder.check_layers(spec, {'arm': keras.layers.Conv2D(2, 3)})


@of_keras_3
def test_an_error_of_keras_3_is_one_line():
    network = NetworkOptions(make_network=lambda spec, name: keras.Sequential([keras.layers.Conv2D(2, 3)], name=name))
    with pytest.raises(ValueError, match=r'need one that does: Input 0 .* is incompatible'):
        dqn.make_agent(example_data.DISCRETE, create_train_step(), dqn.EXPERIENCE, network=network)


def test_takes_no_layer_of_tf_keras():
    with pytest.raises(TypeError, match='^got a Dense; need a function that makes a model or layer of Keras 3; take '):
        keras_3.Layer(lambda: tf.keras.layers.Dense(2))


@of_keras_3
def test_refuses_keras_on_another_library(monkeypatch):
    monkeypatch.setattr(keras.config, 'backend', lambda: 'jax')  # which the lane does not have
    with pytest.raises(ValueError, match="^got 'mine' of Keras 3 on jax; need TensorFlow; set the environment"):
        keras_3.Layer(lambda: keras.layers.Dense(2, name='mine'))
