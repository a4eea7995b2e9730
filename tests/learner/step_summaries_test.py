"""The summaries of a train step for every agent; train_loop_test.py tests them through the Learner."""

import dataclasses

import pytest
import tensorflow as tf

from tests.agents import example_data
from tests.testing import written_summaries
from tests.testing.algorithms import ALGORITHMS, names
from tflearn.agents import dqn
from tflearn.core.train_step import create_train_step
from tflearn.learner.summaries import StepSummaries, Summaries, SummaryOptions, SummarySources

# TF-Agents' CategoricalProjectionNetwork makes an array of one element a number.
pytestmark = pytest.mark.filterwarnings('ignore:Conversion of an array with ndim > 0:DeprecationWarning')
NAMES = names('dqn', 'sac', 'td3', 'ppo')


def _write(directory, agent, data, info, options):
    with tf.distribute.get_strategy().scope():
        step_summaries = StepSummaries(agent, options)
    step_summaries.prepare()
    summaries = Summaries(directory, options)
    with summaries.recording(agent.train_step_counter):
        tf.function(step_summaries, autograph=False)(data, info)
    summaries.close()
    return written_summaries.histograms(directory)


@pytest.mark.parametrize('name', NAMES)
def test_writes_histograms_of_actions(tmp_path, name):
    algorithm = ALGORITHMS[name]
    agent, action = algorithm.make(), algorithm.specs.action
    data = example_data.sequences(agent, 6, algorithm.length)
    found = _write(tmp_path, agent, data, {}, SummaryOptions())
    size = action.shape.num_elements() or 1
    counts = {'actions/batch': 6 * algorithm.length * size, 'actions/policy': 6 * size}
    assert {tag: values[0][2] for tag, values in found.items()} == counts
    bound = 2.0 if action.dtype.is_floating else float(action.maximum)
    for least, greatest, _ in (values[0] for values in found.values()):
        assert -bound <= least <= greatest <= bound


@pytest.mark.parametrize(
    ('name', 'parameters'),
    [
        ('dqn', {'logits': 6 * 2}),
        ('sac', {'loc': 6 * 2, 'scale': 6 * 2}),
        ('td3', {'loc': 6 * 2}),
        ('ppo', {'logits': 6 * 2}),
    ],
)
def test_writes_histograms_of_the_distributions_parameters(tmp_path, name, parameters):
    agent = ALGORITHMS[name].make()
    data = example_data.sequences(agent, 6, ALGORITHMS[name].length)
    found = _write(tmp_path, agent, data, {}, SummaryOptions(actions='distributions'))
    counts = {tag: values[0][2] for tag, values in found.items() if tag.startswith('distributions/')}
    assert counts, set(found)
    for part, count in parameters.items():
        assert any(part in tag and found == count for tag, found in counts.items()), counts
    assert 'actions/policy' in found


def test_writes_histograms_of_data_without_a_time_dimension(tmp_path):
    agent = dqn.make_agent(example_data.DISCRETE, create_train_step(), dqn.EXPERIENCE)
    data = tf.nest.map_structure(lambda column: column[:, 0], example_data.sequences(agent, 6, 2))
    found = _write(tmp_path, agent, data, {}, SummaryOptions())
    assert {tag: values[0][2] for tag, values in found.items()} == {'actions/batch': 6, 'actions/policy': 6}


def test_writes_only_available_and_requested_histograms(tmp_path):
    agent = dqn.make_agent(example_data.DISCRETE, create_train_step(), dqn.EXPERIENCE)
    data = example_data.sequences(agent, 6, 2)
    info = {'policy_version': tf.constant([[3, 4], [5, 9]], tf.int64)}
    versions = SummaryOptions(sources=SummarySources(policy_version=lambda: 9))
    assert _write(tmp_path / 'no_trajectory', agent, tuple(data), (), versions) == {}
    plain = _write(tmp_path / 'no_actions', agent, data, info, dataclasses.replace(versions, actions=False))
    assert plain == {'data/policy_lag': {0: (0.0, 6.0, 4.0)}}
    assert 'data/policy_lag' not in _write(tmp_path / 'no_versions', agent, data, info, SummaryOptions())
