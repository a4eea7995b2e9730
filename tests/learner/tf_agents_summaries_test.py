"""The summaries of the drop-in: its own and the agent's."""

import numpy as np
import pytest
import tensorflow as tf

from tests.agents import event_files
from tests.testing import recording_agent
from tflearn.learner.tf_agents_learner import Learner


def _learner(directory, agent, dataset_fn, **arguments):
    return Learner(str(directory), agent.train_step_counter, agent, dataset_fn, **arguments)


@pytest.mark.parametrize('interval', [None, 0, -1])
def test_no_summaries(tmp_path, make_agent, make_dataset_fn, interval):
    """They are not written to the caller's writer either."""
    with tf.summary.create_file_writer(str(tmp_path / 'mine')).as_default(step=0):
        learner = _learner(tmp_path, recording_agent.make(), make_dataset_fn(), summary_interval=interval)
        learner.run(3)
        learner.loss()
    learner.close()
    assert event_files.tags(tmp_path / 'mine') == set()
    assert not list(tmp_path.glob('train/events*'))


@pytest.mark.slow
def test_summaries_at_the_multiples(tmp_path, make_dataset_fn):
    tf.random.set_seed(1)
    learner = _learner(
        tmp_path, recording_agent.make(), make_dataset_fn(), summary_interval=4, summary_root_dir=tmp_path / 'summaries'
    )
    for iterations in (3, 7, 2):
        learner.run(iterations)
    learner.close()
    directory = tmp_path / 'summaries' / 'train'
    assert set(_scalars_by_step(directory, 'train/loss')) == {4, 8, 12}
    assert len(_scalars_by_step(directory, 'Losses/td_loss')) == 3  # the agent's own


@pytest.mark.parametrize('calls', [(9,), (1, 5, 3)])
def test_summaries_are_at_the_step_of_the_variable(tmp_path, make_dataset_fn, calls):
    """The variable grows by 2 with each train step: 6, 10 and 16 are the first values that reach 5, 10 and 15."""
    agent = recording_agent.make(counts_twice=True)
    learner = _learner(tmp_path, agent, make_dataset_fn(), summary_interval=5)
    for iterations in calls:
        learner.run(iterations)
    learner.close()
    assert int(agent.train_step_counter) == 18
    assert list(_scalars_by_step(tmp_path / 'train', 'train/loss')) == [6, 10, 16]
    assert len(_scalars_by_step(tmp_path / 'train', 'Losses/td_loss')) == 3


def test_summarized_loss_is_the_mean_since_the_last_summary(tmp_path, make_agent, make_dataset_fn):
    single = _learner(tmp_path / 'a', make_agent(), make_dataset_fn(), summary_interval=None)
    losses = [single.run().loss.numpy() for _ in range(8)]
    learner = _learner(tmp_path, make_agent(), make_dataset_fn(), summary_interval=4)
    learner.run(8)
    learner.close()
    expected = {4: pytest.approx(np.mean(losses[:4]), rel=1e-4), 8: pytest.approx(np.mean(losses[4:]), rel=1e-4)}
    assert _scalars_by_step(tmp_path / 'train', 'train/loss') == expected


def _scalars_by_step(directory, tag):
    found = {}
    for path in directory.glob('events.*'):
        for record in tf.data.TFRecordDataset(str(path)):
            event = tf.compat.v1.Event.FromString(record.numpy())
            for value in event.summary.value:
                if value.tag == tag:
                    found[event.step] = float(tf.make_ndarray(value.tensor))
    return found
