"""A server that does not answer for a while, or no more."""

import pytest
import reverb
import tensorflow as tf

from tflearn.core.experience import Experience, Uniform
from tflearn.core.waiting import PeerLost
from tflearn.replay import connection
from tflearn.replay.table_history import TableHistory


def test_warns_while_a_server_does_not_answer_and_when_it_does_again(monkeypatch, caplog):
    now, answers = [0.0], []
    monkeypatch.setattr(connection.time, 'monotonic', lambda: now[0])
    monkeypatch.setattr(connection, 'counts', lambda address: answers.pop(0))
    poll = connection.ServerPoll('there:1', 'training goes on', storage=None)

    def warnings(secs, answer):
        caplog.clear()
        now[0] = secs
        answers.append(answer)
        assert poll.counts() == answer
        return [record.getMessage() for record in caplog.records]

    assert warnings(1.0, {}) == []
    assert warnings(8.0, None) == []
    assert warnings(12.0, None) == ['the replay server at there:1 has not answered for 11 s; training goes on']
    assert warnings(15.0, None) == []
    assert warnings(23.0, None) == ['the replay server at there:1 has not answered for 22 s; training goes on']
    assert warnings(24.0, {}) == ['the replay server at there:1 answers again, after 23 s']
    assert warnings(25.0, {}) == []


def test_no_server_answers_at_a_name_that_is_no_text():
    assert connection.counts('\udcff:80') is None


def test_gives_up_when_nothing_answers_but_not_while_the_machine_refuses(monkeypatch):
    now, refused = [0.0], [False]
    monkeypatch.setattr(connection.time, 'monotonic', lambda: now[0])
    monkeypatch.setattr(connection, 'counts', lambda address: None)
    monkeypatch.setattr('tflearn.core.waiting.is_refused', lambda address: refused[0])
    poll = connection.ServerPoll('there:1', 'training goes on', storage=None, silent_timeout_secs=100.0)

    def at(secs, refuses=False):
        now[0], refused[0] = secs, refuses
        poll.counts()
        poll.check()

    for secs in (500.0, 550.0, 599.0):  # the time before the first question does not count
        at(secs)
    at(700.0, refuses=True)  # its machine is there: the server may be started again
    at(710.0)
    at(809.0)
    text = r'from the replay server at there:1 for 100 s; need one within 100 s .*: it has not answered before'
    with pytest.raises(PeerLost, match=text):
        at(810.0)


def test_the_last_state_of_the_tables_is_described(serve):
    experience = Experience(replay=Uniform(min_size=2, samples_per_insert=4.0, sampling='server'), chunk_steps=1)
    served, now = serve(experience), [0.0]
    history = TableHistory(served.storage, clock=lambda: now[0])
    assert str(history) == 'it has not answered before'
    history.update(served.server.counts())
    assert 'table replay: 0 of 100000 sequences, 0 inserts, 0 samples' in str(history)
    assert 'last insert not seen, last sample not seen; last report of a collector not seen' in str(history)
    client = reverb.Client(served.address)
    with client.trajectory_writer(1, validate_items=False) as writer:
        for _ in range(3):
            writer.append({'chunk': tf.zeros(served.storage.item_shape, tf.uint8).numpy()})
            writer.create_item('replay', 1.0, {'chunk': writer.history['chunk'][-1]})
        writer.flush()
    list(client.sample('replay', 2))
    now[0] = 10.0
    history.update(served.server.counts())
    now[0] = 12.0
    assert 'table replay: 3 of 100000 sequences, 3 inserts, 2 samples (2.00 samples per insert)' in str(history)
    assert 'limiter at 10 within [' in str(history)
    assert 'last insert 2 s ago, last sample 2 s ago' in str(history)
