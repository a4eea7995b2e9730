"""Training on episodes in files: the same sequences as from the environment, and everything that a run leaves."""

import contextlib
import functools
import logging
import re
import zlib

import numpy as np
import pytest
import tensorflow as tf

from tests import fakes
from tests.data import data_sets
from tests.testing import lanes, written_summaries
from tflearn.agents import dqn, linear_bandit
from tflearn.core.experience import BatchItems, Experience, Queue, Slicing, Uniform
from tflearn.data import columns
from tflearn.data.reader import Dataset
from tflearn.files.run_dir import RunDir, read_json, write_json
from tflearn.jobs import train_offline as job
from tflearn.jobs.policy_exports import ExportOptions
from tflearn.jobs.run import Run
from tflearn.jobs.train_settings import Device, Initial, Intervals
from tflearn.learner.learner import LearnerOptions
from tflearn.learner.stop_conditions import DataStopConditions, StopConditions
from tflearn.learner.summaries import SummaryOptions
from tflearn.learner.train_loop import LoopOptions
from tflearn.networks.networks import NetworkOptions
from tflearn.optimization.optimizers import OptimizerOptions
from tflearn.policies import external
from tflearn.replay.storage import Storage
from tflearn.sampling import episode_files
from tflearn.sampling.episode_files import Reading, Validation
from tflearn.sampling.ring_source import LocalReplay

make_agent = functools.partial(dqn.make_agent, network=NetworkOptions(fc_layer_params=(8,)), epsilon=0.0)


def sequences(replay):
    """All different sequences that are drawn in many draws, as bytes."""
    replay.grant(1)
    draw = lambda: replay.batch(replay.draw(tf.constant(1), tf.constant(0, tf.int64)), tf.constant(0))[0]  # noqa: E731
    drawn = tf.function(draw, autograph=False)()
    leaves = [leaf.numpy() for leaf in tf.nest.flatten(drawn)]
    return {b''.join(leaf[i].tobytes() for leaf in leaves) for i in range(len(leaves[0]))}


@pytest.mark.parametrize('storage', ['memory', 'stream'])
@pytest.mark.parametrize(
    'slicing',
    [
        Slicing(),
        pytest.param(Slicing(sequence_length=3), marks=pytest.mark.slow),
        Slicing(sequence_length=4, stride=3, pad_episodes=True),
    ],
    ids=lambda slicing: f'{slicing.sequence_length}-{slicing.stride}',
)
def test_files_give_the_sequences_of_the_environment(tmp_path, slicing, storage):
    lengths = (3, 5, 2, 9)
    rows = data_sets.write(tmp_path, 60, fakes.CheckedEnvironment(lengths, truncated=(False, True, False, True)))
    batch = BatchItems(4096)  # so that one draw has all of them
    experience = Experience(slicing=slicing, replay=Uniform(min_size=1), batch=batch)
    source = episode_files.from_files(
        Dataset([str(tmp_path)]), experience, data_sets.SPEC, tf.distribute.get_strategy(), 0, Reading(storage)
    )
    replay = LocalReplay(Storage(experience, data_sets.SPEC), len(lengths), 4096)
    last = max(t for t, row in enumerate(rows) if (row.step_type == 2).all())  # all episodes are complete
    for row in rows[: last + 1]:
        replay(row, 0)
    complete = {leaves[1].tobytes() for leaves in data_sets.split(rows[: last + 1])}
    assert len(complete) == len(data_sets.split(rows[: last + 1]))
    assert sequences(source) >= sequences(replay)
    assert len(sequences(replay)) > 20
    source.close()


def train(root, data, num_steps=60, **settings):
    run_dir = RunDir(root)
    job.train_offline(
        **{
            'run': Run(run_dir),
            'dataset': Dataset([str(data)]),
            'make_agent': make_agent,
            'experience': Experience(batch=BatchItems(8)),
            'stop_conditions': StopConditions(num_train_steps=num_steps),
            'intervals': Intervals(export_interval_steps=20),
            'initial': Initial(seed=3),
            'exports': ExportOptions(('greedy_policy',)),
            'learner_options': LearnerOptions(checkpoint_interval_steps=20, summaries=SummaryOptions(None)),
            **settings,
        }
    )
    return run_dir


WORDS = {'action': ['cup', 'pot'], 'observation.country': ['de', 'fr']}


class Interrupted(Exception):
    """Ends a run in the middle, with no more than what it has saved."""


def batches_of(root, data, interrupt_at=None, summary_interval_steps=None, **settings):
    """Trains on two logs. Returns the train step that it began with, and what identifies each batch from there on."""
    hashes = []

    def after_step(batch, loss_info):
        leaves = tf.nest.flatten(batch[0])
        add = lambda *columns: hashes.append(zlib.crc32(b''.join(column.tobytes() for column in columns)))  # noqa: E731
        tf.numpy_function(add, leaves, [])

    def interrupting(before, after):
        if interrupt_at is not None and after >= interrupt_at:
            raise Interrupted

    restored = checkpoints_of(root)
    options = LearnerOptions(
        20,
        SummaryOptions(summary_interval_steps),
        loop=LoopOptions(after_step=after_step),
        make_triggers=lambda _: [interrupting],
    )
    dataset = Dataset([str(data / 'log_0'), str(data / 'log_1')], weights=(3, 1))
    with contextlib.suppress(Interrupted):
        train(root, data, learner_options=options, dataset=dataset, **settings)
    return restored, hashes


def checkpoints_of(root):
    """The newest train step that a run would be restored from; 0 if there is none."""
    steps = [int(path.name.removeprefix('ckpt-').removesuffix('.index')) for path in root.rglob('ckpt-*.index')]
    return max(steps, default=0)


def write_logs(folder):
    """Writes two data sets with vocabularies, 'log_0' and 'log_1'."""
    for i in range(2):
        data_sets.write(folder / f'log_{i}', 60, seed=i)
        write_json(folder / f'log_{i}' / 'vocabularies.json', WORDS)
        columns.write_metadata(folder / f'log_{i}', {'missing': {'observation.age': -1.0}})
    return folder


STREAM = Reading('stream', window_steps=20)


@pytest.fixture(scope='module')
def batches(tmp_path_factory):
    """The folder of an undisturbed run on two logs, which has ended, and its batches."""
    folder = write_logs(tmp_path_factory.mktemp('trained'))
    return folder, batches_of(folder / 'run', folder, summary_interval_steps=20, reading=STREAM)[1]


@pytest.fixture
def trained(batches):
    return RunDir(batches[0] / 'run')


def test_a_run_trains_and_exports(trained):
    assert read_json(trained.train_result)['train_step'] == 60
    metrics = written_summaries.scalars(trained.summaries('train'))
    assert sorted(metrics['train/loss']) == [20, 40, 60]
    policy = external.load(trained.policy('greedy_policy'))
    policy.check(fakes.CheckedEnvironment().specs)
    assert policy.train_step == 60


def test_what_the_data_say_goes_with_the_policy_and_with_what_begins_with_it(trained, tmp_path):
    assert external.load(trained.policy('greedy_policy')).metadata['vocabularies'] == WORDS
    data_sets.write(tmp_path / 'decisions', 70)
    write_json(tmp_path / 'decisions' / 'vocabularies.json', {'action': ['pot', 'cup']})
    initial = Initial(seed=3, policy=str(trained.policy('greedy_policy') / '20'))
    second = functools.partial(train, tmp_path / 'second', tmp_path / 'decisions', num_steps=20, initial=initial)
    with pytest.raises(ValueError, match="number 0 of the vocabulary of action is 'pot' in the first and 'cup' in the"):
        second()
    write_json(tmp_path / 'decisions' / 'vocabularies.json', {'action': WORDS['action']})
    found = external.load(second().policy('greedy_policy')).metadata
    assert found['vocabularies'] == WORDS
    assert found['missing'] == {'observation.age': -1.0}
    first = external.load(trained.policy('greedy_policy')).metadata['trained_on']
    paths = [str(tmp_path / 'decisions'), *(each['path'] for each in first)]
    assert [each['path'] for each in found['trained_on']] == paths


@lanes.classic
def test_a_resumed_run_has_the_batches_of_an_undisturbed_one(batches, tmp_path, monkeypatch, capsys):
    compare_resumed(*batches, tmp_path, STREAM, lambda: monkeypatch.setattr(logging.getLogger(), 'handlers', []))
    printed = capsys.readouterr().err
    assert re.search(r'got no seed; drew \d+ for what the checkpoint does not hold; other draws go on from it', printed)
    assert 'finished: num_train_steps 60 reached, at train step 60' in printed


@pytest.mark.slow
def test_a_resumed_run_from_memory_has_the_batches_of_an_undisturbed_one(tmp_path):
    data = write_logs(tmp_path)
    compare_resumed(data, batches_of(tmp_path / 'run', data, reading=Reading())[1], tmp_path, Reading())


def compare_resumed(data, undisturbed, folder, reading, before_the_end=lambda: None):
    assert len(undisturbed) == 60 and len(set(undisturbed)) > 50
    given = {'reading': reading, 'intervals': Intervals(export_interval_steps=1000)}
    begun, first = batches_of(folder / 'parts', data, 35, **given)
    assert begun == 0 and first == undisturbed[: len(first)] and 35 <= len(first) < 60
    before_the_end()
    # The checkpoint has the seed.
    begun, rest = batches_of(folder / 'parts', data, **given, initial=Initial())
    assert 0 < begun < 60
    assert rest == undisturbed[begun:]
    assert read_json(RunDir(folder / 'parts').train_result)['train_step'] == 60


@lanes.classic
def test_it_validates_on_episodes_of_their_own_and_stops_when_they_get_no_better(tmp_path):
    data_sets.write(tmp_path / 'data', 200)
    settings = {
        'num_steps': 40_000,  # more than it takes with any data
        'reading': Reading(order='epochs', validation=Validation(0.3, 20)),
        'intervals': Intervals(export_interval_steps=10_000),
        'learner_options': LearnerOptions(checkpoint_interval_steps=10_000, summaries=SummaryOptions(10_000)),
        'make_agent': functools.partial(make_agent, optimizer=OptimizerOptions(1e-2)),  # so that it takes fewer
    }
    run_dir = train(
        tmp_path / 'run', tmp_path / 'data', data_stop_conditions=DataStopConditions(patience=2), **settings
    )
    result = read_json(run_dir.train_result)
    assert result['reason'].startswith('patience 2 reached: the least validation loss is that of train step')
    losses = written_summaries.scalars(run_dir.summaries('train'))['validation/loss']
    best = min(losses, key=losses.get)
    assert result['reason'].endswith(f' {best}')
    assert [step for step in losses if step > best] == sorted(losses)[-2:]
    assert result['train_step'] == max(losses)


@pytest.mark.slow
def test_two_replicas_equal_one_with_twice_the_batch(tmp_path):
    data_sets.write(tmp_path / 'data', 200)
    settings = {
        'num_steps': 40,
        'reading': Reading(order='epochs', validation=Validation(0.3, 20)),
        'intervals': Intervals(replica_check_interval_steps=20),
        'learner_options': LearnerOptions(20, SummaryOptions(1_000)),
    }
    found = []
    for name, size in (('default', 16), ('mirrored:2', 8)):
        root = tmp_path / name.replace(':', '_')
        of_size = Experience(batch=BatchItems(size))
        run_dir = train(root, tmp_path / 'data', device=Device(name), experience=of_size, **settings)
        reader = tf.train.load_checkpoint(str(run_dir.checkpoints))
        names = [name for name in reader.get_variable_to_shape_map() if name.startswith('agent/_q_network')]
        losses = written_summaries.scalars(run_dir.summaries('train'))['validation/loss']
        found.append({name: reader.get_tensor(name) for name in names} | {str(step): losses[step] for step in (20, 40)})
    assert len(found[0]) == 4 + 2
    for name, value in found[0].items():
        np.testing.assert_allclose(found[1][name], value, rtol=1e-3, atol=1e-5, err_msg=name)


@lanes.classic
def test_it_stops_after_epochs(tmp_path):
    data_sets.write(tmp_path / 'data', 60)
    conditions = DataStopConditions(max_epochs=3)
    steps = []
    for max_mirror_gb in (1.0, 1e-6):  # in memory, and as a stream since the data do not fit
        run_dir = train(
            tmp_path / str(max_mirror_gb),
            tmp_path / 'data',
            1000,
            experience=Experience(Slicing(), Uniform(max_mirror_gb=max_mirror_gb), BatchItems(8)),
            reading=Reading(order='epochs', window_steps=30),
            data_stop_conditions=conditions,
        )
        result = read_json(run_dir.train_result)
        assert result['reason'] == 'max_epochs 3 reached'
        steps.append(result['train_step'])
    assert steps[0] == steps[1]
    sequences = sum(len(leaves[0]) - 1 for leaves in data_sets.split(data_sets.write(tmp_path / 'again', 60)))
    assert steps[0] == -(-3 * sequences // 8)


def test_mistakes_are_refused(tmp_path):
    data_sets.write(tmp_path / 'data', 8)
    with pytest.raises(ValueError, match='for episodes in files; need Uniform'):
        train(tmp_path / 'run', tmp_path / 'data', experience=Experience(replay=Queue()))
    small = Experience(replay=Uniform(max_mirror_gb=1e-9))
    with pytest.raises(ValueError, match=r'for data that take .* need at most Uniform.max_mirror_gb=1e-09'):
        train(tmp_path / 'run', tmp_path / 'data', experience=small, reading=Reading('memory'))
    with pytest.raises(ValueError, match='got Dataset.max_episodes=3 for a stream'):
        train(
            tmp_path / 'run',
            tmp_path / 'data',
            experience=small,
            dataset=Dataset([str(tmp_path / 'data')], max_episodes=3),
        )
    with pytest.raises(ValueError, match='got DataStopConditions.patience=2 without validation'):
        train(tmp_path / 'run', tmp_path / 'data', data_stop_conditions=DataStopConditions(patience=2))
    with pytest.raises(ValueError, match=r'got Validation.share=1e-09, by which 0 of 3 episodes are for validation'):
        train(tmp_path / 'run', tmp_path / 'data', reading=Reading(validation=Validation(1e-9)))
    with pytest.raises(ValueError, match=r"got Dataset.weights=\(1.0,\) for Dataset.paths=\['a', 'b'\]; need"):
        Dataset(['a', 'b'], weights=(1.0,))
    data_sets.write(tmp_path / 'short', 8, fakes.CheckedEnvironment(truncated=True))
    long = Experience(slicing=Slicing(sequence_length=20))
    with pytest.raises(ValueError, match='got no episode of 20 steps or more'):
        train(tmp_path / 'run', tmp_path / 'short', experience=long)
    match = r"got Reading.order='uniform' and DataStopConditions.max_epochs=None for an agent that counts a step each"
    with pytest.raises(ValueError, match=match):
        train(tmp_path / 'run', tmp_path / 'data', make_agent=linear_bandit.make_agent)
    with pytest.raises(ValueError, match=r'where no dataset\.json is'):
        train(tmp_path / 'run', tmp_path / 'no')
