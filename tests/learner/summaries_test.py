import dataclasses
import resource
import shutil

import pytest
import tensorflow as tf

from tests.agents import example_data
from tests.testing import written_summaries
from tests.testing.algorithms import ALGORITHMS, names
from tflearn.agents import dqn
from tflearn.core import summary_tensors
from tflearn.core.train_step import create_train_step
from tflearn.learner.summaries import Profile, StepSummaries, Summaries, SummaryOptions, SummarySources


def _steps(options, last, start=0):
    """The train steps up to `last` that are summarized by their numbers."""
    steps = []
    while (step := options.next_step(steps[-1] if steps else start)) is not None and step <= last:
        steps.append(step)
    return steps


def test_each_multiple_of_the_interval_is_summarized():
    assert _steps(SummaryOptions(4), 12) == [4, 8, 12]
    assert _steps(SummaryOptions(4), 12, start=5) == [8, 12]
    assert _steps(SummaryOptions(4, first_interval=True), 12) == [1, 2, 3, 4, 8, 12]
    assert _steps(SummaryOptions(None), 12) == []


def test_seconds_make_the_next_step_due(tmp_path):
    now = [100.0]
    summaries = Summaries(tmp_path, SummaryOptions(1000, interval_secs=5.0), clock=lambda: now[0])
    assert summaries.next_step(3) == 1000
    now[0] += 5.0
    assert summaries.next_step(3) == 4
    summaries.write(4, {'loss': 1.0})
    assert summaries.next_step(4) == 1000
    now[0] += 4.9
    assert summaries.next_step(4) == 1000
    now[0] += 0.1
    assert summaries.next_step(9) == 10


def test_writes_scalars_and_texts(tmp_path):
    metrics = {'replay_size': 7, 'mean_return': None}
    summaries = Summaries(tmp_path, SummaryOptions(sources=SummarySources(metrics=lambda: metrics)))
    assert not list(tmp_path.iterdir()), 'no file before there is something to write'
    summaries.write(3, {'loss': 0.5, 'rss_mb': None})
    summaries.write_values(4, {'mine': 2.0})
    summaries.write_text(4, 'config', '# A title')
    summaries.close()
    expected = {'train/loss': {3: 0.5}, 'train/replay_size': {3: 7.0}, 'train/mine': {4: 2.0}}
    assert written_summaries.scalars(tmp_path) == expected
    assert written_summaries.texts(tmp_path) == {'config': '# A title'}


def test_queue_is_bounded(tmp_path):
    summaries = Summaries(tmp_path, SummaryOptions(max_queue=2, flush_secs=3600.0))
    for step in range(1, 8):
        summaries.write_values(step, {'mine': 1.0})
    # The newest may wait in the queue; without the bound all would.
    assert len(written_summaries.scalars(tmp_path)['train/mine']) >= 5
    summaries.close()
    assert len(written_summaries.scalars(tmp_path)['train/mine']) == 7


def test_recording_ends_with_its_block(tmp_path):
    train_step = tf.Variable(5, dtype=tf.int64)
    summaries = Summaries(tmp_path)
    with summaries.recording(train_step):
        tf.summary.scalar('within', 1.0)
    tf.summary.scalar('outside', 1.0)
    summaries.close()
    assert written_summaries.scalars(tmp_path) == {'within': {5: 1.0}}


@pytest.mark.parametrize(
    ('settings', 'message'),
    [
        ({'interval_steps': None, 'first_interval': True}, 'got first_interval=True without an interval'),
        ({'profile_steps': (5, 4)}, r'got profile_steps=\(5, 4\); need \(first, last\)'),
    ],
)
def test_rejects_invalid_options(settings, message):
    with pytest.raises(ValueError, match=message):
        SummaryOptions(**settings)


def test_a_file_that_cannot_grow_ends_no_train_step(tmp_path, caplog):
    summaries, step = Summaries(tmp_path), create_train_step()
    with summaries.recording(step):
        tf.summary.scalar('before', 1.0)
    (file,) = tmp_path.iterdir()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with summaries.recording(step):
            tf.summary.scalar('lost', 1.0)
            resource.setrlimit(resource.RLIMIT_FSIZE, (file.stat().st_size, limits[1]))
    finally:  # of the whole process
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert f'could not write summaries to {tmp_path}' in caplog.text
    with summaries.recording(step):
        tf.summary.scalar('after', 1.0)
    assert {'before', 'after'} <= written_summaries.scalars(tmp_path).keys()


def test_nothing_is_written_while_the_disk_is_full(tmp_path, monkeypatch, caplog):
    summaries = Summaries(tmp_path, SummaryOptions(10))
    summaries.write(10, {'loss': 1.0})
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, 'disk_usage', lambda path: usage._replace(free=0))
    assert not summaries.can_record()
    summaries.write(20, {'loss': 2.0})
    summaries.write_text(20, 'config', 'text')
    monkeypatch.undo()
    assert summaries.can_record()
    summaries.write(30, {'loss': 3.0})
    summaries.close()
    assert written_summaries.scalars(tmp_path)['train/loss'] == {10: 1.0, 30: 3.0}
    assert caplog.text.count('bytes free on its disk; need them; make room') == 1


# The summaries of a train step for every agent; train_loop_test.py tests them through the Learner.

NAMES = names('dqn', 'sac', 'td3', 'ppo')


def _write(directory, agent, data, info, options):
    with tf.distribute.get_strategy().scope():
        step_summaries = StepSummaries(agent, options)
    step_summaries.prepare()
    _, histograms = _summarized(directory, step_summaries, data, info)
    return {tag: found for tag, found in histograms.items() if not tag.startswith('layers/')}


def _summarized(directory, step, *args):
    """Calls a compiled step that is summarized; returns the scalars and histograms that are in the event file."""

    def collected():
        with summary_tensors.collecting() as found:
            step(*args)
        return found

    summaries = Summaries(directory)
    found = tf.function(collected, autograph=False)()
    summaries.write_tags(0, {tag: each.numpy() for tag, each in found.items()})
    summaries.close()
    return (
        {tag: values[0] for tag, values in written_summaries.scalars(directory).items()},
        written_summaries.histograms(directory),
    )


@pytest.mark.parametrize('name', NAMES)
def test_writes_histograms_of_actions(tmp_path, name):
    algorithm = ALGORITHMS[name]
    agent, action = algorithm.make(), algorithm.specs.action
    data = example_data.sequences(agent, 6, algorithm.length)
    found = _write(tmp_path, agent, data, {}, SummaryOptions())
    size = action.shape.num_elements() or 1
    counts = {'actions/batch': 6 * algorithm.length * size, 'actions/policy': 6 * size}
    rewards = found.pop('data/reward')[0]
    assert rewards == (data.reward.numpy().min(), data.reward.numpy().max(), 6 * algorithm.length)
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
    assert {tag: values[0][2] for tag, values in found.items()} == {
        'actions/batch': 6,
        'actions/policy': 6,
        'data/reward': 6,
    }


def test_writes_only_available_and_requested_histograms(tmp_path):
    agent = dqn.make_agent(example_data.DISCRETE, create_train_step(), dqn.EXPERIENCE)
    data = example_data.sequences(agent, 6, 2)
    info = {'policy_version': tf.constant([[3, 4], [5, 9]], tf.int64)}
    versions = SummaryOptions(sources=SummarySources(policy_version=lambda: 9))
    assert _write(tmp_path / 'no_trajectory', agent, tuple(data), (), versions) == {}
    plain = _write(tmp_path / 'no_actions', agent, data, info, dataclasses.replace(versions, actions=False))
    assert plain.pop('data/reward')
    assert plain == {'data/policy_lag': {0: (0.0, 6.0, 4.0)}}
    assert 'data/policy_lag' not in _write(tmp_path / 'no_versions', agent, data, info, SummaryOptions())


@pytest.mark.parametrize(
    ('name', 'own'),
    [
        ('sac', {'q_value', 'target', 'td_error', 'value', 'entropy'}),
        ('ppo', {'advantage', 'ratio', 'value', 'value_target', 'entropy', 'kl_to_behaviour'}),
        ('impala', {'advantage', 'ratio', 'value', 'value_target', 'entropy', 'mean_rho'}),
        ('iql', {'q_value', 'target', 'td_error', 'advantage'}),
    ],
)
def test_a_summarized_train_step_writes_what_the_losses_are_made_of(tmp_path, name, own):
    """Of rows that count: the first sequence begins with one between two episodes."""
    agent, length, extra = ALGORITHMS[name].make(), ALGORITHMS[name].length, {}
    data = example_data.sequences(agent, 6, length)
    following = data.next_step_type.numpy()
    following[0, 0] = 0
    data = data._replace(next_step_type=tf.constant(following))
    _, histograms = _summarized(tmp_path, lambda: extra.update(agent.train(data).extra))
    found = {tag: values[0] for tag, values in histograms.items()}
    rows = {tag.removeprefix('rows/'): values for tag, values in found.items() if tag.startswith('rows/')}
    assert own <= rows.keys() and not any('shown' in tag for tag in (*found, *extra))
    counts = {tag: (6 * (length - 1) - 1) * (2 if tag == 'q_value' else 1) for tag in rows}
    assert {tag: values[2] for tag, values in rows.items()} == counts


def test_writes_the_outputs_of_layers_that_a_train_step_has_computed(tmp_path):
    """A quarter of the units of the first layer of each network never get active."""
    agent = ALGORITHMS['sac'].make()
    data = example_data.sequences(agent, 6, ALGORITHMS['sac'].length)
    for variable in agent.trainable_variables:
        if 'bias' in variable.name and variable.shape[-1] == 8:
            variable.assign(
                tf.concat([tf.fill((*variable.shape[:-1], 2), -100.0), tf.ones((*variable.shape[:-1], 6))], -1)
            )
    summarize = StepSummaries(agent, SummaryOptions())

    def step(data):
        agent.train(data)
        summarize(data, {})

    scalars, histograms = _summarized(tmp_path, step, data)
    found = {tag for tag in histograms if tag.startswith('layers/')}
    assert {value for tag, value in scalars.items() if tag.endswith('/dead_units')} == {0.25}
    assert len(found) == 3 * 2, 'a hidden layer and the last one of the actor and of each critic'


def _traces(directory):
    return list(directory.glob('plugins/profile/*/*.xplane.pb'))


def test_boundaries_are_where_the_trace_begins_and_ends(tmp_path):
    profile = Profile(tmp_path, (11, 20))
    assert [profile.boundary(before) for before in (0, 9, 10, 19, 20, 100)] == [10, 10, 20, 20, None, None]
    assert Profile(tmp_path, (1, 1)).boundary(0) == 1


@pytest.mark.parametrize('start', [10, 15])
def test_writes_the_trace_once(tmp_path, start):
    profile = Profile(tmp_path, (11, 20))
    profile.at(0)
    profile.at(start)
    tf.add(1.0, 2.0)
    assert not _traces(tmp_path)
    for step in (20, 20, 30):
        profile.at(step)
    profile.stop()
    assert len(_traces(tmp_path)) == 1


def test_stop_writes_an_unfinished_trace(tmp_path):
    profile = Profile(tmp_path, (1, 100))
    profile.at(0)
    profile.stop()
    assert len(_traces(tmp_path)) == 1


@pytest.mark.parametrize(('steps', 'start'), [(None, 0), ((1, 5), 5)])
def test_traces_nothing_outside_the_steps(tmp_path, steps, start):
    profile = Profile(tmp_path, steps)
    for step in (start, start + 10):
        profile.at(step)
    profile.stop()
    assert not list(tmp_path.iterdir())


def test_training_continues_while_another_trace_runs(tmp_path):
    tf.profiler.experimental.start(str(tmp_path / 'other'))
    try:
        profile = Profile(tmp_path / 'mine', (1, 5))
        profile.at(0)
        profile.at(5)
        profile.stop()
    finally:
        tf.profiler.experimental.stop(save=False)
    assert not (tmp_path / 'mine').exists()
