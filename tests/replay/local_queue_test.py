"""The queue of one process, which the synchronous job writes to and takes from."""

import pickle

import numpy as np
import pytest
import tensorflow as tf

from tests import fakes
from tests.testing.replay import DATA_SPEC, write_steps
from tflearn.core.experience import BatchItems, Experience, Queue, Slicing
from tflearn.replay.local_queue import LocalQueue
from tflearn.replay.storage import Storage

STORAGE = Storage(Experience(Slicing(sequence_length=3, stride=2), Queue(max_size=1), BatchItems(2)), DATA_SPEC)


class Writing:
    """Writes steps of one environment, whose observations are (episode, step), with versions 1, 2, ..."""

    def __init__(self, queue):
        self._queue, self._environment = queue, fakes.CheckedEnvironment([5])
        self.version = 0

    def __call__(self, trajectory, policy_version):
        self._queue(trajectory, policy_version)

    def flush(self):
        """What is gathered stays there."""

    def steps(self, count):
        self.version += 1
        write_steps(self, self._environment, count, self.version)


def items(queue, count):
    """Takes items. Returns the episode and the step of each row, [n, T, 2], and their policy versions [n, T]."""
    rows = STORAGE.layout.unpack(tf.constant(queue.take(count)[0]))
    return rows['trajectory'].observation.numpy().astype(int).tolist(), rows['policy_version'].numpy().tolist()


def test_it_hands_out_each_item_once_in_order():
    queue = LocalQueue(STORAGE, 1)
    Writing(queue).steps(6)  # an episode of five steps, and the row after it, which is there twice
    assert queue.size() == 3  # more than Queue.max_size
    (first,), versions = items(queue, 1)
    assert [step for _, step in first] == [0, 1, 2] and versions == [[1, 1, 1]]
    assert queue.size() == 2
    (second, last), _ = items(queue, 2)
    assert [step for _, step in second] == [2, 3, 4] and [step for _, step in last] == [4, 5, 5]
    assert queue.size() == 0


@pytest.mark.parametrize('taken', [0, 1, 2])
def test_another_queue_takes_over_its_content(taken):
    one, other = LocalQueue(STORAGE, 1), LocalQueue(STORAGE, 1)
    writing = Writing(one)
    writing.steps(7)
    if taken:
        items(one, taken)
    content = pickle.loads(pickle.dumps(one.content()))
    content |= {'num_sequences': 2, 'lost_steps': 0}  # as the version before had it
    content['items']['replay']['counts'] = np.array([2, taken])
    other.set_content(content)
    for queue in (one, other):
        writing = Writing(queue)
        writing.steps(6)
    assert one.size() == other.size() > 3 - taken
    assert items(one, one.size()) == items(other, other.size())


def test_it_ends_when_it_is_closed():
    queue = LocalQueue(STORAGE, 1)
    queue.start(lambda samples: samples, 1)
    assert not queue.closed and not queue.reads_ahead
    queue.close()
    assert queue.closed and queue.error is None
