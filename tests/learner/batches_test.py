"""Importance weights of the data, and the items' errors that a source draws by."""

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.agents import tf_agent
from tf_agents.trajectories import trajectory

from tests.testing import lanes
from tests.testing.learner import BATCH_SIZE, batch
from tflearn.core import strategies
from tflearn.core.experience import Prioritization
from tflearn.files.run_dir import RunDir
from tflearn.learner import datasets, xla_loop
from tflearn.learner.learner import Learner, LearnerOptions
from tflearn.learner.summaries import SummaryOptions
from tflearn.learner.train_loop import LoopOptions
from tflearn.sampling.source import Source


def _weighted(num_steps=1 << 20):
    """A dataset_fn whose replicas share weights 1 .. 8 (times the step) of the global batch of each step."""

    def dataset_fn(context):
        replicas = context.num_replicas_in_sync
        size = BATCH_SIZE // replicas

        def element(i):
            first = (i % replicas) * size
            numbers = tf.cast(first + tf.range(1, 1 + size, dtype=tf.int64), tf.float32)
            weights = tf.cast(i // replicas + 1, tf.float32) * numbers
            return batch(i // replicas, size, first), {'weights': tf.ensure_shape(weights, (size,))}

        return tf.data.Dataset.range(num_steps * replicas).map(element)

    return dataset_fn


class Prioritized(Source):
    """A `Source` by priority, of the same batches and weights, for all replicas of this process."""

    max_draw_steps = 4

    def __init__(self, num_steps=1 << 20, error='td_error', normalize=True):
        self.prioritization = Prioritization(error=error, normalize_by_max=normalize)
        self.seen = []
        self._left = num_steps

    def grant(self, num_steps):
        granted = min(num_steps, self._left)
        self._left -= granted
        return granted

    def draw(self, num_steps, seed):
        return seed + tf.range(tf.cast(num_steps, tf.int64))

    def batch(self, drawn, i):
        weights = tf.cast(drawn[i] + 1, tf.float32) * tf.range(1.0, 1.0 + BATCH_SIZE)
        return batch(drawn[i]), {'weights': tf.ensure_shape(weights, (BATCH_SIZE,))}

    def update(self, step, errors):
        self.seen.append((step, errors))

    def close(self):
        self._left = 0


def _learner(directory, agent, data, strategy=None, summaries=None, jit_compile=False):
    options = LearnerOptions(None, summaries, loop=LoopOptions(jit_compile=jit_compile))
    return Learner(agent, data, RunDir(directory), strategy=strategy, options=options)


@pytest.mark.parametrize('replicas', [2, pytest.param(4, marks=pytest.mark.slow)])
def test_weights_and_errors_agree_on_any_number_of_replicas(tmp_path, make_agent, monkeypatch, replicas):
    """The greatest weight is on the last replica: normalized by their own, the others' losses would differ."""
    monkeypatch.setattr(xla_loop, 'AUTO_AFTER_STEPS', 0)
    sources = Prioritized(), Prioritized()
    strategy = strategies.make(f'mirrored:{replicas}')
    alone = _learner(tmp_path / 'one', make_agent(), sources[0])
    several = _learner(tmp_path / 'n', make_agent(strategy), sources[1], strategy, jit_compile='auto')
    for _ in range(3):
        assert alone.run(4).loss == pytest.approx(several.run(4).loss, rel=1e-4)
    assert not several.jit_compiles, 'the default takes plain steps on several replicas'
    assert [step for step, _ in sources[0].seen] == [step for step, _ in sources[1].seen] == [4, 8, 12]
    for (_, ours), (_, theirs) in zip(sources[0].seen, sources[1].seen, strict=True):
        assert ours.shape == (4, BATCH_SIZE)
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-5)


@lanes.classic
def test_normalized_weights_are_at_most_one(tmp_path, make_agent):
    agent = make_agent()
    agent.initialize()
    loss = float(agent.loss(batch(0), tf.range(1.0, 1.0 + BATCH_SIZE)).loss)
    scaled = _learner(tmp_path / 'a', make_agent(), Prioritized())
    plain = _learner(tmp_path / 'b', make_agent(), Prioritized(normalize=False))
    assert loss == pytest.approx(BATCH_SIZE * scaled.run(1).loss, rel=1e-5)
    assert loss == pytest.approx(plain.run(1).loss, rel=1e-5)


def test_weights_scale_the_losses_of_their_items(tmp_path, make_agent):
    agent, data, weights = make_agent(), batch(0), tf.range(1.0, 1.0 + BATCH_SIZE)
    agent.initialize()
    learner = _learner(tmp_path, make_agent(), _weighted())
    assert learner.run(1).loss == pytest.approx(float(agent.train(data, weights).loss), rel=1e-5)
    assert learner.loss((data, {'weights': 0.0 * weights})).loss == 0.0


def test_data_without_weights(tmp_path, make_agent, make_dataset_fn):
    agent, given = make_agent(), []
    train = agent.train

    def looked_at(experience, weights=None):
        given.append(weights)
        return train(experience, weights)

    agent.train = looked_at
    _learner(tmp_path, agent, make_dataset_fn()).run(3)
    assert given and set(given) == {None}


@lanes.classic
def test_errors_are_those_of_the_steps_of_a_call(tmp_path, make_agent):
    """Also where some steps are summarized by another program, and where the data end."""
    steady, single = Prioritized(5), Prioritized(5)
    assert _learner(tmp_path / 'a', make_agent(), steady, summaries=SummaryOptions(3)).run(8).num_steps == 5
    learner = _learner(tmp_path / 'b', make_agent(), single)
    for _ in range(5):
        learner.run(1)
    assert [step for step, _ in steady.seen] == [2, 3, 5]
    errors, single_errors = (np.concatenate([errors for _, errors in source.seen]) for source in (steady, single))
    np.testing.assert_allclose(errors, single_errors, rtol=1e-4)


def test_rejects_a_metric_that_is_not_of_items(tmp_path, make_agent):
    agent = make_agent()
    train = agent.train
    agent.train = lambda experience, weights: tf_agent.LossInfo(train(experience, weights).loss, {'q': tf.zeros(())})
    with pytest.raises(ValueError, match=r"extra metrics \{'q': \[\]\}; need 'q' with one number for each item"):
        _learner(tmp_path, agent, Prioritized(error='q'))


@pytest.fixture
def tpu():
    """There is no TPU here: a strategy that only has its type."""
    return object.__new__(tf.distribute.TPUStrategy)


def _endless(spec):
    return tf.data.Dataset.from_generator(lambda: iter(()), output_signature=spec).repeat()


def _trajectory(observation):
    ones = tf.TensorSpec((4, 2), tf.float32)
    return trajectory.Trajectory(ones, {'image': observation}, ones, (), ones, ones, ones)


def test_tpu_accepts_known_shapes(tpu):
    spec = (_trajectory(tf.TensorSpec((4, 2, 3))), {'version': tf.TensorSpec((4, 2))})
    datasets.check_dataset(_endless(spec), tpu)


@pytest.mark.parametrize('shape', [(None, 2, 3), (4, None, 3), None])
def test_tpu_rejects_an_unknown_dimension(tpu, shape):
    with pytest.raises(
        ValueError, match=r'got the shape .* of .*observation/image in the data; need all .*drop_remainder'
    ):
        datasets.check_dataset(_endless((_trajectory(tf.TensorSpec(shape)), ())), tpu)


def test_tpu_rejects_an_incomplete_last_batch(tpu):
    numbers = tf.data.Dataset.range(9).repeat()
    datasets.check_dataset(numbers.batch(4, drop_remainder=True), tpu)
    with pytest.raises(ValueError, match=r'got the shape \(None,\)'):
        datasets.check_dataset(numbers.batch(4), tpu)


def test_tpu_rejects_a_dataset_that_may_end(tpu):
    with pytest.raises(ValueError, match='got a dataset of 8 elements; need an endless one'):
        datasets.check_dataset(tf.data.Dataset.range(8), tpu)
    with pytest.raises(ValueError, match='got a dataset of unknown size; need an endless one'):
        datasets.check_dataset(tf.data.Dataset.range(8).repeat().take_while(lambda i: i < 4), tpu)


def test_several_workers_need_an_endless_dataset(tmp_path, make_agent, make_dataset_fn, monkeypatch):
    learn = lambda: Learner(make_agent(), make_dataset_fn(0, 7), RunDir(tmp_path))  # noqa: E731
    learn()
    two_workers = strategies.ReplicaLayout(2, 2, 0, 2, True)
    monkeypatch.setattr(strategies, 'layout', lambda strategy: two_workers)
    with pytest.raises(ValueError, match='got a dataset of 14 elements; need an endless one for several workers'):
        learn()
