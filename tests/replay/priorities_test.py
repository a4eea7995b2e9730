"""Priorities and weights by the paper's formulas, and the thread that sends them to a real server."""

import contextlib
import os
import pathlib
import re
import signal
import threading
import time

import numpy as np
import pytest
import reverb
import tensorflow as tf

from tests.testing import forks
from tflearn.core.experience import Prioritization
from tflearn.core.waiting import wait_until
from tflearn.replay.priorities import PriorityUpdater, importance_weights, priorities

TABLE = 'table'
PLAIN = Prioritization(alpha=1.0, epsilon=0.0)
SERVER = f"""
import reverb, sys, threading
table = reverb.Table('{TABLE}', reverb.selectors.Prioritized(1.0), reverb.selectors.Fifo(), 100,
                     reverb.rate_limiters.MinSize(1))
server = reverb.Server([table], int(sys.argv[1]) or None)
print(server.port, flush=True)
threading.Event().wait(300)
"""


class Server:
    """A replay server in a separate process, which can be suspended."""

    def __init__(self, folder, port=0):
        program, log = folder / 'server.py', folder / 'server.log'
        program.write_text(SERVER)
        self.process = forks.start(str(program), port, log=log)
        ports = lambda: re.findall(r'^(\d+)\n', log.read_text(), re.M)  # noqa: E731 (Reverb writes lines too)
        wait_until(lambda: ports() or self.process.poll() is not None, 'the server', 60)
        self.port = int(ports()[0])
        self.address = f'localhost:{self.port}'

    def halt(self):
        """Suspends the process, and returns once it is suspended."""
        os.kill(self.process.pid, signal.SIGSTOP)
        state = lambda: pathlib.Path(f'/proc/{self.process.pid}/stat').read_text().rpartition(')')[2].split()[0]  # noqa: E731
        wait_until(lambda: state() == 'T', 'the server to be suspended', 30)

    def fill(self, count):
        """Inserts items of priority 1; returns their keys."""
        client = reverb.Client(self.address)
        with client.trajectory_writer(num_keep_alive_refs=1) as writer:
            for i in range(count):
                writer.append({'x': np.float32(i)})
                writer.create_item(TABLE, 1.0, {'x': writer.history['x'][-1:]})
            writer.flush(timeout_ms=20_000)
        return np.array(sorted(self.priorities()), np.uint64)

    def priorities(self):
        """Returns the priorities of the items by key."""
        client, found = reverb.Client(self.address), {}
        for _ in range(20):  # draws of 500 miss one of 50 now and then
            samples = client.sample(TABLE, 500, emit_timesteps=False)
            found |= {sample.info.key: sample.info.priority for sample in samples}
            if len(found) == client.server_info()[TABLE].current_size:
                break
        return found

    def close(self):
        self.process.kill()
        self.process.wait(30)


@pytest.fixture
def serve(tmp_path):
    """Returns a function port -> Server; all are ended at the end."""
    with contextlib.ExitStack() as stack:

        def start(port=0):
            server = Server(tmp_path, port)
            stack.callback(server.close)
            return server

        yield start


@pytest.fixture
def make_updater():
    """Returns a function (address, ...) -> PriorityUpdater; all are closed at the end."""
    with contextlib.ExitStack() as stack:

        def make(address, prioritization=PLAIN, **settings):
            updater = PriorityUpdater(address, TABLE, prioritization, **settings)
            stack.callback(updater.close, 0.1)
            return updater

        yield make


def errors(*values):
    return np.array(values, np.float32)


def test_priorities_follow_the_paper_up_to_the_bound():
    prioritization = Prioritization(alpha=0.5, epsilon=0.25, max_error=4.0)
    got = priorities(prioritization, errors(0.0, -0.75, 3.75, -100.0), 0)
    np.testing.assert_allclose(got, np.sqrt([0.25 / 4, 1 / 4, 1.0, 1.0]), rtol=1e-6)


def test_alpha_of_zero_is_uniform():
    np.testing.assert_array_equal(priorities(Prioritization(alpha=0.0), errors(0.0, 0.5, 2.0), 0), 1.0)


def test_follows_schedules():
    half = lambda step: 1.0 - tf.cast(step, tf.float32) / 200  # noqa: E731
    prioritization = Prioritization(alpha=half, beta=half, epsilon=0.0)
    np.testing.assert_allclose(priorities(prioritization, errors(0.25), 0), 0.25)
    np.testing.assert_allclose(priorities(prioritization, errors(0.25), 100), 0.5)
    expected = tf.constant([4.0, 0.25])
    np.testing.assert_allclose(importance_weights(prioritization, expected, tf.constant(0)), [0.25, 4.0])
    np.testing.assert_allclose(importance_weights(prioritization, expected, tf.constant(100)), [0.5, 2.0], rtol=1e-6)


def test_failing_schedule_fails_at_construction(serve):
    def broken(step):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        PriorityUpdater('localhost:1', TABLE, Prioritization(alpha=broken))


def test_updates_arrive_and_the_newest_wins(serve, make_updater):
    server = serve()
    keys = server.fill(4)
    updater = make_updater(server.address)
    updater.update(1, keys[:3], errors(0.9, 0.8, 0.7))
    updater.update(2, keys[[0, 0]], errors(0.6, -0.5))
    assert updater.flush(30)
    assert server.priorities() == pytest.approx(dict(zip(keys.tolist(), [0.5, 0.8, 0.7, 1.0], strict=True)))
    assert updater.metrics()['priorities_sent'] == 5


def test_ignores_keys_that_no_longer_exist(serve, make_updater):
    server = serve()
    keys = server.fill(2)
    updater = make_updater(server.address)
    updater.update(1, np.array([12345, keys[0]], np.uint64), errors(0.1, 0.5))
    assert updater.flush(30)
    assert server.priorities() == pytest.approx({int(keys[0]): 0.5, int(keys[1]): 1.0})


def test_ignores_errors_that_are_not_finite(serve, make_updater):
    server = serve()
    keys = server.fill(4)
    updater = make_updater(server.address)
    updater.update(1, keys, errors(float('nan'), float('inf'), float('-inf'), 0.5))
    assert updater.flush(30)
    assert server.priorities() == pytest.approx(dict(zip(keys.tolist(), [1.0, 1.0, 1.0, 0.5], strict=True)))
    assert updater.metrics()['priorities_not_finite'] == 3
    updater.update(1, keys, errors(0.9, 1.0, -2.0, 3.0))
    assert updater.metrics()['priorities_clipped'] == 3, 'of max_error 1'


def test_hanging_server_does_not_block_updates(serve, make_updater):
    """The oldest updates are dropped; updates continue when the server does."""
    server = serve()
    keys = server.fill(8)
    updater = make_updater(server.address, max_waiting=3)
    updater.update(0, keys[:1], errors(0.5))
    assert updater.flush(30)
    server.halt()
    updater.update(1, keys[:1], errors(0.4))
    wait_until(lambda: not updater._waiting, 'the first of them on its way', 30)
    for step in range(2, 8):
        updater.update(step, keys[step : step + 1], errors(0.1 * step))
    assert not updater.flush(0.2)
    assert updater.metrics()['priorities_dropped'] == 3  # those of steps 2 to 4
    os.kill(server.process.pid, signal.SIGCONT)
    assert updater.flush(30)
    wanted = [0.4, 1.0, 1.0, 1.0, 1.0, 0.5, 0.6, 0.7]
    assert server.priorities() == pytest.approx(dict(zip(keys.tolist(), wanted, strict=True)))


def test_survives_a_server_restart(serve, make_updater):
    server = serve()
    keys = server.fill(2)
    updater = make_updater(server.address)
    updater.update(0, keys, errors(0.5, 0.5))
    assert updater.flush(30)
    server.close()
    updater.update(1, keys, errors(0.4, 0.4))
    back = serve(server.port)
    keys = back.fill(2)
    assert updater.flush(60)
    updater.update(2, keys, errors(0.3, 0.2))
    assert updater.flush(60)
    assert back.priorities() == pytest.approx(dict(zip(keys.tolist(), [0.3, 0.2], strict=True)))


def test_close_has_a_deadline(serve):
    server = serve()
    keys = server.fill(1)
    updater = PriorityUpdater(server.address, TABLE, PLAIN)
    server.halt()
    updater.update(0, keys, errors(0.5))
    start = time.monotonic()
    updater.close(0.5)
    assert time.monotonic() - start < 30
    updater.update(1, keys, errors(0.5))  # too late: no harm
    updater.close(0.5)
    assert updater.metrics()['priorities_sent'] == 0


def test_close_sends_waiting_updates_and_leaves_no_thread(serve):
    server = serve()
    keys = server.fill(50)
    threads = set(threading.enumerate())
    updater = PriorityUpdater(server.address, TABLE, PLAIN)
    for step in range(50):
        updater.update(step, keys[step : step + 1], errors(0.5))
    updater.close(30)
    assert set(server.priorities().values()) == {0.5}
    assert set(threading.enumerate()) <= threads


def test_schedule_that_fails_on_the_thread_fails_the_next_update(serve, make_updater):
    def alpha(step):
        tf.debugging.assert_less(step, tf.constant(10, step.dtype))
        return 1.0

    server = serve()
    keys = server.fill(2)
    sender = make_updater(server.address, Prioritization(alpha=alpha))
    sender.update(5, keys, errors(0.5, 0.5))
    assert sender.flush(20)
    sender.update(10, keys, errors(0.5, 0.5))
    assert sender.flush(20)
    with pytest.raises(RuntimeError, match='got a failed thread of priority updates') as raised:
        sender.update(11, keys, errors(0.5, 0.5))
    assert isinstance(raised.value.__cause__, tf.errors.InvalidArgumentError)
