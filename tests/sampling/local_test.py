import collections
import dataclasses
import math
import pickle

import numpy as np
import pytest
import tensorflow as tf

from tests import fakes
from tests.testing.replay import BATCH, DATA_SPEC, draw, experience, write_steps
from tflearn.core.experience import Experience, Prioritization, Prioritized, Queue, Uniform
from tflearn.replay.storage import Storage
from tflearn.sampling.ring_source import LocalReplay, check_local


def _replay(num_environments=2, seed=0, **changes):
    return LocalReplay(Storage(experience('auto', **changes), DATA_SPEC), num_environments, BATCH, seed)


def _fill(replay, num_steps, lengths=(3, 5)):
    """Writes batched steps; returns the train steps owed after each."""
    environment, owed = fakes.CheckedEnvironment(lengths), []

    def write(trajectory, policy_version):
        replay(trajectory, policy_version)
        owed.append(replay.owed_steps)

    write.flush = lambda: None
    write_steps(write, environment, num_steps)
    return owed


def test_batches_hold_the_written_steps():
    replay = _replay(sequence_length=3, chunk_steps=16)
    _fill(replay, 60)
    trajectory, info = draw(replay, 3, compiled=True)
    assert trajectory.observation.shape == (3, BATCH, 3, 2)
    assert (info['policy_version'].numpy() == 7).all()
    episodes, steps = trajectory.observation[..., 0].numpy(), trajectory.observation[..., 1].numpy()
    assert (np.diff(steps) >= 0).all()
    assert (episodes == episodes[..., :1]).all(), 'a sequence crosses the end of an episode'


@pytest.mark.parametrize('ratio', [0.1, 0.29, 1.0, 7.0])
def test_ratio_is_exact_after_every_step(ratio):
    replay = _replay(samples_per_insert=ratio, min_size=20)
    granted = 0
    for owed in _fill(replay, 500):
        granted = max(granted, owed)
        inserts = replay._inserts
    assert granted == replay.owed_steps == math.floor(round((inserts - 20) * ratio / BATCH, 9))
    assert replay.grant(10**6) == granted
    assert replay.owed_steps == replay.grant(1) == 0
    assert replay.metrics()['samples_per_insert'] == granted * BATCH / (inserts - 20)


def test_train_steps_are_owed_one_by_one():
    owed = _fill(_replay(samples_per_insert=1.0, min_size=20), 500)
    assert owed[0] == 0
    assert owed[-1] > 10
    assert set(np.diff(owed)) == {0, 1}, 'two sequences at once are less than a batch: sequences do not wait for others'


def test_without_a_ratio_each_step_gives_a_train_step():
    owed = _fill(_replay(min_size=20), 100)
    assert 8 < owed.count(0) < 20, 'until there are 20 sequences of two environments'
    assert owed[-80:] == list(range(owed[-1] - 79, owed[-1] + 1))


def test_same_seed_gives_the_same_batches():
    def batches(seed):
        replay = _replay(seed=seed)
        _fill(replay, 100)
        return draw(replay, 5)[0].observation.numpy()

    assert (batches(3) == batches(3)).all()
    assert (batches(3) != batches(4)).any()


@pytest.mark.parametrize('kind', [Uniform, Prioritized])
def test_another_replay_goes_on_with_its_content(kind):
    chosen = dataclasses.replace(experience('auto', sequence_length=3), replay=kind(max_size=80, min_size=20))
    one, other = (LocalReplay(Storage(chosen, DATA_SPEC), 2, BATCH) for _ in range(2))
    _fill(one, 200)
    draw(one, 4)
    content = pickle.loads(pickle.dumps(one.content()))
    other.set_content(content)
    assert other.metrics() == one.metrics()
    for replay in (one, other):  # in the middle of an episode
        _fill(replay, 31)
    same = zip(tf.nest.flatten(draw(one, 5)), tf.nest.flatten(draw(other, 5)), strict=True)
    assert all((mine.numpy() == theirs.numpy()).all() for mine, theirs in same)
    assert other.owed_steps == one.owed_steps


def test_counts_equal_sequences_separately():
    """Environments with equal steps all the time."""
    replay = _replay(num_environments=4, max_size=500)
    spec = tf.nest.map_structure(lambda leaf: np.zeros((4, *leaf.shape), leaf.dtype.as_numpy_dtype), DATA_SPEC)
    one = np.ones(4, np.int32)
    replay(spec._replace(next_step_type=one, discount=np.ones(4, np.float32)), 0)
    for _ in range(150):
        replay(spec._replace(step_type=one, next_step_type=one, discount=np.ones(4, np.float32)), 0)
    assert replay._inserts > 500
    assert replay.metrics()['replay_size'] == 500


def test_drops_the_oldest_sequences():
    replay = _replay(max_size=30)
    _fill(replay, 200)
    trajectory, _ = draw(replay, 20)
    episodes = collections.Counter(trajectory.observation[:, :, 0, 0].numpy().flatten().tolist())
    assert min(episodes) > 20


@pytest.mark.parametrize('replay', [Queue(), Prioritized(max_times_sampled=1), Uniform(max_times_sampled=1)])
def test_rejects_unsupported_replay(replay):
    with pytest.raises(ValueError, match=r'need Uniform\('):
        check_local(Experience(replay=replay))


def test_items_are_drawn_by_their_errors():
    """The weights are (N P)^-beta; `tests/sampling/prioritized_mirror_test.py` has more of the same draws."""
    given = experience('auto', min_size=20)
    replay = Prioritized(1_000, 20, 8.0, prioritization=Prioritization(alpha=1.0, beta=0.5, epsilon=0.0))
    source = LocalReplay(Storage(dataclasses.replace(given, replay=replay), DATA_SPEC), 2, BATCH, seed=1)
    assert source.prioritization == replay.prioritization
    plan = source._by_priority
    _fill(source, 60)
    _, info = draw(source, 4)
    np.testing.assert_array_equal(info['weights'], 1.0)  # of new items
    drawn = plan._drawn[0, 0]
    source.update(1, np.where(plan._drawn == drawn, 1.0, 0.001).astype(np.float32))
    _, info = draw(source, 4)
    size, others = source.metrics()['replay_size'], np.unique(plan._drawn).size
    assert others > 1
    priorities = plan._tree.get(plan._drawn % 1_000)
    np.testing.assert_allclose(info['weights'], (size * priorities / plan._tree.total) ** -0.5, rtol=1e-4)
    assert source.metrics()['priorities_updated'] == 4 * BATCH
