"""What a train step takes and gives beyond data and loss: importance weights, and metrics of items."""

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.agents import tf_agent

from tests.testing.learner import BATCH_SIZE, batch
from tflearn.distribute import strategies
from tflearn.learner.learner import Learner, LearnerOptions
from tflearn.learner.train_loop import LoopOptions
from tflearn.run_dir import RunDir


def _weighted(num_steps=1 << 20):
    """A dataset_fn whose replicas share weights 1 .. 8 (times the step) of the global batch of each step."""

    def dataset_fn(context):
        replicas = context.num_replicas_in_sync
        size = BATCH_SIZE // replicas

        def element(i):
            first = (i % replicas) * size
            places = tf.cast(first + tf.range(1, 1 + size, dtype=tf.int64), tf.float32)
            weights = tf.cast(i // replicas + 1, tf.float32) * places
            return batch(i // replicas, size, first), {'weights': tf.ensure_shape(weights, (size,))}

        return tf.data.Dataset.range(num_steps * replicas).map(element)

    return dataset_fn


def _learner(directory, agent, data, strategy=None, **loop):
    seen = []
    options = LearnerOptions(
        None, None, loop=LoopOptions(**loop), on_items=lambda step, items: seen.append((step, items))
    )
    return Learner(agent, data, RunDir(directory), strategy=strategy, options=options), seen


@pytest.mark.parametrize('replicas', [2, pytest.param(4, marks=pytest.mark.slow)])
def test_weights_and_items_agree_on_any_number_of_replicas(tmp_path, make_agent, replicas):
    """The greatest weight is on the last replica: normalised by their own, the others' losses would differ."""
    loop = {'item_metric': 'td_error', 'normalize_weights': True}
    alone, seen = _learner(tmp_path / 'one', make_agent(), _weighted(), **loop)
    strategy = strategies.make(f'mirrored:{replicas}')
    several, seen_by_several = _learner(tmp_path / 'n', make_agent(strategy), _weighted(), strategy, **loop)
    for _ in range(3):
        assert alone.run(4).loss == pytest.approx(several.run(4).loss, rel=1e-4)
    assert [step for step, _ in seen] == [step for step, _ in seen_by_several] == [4, 8, 12]
    for (_, ours), (_, theirs) in zip(seen, seen_by_several, strict=True):
        assert ours.shape == (4, BATCH_SIZE)
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-5)


def test_normalised_weights_are_at_most_one(tmp_path, make_agent):
    scaled, _ = _learner(tmp_path / 'a', make_agent(), _weighted(), normalize_weights=True)
    plain, _ = _learner(tmp_path / 'b', make_agent(), _weighted())
    assert plain.run(1).loss == pytest.approx(BATCH_SIZE * scaled.run(1).loss, rel=1e-5)


def test_weights_scale_the_losses_of_their_items(tmp_path, make_agent):
    agent, data, weights = make_agent(), batch(0), tf.range(1.0, 1.0 + BATCH_SIZE)
    agent.initialize()
    learner, _ = _learner(tmp_path, make_agent(), _weighted())
    assert learner.run(1).loss == pytest.approx(float(agent.train(data, weights).loss), rel=1e-5)
    assert learner.loss((data, {'weights': 0.0 * weights})).loss == 0.0


def test_data_without_weights_and_items_not_asked_for(tmp_path, make_agent, make_dataset_fn):
    agent, given = make_agent(), []
    train = agent.train

    def looked_at(experience, weights=None):
        given.append(weights)
        return train(experience, weights)

    agent.train = looked_at
    learner, seen = _learner(tmp_path, agent, make_dataset_fn())
    learner.run(3)
    assert given and set(given) == {None}
    assert seen == []


def test_the_errors_of_a_call_are_those_of_its_steps(tmp_path, make_agent):
    """Also where some steps are summarized by another program, and where the data end."""
    loop = {'item_metric': 'td_error'}
    steady, seen = _learner(tmp_path / 'a', make_agent(), _weighted(5), **loop)
    assert steady.run(8).num_steps == 5
    single, seen_singly = _learner(tmp_path / 'b', make_agent(), _weighted(5), **loop)
    for _ in range(5):
        single.run(1)
    np.testing.assert_allclose(
        np.concatenate([items for _, items in seen]), np.concatenate([items for _, items in seen_singly]), rtol=1e-4
    )


def test_a_metric_that_is_not_of_items(tmp_path, make_agent, make_dataset_fn):
    agent = make_agent()
    train = agent.train
    agent.train = lambda experience: tf_agent.LossInfo(train(experience).loss, {'q': tf.zeros(())})
    with pytest.raises(ValueError, match=r"extra metrics \{'q': \[\]\}; need 'q' with one number for each item"):
        _learner(tmp_path, agent, make_dataset_fn(), item_metric='q')
