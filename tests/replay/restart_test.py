"""A replay server in another process is killed and started again while a writer writes."""

import contextlib
import threading
import time

import pytest
import reverb

from tests import fakes
from tests.replay.replay_program import EXPERIENCE
from tests.testing import forks
from tests.testing.replay import DATA_SPEC, write_steps
from tflearn.core.waiting import wait_until
from tflearn.launch.local import free_port
from tflearn.replay import backend
from tflearn.replay.storage import REPLAY, Storage
from tflearn.replay.writers import ReplayWriter

RESUMES_WITHIN_SECS = 10.0


class Server:
    """The server process, which serves."""

    def __init__(self, port, folder):
        log = folder / 'server.log'
        program = 'tests.replay.replay_program'
        self._process = forks.start(program, port, folder / 'checkpoints', log=log, cwd=forks.CHECKOUT)
        wait_until(lambda: 'serving\n' in log.read_text() or self._process.poll() is not None, 'the server', 60)
        assert self._process.poll() is None, log.read_text()

    def kill(self):
        self._process.kill()
        self._process.wait(30)


@pytest.mark.parametrize('away_secs', [4.0, pytest.param(40.0, marks=pytest.mark.slow)])
@pytest.mark.parametrize('idle', [False, True])
def test_writing_resumes_soon_after_a_server_restart(tmp_path, away_secs, idle):
    port = free_port()
    address, storage, stop = f'localhost:{port}', Storage(EXPERIENCE, DATA_SPEC), threading.Event()
    with contextlib.ExitStack() as stack:
        folders = [tmp_path / str(i) for i in range(2)]
        for folder in folders:
            folder.mkdir()
        server = Server(port, folders[0])
        stack.callback(server.kill)
        stack.callback(stop.set)
        backend.wait_for_table(address, REPLAY, storage.signature, 60)
        pause, enough, errors = threading.Event(), threading.Event(), []
        writer = ReplayWriter(address, storage, 2, stop)

        def write():
            environment = fakes.CheckedEnvironment((30, 50))
            try:
                while not (enough.is_set() or stop.is_set()):
                    if not pause.is_set():
                        write_steps(writer, environment, 20)
                    stop.wait(0.05)
            except Exception as error:
                errors.append(error)

        thread = threading.Thread(target=write, daemon=True)
        thread.start()
        wait_until(lambda: writer.num_sequences > 200 or errors, 'the first steps', 60)
        if idle:
            pause.set()
            stop.wait(0.5)
        server.kill()
        stop.wait(away_secs)
        stack.callback(Server(port, folders[1]).kill)
        back_at, before = time.monotonic(), writer.num_sequences
        pause.clear()
        assert not errors
        wait_until(lambda: _num_items(address) > 4 or errors, 'new items', RESUMES_WITHIN_SECS)
        assert not errors
        assert time.monotonic() - back_at < RESUMES_WITHIN_SECS  # a requirement of runs, not a measured speed
        enough.set()
        thread.join(60)
        assert not thread.is_alive()
        assert not errors
        assert writer.num_sequences >= before
        assert writer.lost_steps == 0


def _num_items(address):
    """Asks through a connection that the writer does not share, so that the test does not change the writer's waits."""
    try:
        return reverb.Client(address).server_info(timeout=1)[REPLAY].current_size
    except (reverb.DeadlineExceededError, RuntimeError):
        return 0


def test_stopped_writer_counts_lost_steps(serve):
    served = serve(EXPERIENCE)
    stop = threading.Event()
    writer = ReplayWriter(served.address, served.storage, 1, stop)
    served.server.close()
    stop.set()
    with contextlib.suppress(Exception):
        write_steps(writer, fakes.CheckedEnvironment((50,)), 33)
    assert writer.lost_steps == 32
