import numpy as np
import pytest
import tensorflow as tf

from tests.agents import example_data
from tflearn.agents import dqn
from tflearn.core.experience import Experience
from tflearn.core.train_step import create_train_step
from tflearn.networks import noisy
from tflearn.networks.networks import NetworkOptions
from tflearn.optimization import distributional

SMALL = {'network': NetworkOptions(fc_layer_params=(8,)), 'noisy_sigma': 0.5, 'epsilon': 0.0}


def test_noise_has_the_papers_deviation_in_each_row():
    """Against numpy in float64: E[f(noise)^2] = E|noise| = sqrt(2 / pi) for each input and output."""
    noise = noisy.Noise(0.5)
    layer = noisy.NoisyDense(3, noise)
    one = np.array([[1.0, -2.0, 0.5, 3.0]], np.float32)
    rows = tf.repeat(one, 40_000, axis=0)
    plain = layer(rows)
    kernel, bias, kernel_sigma, bias_sigma = (np.float64(weight) for weight in layer.get_weights())
    np.testing.assert_allclose(kernel_sigma, 0.5 / np.sqrt(4))
    assert np.abs(kernel).max() <= np.abs(bias).max() + 0.5 <= 1.0
    np.testing.assert_allclose(plain, np.repeat(one @ kernel + bias, 40_000, axis=0), rtol=1e-5)
    with noise.drawn():
        drawn = np.float64(layer(rows))
    second = np.sqrt(2 / np.pi)
    variance = (second * (np.square(one) @ np.square(kernel_sigma)) + np.square(bias_sigma)) * second
    np.testing.assert_allclose(drawn.mean(axis=0), plain[0], atol=5 * np.sqrt(variance.max() / 40_000))
    np.testing.assert_allclose(drawn.var(axis=0), variance[0], rtol=0.1)
    assert np.abs(np.corrcoef(drawn[:-1, 0], drawn[1:, 0])[0, 1]) < 0.03, 'rows have noise of their own'
    np.testing.assert_array_equal(layer(rows), plain)


def test_sigma_has_a_bound():
    with pytest.raises(ValueError, match=r'got noisy_sigma=0.0; need a number above 0'):
        dqn.make_agent(example_data.DISCRETE, create_train_step(), Experience(), noisy_sigma=0.0)


@pytest.mark.parametrize(
    ('distribution', 'dueling'), [(None, False), (distributional.Categorical(5, -1.0, 1.0), True)], ids=['dqn', 'c51']
)
def test_the_collect_policy_and_the_loss_draw_noise_and_the_greedy_policy_does_not(distribution, dueling):
    changes = {'distribution': distribution, 'dueling': dueling} | SMALL
    agent = dqn.make_agent(example_data.DISCRETE, create_train_step(), Experience(), **changes)
    agent.initialize()
    data = example_data.sequences(agent, 64, 2)
    steps = agent.time_step_spec
    steps = tf.nest.map_structure(lambda spec: tf.zeros((500, *spec.shape), spec.dtype), steps)
    act = {policy: tf.function(policy.action, autograph=False) for policy in (agent.policy, agent.collect_policy)}
    greedy = [act[agent.policy](steps).action.numpy() for _ in range(2)]
    np.testing.assert_array_equal(*greedy)
    assert np.unique(greedy[0]).size == 1
    draws = [act[agent.collect_policy](steps).action.numpy() for _ in range(2)]
    assert np.unique(draws[0]).size == 2
    assert (draws[0] != draws[1]).any()
    losses = [float(agent.loss(data).loss) for _ in range(2)]
    agent.train_step_counter.assign_add(1)
    assert losses[0] == losses[1] != float(agent.loss(data).loss), 'each train step draws its own'
    sigmas = [variable for variable in agent._q_network.trainable_variables if 'sigma' in variable.name]
    assert len(sigmas) == 4 + 2 * dueling
    before = [variable.numpy() for variable in sigmas]
    tf.function(agent.train, autograph=False)(data)
    assert all((new.numpy() != old).any() for new, old in zip(sigmas, before, strict=True))
    assert not {id(v) for v in agent._q_network.variables} & {id(v) for v in agent._target_q_network.variables}
