"""Warnings of a run that trains: from the metrics of each summary, and from what else the run has recorded."""

import logging
import threading

import pytest
import tensorflow as tf

from tests.testing import forged, jobs
from tflearn.agents import dqn
from tflearn.core.errors import UserValueError
from tflearn.core.experience import BatchItems, Experience, Uniform
from tflearn.extensions.experiments import checks, series
from tflearn.extensions.experiments.series import Watch
from tflearn.files.run_dir import RunDir
from tflearn.jobs.policy_exports import ExportOptions
from tflearn.jobs.synchronous import synchronous
from tflearn.learner.learner import LearnerOptions
from tflearn.learner.summaries import Summaries, SummaryOptions
from tflearn.networks.networks import NetworkOptions
from tflearn.optimization.optimizers import OptimizerOptions


def write(run_dir, job, values, name):
    """Writes an event file with values of one metric by step."""
    writer = tf.summary.create_file_writer(str(run_dir.summaries(job)), filename_suffix=name)
    with writer.as_default():
        for step, value in values.items():
            tf.summary.scalar(f'{job}/loss', value, step)
        tf.summary.text('run/seed', '7', 0)
        tf.summary.histogram('actions', [1.0, 2.0], 0)
    writer.close()


def test_steps_that_were_taken_again_count_once(tmp_path):
    run_dir = RunDir(tmp_path)
    write(run_dir, 'train', {100: 1.0, 200: 2.0, 300: 3.0, 400: float('nan')}, '.first')
    write(run_dir, 'train', {200: 20.0, 250: 25.0}, '.second')
    write(run_dir, 'evaluate', {100: 7.0}, '.one')
    found = series.read(run_dir)
    assert sorted(found) == ['evaluate/loss', 'train/loss']
    assert found['train/loss'].steps.tolist() == [100, 200, 250], '300 is of the course before the restart'
    assert found['train/loss'].values.tolist() == [1.0, 20.0, 25.0]


def test_the_end_of_a_file_that_is_being_written_is_left_out(tmp_path):
    run_dir = RunDir(tmp_path)
    write(run_dir, 'train', {100: 1.0, 200: 2.0}, '.one')
    (file,) = run_dir.summaries('train').iterdir()
    file.write_bytes(file.read_bytes() + b'torn record')
    assert series.read(run_dir)['train/loss'].values.tolist() == [1.0, 2.0]


@pytest.mark.parametrize('length', [1 << 40, 2**63 - 1, 2**64 - 16])
def test_a_forged_length_ends_a_file_as_a_torn_record_does(tmp_path, length):
    """TensorFlow would make room for it: a segmentation fault."""
    run_dir = RunDir(tmp_path)
    offsets = {}
    write(run_dir, 'train', {100: 1.0, 200: 2.0}, '.one')
    (file,) = run_dir.summaries('train').iterdir()
    file.write_bytes(file.read_bytes() + forged.header(length) + b'content')
    assert series.read(run_dir)['train/loss'].values.tolist() == [1.0, 2.0]
    for expected in ([1.0, 2.0], []):
        new = series.new_scalars(run_dir, [file], offsets)
        assert [value for tag, _, value, _ in new if tag == 'train/loss'] == expected


@pytest.mark.parametrize('kind', ['folder', 'loop', 'other records'])
def test_a_file_that_cannot_be_read_is_named(tmp_path, kind):
    run_dir = RunDir(tmp_path)
    write(run_dir, 'train', {100: 1.0}, '.one')
    (file,) = run_dir.summaries('train').iterdir()
    file.unlink()
    if kind == 'folder':
        file.mkdir()
    elif kind == 'loop':
        file.symlink_to(file.name)
    else:
        with tf.io.TFRecordWriter(str(file)) as writer:
            writer.write(b'no event')
    with pytest.raises(UserValueError, match=f'got {file}, which cannot be read .*; need an event file; remove it'):
        series.read(run_dir)


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(UserValueError, match='which is no directory'):
        series.read(RunDir(tmp_path / 'missing'))
    with pytest.raises(UserValueError, match='without event files'):
        series.read(RunDir(tmp_path))


@pytest.fixture
def warned(caplog):
    """Returns a function that returns the warnings since its last call, by the name of the check."""

    def take():
        found = [record.getMessage() for record in caplog.records if 'docs/watching.md' in record.getMessage()]
        caplog.clear()
        return {text.split(': ')[1]: text for text in found}

    with caplog.at_level(logging.WARNING):
        yield take


def test_a_warning_comes_once_until_it_looks_right_again(tmp_path, warned):
    watch = Watch(RunDir(tmp_path))
    for step in range(1, 20):
        watch(100 * step, {'extra/clipped_share': 0.1 if step < 10 else 0.9, 'loss': None})
    (text,) = warned().values()
    assert text.startswith('train step 1000: clipped-share: train/extra/clipped_share is ')
    assert text.endswith('see docs/watching.md#clipped-share')
    for step in range(20, 60):
        watch(100 * step, {'extra/clipped_share': 0.1 if step < 40 else 0.9})
    assert len(warned()) == 1


def test_a_long_run_keeps_few_points(tmp_path):
    watch = Watch(RunDir(tmp_path))
    for step in range(3000):
        watch(step, {'loss': 1.0})
    assert len(watch._steps['train/loss']) <= 512
    assert watch._steps['train/loss'][-1] == 2999


def test_a_run_warns_of_its_collectors(tmp_path, warned):
    run_dir = RunDir(tmp_path)

    def collected(first):
        summaries = Summaries(run_dir.summaries('collect'))
        for i in range(first, first + 6):
            means = {'mean_return': 9.0, 'mean_discounted_return': 8.0}
            values = {'env_steps': 100 * i, 'episodes': 10.0 * i, 'dropped_episodes': i, **means}
            summaries.write_values(100 * i, values, 'collect')
        return summaries

    collected(1).close()
    watch = Watch(run_dir)
    for step in range(1, 7):
        watch(step, {'extra/mean_value': 30.0})
    assert not warned(), 'what an earlier session has recorded does not count'
    collected(7).close()
    watch(7, {})
    found = warned()
    assert set(found) == {'values-grow', 'lost-data'}
    assert (
        'the mean of |train/extra/mean_value| is 30; the greatest mean discounted return was 8' in found['values-grow']
    )
    assert '12 dropped episodes in 120 episodes' in found['lost-data']


def test_a_file_that_cannot_be_read_does_not_end_training(tmp_path, warned, caplog):
    run_dir = RunDir(tmp_path)
    watch = Watch(run_dir)
    (run_dir.summaries('collect') / 'events.out.tfevents.1').mkdir(parents=True)
    for step in range(12):
        watch(step, {'extra/clipped_share': 0.9})
    assert 'no more warnings by metrics of gradients and collectors: ' in caplog.text
    assert set(warned()) == {'clipped-share'}


def test_a_run_warns_of_its_gradients(tmp_path, warned):
    """Clipped to a thousandth of their norm, and zero in the hidden layer, whose units are dead."""

    def make_agent(*arguments):
        agent = dqn.make_agent(
            *arguments, network=NetworkOptions(fc_layer_params=(8,)), optimizer=OptimizerOptions(gradient_clipping=1e-4)
        )
        hidden_bias = next(variable for variable in agent.collect_policy.variables() if variable.shape == (8,))
        hidden_bias.assign(-1e3 + hidden_bias)
        return agent

    summaries = SummaryOptions(interval_steps=2, actions=False, flush_secs=1e-6)
    run = jobs.SmallRun(tmp_path)
    experience = Experience(replay=Uniform(min_size=4, samples_per_insert=8.0, max_size=100), batch=BatchItems(8))
    given = {
        **run.factories(),
        'make_agent': make_agent,
        'experience': experience,
        'exports': ExportOptions(('greedy_policy',)),
        'learner_options': LearnerOptions(None, summaries),
        'num_environments': 1,
        'num_train_steps': 18,
    }
    synchronous(**jobs.job_arguments(synchronous, {'run_dir': run.dir, 'stop': threading.Event(), **given}))
    found = warned()
    assert set(found) == {'gradients-clipped', 'dead-layers', 'dead-units'}
    assert '1 of the units of gradients/' in found['dead-units']
    assert found.keys() < checks.CHECKS.keys()
