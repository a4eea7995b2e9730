import collections

import numpy as np
import pytest

from tflearn.core.experience import Experience, Slicing
from tflearn.replay.chunks import NEW, REPEATED, ChunkBuilder, chunk_id, chunk_rows

FIRST, MID, LAST = 0, 1, 2


class Rows:
    """Random episodes of several environments, row by row, and the sequences expected of them."""

    def __init__(self, num_environments, num_steps, seed):
        random = np.random.default_rng(seed)
        step_type = np.full(num_environments, FIRST)
        self.rows = []
        for step in range(num_steps):
            ends, terminated = random.random(num_environments) < 0.2, random.random(num_environments) < 0.5
            breaks = (random.random(num_environments) < 0.05) & (step_type != LAST)
            next_step_type = np.where(ends, LAST, MID)
            next_step_type[(step_type == LAST) | breaks] = FIRST
            discount = np.where((next_step_type == LAST) & terminated, 0.0, 1.0)
            self.rows.append((step, step_type, next_step_type, discount))
            step_type = next_step_type

    def write(self, builder):
        """Returns all chunks."""
        chunks = []
        for step, step_type, next_step_type, discount in self.rows:
            rows = np.zeros((len(step_type), 4), np.uint8)
            rows[:, 1], rows[:, 2] = np.arange(len(step_type)), step
            builder.next_rows[:] = rows
            chunks += builder.append(step_type, next_step_type, discount)
        return [chunk_rows(chunk, 4) for chunk in chunks + builder.take_all()]

    def sequences(self, slicing):
        """Returns the expected sequences as tuples (environment, steps ...), by plain loops."""
        found = collections.Counter()
        for i in range(len(self.rows[0][1])):
            episode, terminated = [], False
            for step, step_type, next_step_type, discount in self.rows:
                episode.append(step)
                if next_step_type[i] != FIRST:
                    terminated = discount[i] == 0
                    continue
                last = step_type[i] == LAST
                found.update((i, *steps) for steps in _episode(episode, last, terminated, slicing))
                episode, terminated = [], False
            episode = episode[:1] * slicing.history_steps + episode  # the episode that has not ended yet
            starts = range(0, len(episode) - slicing.num_rows + 1, slicing.stride)
            found.update((i, *episode[start : start + slicing.num_rows]) for start in starts)
        return found


def _episode(steps, last, terminated, slicing):
    steps = steps[:1] * slicing.history_steps + steps
    length, stride, pad = slicing.num_rows, slicing.stride, slicing.pad_episodes
    without_future = length - slicing.future_steps
    if pad and last and stride == 1:
        steps += steps[-1:] * (slicing.sequence_length - 2)
    elif pad and last:
        while len(steps) < without_future or (len(steps) - without_future) % stride:
            steps.append(steps[-1])
    elif last and terminated:
        steps += steps[-1:] * (slicing.sequence_length - 2)
    if last:
        steps += steps[-1:] * slicing.future_steps
    starts = list(range(0, len(steps) - length + 1, stride))
    if not pad and starts and starts[-1] + length < len(steps):
        starts.append(len(steps) - length)
    return [tuple(steps[start : start + length]) for start in starts]


@pytest.mark.parametrize('pad', [False, True])
@pytest.mark.parametrize('num_starts', [1, 5])
@pytest.mark.parametrize(
    ('length', 'stride', 'history', 'future'),
    [(2, 1, 0, 0), (4, 1, 0, 0), (5, 2, 0, 0), (6, 5, 0, 0), (2, 1, 3, 0), (2, 1, 0, 4), (4, 2, 2, 3)],
)
def test_chunks_hold_all_sequences_of_all_episodes_and_no_others(length, stride, history, future, num_starts, pad):
    """Each with its history, which begins with copies of the first row, and its future, which ends with the last."""
    rows = Rows(7, 200, seed=length)
    slicing = Slicing(length, stride, pad, history_steps=history, future_steps=future)
    builder, length = ChunkBuilder(Experience(slicing=slicing), num_starts, 7, 4), slicing.num_rows
    found = collections.Counter()
    for chunk in rows.write(builder):
        assert chunk.shape == (num_starts + length - 1, 4)
        for start in np.flatnonzero(chunk[:, 0]):
            sequence = chunk[start : start + length]
            assert len(set(sequence[:, 1])) == 1, 'two environments in one sequence'
            found[(sequence[0, 1], *sequence[:, 2])] += 1
    assert found == rows.sequences(slicing)


def _steps(builder, *steps):
    """Writes steps (step type, next step type) of one environment; returns the second bytes of the chunks' rows."""
    chunks = []
    for step, (step_type, next_step_type) in enumerate(steps):
        builder.next_rows[:] = [[0, step]]
        chunks += builder.append(np.array([step_type]), np.array([next_step_type]), np.ones(1))
    return [chunk_rows(chunk, 2)[:, 1].tolist() for chunk in chunks + builder.take_all()]


def test_row_of_a_failed_environment_only_ends_a_sequence():
    builder = ChunkBuilder(Experience(slicing=Slicing(sequence_length=2)), 1, 1, 2)
    broken = [(FIRST, MID), (MID, FIRST), (FIRST, MID), (MID, LAST), (LAST, FIRST)]
    assert _steps(builder, *broken) == [[0, 1], [2, 3], [3, 4]]


def test_padding_makes_a_short_episode_one_item_unless_its_environment_failed():
    experience = Experience(slicing=Slicing(sequence_length=5, stride=4, pad_episodes=True))
    short = [(FIRST, MID), (MID, LAST), (LAST, FIRST)]
    assert _steps(ChunkBuilder(experience, 1, 1, 2), *short) == [[0, 1, 2, 2, 2]]
    assert _steps(ChunkBuilder(experience, 1, 1, 2), (FIRST, MID), (MID, FIRST)) == []


@pytest.mark.parametrize('num_starts', [1, 3])
def test_sequences_that_cross_episodes_hold_consecutive_rows(num_starts):
    experience = Experience(slicing=Slicing(sequence_length=6, stride=5, cross_episodes=True))
    builder, found = ChunkBuilder(experience, num_starts, 7, 4), collections.defaultdict(list)
    for chunk in Rows(7, 206, seed=3).write(builder):
        for start in np.flatnonzero(chunk[:, 0]):
            sequence = chunk[start : start + 6]
            assert len(set(sequence[:, 1])) == 1
            found[sequence[0, 1]].append(sequence[:, 2].tolist())
    expected = [list(range(begin, begin + 6)) for begin in range(0, 201, 5)]
    assert found == dict.fromkeys(range(7), expected)


def test_sequences_that_cross_episodes_can_begin_with_the_next_row():
    builder, found = (
        ChunkBuilder(Experience(slicing=Slicing(sequence_length=4, stride=3, cross_episodes=True)), 1, 1, 2),
        [],
    )
    for step in range(20):
        if step in (7, 12):  # after the second complete sequence, and within one
            builder.begin_with_next()
        builder.next_rows[:] = [[0, step]]
        found += builder.append(np.array([MID]), np.array([MID]), np.ones(1))
    found += builder.take_all()
    assert [chunk_rows(chunk, 2)[:, 1].tolist() for chunk in found] == [
        [0, 1, 2, 3],
        [3, 4, 5, 6],
        [7, 8, 9, 10],
        [12, 13, 14, 15],
        [15, 16, 17, 18],
    ]


def test_parts_of_an_unfinished_chunk_flag_new_sequences():
    now = [0.0]
    builder = ChunkBuilder(Experience(slicing=Slicing(sequence_length=2)), 3, 1, 2, clock=lambda: now[0])
    first, mid, discount = np.array([FIRST]), np.array([MID]), np.ones(1)

    def append(step_type):
        builder.next_rows[:] = [[0, 9]]
        builder.append(step_type, mid, discount)

    append(first)
    now[0] = 10.0
    assert builder.parts_older_than(1.0) == []  # no sequence yet
    append(mid)
    assert builder.parts_older_than(1.0) == []  # not waiting for that long
    now[0] = 12.0
    (part,) = builder.parts_older_than(1.0)
    assert chunk_rows(part, 2).tolist() == [[NEW, 9], [0, 9], [0, 0], [0, 0]]
    now[0] = 14.0
    assert builder.parts_older_than(1.0) == []  # nothing new
    assert builder.num_waiting == 1
    append(mid)
    assert builder.take_full() == []
    append(mid)
    (complete,) = builder.take_full()
    assert chunk_rows(complete, 2).tolist() == [[REPEATED, 9], [NEW, 9], [NEW, 9], [0, 9]]
    assert chunk_id(complete) == chunk_id(part)
    assert (builder.take_all(), builder.num_waiting) == ([], 0)


def test_chunks_have_unique_ids():
    chunks = []
    for _ in range(2):
        builder = ChunkBuilder(Experience(slicing=Slicing(sequence_length=2)), 2, 2, 2)
        for step in range(18):
            chunks += builder.append(np.full(2, MID if step else FIRST), np.full(2, MID), np.ones(2))
    assert len({chunk_id(chunk) for chunk in chunks}) == len(chunks) > 16


@pytest.mark.parametrize('cross', [False, True])
def test_rows_without_an_episode_become_no_items(cross):
    slicing = Slicing(sequence_length=3, stride=2, cross_episodes=cross)
    builder = ChunkBuilder(Experience(slicing=slicing), 4, 1, 4)
    types = [FIRST, MID, LAST, *(150 * [FIRST]), MID, LAST, FIRST]
    rows = Rows(1, 0, 0)
    rows.rows = [
        (step, np.array(types[step : step + 1]), np.array(types[step + 1 : step + 2]), np.ones(1))
        for step in range(len(types) - 1)
    ]
    chunks = rows.write(builder)
    found = [row[i : i + 3, 2].tolist() for row in chunks for i in np.flatnonzero(row[:, 0])]
    if not cross:
        assert found == [[0, 1, 2], [152, 153, 154]]
    else:
        assert len(found) == 4, 'the two episodes, and what is before and after them'
    assert builder.unused.num_steps == 0
