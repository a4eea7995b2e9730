"""The queues of one process, which the synchronous job writes to and takes from."""

import numpy as np
import pytest
import tensorflow as tf

from tflearn.replay import backend
from tflearn.replay.storage import TableSpec

TABLE = TableSpec('table', 100, {'chunk': tf.TensorSpec((4,), tf.uint8)})


def insert(address, first, count):
    writer = backend.connect(address).writer()
    writer.insert([np.full(4, i, np.uint8) for i in range(first, first + count)], [('table',)] * count, 1.0)
    assert writer.flush(0, 0.0)
    writer.close()


def taken(address, count):
    return [int(chunk[0]) for chunk in backend.connect_own(address).take('table', count)]


def sizes(address):
    found = backend.counts(address)['table']
    return found.size, found.inserts, found.samples


def test_a_queue_gives_each_item_once_in_order():
    with backend.in_process([TABLE]) as address:
        backend.wait_for_table(address, 'table', TABLE.signature, 1.0)
        insert(address, 0, 3)
        assert taken(address, 2) == [0, 1]
        insert(address, 3, 2)
        assert sizes(address) == (3, 5, 2)
        assert taken(address, 3) == [2, 3, 4]


@pytest.mark.parametrize('left', [0, 2])
def test_another_queue_takes_over_its_content(left):
    with backend.in_process([TABLE]) as one, backend.in_process([TABLE]) as other:
        insert(one, 0, 5)
        taken(one, 5 - left)
        content = backend.connect_own(one).content()
        content['table']['counts'] = np.append(content['table']['counts'], 5)  # as the version before had it
        backend.connect_own(other).set_content(content)
        assert sizes(other) == sizes(one) == (left, 5, 5 - left)
        assert taken(other, left) == [3, 4][:left]


def test_a_queue_ends_with_its_block():
    with backend.in_process([TABLE]) as address:
        assert backend.connect(address).is_listening()
    assert backend.counts(address) is None and not backend.connect(address).is_listening()
    with pytest.raises(backend.Lost, match='got no server at inproc'):
        backend.connect(address).writer()


def test_it_draws_nothing():
    with backend.in_process([TABLE]) as address:
        with pytest.raises(RuntimeError, match='need a server that draws'):
            backend.connect(address).samples('table', (4,), 1, 0)
        with pytest.raises(RuntimeError, match='need a server that draws'):
            backend.connect(address).update('table', {1: 1.0})
