"""Training on episodes in files: the same sequences as from the environment, and everything that a run leaves."""

import functools
import threading

import numpy as np
import pytest
import tensorflow as tf

from tests import fakes
from tests.data import data_sets
from tests.testing import written_summaries
from tflearn.agents import dqn
from tflearn.data.reader import Dataset, EpisodeReader
from tflearn.experience import BatchItems, Experience, Queue, Slicing, Uniform
from tflearn.jobs import train_offline as job
from tflearn.jobs.policy_exports import ExportOptions
from tflearn.jobs.train_settings import Initial, Intervals
from tflearn.learner.learner import LearnerOptions
from tflearn.learner.stop_conditions import StopConditions
from tflearn.learner.summaries import SummaryOptions
from tflearn.policies import loader
from tflearn.replay.storage import Storage
from tflearn.run_dir import RunDir, read_json
from tflearn.sampling import recorded
from tflearn.sampling.local import LocalReplay

make_agent = functools.partial(dqn.make_agent, fc_layer_params=(8,), epsilon=0.0)


def sequences(replay):
    """All different sequences that are drawn in many draws, as bytes."""
    replay.grant(1)
    drawn = tf.function(lambda: replay.batch(replay.draw(tf.constant(1), tf.constant(0, tf.int64)), tf.constant(0)))()[
        0
    ]
    leaves = [leaf.numpy() for leaf in tf.nest.flatten(drawn)]
    return {b''.join(leaf[i].tobytes() for leaf in leaves) for i in range(len(leaves[0]))}


@pytest.mark.parametrize(
    'slicing',
    [Slicing(), Slicing(sequence_length=3), Slicing(sequence_length=4, stride=3, pad_episodes=True)],
    ids=lambda slicing: f'{slicing.sequence_length}-{slicing.stride}',
)
def test_files_give_the_sequences_of_the_environment(tmp_path, slicing):
    lengths = (3, 5, 2, 9)
    rows = data_sets.write(tmp_path, 60, fakes.CheckedEnvironment(lengths, truncated=(False, True, False, True)))
    batch = BatchItems(4096)  # so that one draw has all of them
    experience = Experience(slicing=slicing, replay=Uniform(min_size=1), batch=batch)
    reader = EpisodeReader(Dataset([str(tmp_path)]), data_sets.SPEC)
    loaded = recorded.load(experience, data_sets.SPEC, reader, seed=0)
    replay = LocalReplay(Storage(experience, data_sets.SPEC), len(lengths), 4096)
    last = max(t for t, row in enumerate(rows) if (row.step_type == 2).all())  # all episodes are complete
    for row in rows[: last + 1]:
        replay(row, 0)
    complete = {leaves[1].tobytes() for leaves in data_sets.split(rows[: last + 1])}
    assert len(complete) == len(data_sets.split(rows[: last + 1]))
    assert sequences(loaded) >= sequences(replay)
    assert len(sequences(replay)) > 20


def train(root, data, num_steps=60, **settings):
    run_dir = RunDir(root)
    job.train_offline(
        **{
            'run_dir': run_dir,
            'stop': threading.Event(),
            'dataset': Dataset([str(data)]),
            'make_agent': make_agent,
            'experience': Experience(batch=BatchItems(8)),
            'stop_conditions': StopConditions(num_train_steps=num_steps),
            'intervals': Intervals(export_interval_steps=20),
            'initial': Initial(seed=3),
            'exports': ExportOptions(('greedy_policy',)),
            'learner_options': LearnerOptions(checkpoint_interval_steps=20, summaries=SummaryOptions(20)),
            **settings,
        }
    )
    return run_dir


def test_a_run_trains_exports_and_continues(tmp_path):
    data_sets.write(tmp_path / 'data', 60)
    run_dir = train(tmp_path / 'run', tmp_path / 'data')
    assert read_json(run_dir.train_result)['train_step'] == 60
    metrics = written_summaries.scalars(run_dir.summaries('train'))
    assert sorted(metrics['train/loss']) == [20, 40, 60]
    policy = loader.load_newest(run_dir.policy('greedy_policy'))
    policy.check(fakes.CheckedEnvironment().specs)
    assert policy.train_step == 60
    train(tmp_path / 'run', tmp_path / 'data', num_steps=80)
    assert read_json(run_dir.train_result)['train_step'] == 80


def test_the_same_seed_gives_the_same_weights(tmp_path):
    data_sets.write(tmp_path / 'data', 60)
    actions = []
    for name in ('a', 'b'):
        run_dir = train(tmp_path / name, tmp_path / 'data')
        reader = tf.train.load_checkpoint(str(run_dir.checkpoints))
        names = [name for name in reader.get_variable_to_shape_map() if name.startswith('agent')]
        actions.append({name: reader.get_tensor(name) for name in names})
    tf.nest.map_structure(np.testing.assert_array_equal, *actions)


def test_mistakes_are_refused(tmp_path):
    data_sets.write(tmp_path / 'data', 8)
    with pytest.raises(ValueError, match='which draws uniformly'):
        train(tmp_path / 'run', tmp_path / 'data', experience=Experience(replay=Queue()))
    with pytest.raises(ValueError, match=r'got 11 steps, which take .* need at most Uniform.max_mirror_gb=1e-09'):
        train(tmp_path / 'run', tmp_path / 'data', experience=Experience(replay=Uniform(max_mirror_gb=1e-9)))
    data_sets.write(tmp_path / 'short', 8, fakes.CheckedEnvironment(truncated=True))
    long = Experience(slicing=Slicing(sequence_length=20))
    with pytest.raises(ValueError, match='got no episode of 20 steps or more'):
        train(tmp_path / 'run', tmp_path / 'short', experience=long)
    with pytest.raises(ValueError, match=r'where no dataset\.json is'):
        train(tmp_path / 'run', tmp_path / 'no')
