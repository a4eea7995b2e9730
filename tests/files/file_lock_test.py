"""Locks are of the open file: another one of the same path is refused until the first is closed."""

import threading

from tflearn.core import background
from tflearn.files.lock import locked, try_lock

DEADLINE_SECS = 30.0


def test_a_file_is_locked_once_until_it_is_closed(tmp_path):
    with open(tmp_path / 'lock', 'ab') as first, open(tmp_path / 'lock', 'ab') as second:
        assert try_lock(first) and try_lock(first)
        assert not try_lock(second.fileno())
        first.close()
        assert try_lock(second.fileno())


def test_a_block_waits_for_the_end_of_another(tmp_path):
    order, waits = [], threading.Event()

    def other():
        waits.set()
        with locked(tmp_path / 'lock'):
            order.append('second')

    with locked(tmp_path / 'lock'):
        thread = background.Thread(other, 'other')
        thread.start()
        assert waits.wait(DEADLINE_SECS)
        thread.join(0.2)
        assert thread.is_alive()
        order.append('first')
    thread.join(DEADLINE_SECS)
    assert order == ['first', 'second']
