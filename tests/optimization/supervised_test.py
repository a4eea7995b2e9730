"""A Keras loss over a dataset, trained by the learner."""

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.trajectories import time_step as ts

from tflearn.core.train_step import create_train_step
from tflearn.core.types import WEIGHTS
from tflearn.files.run_dir import RunDir
from tflearn.learner.learner import Learner, LearnerOptions
from tflearn.learner.stop_conditions import DataStopConditions, StopConditions
from tflearn.learner.validation import Validator
from tflearn.optimization.supervised import Examples, SupervisedAgent

FEATURES = np.random.default_rng(0).uniform(-1, 1, (256, 4)).astype(np.float32)
LABELS = FEATURES[:, :3].argmax(axis=1)
LABEL = tf.TensorSpec((), tf.int64)
CROSSENTROPY = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def make_agent(loss=CROSSENTROPY, target_spec=LABEL, outputs=3, regularizer=None, **settings):
    dense = tf.keras.layers.Dense
    layers = [dense(16, 'relu', kernel_regularizer=regularizer), dense(outputs)]
    return SupervisedAgent(
        tf.TensorSpec((4,), tf.float32),
        target_spec,
        tf.keras.Sequential(layers),
        loss,
        create_train_step(),
        tf.keras.optimizers.Adam(1e-2),
        **settings,
    )


BATCH = Examples(FEATURES, LABELS)


def test_the_loss_is_that_of_keras():
    accuracy = tf.keras.metrics.sparse_categorical_accuracy
    agent = make_agent(regularizer=tf.keras.regularizers.L2(0.1), metrics={'accuracy': accuracy})
    outputs = agent.network(FEATURES)
    regularization = 0.1 * np.square(agent.network.layers[0].kernel).sum()
    info = agent.loss(BATCH)
    np.testing.assert_allclose(info.loss, CROSSENTROPY(LABELS, outputs) + regularization, rtol=1e-5)
    np.testing.assert_allclose(info.extra['accuracy'], np.mean(np.argmax(outputs, 1) == LABELS), rtol=1e-6)
    weights = np.random.default_rng(1).uniform(size=256).astype(np.float32)
    weighted = CROSSENTROPY(LABELS, outputs, sample_weight=weights) + regularization
    np.testing.assert_allclose(agent.loss(BATCH, tf.constant(weights)).loss, weighted, rtol=1e-5)
    named = make_agent('mse', tf.TensorSpec((2,), tf.float32), 2)
    target = FEATURES[:, :2]
    expected = np.square(named.network(FEATURES) - target).mean()
    np.testing.assert_allclose(named.loss(Examples(FEATURES, target)).loss, expected, rtol=1e-5)


def test_it_learns_validates_and_predicts(tmp_path):
    agent = make_agent(metrics={'accuracy': tf.keras.metrics.sparse_categorical_accuracy})
    kept = Examples(*(column[192:] for column in BATCH))
    conditions = DataStopConditions(patience=3)
    validator = Validator(lambda: [(32, Examples(*(c[:32] for c in kept))), (32, Examples(*(c[32:] for c in kept)))],
                          40, conditions)  # fmt: skip

    def data(context):
        columns = Examples(*(column[:192] for column in BATCH))
        return tf.data.Dataset.from_tensor_slices(columns).shuffle(192, seed=0).repeat(40).batch(32)

    options = LearnerOptions(make_triggers=lambda learner: [validator.make_trigger(learner)])
    learner = Learner(agent, data, RunDir(tmp_path), options=options, state={'validation': validator})
    before = agent.loss(BATCH)
    assert learner.train(StopConditions(1_000), 40) == 'the data ended'
    assert learner.step == 192 * 40 // 32
    after = agent.loss(kept)
    assert after.loss < before.loss / 2 and after.extra['accuracy'] > 0.9
    np.testing.assert_allclose(validator.metrics['loss'], after.loss, rtol=1e-4)
    np.testing.assert_allclose(validator.metrics['accuracy'], after.extra['accuracy'], rtol=1e-5)
    action = agent.policy.action(ts.restart(tf.constant(FEATURES), batch_size=256)).action
    np.testing.assert_allclose(action, agent.network(FEATURES), rtol=1e-6)
    again = Learner(make_agent(), data, RunDir(tmp_path), state={'validation': Validator(list, 40)})
    assert again.step == learner.step
    again.close()


def test_items_can_have_weights_in_the_data(tmp_path):
    agent = make_agent()

    def data(context):
        weights = {WEIGHTS: np.zeros(256, np.float32)}
        return tf.data.Dataset.from_tensor_slices((Examples(*BATCH), weights)).repeat().batch(32)

    with Learner(agent, data, RunDir(tmp_path)) as learner:
        assert learner.run(3).loss == 0


def test_a_loss_of_the_whole_batch_is_refused():
    with pytest.raises(ValueError, match='which returns one number for the batch; need one for each item'):
        make_agent(lambda target, output: tf.reduce_mean(output))
