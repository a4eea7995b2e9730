"""Each new step is trained on once in each epoch, also where sizes do not divide, and prepared once."""

import collections

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.trajectories import time_step as ts

from tests.agents import example_data
from tests.testing import experiences
from tflearn.agents import ppo
from tflearn.core import strategies
from tflearn.core.experience import Iteration
from tflearn.core.train_step import create_train_step
from tflearn.core.types import WEIGHTS
from tflearn.files.run_dir import RunDir
from tflearn.learner.learner import Learner, LearnerOptions
from tflearn.networks.networks import NetworkOptions
from tflearn.sampling.minibatches import MinibatchSource
from tflearn.sampling.source import Source

LENGTH = 5


class Sequences(Source):
    """A `Source` of the given batches, one for each grant."""

    def __init__(self, *batches):
        stack = lambda *parts: tf.stack(parts)  # noqa: E731
        self._batches, self._size = tf.nest.map_structure(stack, *batches), len(batches)
        self._next = tf.Variable(-1, dtype=tf.int64)
        self.closed = False

    def grant(self, num_steps):
        if self._next.numpy() + 1 == self._size:
            return 0
        self._next.assign_add(1)
        return 1

    def draw(self, num_steps, seed):
        return self._next.read_value()

    def batch(self, drawn, i):
        data = tf.nest.map_structure(lambda leaf: leaf[drawn + i], self._batches)
        shape = tf.nest.flatten(data)[0].shape[:2]
        return data, {'policy_version': tf.zeros(shape, tf.int64)}

    def close(self):
        self.closed = True


def _numbers(size, iteration):
    """Sequences of numbers; those of an iteration start at 1000 times its index."""
    return tf.reshape(tf.range(size * LENGTH, dtype=tf.int64), (size, LENGTH)) + 1000 * iteration


@pytest.mark.parametrize('replicas', [1, 2])
@pytest.mark.parametrize(
    ('size', 'epochs', 'minibatch', 'steps'),
    [
        (6, 3, 8, 9),  # 24 steps, in 3 minibatches
        (6, 1, 7, 4),  # 6 each, though 7 were allowed
        (8, 2, 5, 14),  # 32 steps, in 7 minibatches of 5 (or 6, on two replicas), and indices left over
        (2, 4, 100, 4),  # all at once
    ],
)
def test_each_step_counts_once_in_each_epoch(replicas, size, epochs, minibatch, steps):
    strategy = strategies.make('default' if replicas == 1 else 'mirrored:2')
    prepared, num_prepared = [], tf.Variable(0)

    def prepare(numbers):
        prepared.append(numbers.shape)
        num_prepared.assign_add(1)
        return numbers[:, :-1], tf.cast(numbers[:, :-1] % 10 != 3, tf.float32)  # these have no weight

    source = Sequences(*(_numbers(size, iteration) for iteration in range(2)))
    iterations = MinibatchSource(source, prepare, Iteration(epochs, minibatch), strategy)
    assert iterations.max_draw_steps == steps
    iterations.compile()
    assert num_prepared.numpy() == 0, 'it only compiles'
    draw = tf.function(lambda count: iterations.draw(count, tf.constant(0, tf.int64)))
    orders = set()
    for iteration in range(2):
        left, minibatches = steps, []
        while left:  # in parts, as when a summary is due
            granted = iterations.grant(min(left, 3))
            assert granted == min(left, 3)
            drawn = draw(tf.constant(granted, tf.int64))
            minibatches += [iterations.batch(drawn, tf.constant(i)) for i in range(granted)]
            left -= granted
        assert {samples.shape for samples, _ in minibatches} == {minibatches[0][0].shape}
        assert minibatches[0][0].shape[0] % replicas == 0
        assert minibatches[0][0].shape[0] <= max(minibatch, minibatch + replicas - 1)
        new = _numbers(size, iteration)[:, :-1].numpy().ravel()
        expected = {int(number): 1.0 for number in new if number % 10 != 3}
        for epoch in range(epochs):
            counted = collections.Counter()
            for samples, info in minibatches[epoch * steps // epochs : (epoch + 1) * steps // epochs]:
                for number, weight in zip(samples.numpy(), info[WEIGHTS].numpy(), strict=True):
                    counted[int(number)] += float(weight)
            assert {number: weight for number, weight in counted.items() if weight} == expected
        orders.add(tuple(minibatches[0][0].numpy() % 1000))
    assert len(orders) == 2 or steps == epochs == 1
    assert set(prepared) == {(size // replicas, LENGTH)}
    assert iterations.grant(1) == 0, 'the sequences are used up'
    assert iterations.num_iterations == 2
    assert num_prepared.numpy() == 2 * replicas
    iterations.close()
    assert source.closed


@pytest.mark.parametrize('replicas', [1, 2])
@pytest.mark.parametrize(
    ('size', 'epochs', 'minibatch', 'steps'),
    [
        (6, 3, 8, 9),  # 6 sequences of 4 steps, in 3 minibatches of 2
        (6, 1, 19, 2),  # 3 each: 4 were allowed
        (4, 2, 3, 8),  # one each, though that is more than was allowed; 2 on two replicas, with indices left over
    ],
)
def test_sequences_stay_complete(replicas, size, epochs, minibatch, steps):
    """With `of_sequences` each sequence counts once in each epoch, in its order, with what belongs to all of it."""
    strategy = strategies.make('default' if replicas == 1 else 'mirrored:2')

    def prepare(numbers):
        return {'steps': numbers[:, :-1], 'state': numbers[:, 0]}, tf.cast(numbers[:, :-1] % 10 != 3, tf.float32)

    iterations = MinibatchSource(
        Sequences(_numbers(size, 0)), prepare, Iteration(epochs, minibatch), strategy, of_sequences=True
    )
    assert iterations.max_draw_steps == steps
    assert iterations.grant(steps) == steps
    drawn = iterations.draw(tf.constant(steps, tf.int64), tf.constant(0, tf.int64))
    minibatches = [iterations.batch(drawn, tf.constant(i)) for i in range(steps)]
    for epoch in range(epochs):
        counted = collections.Counter()
        for samples, info in minibatches[epoch * steps // epochs : (epoch + 1) * steps // epochs]:
            assert info['policy_version'].shape == info[WEIGHTS].shape == samples['steps'].shape
            for state, numbers, weights in zip(samples['state'], samples['steps'], info[WEIGHTS], strict=True):
                np.testing.assert_array_equal(numbers, state + tf.range(LENGTH - 1, dtype=tf.int64))
                if tf.reduce_any(weights > 0):
                    np.testing.assert_array_equal(weights, numbers % 10 != 3)
                    counted[int(state)] += 1
        assert counted == {int(number): 1 for number in _numbers(size, 0)[:, 0]}


def test_no_worker_begins_an_iteration_alone():
    """The preparation reduces over all workers: if the data of another one ended, this one does not begin."""
    prepared = []

    def prepare(numbers):
        tf.py_function(lambda: prepared.append(1), [], [])
        return numbers[:, :-1], tf.ones_like(numbers[:, :-1], tf.float32)

    iterations = MinibatchSource(Sequences(_numbers(6, 0)), prepare, Iteration(1, 8), strategies.make('default'))
    iterations._agreement = OthersAtTheirEnd()
    assert iterations.grant(3) == 0
    assert not prepared


class OthersAtTheirEnd:
    """A `workers.Agreement` with a worker that has no more data."""

    def least(self, value):
        return min(value, 0)


def _learner(directory, agent, source, epochs, strategy=None):
    strategy = strategy or strategies.make('default')
    iterations = MinibatchSource(source, agent.prepare, Iteration(epochs, 12), strategy)
    options = LearnerOptions(summaries=None)
    return Learner(agent, iterations, RunDir(directory), strategy=strategy, options=options)


def _agent(strategy=None):
    experience = experiences.changed(ppo.EXPERIENCE, sequence_length=LENGTH, stride=LENGTH - 1)
    network = NetworkOptions(fc_layer_params=(8,))
    with (strategy or strategies.make('default')).scope():
        agent = ppo.make_agent(example_data.CONTINUOUS, create_train_step(), experience, network=network)
        for i, variable in enumerate(agent._network.trainable_variables):
            variable.assign(tf.random.stateless_uniform(variable.shape, (i, 7), -0.5, 0.5))
    return agent


def _batches(agent, count):
    return [example_data.sequences(agent, 6, LENGTH, seed) for seed in range(count)]


def test_prepares_once_per_iteration_and_saves_normalizers(tmp_path):
    agent = _agent()
    batches = _batches(agent, 2)
    learner = _learner(tmp_path, agent, Sequences(*batches), epochs=3)
    result = learner.run(100)
    assert (result.num_steps, learner.step) == (12, 12), 'two iterations of 24 steps, in 2 minibatches, 3 times'
    observations = np.concatenate([batch.observation.numpy()[:, :-1].reshape(-1, 3) for batch in batches])
    count, mean, variance = agent._observation_normalizer.statistics
    assert count.numpy() == len(observations) == agent._reward_normalizer.count.numpy()
    np.testing.assert_allclose(mean, observations.mean(axis=0), rtol=1e-4)
    np.testing.assert_allclose(variance, observations.var(axis=0), rtol=1e-4)
    learner.close()

    again = _agent()
    assert _learner(tmp_path, again, Sequences(*batches), epochs=3).step == 12
    for ours, theirs in zip(again.variables, agent.variables, strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())
    assert again._reward_normalizer.count.numpy() == 48

    raw = 100.0 * tf.ones((1, 3)) + tf.constant(mean)
    action = agent.policy.action(ts.restart(raw, 1)).action
    (distribution, _), _ = agent._network(tf.clip_by_value((raw - mean) * tf.math.rsqrt(variance + 1e-8), -5, 5))
    np.testing.assert_allclose(action, distribution.mean(), rtol=1e-4)


@pytest.mark.slow
def test_two_replicas_agree_with_one(tmp_path):
    outcomes = []
    for name in ('default', 'mirrored:2'):
        strategy = strategies.make(name)
        agent = _agent(strategy)
        learner = _learner(tmp_path / name, agent, Sequences(*_batches(agent, 2)), 3, strategy)
        result = learner.run(100)
        outcomes.append(
            (result.loss, result.extra, [variable.numpy() for variable in agent.collect_policy.variables()])
        )
        learner.close()
    (loss, extra, variables), (loss_2, extra_2, variables_2) = outcomes
    assert loss_2 == pytest.approx(loss, rel=1e-4)
    assert extra_2 == pytest.approx(extra, rel=1e-3, abs=1e-5)
    for ours, theirs in zip(variables, variables_2, strict=True):
        np.testing.assert_allclose(theirs, ours, rtol=1e-3, atol=1e-5)
