"""Batches of recorded episodes, from memory and from a stream: shares, epochs, and a position that can be restored."""

import functools
import time

import numpy as np
import pytest
import tensorflow as tf

from tests.sampling.episode_rows_test import episode
from tests.testing.replay import DATA_SPEC
from tflearn.core.experience import Experience
from tflearn.core.types import WEIGHTS
from tflearn.replay.storage import Storage
from tflearn.sampling import loaded_episodes
from tflearn.sampling.episode_stream import EpisodeStream
from tflearn.sampling.loaded_episodes import LoadedEpisodes
from tflearn.sampling.mix import Mix

BATCH = 4
STORAGE = Storage(Experience(), DATA_SPEC)
FILES = [[episode(10 * file + i, 3 + (file + i) % 4) for i in range(5)] for file in range(4)]
ALL = [one for file in FILES for one in file]
SIZE = sum(len(one.step_type) - 1 for one in ALL)  # transitions


def loaded(seed=0, order='uniform', max_epochs=None, episodes=ALL, batch_size=BATCH):
    return LoadedEpisodes(STORAGE, iter(episodes), None, batch_size, seed, order, max_epochs)


def read(seed, epoch, begin, files=FILES):
    """Like `EpisodeReader.shuffled`."""
    order = np.random.default_rng([seed, epoch]).permutation(len(files))
    for i in range(begin[0], len(files)):
        for number, one in enumerate(files[order[i]], 1):
            if i > begin[0] or number > begin[1]:
                yield (i, number), one


def stream(seed=0, max_epochs=None, files=FILES, batch_size=BATCH):
    return EpisodeStream(STORAGE, functools.partial(read, files=files), batch_size, 20, seed, max_epochs)


def epochs(seed=0, max_epochs=None):
    return loaded(seed, 'epochs', max_epochs)


MAKERS = [loaded, epochs, stream]


@pytest.mark.parametrize('make', [epochs, stream])
@pytest.mark.parametrize('num_epochs', [1, 3])
def test_what_fills_up_the_last_batch_has_no_weight(make, num_epochs):
    source = make(max_epochs=num_epochs)
    source.weighs = True
    weights = []
    while count := source.grant(1):
        drawn = source.draw(tf.constant(count), tf.constant(0, tf.int64))
        weights += source.batch(drawn, tf.constant(0))[1][WEIGHTS].numpy().tolist()
    source.close()
    wanted = num_epochs * SIZE
    assert wanted % BATCH and len(weights) == -(-wanted // BATCH) * BATCH
    assert weights == [1.0] * wanted + [0.0] * (len(weights) - wanted)


def take(source, num_batches, at_once=3, compiled=False):
    """Returns what identifies the transitions of the next batches, [n, B, 2]; fewer if the source ends.

    With `compiled` they are drawn in a compiled program, as the learner does.
    """

    def draw(count):
        drawn = source.draw(count, tf.constant(0, tf.int64))
        if source.takes_indices and not compiled:
            return _identities(*source.batch(drawn, tf.range(count)))
        batches = tf.TensorArray(tf.float32, tf.cast(count, tf.int32))
        for i in tf.range(count):
            batches = batches.write(tf.cast(i, tf.int32), _identities(*source.batch(drawn, i)))
        return batches.stack()

    if compiled:
        draw = tf.function(draw)
    found, deadline = [], time.monotonic() + 60
    while num_batches and time.monotonic() < deadline:
        count = source.grant(min(num_batches, at_once, source.max_draw_steps))
        if not count:
            break
        found.append(draw(tf.constant(count, tf.int64)).numpy())
        num_batches -= count
    return np.concatenate(found)


def _identities(data, info):
    """Returns the first observations [..., B, 2] of sequences, whose second ones are the next steps."""
    tf.debugging.assert_equal(info['policy_version'], tf.zeros_like(info['policy_version']))
    tf.debugging.assert_equal(data.observation[..., 0, 1] + 1, data.observation[..., 1, 1])
    return data.observation[..., 0, :]


@pytest.fixture(params=MAKERS, ids=lambda make: make.__name__)
def make(request):
    sources = []

    def make(*args, **settings):
        sources.append(request.param(*args, **settings))
        return sources[-1]

    yield make
    for source in sources:
        source.close()


def test_the_batches_do_not_depend_on_how_many_are_drawn_at_once(make):
    batches = take(make(), 40, compiled=True)
    np.testing.assert_array_equal(batches, take(make(), 40, at_once=1))
    np.testing.assert_array_equal(batches, take(make(), 40, at_once=17))
    assert (batches != take(make(seed=1), 40)).any()


def test_a_restored_position_goes_on_exactly(make):
    batches, interrupted, taken = take(make(), 60), make(), 0
    for more in (0, 1, 18, 21):
        if more:
            take(interrupted, more)
        taken += more
        resumed = make(seed=7)
        resumed.deserialize(interrupted.serialize())
        assert resumed.serialize() == interrupted.serialize()
        np.testing.assert_array_equal(take(resumed, 60 - taken), batches[taken:])


@pytest.mark.parametrize('make_source', [epochs, stream])
def test_each_sequence_comes_once_in_an_epoch(make_source):
    source = make_source()
    drawn = take(source, 3 * SIZE // BATCH).reshape(-1, 2)
    source.close()
    first, second = drawn[:SIZE], drawn[SIZE : 2 * SIZE]
    assert len(np.unique(first, axis=0)) == len(np.unique(second, axis=0)) == SIZE
    assert (first != second).any()


@pytest.mark.parametrize('make_source', MAKERS)
def test_it_ends_after_its_epochs(make_source):
    source = make_source(max_epochs=2)
    assert not source.ended
    assert len(take(source, 1000)) == -(-2 * SIZE // BATCH)
    assert source.ended and source.grant(1) == 0 and source.error is None
    assert source.metrics()['data/epochs'] == pytest.approx(2, abs=0.1)
    source.close()


def test_draws_with_replacement_are_uniform():
    counts = np.unique(take(loaded(batch_size=64), 500, at_once=100).reshape(-1, 2), axis=0, return_counts=True)[1]
    assert len(counts) == SIZE
    mean = 500 * 64 / SIZE
    assert np.abs(counts - mean).max() < 5 * np.sqrt(mean)
    numbers = tf.range(1000, dtype=tf.int64)
    other = [loaded_episodes._uniform(numbers, tf.constant(seed, tf.int64), 10).numpy() for seed in (0, 1)]
    assert abs(np.corrcoef(*other)[0, 1]) < 0.1


def test_shares_are_exact_in_every_batch():
    few, many = [episode(100, 9)], ALL
    source = Mix([loaded(episodes=few, batch_size=3), stream(batch_size=1, files=[many])])
    batches = take(source, 50)
    source.close()
    assert batches.shape == (50, 4, 2)
    assert ((batches[..., 0] == 100).sum(axis=1) == 3).all()
    assert (batches[:, :3, 0] == 100).all()
    assert set(source.state()) == {'data', 'data_1'}


def test_a_stream_that_fails_says_why():
    def broken(seed, epoch, begin):
        yield (0, 1), ALL[0]
        raise OSError('no such file')

    source = EpisodeStream(STORAGE, broken, BATCH, 1000)
    assert source.grant(1) == 0
    assert 'no such file' in str(source.error)
    source.close()
    empty = EpisodeStream(STORAGE, lambda *_: iter(()), BATCH, 20)
    assert empty.grant(1) == 0
    assert 'got no episode of 2 steps or more' in str(empty.error)
    empty.close()


def test_other_data_than_the_checkpoints_are_logged(caplog):
    position = loaded().serialize()
    loaded(episodes=ALL[1:]).deserialize(position)
    assert 'the batches are not those that an undisturbed run would have had' in caplog.text
