"""Random network distillation and curiosity: rewards, training and statistics against float64 numpy."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts

from tests.agents import example_data
from tflearn.agents import dqn, ppo
from tflearn.core.train_step import create_train_step
from tflearn.core.types import EnvironmentSpecs
from tflearn.transforms import rnd, transformed

SMALL = {'fc_layer_params': (8,), 'num_outputs': 4}
FIRST = int(ts.StepType.FIRST)


def _agent(specs=example_data.DISCRETE, module=ppo, experience=None, kind=rnd.Rnd, **settings):
    return transformed.make_agent(
        specs,
        create_train_step(),
        experience or module.EXPERIENCE,
        make_agent=module.make_agent,
        transforms=[kind(**SMALL, **settings)],
    )


def _data(agent, size=4, length=6):
    """Two episodes in each sequence."""
    data = example_data.sequences(agent, size, length)
    types = np.full((size, length), ts.StepType.MID, np.int32)
    types[:, 2:3] = FIRST
    discount = np.ones((size, length), np.float32)
    discount[:, 1] = 0.0
    return data._replace(next_step_type=tf.constant(types), discount=tf.constant(discount))


def _network(variables, inputs):
    weights = [np.float64(variable) for variable in variables]
    for i in range(0, len(weights), 2):
        inputs = inputs @ weights[i] + weights[i + 1]
        inputs = np.maximum(inputs, 0) if i < len(weights) - 2 else inputs
    return inputs


def _errors(module, observation):
    mean, variance = (np.float64(part[0]) for part in (module.observations.means, module.observations.variances))
    inputs = np.clip((np.float64(observation) - mean) / np.sqrt(variance), -5, 5)
    outputs = [_network(part.variables, inputs) for part in (module.predictor, module.target)]
    return np.square(outputs[0] - outputs[1]).mean(-1)


def test_rewards_and_statistics_equal_the_papers():
    agent = _agent(coefficient=0.7, gamma=0.9)
    module, pipeline = agent._statistics[0], agent._pipeline()
    data = _data(agent)
    module.observations.means[0].assign([0.3, -0.2, 0.1])
    module.observations.variances[0].assign([0.01, 2.0, 0.5])  # some are clipped
    module.returns.variances[0].assign(4.0)
    errors = _errors(module, data.observation)[:, 1:]
    counts = np.ones((4, 5)) * (data.next_step_type.numpy()[:, :-1] != FIRST)
    seen, before = pipeline.transform_experience(data)
    added = np.pad(0.7 * counts * errors / 2.0, [[0, 0], [0, 1]])
    np.testing.assert_allclose(seen.reward, data.reward + added, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(seen.observation, data.observation)
    padded = np.float32(np.pad(counts, [[0, 0], [0, 1]]))
    pipeline._transforms[0].update(before[0], tf.constant(padded))
    sums, following = np.zeros((4, 5)), 0.0
    for t in reversed(range(5)):
        following = counts[:, t] * (errors[:, t] + 0.9 * data.discount.numpy()[:, t] * following)
        sums[:, t] = following
    np.testing.assert_allclose(module.returns.variances[0], sums[counts > 0].var(), rtol=1e-4)
    rows = data.observation.numpy()[:, :-1][counts > 0]
    np.testing.assert_allclose(module.observations.means[0], rows.mean(0), atol=1e-5)
    np.testing.assert_allclose(module.observations.variances[0], rows.var(0), rtol=1e-4)


def _gradients(module, observation, counts):
    """Returns the gradients of the mean error of the rows behind those that count, by the chain rule."""
    mean, variance = (np.float64(part[0]) for part in (module.observations.means, module.observations.variances))
    inputs = np.clip((np.float64(observation) - mean) / np.sqrt(variance), -5, 5)[:, 1:][counts[:, :-1] > 0]
    weights = [np.float64(variable) for variable in module.predictor.variables]
    layers = [inputs]
    for kernel, bias in zip(weights[:-2:2], weights[1:-2:2], strict=True):
        layers.append(np.maximum(layers[-1] @ kernel + bias, 0))
    outputs = layers[-1] @ weights[-2] + weights[-1]
    delta = 2 * (outputs - _network(module.target.variables, inputs)) / outputs.size
    gradients = []
    for layer, kernel in zip(layers[::-1], weights[-2::-2], strict=True):
        gradients = [layer.T @ delta, delta.sum(0), *gradients]
        delta = (delta @ kernel.T) * (layer > 0)
    return gradients


def test_the_predictor_takes_adams_steps():
    """Those of the batch as a whole, of which each of two replicas has a half."""
    strategy = tf.distribute.MirroredStrategy(['CPU:0', 'CPU:1'])
    with strategy.scope():
        agent = _agent(learning_rate=1e-2)
    module, transform = agent._statistics[0], agent._pipeline()._transforms[0]
    weights = [np.float64(variable) for variable in module.predictor.variables]
    first, second = ([np.zeros_like(weight) for weight in weights] for _ in range(2))
    step = tf.function(lambda *parts: strategy.run(transform.update, parts), autograph=False)
    data = _data(agent)
    for i in range(1, 4):
        data = data._replace(observation=data.observation * 2 - 0.5 * i)
        counts = np.float32(np.arange(24).reshape(4, 6) % (i + 1) > 0) * [1, 1, 1, 1, 1, 0]
        gradients = _gradients(module, data.observation, counts)
        first = [0.9 * m + 0.1 * g for m, g in zip(first, gradients, strict=True)]
        second = [0.999 * v + 0.001 * g**2 for v, g in zip(second, gradients, strict=True)]
        for weight, m, v in zip(weights, first, second, strict=True):
            weight -= 1e-2 * np.sqrt(1 - 0.999**i) / (1 - 0.9**i) * m / (np.sqrt(v) + 1e-7)
        parts = [
            strategy.experimental_distribute_values_from_function(
                lambda context, leaf=leaf: leaf[context.replica_id_in_sync_group :: 2]
            )
            for leaf in (*tf.nest.flatten(data), tf.constant(counts, tf.float32))
        ]
        step(tf.nest.pack_sequence_as(data, parts[:-1]), parts[-1])
        for variable, weight in zip(module.predictor.variables, weights, strict=True):
            np.testing.assert_allclose(variable, weight, atol=5e-5)


def test_what_was_seen_often_is_worth_less():
    """The predictor learns; the target does not, and a new observation keeps its error."""
    agent = _agent(learning_rate=5e-3, num_steps=2)
    data, module, transform = _data(agent), agent._statistics[0], agent._pipeline()._transforms[0]
    module.observations._count.assign(1e9)  # so that the observations' statistics stay
    target = [variable.numpy() for variable in module.target.variables]
    far = tf.constant([[3.0, -4.0, 4.0]])
    far_data = data._replace(observation=tf.broadcast_to(far, data.observation.shape))
    before, new = transform.errors(data).numpy(), float(transform.errors(far_data)[0, 0])
    update = tf.function(transform.update, autograph=False)
    for _ in range(100):
        update(data, tf.ones((4, 6)))
    after = transform.errors(data).numpy()
    assert after.mean() < 0.1 * before.mean()
    assert float(transform.errors(far_data)[0, 0]) > 5 * after.mean()
    assert new > 0
    for variable, value in zip(module.target.variables, target, strict=True):
        np.testing.assert_array_equal(variable, value)


NESTED = EnvironmentSpecs(
    example_data.DISCRETE.observation,
    {
        'choice': tensor_spec.BoundedTensorSpec((2,), tf.int64, [1, 0], [3, 1]),
        'force': tensor_spec.BoundedTensorSpec((1,), tf.float32, 0.0, 10.0),
    },
)


def test_curiosity_equals_the_papers():
    """Rewards and losses of integers and floats, against float64 numpy; what is learned makes them smaller."""
    agent = _agent(NESTED, kind=rnd.Icm, beta=0.3, coefficient=0.7, learning_rate=1e-3)
    module, transform = agent._statistics[0], agent._pipeline()._transforms[0]
    data = _data(agent)
    data.action['choice'] = data.action['choice'] + tf.constant([1, 0], tf.int64)
    data.action['force'] = 5 * data.action['force'] + 5
    vectors = np.clip(np.float64(data.observation), -5, 5)  # by the first statistics
    phi = _network(module.features.variables, vectors)
    now, following = phi[:, :-1], phi[:, 1:]
    choice, force = (data.action[name].numpy()[:, :-1] for name in ('choice', 'force'))
    one_hot = np.eye(3)[choice - [1, 0]]  # [B, T, 2, 3]
    taken = np.concatenate([one_hot.reshape(4, 5, 6), (force - 5) / 5], axis=-1)
    predicted = _network(module.forward.variables, np.concatenate([now, taken], axis=-1))
    errors = np.square(predicted - following).sum(-1) / 2
    found = _network(module.inverse.variables, np.concatenate([now, following], axis=-1))
    logits = found[..., :6].reshape(4, 5, 2, 3)
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    inverse = -(log_probs * one_hot).sum((-2, -1)) + np.square(found[..., 6:] - taken[..., 6:]).sum(-1) / 2
    computed, losses = transform._errors_and_losses(tf.constant(vectors, tf.float32), data.action)
    np.testing.assert_allclose(computed, errors, rtol=1e-4)
    np.testing.assert_allclose(losses, 0.7 * inverse + 0.3 * errors, rtol=1e-4)
    module.returns.variances[0].assign(4.0)
    seen, _ = agent._pipeline().transform_experience(data)
    counts = data.next_step_type.numpy()[:, :-1] != FIRST
    added = np.pad(0.7 * counts * errors / 2.0, [[0, 0], [0, 1]])
    np.testing.assert_allclose(seen.reward, data.reward + added, rtol=1e-3, atol=1e-5)
    for _ in range(20):
        transform.update(data, tf.ones((4, 6)))
    module.observations.means[0].assign(tf.zeros(3))
    module.observations.variances[0].assign(tf.ones(3))
    after = transform._errors_and_losses(tf.constant(vectors, tf.float32), data.action)[1]
    assert np.mean(after) < np.mean(losses)


def test_a_row_that_is_not_a_number_changes_no_weight():
    agent = _agent()
    data, transform = _data(agent), agent._pipeline()._transforms[0]
    broken = data.observation.numpy()
    broken[0, 3] = np.nan
    transform.update(data._replace(observation=tf.constant(broken)), tf.ones((4, 6)))
    assert all(np.isfinite(variable).all() for variable in tf.nest.flatten(agent._statistics[0].variables))


@pytest.mark.parametrize(('module', 'kind'), [(dqn, rnd.Rnd), (ppo, rnd.Rnd), (ppo, rnd.Icm)])
def test_agents_train_the_predictor(module, kind):
    agent = _agent(module=module, kind=kind)
    agent.initialize()
    data = _data(agent, length=module.EXPERIENCE.slicing.sequence_length)
    trained = agent._pipeline()._transforms[0]._trained()
    before = [variable.numpy() for variable in trained]
    info = agent.train(data)
    assert np.isfinite(info.loss)
    assert any(np.abs(a - b).max() > 0 for a, b in zip(before, trained, strict=True))
    assert agent._statistics[0].optimizer.iterations == 1


@pytest.mark.parametrize(
    ('make', 'message'),
    [
        (
            functools.partial(_agent, EnvironmentSpecs(tensor_spec.BoundedTensorSpec((3,), tf.int64, 0, 4), ())),
            'need floats in it',
        ),
        (
            functools.partial(
                _agent,
                EnvironmentSpecs(
                    example_data.DISCRETE.observation, example_data.DISCRETE.action, tf.TensorSpec((2,), tf.float32)
                ),
            ),
            'need one number; add rewards.Weighted before',
        ),
        (
            functools.partial(
                _agent,
                EnvironmentSpecs(
                    example_data.DISCRETE.observation, tensor_spec.BoundedTensorSpec((1,), tf.float32, -np.inf, 1.0)
                ),
                kind=rnd.Icm,
            ),
            'got the action .* for Icm; need finite bounds',
        ),
    ],
)
def test_refusals(make, message):
    with pytest.raises(ValueError, match=message):
        make()
