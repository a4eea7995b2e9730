"""Episodes at once give the sequences that their steps give one by one."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.trajectories import trajectory

from tests.testing.replay import DATA_SPEC
from tflearn.core.experience import Experience, Slicing
from tflearn.replay.chunks import ChunkBuilder, chunk_rows, pack
from tflearn.replay.storage import Storage
from tflearn.sampling.episode_rows import EpisodeRows, blocks

FIRST, MID, LAST = range(3)


def episode(number, num_steps, terminated=True, boundary=True, rebuilt=False):
    """An episode of `num_steps` environment steps; each row has an observation of its own."""
    num_rows = num_steps + boundary
    rows = np.arange(num_rows)
    last = rows == num_steps
    step_type = np.select([rows == 0, last], [FIRST, LAST], MID).astype(np.int32)
    next_step_type = np.select([last, rows == num_steps - 1], [FIRST, LAST], MID).astype(np.int32)
    discount = np.where((rows == num_steps - 1) & terminated, 0, 1).astype(np.float32)
    if rebuilt:
        step_type[-1], next_step_type[-1] = MID, FIRST
    observation = np.stack([np.full(num_rows, number), rows], 1).astype(np.float32)
    return trajectory.Trajectory(
        step_type, observation, rows.astype(np.int64), (), next_step_type, rows.astype(np.float32), discount
    )


EPISODES = [
    episode(0, 7),
    episode(1, 7, terminated=False),
    episode(2, 1),
    episode(3, 2, terminated=False),
    episode(4, 6, boundary=False),
    episode(5, 5, rebuilt=True),
    episode(6, 12),
]
SLICINGS = [
    Slicing(length, stride, pad, False, False, history, future)
    for length, stride, pad, history, future in itertools.product((2, 4), (1, 3), (False, True), (0, 2), (0, 1))
    if stride < length
] + [Slicing(4, 3, cross_episodes=True)]


def expected(storage, episodes):
    """The sequences that a chunk builder makes of the rows, one by one."""
    length, num_bytes = storage.experience.slicing.num_rows, storage.layout.num_bytes
    builder = ChunkBuilder(storage.experience, 5, 1, num_bytes)
    chunks = []
    for leaves in episodes:
        for t in range(len(leaves.step_type)):
            row = tf.nest.map_structure(lambda leaf, t=t: leaf[t : t + 1], leaves)
            pack(storage.layout, row, 0, builder.next_rows)
            chunks += builder.append(row.step_type, row.next_step_type, row.discount)
    found = []
    for chunk in [*chunks, *builder.take_all()]:
        rows = chunk_rows(chunk, num_bytes).copy()
        begins = np.flatnonzero(rows[:, 0])
        rows[:, 0] = 0
        found += [rows[begin : begin + length].tobytes() for begin in begins]
    return found


@pytest.mark.parametrize('slicing', SLICINGS, ids=lambda s: '-'.join(str(int(v)) for v in vars(s).values()))
def test_they_give_the_sequences_of_a_chunk_builder(slicing):
    storage = Storage(Experience(slicing=slicing), DATA_SPEC)
    rows, starts = EpisodeRows(storage)(EPISODES)
    found = [rows[start : start + slicing.num_rows].tobytes() for start in starts]
    assert found == expected(storage, EPISODES)
    assert len(found) > 4
    num_steps = sum(len(episode.step_type) for episode in EPISODES)
    assert len(rows) <= EpisodeRows(storage).max_rows(num_steps, len(EPISODES))


def test_blocks_hold_whole_episodes():
    make_rows = EpisodeRows(Storage(Experience(), DATA_SPEC))
    found = list(blocks(make_rows, iter(EPISODES), 10))
    assert [len(rows) for rows, _ in found] == [16, 11, 19]
    assert b''.join(rows.tobytes() for rows, _ in found) == make_rows(EPISODES)[0].tobytes()
