"""Credits through a real replay server."""

import contextlib
import dataclasses

import pytest

from tests import streams
from tflearn.coordinator import control, credits
from tflearn.core.experience import Experience
from tflearn.core.waiting import wait_until
from tflearn.replay.reverb.server import ReplayServer

MESSAGE = control.Credits(control.new_lease('train', epoch=3, ttl_secs=2.0), 0, 5, 8)


@pytest.fixture
def start(tmp_path):
    """Returns a function that starts a server with the table of credits."""
    with contextlib.ExitStack() as stack:

        def make(port=0):
            server = ReplayServer([credits.table()], port, tmp_path / 'checkpoints')
            stack.callback(server.close)
            stack.callback(streams.wait_until_ended)
            return server

        yield make


def _reader(stack, address):
    reader = credits.CreditReader(address, interval_secs=0.02)
    stack.callback(reader.close)
    return reader


def _comes(reader, message):
    wait_until(lambda: reader.newest == message, f'message {message.number}', 30, poll_secs=0.02)


def test_newest_message_reaches_all_readers(start):
    address = f'localhost:{start().port}'
    assert credits.newest(address) is None
    with contextlib.ExitStack() as stack:
        readers = [_reader(stack, address) for _ in range(2)]
        for number in range(3):
            message = dataclasses.replace(MESSAGE, number=number)
            assert credits.send(address, message)
            for reader in readers:
                _comes(reader, message)
        assert credits.newest(address) == message
        _comes(_reader(stack, address), message)


def test_many_collectors_together_poll_a_thousand_times_a_second(start):
    address = f'localhost:{start().port}'
    shares = tuple(control.Share(f'collect_{i}', 1, 8, 0, 0) for i in range(600))
    with contextlib.ExitStack() as stack:
        reader = _reader(stack, address)
        assert reader.interval_secs == 0.02
        message = dataclasses.replace(MESSAGE, shares=shares)
        assert credits.send(address, message)
        _comes(reader, message)
        assert reader.interval_secs == 0.6


def test_refuses_older_epoch_while_newer_lease_is_valid(start):
    address = f'localhost:{start().port}'
    older = dataclasses.replace(MESSAGE, lease=control.new_lease('train', epoch=2))
    newer = dataclasses.replace(MESSAGE, lease=control.new_lease('train', epoch=4))
    with contextlib.ExitStack() as stack:
        reader = _reader(stack, address)
        credits.send(address, MESSAGE)
        _comes(reader, MESSAGE)
        credits.send(address, older)
        credits.send(address, newer)
        _comes(reader, newer)
        second = _reader(stack, address)
        _comes(second, newer)
        credits.send(address, MESSAGE)
        credits.send(address, newer)
        _comes(reader, newer)


def test_accepts_older_epoch_after_newer_lease_has_expired(start):
    """The learner's epochs restart if both learner and server have lost them."""
    address = f'localhost:{start().port}'
    older = dataclasses.replace(MESSAGE, lease=control.new_lease('train', epoch=1))
    with contextlib.ExitStack() as stack:
        reader = _reader(stack, address)
        credits.send(address, MESSAGE)
        _comes(reader, MESSAGE)
        number = iter(range(10**6))

        def is_taken():
            """The learner sends its credits repeatedly."""
            credits.send(address, dataclasses.replace(older, number=next(number)))
            return reader.newest.lease == older.lease

        wait_until(is_taken, 'the new learner', 30)


def test_restarted_server_gets_the_next_message(start):
    server = start()
    address = f'localhost:{server.port}'
    with contextlib.ExitStack() as stack:
        reader = _reader(stack, address)
        credits.send(address, MESSAGE)
        _comes(reader, MESSAGE)
        server.close()
        assert not credits.send(address, MESSAGE)
        start(server.port)
        number = iter(range(1, 10**6))

        def comes():
            credits.send(address, dataclasses.replace(MESSAGE, number=next(number)))
            return reader.newest.number > 0

        wait_until(comes, 'a message after the restart', 30)


def test_rejects_server_without_the_table(serve):
    with pytest.raises(ValueError, match="need 'credits' for Queue.versions_ahead"):
        credits.CreditReader(serve(Experience()).address)
