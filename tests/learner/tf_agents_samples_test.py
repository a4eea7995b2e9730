"""Inputs of the drop-in: formats of samples, keywords, input contexts."""

import numpy as np
import pytest
import tensorflow as tf

from tflearn.core import strategies
from tflearn.learner.tf_agents_learner import Learner


def _learner(directory, agent, dataset_fn, **arguments):
    return Learner(str(directory), agent.train_step_counter, agent, dataset_fn, **arguments)


def test_forms_of_samples(tmp_path, make_agent, make_dataset_fn):
    expected = _learner(tmp_path / 'pair', make_agent(), make_dataset_fn(1)).run(3).loss.numpy()

    def loss(name, change, **arguments):
        samples = lambda context: make_dataset_fn()(context).map(change)  # noqa: E731
        learner = _learner(tmp_path / name, make_agent(), samples, **arguments)
        assert np.isfinite(learner.loss().loss)
        return learner.run(3).loss.numpy()

    assert loss('direct', lambda data, info: data, direct_sampling=True) == pytest.approx(expected)
    keywords = lambda data, info: ({'experience': data, 'weights': tf.ones(8)}, info)  # noqa: E731
    assert loss('keywords', keywords, use_kwargs_in_agent_train=True) == pytest.approx(expected)
    with pytest.raises(ValueError, match=r'need \(experience, sample_info\), or direct_sampling=True'):
        loss('wrong', lambda data, info: data)


def test_keywords_reach_the_agent_and_the_callback(tmp_path, make_agent, make_dataset_fn):
    seen = []
    zeros = lambda context: make_dataset_fn()(context).map(  # noqa: E731
        lambda data, info: ({'experience': data, 'weights': tf.zeros(8)}, info)
    )
    learner = _learner(
        tmp_path,
        make_agent(),
        zeros,
        use_kwargs_in_agent_train=True,
        after_train_strategy_step_fn=lambda experience, loss_info: seen.append(set(experience[0])),
    )
    assert learner.run(2).loss == 0.0
    assert seen[-1] == {'experience', 'weights'}


def test_dataset_functions_may_take_the_input_context(tmp_path, make_agent, make_dataset_fn):
    contexts = []

    def dataset_fn(context):
        contexts.append(context.num_replicas_in_sync)
        return make_dataset_fn()(context)

    strategy = strategies.make('mirrored:2')
    _learner(tmp_path / 'a', make_agent(strategy), dataset_fn, strategy=strategy).run(1)
    assert contexts == [2]
    without = lambda size=4: make_dataset_fn()(tf.distribute.InputContext())  # noqa: E731
    assert _learner(tmp_path / 'b', make_agent(), without).run(1).loss > 0
