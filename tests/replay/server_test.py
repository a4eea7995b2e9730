import dataclasses
import pathlib
import resource
import socket
import threading

import pytest

from tests import fakes
from tests.replay.writers_test import _items, _run
from tflearn.experience import Experience
from tflearn.replay import connection, rate_limits, tables
from tflearn.replay.statistics import ReplayStatistics
from tflearn.replay.writers import ReplayWriter

SMALL = Experience(min_size=10, samples_per_insert=4.0, per_replica_batch_size=500)


def _fill(served, experience):
    writer = ReplayWriter(served.address, experience, served.layout, 1, threading.Event())
    _run(writer, fakes.CheckedEnvironment((5,)), 6)


def test_the_content_comes_back_after_a_restart(serve, capfd):
    served = serve(SMALL)
    _fill(served, SMALL)
    _fill(served, SMALL)
    before = sorted(float(item.observation[0, 1]) for item, _ in _items(served))
    statistics = ReplayStatistics.of(served.table())
    served.server.checkpoint()
    served.server.close()
    capfd.readouterr()
    restarted = serve(SMALL)
    # Reverb's own words, without all that it tells of its reading.
    assert [line.partition('] ')[2] for line in capfd.readouterr().err.splitlines() if 'reverb/cc' in line] == [
        f'Started replay server on port {restarted.server.port}'
    ]
    assert ReplayStatistics.of(restarted.table()) == statistics
    assert sorted(float(item.observation[0, 1]) for item, _ in _items(restarted)) == before


def test_a_full_disk_costs_only_the_newest_checkpoint(serve, tmp_path):
    experience = Experience(min_size=10)
    served = serve(experience)
    whole = served.server.checkpoint()
    for _ in range(100):
        _fill(served, experience)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))
    try:
        with pytest.raises((RuntimeError, IndexError)):
            served.server.checkpoint()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [str(path.parent) for path in tmp_path.rglob('DONE')] == [whole]
    assert [str(path) for path in (tmp_path / 'replay' / 'checkpoints').iterdir()] == [whole]


def test_a_damaged_checkpoint_is_told_and_left_alone(serve):
    served = serve(SMALL)
    _fill(served, SMALL)
    path = pathlib.Path(served.server.checkpoint())
    served.server.close()
    (path / 'chunks.tfrecord').write_bytes(b'rubbish')
    with pytest.raises(ValueError, match=rf'got the replay checkpoint {path.parent}, which cannot be read .*; remove'):
        serve(SMALL)
    assert (path / 'chunks.tfrecord').read_bytes() == b'rubbish'


@pytest.mark.parametrize(
    ('other', 'name'),
    [
        (
            Experience(min_size=10, samples_per_insert=8.0, per_replica_batch_size=500),
            'samples_per_insert is 4.0 in the checkpoint, 8.0',
        ),
        (dataclasses.replace(SMALL, sequence_length=3), 'signature'),
        (dataclasses.replace(SMALL, max_size=50), 'max_size is 100000 in the checkpoint, 50'),
    ],
)
def test_a_checkpoint_of_other_tables_is_refused_and_left_alone(serve, tmp_path, other, name):
    served = serve(SMALL)
    served.server.checkpoint()
    served.server.close()
    files = sorted(str(path) for path in tmp_path.rglob('*'))
    with pytest.raises(ValueError, match=name):
        serve(other)
    assert sorted(str(path) for path in tmp_path.rglob('*')) == files


def test_a_port_in_use_is_refused(serve):
    with socket.socket() as taken:
        taken.bind(('', 0))
        taken.listen()
        with pytest.raises(ValueError, match=r'need a free port'):
            serve(SMALL, taken.getsockname()[1])


def test_waiting_for_a_server_that_never_comes():
    with socket.socket() as unused:
        unused.bind(('localhost', 0))
        address = f'localhost:{unused.getsockname()[1]}'
        with pytest.raises(TimeoutError, match=f'the replay server at {address}'):
            connection.wait_for_table(address, tables.REPLAY, {}, timeout_secs=1.0)


def test_a_server_with_other_data_is_refused_by_name(serve):
    served = serve(SMALL)
    other = served.layout.signature(3)
    with pytest.raises(ValueError, match='start both with the same gin file'):
        connection.wait_for_table(served.address, tables.REPLAY, other, 10.0)
    with pytest.raises(ValueError, match="need the table 'elsewhere'"):
        connection.wait_for_table(served.address, 'elsewhere', other, 10.0)
    connection.wait_for_table(served.address, tables.REPLAY, served.layout.signature(2), 10.0)


@pytest.mark.parametrize('ratio', [0.25, 1.0, 32.0, 500.0])
def test_neither_side_can_block_the_other_for_ever(ratio):
    experience = Experience(samples_per_insert=ratio, min_size=10)
    assert rate_limits.error_buffer(experience) >= max(1.0, ratio)
    rate_limits.make(experience)  # Reverb checks its own rules


def test_memory_of_a_full_table():
    layout = tables.row_layout(())
    assert layout.num_bytes == 8
    assert tables.num_bytes(Experience(max_size=1000), layout) == 8000
    assert tables.num_bytes(Experience(max_size=1000, sequence_length=5, stride=4), layout) == 32_000
