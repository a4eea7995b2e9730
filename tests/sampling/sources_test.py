"""What both sources of batches, the learner's mirror and the server's draws, have in common."""

import collections
import contextlib
import threading
import time

import numpy as np
import pytest
import tensorflow as tf

from tests import fakes
from tests.testing.replay import BATCH, draw, experience, fill, write_steps
from tflearn.core.experience import BatchItems, Experience, Prioritized, Slicing, Uniform
from tflearn.replay import reader
from tflearn.replay.backend import Shards
from tflearn.replay.writers import ReplayWriter
from tflearn.sampling import mix, replay_servers
from tflearn.sampling.dataset_source import DatasetSource
from tflearn.sampling.mirror import ReplayMirror
from tflearn.sampling.mix import Mix
from tflearn.sampling.source import Source

SAMPLINGS = ['learner', 'server']


@pytest.mark.parametrize('sampling', SAMPLINGS)
def test_batches_hold_the_written_steps(serve, open_source, sampling):
    served = serve(experience(sampling, sequence_length=3))
    writer = fill(served)
    source = open_source(served)
    trajectory, info = draw(source, 3, compiled=True)
    writer.join(30)
    assert trajectory.observation.shape == (3, BATCH, 3, 2)
    assert info['policy_version'].shape == (3, BATCH, 3)
    assert (info['policy_version'].numpy() == 7).all()
    episodes, steps = trajectory.observation[..., 0].numpy(), trajectory.observation[..., 1].numpy()
    assert (np.diff(steps) >= 0).all()
    assert (episodes == episodes[..., :1]).all(), 'a sequence crosses the end of an episode'


@pytest.mark.parametrize('prioritized', [False, True])
def test_large_batches_are_drawn_one_by_one(monkeypatch, serve, prioritized):
    monkeypatch.setattr(replay_servers, '_MAX_AHEAD_BYTES', 1)
    replay = Prioritized(min_size=1, sampling='server') if prioritized else Uniform(min_size=1, sampling='server')
    served = serve(Experience(Slicing(3), replay, BatchItems(BATCH)))
    made = replay_servers.make(Shards((served.address,)), served.storage, BATCH, 60.0, seed=0)
    with contextlib.closing(made) as source:
        writer = fill(served)
        assert source.max_draw_steps == 1
        trajectory, _ = draw(source, 5)
        writer.join(30)
    steps = trajectory.observation[..., 1].numpy()
    assert steps.shape == (5, BATCH, 3)
    assert (np.diff(steps) >= 0).all()
    assert len({batch.tobytes() for batch in trajectory.observation.numpy()}) == 5, 'a batch was drawn twice'


@pytest.mark.parametrize('sampling', SAMPLINGS)
def test_shapes_are_static(serve, open_source, sampling):
    source = open_source(serve(experience(sampling)))
    spec = tf.TensorSpec((), tf.int64)
    first = tf.function(lambda count, seed: source.batch(source.draw(count, seed), 0), autograph=False)
    trajectory, _ = first.get_concrete_function(spec, spec).structured_outputs
    assert trajectory.observation.shape.as_list() == [BATCH, 2, 2]


@pytest.mark.parametrize('sampling', SAMPLINGS)
@pytest.mark.parametrize(('length', 'stride'), [(2, 1), (4, 1), (4, 3)])
def test_all_sequences_have_the_same_probability(serve, open_source, sampling, length, stride):
    """Both sources: the same sequences, each as often as any other (a chi-squared test)."""
    lengths = (3, 11)
    served = serve(experience(sampling, sequence_length=length, stride=stride, min_size=40))
    writer = fill(served, 96, lengths)
    source = open_source(served)
    draw(source)
    writer.join(30)
    counts = collections.Counter()
    num_batches = 400
    for _ in range(4):  # with pauses, in which the mirror takes in the rest
        draw(source, 1)
        threading.Event().wait(0.1)
    trajectory, _ = draw(source, num_batches, seed=100)
    first = trajectory.observation[:, :, 0].numpy().reshape(-1, 2)
    last = trajectory.observation[:, :, -1, 1].numpy().reshape(-1)
    counts.update(map(tuple, np.column_stack([first, last]).tolist()))
    # Both environments have the episodes 0, 1, 2, ..., so equal sequences are counted.
    twins = _sequences(lengths, 96, length, stride)
    assert counts.keys() == twins.keys()
    expected = num_batches * BATCH / sum(twins.values())
    chi_squared = sum((counts[key] - expected * n) ** 2 / (expected * n) for key, n in twins.items())
    freedom = len(twins) - 1
    # Draws from one chunk are not independent, so the spread may be a little wider than a chi-squared variable's.
    assert abs(chi_squared - freedom) < 8 * np.sqrt(2 * freedom) + 0.5 * freedom


def _sequences(lengths, num_steps, length, stride):
    """Counts the expected sequences (episode, first step, last step)."""
    found = collections.Counter()
    for num_rows in (count + 1 for count in lengths):
        for episode in range(-(-num_steps // num_rows)):
            steps = np.arange(min(num_rows, num_steps - episode * num_rows))
            if len(steps) == num_rows:  # terminated: its last row repeats
                steps = np.concatenate([steps, np.full(length - 2, steps[-1])])
            starts = list(range(0, len(steps) - length + 1, stride))
            complete = len(steps) >= num_rows and len(steps) > length
            if complete and (len(steps) - length) % stride:
                starts.append(len(steps) - length)
            found.update((float(episode), float(steps[i]), float(steps[i + length - 1])) for i in starts)
    return found


@pytest.mark.parametrize('sampling', SAMPLINGS)
def test_timeout_reports_the_state_of_the_table(serve, open_source, sampling):
    served = serve(experience(sampling, min_size=1000))
    fill(served, 8).join(30)
    source = open_source(served, 1.0)
    assert source.grant(5) == 0
    with pytest.raises(TimeoutError, match=r'timed out after 1 s waiting for data .* of 100000 sequences'):
        raise source.error


@pytest.mark.parametrize('sampling', SAMPLINGS)
def test_can_be_stopped_while_it_waits(serve, open_source, sampling):
    source = open_source(serve(experience(sampling, min_size=1000)), 300)
    threading.Timer(0.5, source.close).start()
    start = time.monotonic()
    assert source.grant(5) == 0
    assert time.monotonic() - start < 30
    assert source.error is None


@pytest.mark.parametrize('sampling', SAMPLINGS)
def test_samples_per_insert_limit_both_sides(serve, open_source, sampling):
    ratio, min_size = 4.0, 64
    served = serve(experience(sampling, min_size=min_size, samples_per_insert=ratio, chunk_steps=4))
    stop = threading.Event()
    writer = ReplayWriter(served.address, served.storage, 2, stop, keep_waiting=lambda: not stop.is_set())

    def write():
        with contextlib.suppress(Exception):
            write_steps(writer, fakes.CheckedEnvironment((50, 50)), 100_000)

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    source = open_source(served)
    num_batches = left = 1000
    while left:
        granted = source.grant(min(left, source.max_draw_steps))
        assert granted, source.error
        source.draw(tf.constant(granted, tf.int64), tf.constant(0, tf.int64))
        left -= granted
    stop.set()
    thread.join(30)
    samples = num_batches * BATCH
    inserts = writer.num_sequences - min_size
    # Inserts may be ahead by the limiter's buffer, the stream, items in flight, and batches drawn but not taken.
    untaken = 0 if sampling == 'learner' else 4 * source.max_draw_steps * BATCH
    assert ratio * (inserts - 440) - untaken <= samples <= ratio * inserts + 40 * BATCH


def test_checkpoint_restores_empty_counts(serve, open_source):
    served = serve(experience('learner', samples_per_insert=2.0, min_size=4))
    fill(served, 40)
    source = open_source(served)
    draw(source, 3)
    saved = source.serialize()
    other = open_source(served)
    other.deserialize(saved)
    assert other.serialize() == saved


def test_batch_waits_for_slow_data(serve, open_source, monkeypatch):
    """Data arrive more slowly than the stream's timeout: earlier items stay in the batch."""
    monkeypatch.setattr(reader, '_CHECK_CLOSED_MS', 20)
    served = serve(experience('server', chunk_steps=1, samples_per_insert=1.0, batch_size=4))
    source = open_source(served)
    writer = ReplayWriter(served.address, served.storage, 1, threading.Event())
    ended = threading.Event()

    def write():
        environment = fakes.CheckedEnvironment((1000,))
        while not ended.is_set():
            write_steps(writer, environment, 2)  # one sequence
            ended.wait(0.2)

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    assert source.grant(1) == 1
    ended.set()
    thread.join(30)


# Batches of several real tables, in fixed shares.


@pytest.mark.parametrize('sampling', ['learner', pytest.param('server', marks=pytest.mark.slow)])
def test_each_table_has_its_share_of_each_batch(serve, tmp_path, sampling):
    """The episodes of one table have three steps, those of the other do not end."""
    served = [serve(experience(sampling), checkpoints=tmp_path / str(i)) for i in range(2)]
    make = ReplayMirror if sampling == 'learner' else replay_servers.uniform_draws
    sizes = mix.sizes(4, [3.0, 1.0])
    with contextlib.ExitStack() as stack:
        sources = [make(one.address, one.storage, 2 * size, 60.0) for one, size in zip(served, sizes, strict=True)]
        source = Mix(sources, num_replicas=2)
        stack.callback(source.close)
        writers = [fill(one, lengths=(length,)) for one, length in zip(served, (3, 1000), strict=True)]
        longest = np.zeros(8, bool)
        for _ in range(20):
            trajectory, info = draw(source, 2)
            assert trajectory.observation.shape == (2, 8, 2, 2)
            assert info['policy_version'].shape == (2, 8, 2)
            longest |= np.any(trajectory.observation.numpy()[..., 1] > 3, axis=(0, 2))
        # Each replica's part is three items of the first table, and one of the second.
        assert longest.tolist() == 2 * [False, False, False, True]
        for writer in writers:
            writer.join(30)
        source.close()
        assert source.grant(1) == 0


class Granting(Source):
    """A source that grants what a test says, and draws the numbers of its train steps."""

    max_draw_steps = 8

    def __init__(self, *grants):
        self.grants, self.next = list(grants), tf.Variable(0, dtype=tf.int64)

    def grant(self, num_steps):
        return min(num_steps, self.grants.pop(0))

    def draw(self, num_steps, seed):
        start = self.next.read_value()
        self.next.assign_add(num_steps)
        return start + tf.range(num_steps)

    def batch(self, drawn, i):
        return drawn[i][None], {}


def test_what_one_table_grants_beyond_the_other_is_kept():
    source = Mix([Granting(5, 4), Granting(2, 8, 8)])
    granted = [source.grant(8) for _ in range(3)]
    assert granted == [2, 3, 4]
    assert [one.grants for one in source.sources] == [[], []]


def test_what_a_mix_of_datasets_puts_back_is_drawn_next():
    numbers = lambda context: tf.data.Dataset.range(10).map(lambda number: number[None])  # noqa: E731
    sources = [DatasetSource(numbers, tf.distribute.get_strategy()) for _ in range(2)]
    source, seen = Mix(sources), []
    sources[0].put_back(sources[0].draw(5, 0), 3)  # so it has two batches, before others are read

    def draw_some(wanted, used):
        drawn = source.draw(tf.constant(wanted, tf.int64), 0)
        seen.extend(source.batch(drawn, i).numpy().tolist() for i in range(used))
        source.put_back(drawn, tf.constant(used, tf.int64))
        return int(source.num_drawn(drawn))

    assert [draw_some(4, 1), draw_some(4, 1), draw_some(2, 2), draw_some(8, 3), draw_some(8, 0)] == [2, 1, 2, 3, 0]
    assert seen == [[number + 3, number] for number in range(7)]


def test_divides_batches_by_weights():
    assert mix.sizes(64, [3, 1]) == [48, 16]
    assert mix.sizes(10, [1, 1, 1]) == [4, 3, 3]
    assert mix.sizes(3, [0.5, 0.25, 0.25]) == [1, 1, 1]
    with pytest.raises(ValueError, match='of which a table would get none'):
        mix.sizes(4, [100, 1])
    with pytest.raises(ValueError, match=r'got weights=\(1, 0\); need numbers above 0'):
        mix.sizes(4, [1, 0])
