"""Batches of several real tables, in fixed shares."""

import contextlib

import numpy as np
import pytest
import tensorflow as tf

from tests.testing.replay import draw, experience, fill
from tflearn.sampling import mix
from tflearn.sampling.mirror import ReplayMirror
from tflearn.sampling.mix import Mix
from tflearn.sampling.sampler import ReplaySampler
from tflearn.sampling.source import Source


@pytest.mark.parametrize('sampling', ['learner', pytest.param('server', marks=pytest.mark.slow)])
def test_each_table_has_its_share_of_each_batch(serve, tmp_path, sampling):
    """The episodes of one table have three steps, those of the other do not end."""
    served = [serve(experience(sampling), checkpoints=tmp_path / str(i)) for i in range(2)]
    make = ReplayMirror if sampling == 'learner' else ReplaySampler
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


def test_divides_batches_by_weights():
    assert mix.sizes(64, [3, 1]) == [48, 16]
    assert mix.sizes(10, [1, 1, 1]) == [4, 3, 3]
    assert mix.sizes(3, [0.5, 0.25, 0.25]) == [1, 1, 1]
    with pytest.raises(ValueError, match='of which a table would get none'):
        mix.sizes(4, [100, 1])
    with pytest.raises(ValueError, match=r'got weights=\(1, 0\); need numbers above 0'):
        mix.sizes(4, [1, 0])
