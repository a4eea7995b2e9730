"""A server that does not answer for a while, or no more."""

import reverb
import tensorflow as tf

from tflearn.core.experience import Experience, Uniform
from tflearn.replay import backend
from tflearn.replay.storage import TableHistory


def test_no_server_answers_at_a_name_that_is_no_text():
    assert backend.counts('\udcff:80') is None


def test_the_last_state_of_the_tables_is_described(serve):
    experience = Experience(replay=Uniform(min_size=2, samples_per_insert=4.0, sampling='server'), chunk_steps=1)
    served, now = serve(experience), [0.0]
    history = TableHistory(served.storage, clock=lambda: now[0])
    assert str(history) == 'it has not answered before'
    history.update(served.server.counts())
    assert 'table replay: 0 of 100000 sequences, 0 inserts, 0 samples' in str(history)
    assert 'last insert not seen, last sample not seen' in str(history)
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
