"""Slots without a server: which one waits for the next episode of a client, and how long a batched step does."""

import threading
import time

import pytest

from tflearn.core.waiting import wait_until
from tflearn.environments.external_slots import Result, Slots

END = Result(1.0, None, True, False)


@pytest.mark.parametrize('is_early', [False, True])
def test_no_slot_waits_for_a_client_that_plays_in_another_one(is_early):
    """Also if it begins its next episode before the end of the last one has been taken."""
    slots = Slots(3, step_timeout_secs=30.0, begin_wait_secs=30.0)
    begun = []
    client = threading.Thread(target=lambda: begun.append(slots.begin('second', 20.0)), daemon=True)
    first = threading.Thread(target=lambda: begun.append(slots.begin('first', 20.0)), daemon=True)
    first.start()
    assert slots.wait(20.0) == [(None, 'first'), (None, None), (None, None)]
    slots.act([0, 0, 0])
    first.join(20.0)
    slots.step(begun[0][0], 0, END)
    if is_early:
        client.start()
        wait_until(lambda: slots._begins, 'the next episode', 20)
    taken = slots.wait(20.0)
    assert taken[0] == (END, None)
    if not is_early:
        client.start()
        taken = slots.wait(20.0)
    assert taken[1] == (None, 'second')
    slots.act([0, 0, 0])
    client.join(20.0)
    slots.step(begun[1][0], 0, END)
    start = time.monotonic()
    assert slots.wait(20.0)[1] == (END, None)
    assert time.monotonic() - start < 10.0, 'it waited for another episode in the first slot'
    slots.close()
