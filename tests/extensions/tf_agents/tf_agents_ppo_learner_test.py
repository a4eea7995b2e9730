"""What TF-Agents' own tests do not check of PPOLearner: which samples each run trains on."""

import collections

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.train import ppo_learner_test_utils as test_agents

from tests.testing import ppo_agents
from tflearn.core import strategies
from tflearn.extensions.tf_agents.tf_agents_ppo_learner import PPOLearner, minibatches


def _sequences(first, lengths):
    """A dataset of sequences [1, T], T by `lengths`; the steps are numbers, ascending from `first`."""
    starts = first + np.cumsum([0, *lengths[:-1]])

    def generate():
        for start, length in zip(starts, lengths, strict=True):
            yield np.arange(start, start + length)[np.newaxis], ()

    spec = (tf.TensorSpec((1, None), tf.int64), ())
    return tf.data.Dataset.from_generator(generate, output_signature=spec)


@pytest.mark.parametrize('replicas', [1, 2])
@pytest.mark.parametrize(('lengths', 'num_epochs', 'size'), [((10, 7, 6), 3, 8), ((5, 5, 5), 2, 4), ((4, 4, 4), 1, 5)])
def test_minibatches_hold_each_step_as_often_as_there_are_epochs(replicas, lengths, num_epochs, size):
    """Except for the steps that do not fill a minibatch."""
    dataset = minibatches(lambda: _sequences(100, lengths), replicas, 3, num_epochs, size, 1)
    batches = [batch.numpy() for batch, _ in dataset]
    total = sum(lengths) * num_epochs
    assert len(batches) == total // size // replicas * replicas
    assert {batch.shape for batch in batches} == {(size, 1)}
    expected = np.tile(100 + np.arange(sum(lengths)), num_epochs)[: len(batches) * size]
    np.testing.assert_array_equal(np.concatenate(batches).ravel(), expected)


def test_each_iterator_is_a_new_iteration():
    counter = tf.Variable(0, dtype=tf.int64)

    def fresh():
        first = tf.py_function(lambda: counter.assign_add(100), (), tf.int64)
        return tf.data.Dataset.range(10).map(lambda i: (tf.reshape(first + i, (1, 1)), ()))

    dataset = minibatches(fresh, 1, 10, 2, 5, 10)
    for iteration in (1, 2):
        steps = collections.Counter(int(i) for batch, _ in dataset for i in batch.numpy().ravel())
        assert steps == dict.fromkeys(range(100 * iteration, 100 * iteration + 10), 2)


def test_sequences_without_minibatches():
    dataset = minibatches(lambda: _sequences(0, (3, 5, 4, 9)), 1, 3, 2, None, None)
    assert [batch.shape for batch, _ in dataset] == [(1, 3), (1, 5), (1, 4)] * 2
    assert len(list(minibatches(lambda: _sequences(0, (3, 5, 4)), 2, 3, 3, None, None))) == 8


@pytest.mark.parametrize('size', [10, None])
def test_run_trains_on_all_of_its_data(tmp_path, size):
    agent, calls = test_agents.FakePPOAgent(), []
    fresh = lambda: tf.data.Dataset.from_tensors((test_agents.create_trajectories(25, 1), ())).repeat(3)  # noqa: E731
    learner = PPOLearner(
        str(tmp_path),
        agent.train_step_counter,
        agent,
        experience_dataset_fn=fresh,
        normalization_dataset_fn=fresh,
        num_samples=3,
        num_epochs=2,
        minibatch_size=size,
        shuffle_buffer_size=75,
        triggers=[calls.append],
        max_checkpoints_to_keep=1,
    )
    for run in (1, 2):
        learner.run()
        assert int(agent.train_called_times) == run * (15 if size else 6)
        assert int(learner.num_frames_for_training) == 75
        assert learner.num_frames_for_training.dtype == tf.int32
    assert len(calls) == 2
    learner.close()


@pytest.mark.slow
def test_losses_of_two_replicas_add_up_to_the_loss(tmp_path):
    """Each replica also returns its share of the parts of the loss."""
    strategy = strategies.make('mirrored:2')
    with strategy.scope():
        agent = ppo_agents.make()
    data = lambda: tf.data.Dataset.from_tensors((ppo_agents.trajectory(20), ()))  # noqa: E731
    arguments = {'minibatch_size': 10, 'shuffle_buffer_size': 1, 'strategy': strategy, 'summary_interval': None}
    learner = PPOLearner(str(tmp_path), agent.train_step_counter, agent, data, data, 1, **arguments)
    loss_info = learner.run()
    parts = {name: float(value) for name, value in loss_info.extra._asdict().items() if name.endswith('_loss')}
    assert float(loss_info.loss) == pytest.approx(sum(parts.values()), rel=1e-5)
    assert parts['value_estimation_loss'] > 10


def test_a_subclass_may_have_a_train_step_of_its_own(tmp_path):
    class OwnStep(PPOLearner):
        def single_train_step(self, iterator):
            calls.append(1)
            return super().single_train_step(iterator)

    calls, agent = [], test_agents.FakePPOAgent()
    data = lambda: tf.data.Dataset.from_tensors((test_agents.create_trajectories(20, 1), ()))  # noqa: E731
    arguments = {'minibatch_size': 10, 'shuffle_buffer_size': 1}
    OwnStep(str(tmp_path), agent.train_step_counter, agent, data, data, 1, **arguments).run()
    assert calls
    assert int(agent.train_called_times) == 2


def test_rejects_invalid_arguments(tmp_path):
    agent = test_agents.FakePPOAgent()
    few = lambda: tf.data.Dataset.from_tensors((test_agents.create_trajectories(5, 1), ()))  # noqa: E731
    arguments = (str(tmp_path), agent.train_step_counter, agent, few, few, 1)
    with pytest.raises(ValueError, match='minibatch_size=10 without shuffle_buffer_size'):
        PPOLearner(*arguments, minibatch_size=10)
    with pytest.raises(ValueError, match='Cannot distribute 5 frames across 1 replicas'):
        PPOLearner(*arguments, minibatch_size=10, shuffle_buffer_size=5).run()
