import pathlib
import resource
import socket
import threading

import pytest
import tensorflow as tf

from tests import fakes
from tests.testing import experiences
from tests.testing.replay import read_items, write_steps
from tflearn.core.experience import BatchItems, Experience, Prioritized, Queue, Uniform
from tflearn.replay import backend, stored_episodes
from tflearn.replay.reverb import library
from tflearn.replay.storage import REPLAY, ReplayStatistics, Storage, TableSpec, error_buffer, rate_limits
from tflearn.replay.writers import ReplayWriter

SMALL = Experience(
    replay=Uniform(min_size=10, samples_per_insert=4.0, sampling='server'), batch=BatchItems(500), chunk_steps=1
)

UNLIMITED = Experience(replay=Uniform(min_size=1, sampling='server'), chunk_steps=1)


def _fill(served, experience):
    writer = ReplayWriter(served.address, served.storage, 1, threading.Event())
    write_steps(writer, fakes.CheckedEnvironment((5,)), 6)


def test_restart_restores_the_content(serve, capfd):
    served = serve(SMALL)
    _fill(served, SMALL)
    _fill(served, SMALL)
    before = sorted(float(item.observation[0, 1]) for item, _ in read_items(served))
    statistics = ReplayStatistics.of(served.table(), served.storage)
    served.server.checkpoint()
    served.server.close()
    capfd.readouterr()
    restarted = serve(SMALL)
    # Reverb's log without its lines about reading.
    assert [line.partition('] ')[2] for line in capfd.readouterr().err.splitlines() if 'reverb/cc' in line] == [
        f'Started replay server on port {restarted.server.port}'
    ]
    assert ReplayStatistics.of(restarted.table(), served.storage) == statistics
    assert sorted(float(item.observation[0, 1]) for item, _ in read_items(restarted)) == before


def test_full_disk_loses_only_the_newest_checkpoint(serve, tmp_path):
    experience = Experience(replay=Uniform(min_size=10, sampling='server'), chunk_steps=1)
    served = serve(experience)
    complete = served.server.checkpoint()
    for _ in range(100):
        _fill(served, experience)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))
    try:
        with pytest.raises((RuntimeError, IndexError)):
            served.server.checkpoint()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [str(path.parent) for path in tmp_path.rglob('DONE')] == [complete]
    assert [str(path) for path in (tmp_path / 'replay' / 'checkpoints').iterdir()] == [complete]


def test_rejects_damaged_checkpoint_and_keeps_it(serve):
    served = serve(SMALL)
    _fill(served, SMALL)
    path = pathlib.Path(served.server.checkpoint())
    served.server.close()
    (path / 'chunks.tfrecord').write_bytes(b'rubbish')
    with pytest.raises(ValueError, match=rf'got the replay checkpoint {path}, which cannot be read .*; remove'):
        serve(SMALL)
    assert (path / 'chunks.tfrecord').read_bytes() == b'rubbish'


def test_rejects_checkpoint_without_a_file(serve):
    """Reverb would start with an empty replay, and the next checkpoint would replace this one."""
    served = serve(SMALL)
    _fill(served, SMALL)
    path = pathlib.Path(served.server.checkpoint())
    served.server.close()
    (path / 'items.tfrecord').unlink()
    with pytest.raises(ValueError, match=rf'{path}, which cannot be read \(no items.tfrecord\); need a complete one'):
        serve(SMALL)
    assert path.exists()


def test_time_zone_change_loses_no_checkpoint(serve, monkeypatch):
    served, sizes = serve(UNLIMITED), []
    for zone in ('Pacific/Kiritimati', 'Pacific/Pago_Pago', 'Pacific/Kiritimati'):  # 25 hours apart
        monkeypatch.setenv('TZ', zone)
        _fill(served, UNLIMITED)
        sizes.append(served.table().size)
        path = pathlib.Path(served.server.checkpoint())
        assert (path / 'DONE').exists()
        assert list(path.parent.iterdir()) == [path]
        served.server.close()
        served = serve(UNLIMITED)
        assert served.table().size == sizes[-1]
    assert sizes[0] < sizes[1] < sizes[2]


def _save(serve, checkpoints, num_fills):
    """Saves a checkpoint with more items than the last one. Returns its path and its number of items."""
    served = serve(UNLIMITED, checkpoints=checkpoints)
    for _ in range(num_fills):
        _fill(served, UNLIMITED)
    path = pathlib.Path(served.server.checkpoint())
    size = served.table().size
    served.server.close()
    return path, size


def test_checkpoint_survives_if_its_server_dies_right_after_it(serve, tmp_path):
    """Reverb has completed it, and it was not renamed yet; the one before and an incomplete one are there too."""
    checkpoints = tmp_path / 'replay' / 'checkpoints'
    newer, size = _save(serve, tmp_path / 'replay' / 'other', 2)
    older, _ = _save(serve, checkpoints, 1)
    unfinished = checkpoints / '.unfinished'
    (unfinished / '2099-01-01T00:00:00+00:00').mkdir(parents=True)
    newer.rename(unfinished / '2026-01-01T00:00:00+00:00')
    assert serve(UNLIMITED).table().size == size
    assert [path.name for path in checkpoints.iterdir()] == ['00000002']
    assert not older.exists()


def test_keeps_directories_that_are_not_checkpoints(serve, tmp_path):
    other = tmp_path / 'replay' / 'checkpoints' / 'backup'
    other.mkdir(parents=True)
    path, _ = _save(serve, other.parent, 1)
    assert sorted(other.parent.iterdir()) == [path, other]


@pytest.mark.parametrize(
    ('other', 'name'),
    [
        (
            experiences.changed(SMALL, samples_per_insert=8.0),
            'samples_per_insert is 4.0 in the checkpoint, 8.0',
        ),
        (experiences.changed(SMALL, sequence_length=3), 'signature'),
    ],
)
def test_rejects_checkpoint_of_other_tables_and_keeps_it(serve, tmp_path, other, name):
    served = serve(SMALL)
    served.server.checkpoint()
    served.server.close()
    files = sorted(str(path) for path in tmp_path.rglob('*'))
    with pytest.raises(ValueError, match=name):
        serve(other)
    assert sorted(str(path) for path in tmp_path.rglob('*')) == files


@pytest.mark.parametrize('sampling', ['learner', 'server'])
def test_reads_rows_from_a_checkpoint(serve, tmp_path, sampling):
    served = serve(Experience(replay=Uniform(min_size=1, sampling=sampling), chunk_steps=4))
    writer = ReplayWriter(served.address, served.storage, 2, threading.Event())
    write_steps(writer, fakes.CheckedEnvironment((3, 5)), 12)
    served.server.checkpoint()
    columns = dict(stored_episodes.read_rows(tmp_path / 'replay' / 'checkpoints', 50))
    assert (columns['policy_version'] == 7).all()
    assert columns['observation'].shape == (19, 2)  # each row in which a sequence begins, once
    assert set(map(tuple, columns['observation'].tolist())) <= {(i, step) for i in range(3) for step in range(6)}
    assert set(columns['action'].tolist()) == {1}
    assert columns.keys() == {
        *('begins', 'policy_version', 'step_type', 'observation'),
        *('action', 'next_step_type', 'reward', 'discount'),
    }


def test_wait_for_a_missing_server_times_out():
    with socket.socket() as unused:
        unused.bind(('localhost', 0))
        address = f'localhost:{unused.getsockname()[1]}'
        with pytest.raises(TimeoutError, match=f'the replay server at {address}'):
            backend.wait_for_table(address, REPLAY, {}, timeout_secs=1.0)


@pytest.mark.parametrize('ratio', [0.25, 1.0, 32.0, 500.0])
def test_rate_limiter_cannot_deadlock(ratio):
    experience = Experience(replay=Uniform(samples_per_insert=ratio, min_size=10))
    assert error_buffer(experience) >= max(1.0, ratio)
    library.make_table(TableSpec('table', 10, {}, 'uniform', **rate_limits(experience)))  # Reverb checks its own rules


def test_memory_of_a_full_table():
    plain = Storage(Experience(replay=Prioritized(max_size=1000, sampling='server')), ())
    assert plain.layout.num_bytes == 1 + 8
    assert plain.num_bytes == 1000 * 2 * 9
    chunked = Storage(Experience(replay=Uniform(max_size=1600)), ())
    assert chunked.num_bytes == 100 * (8 + 17 * 9)


@pytest.mark.parametrize(
    ('changes', 'mirrored', 'num_starts'),
    [
        ({}, True, 16),
        ({'chunk_steps': 4}, True, 4),
        ({'sampling': 'server'}, False, 16),
        ({'max_mirror_gb': 1e-6}, False, 16),
        ({'max_mirror_gb': 1e-6, 'sampling': 'learner'}, True, 16),
        ({'kind': Prioritized}, True, 16),
        ({'kind': Prioritized, 'sampling': 'server'}, False, 1),
        ({'kind': Prioritized, 'max_mirror_gb': 1e-6}, False, 1),
        ({'kind': Prioritized, 'max_times_sampled': 2}, False, 1),
        ({'kind': Prioritized, 'sequence_length': 20, 'stride': 10}, True, 1),
        ({'kind': Queue}, False, 1),
        ({'max_times_sampled': 2}, False, 1),
        ({'sequence_length': 20, 'stride': 10}, True, 1),
    ],
)
def test_mirror_and_chunk_size_follow_the_settings(changes, mirrored, num_starts):
    storage = Storage(experiences.experience(**changes), tf.TensorSpec((3,), tf.float32, 'x'))
    assert (storage.mirrored, storage.num_starts) == (mirrored, num_starts)
    assert len(storage.make_tables()) == 1 + mirrored


def test_large_rows_make_small_chunks():
    frame = tf.TensorSpec((84, 84, 4), tf.uint8, 'frame')
    assert Storage(Experience(replay=Uniform(sampling='server')), frame).num_starts == 4
    assert Storage(Experience(chunk_steps=100), frame).num_starts == 18, 'a mirror takes complete chunks'
