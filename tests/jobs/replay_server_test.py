"""How the replay server's tables are saved: named in manifests, and within the time that a stop leaves."""

import pathlib
import threading

import pytest

from tests import fakes
from tests.testing.replay import write_steps
from tflearn.core.experience import Experience, Uniform
from tflearn.files.manifests import Manifests
from tflearn.files.run_dir import RunDir
from tflearn.jobs import replay_server
from tflearn.jobs.collect import collect
from tflearn.jobs.replay_server import _Saver
from tflearn.jobs.train import train
from tflearn.replay.writers import ReplayWriter

EXPERIENCE = Experience(replay=Uniform(min_size=1, sampling='server'), chunk_steps=1)


@pytest.fixture
def saver(serve, tmp_path):
    """A function stop_timeout_secs -> _Saver of one server, whose tables are not empty."""
    served, run_dir = serve(EXPERIENCE), RunDir(tmp_path)
    manifests = Manifests(tmp_path, run_dir.manifests, 'replay_server', 1)
    served.server._checkpoints._needed = manifests.named
    writer = ReplayWriter(served.address, served.storage, 1, threading.Event())
    write_steps(writer, fakes.CheckedEnvironment((5,)), 6)
    return lambda secs=30.0: _Saver(served.server, served.storage, run_dir.replay_checkpoints, manifests, secs)


def _names(tmp_path):
    return sorted(path.name for path in RunDir(tmp_path).replay_checkpoints.iterdir())


def test_keeps_the_checkpoints_that_manifests_name(saver, tmp_path):
    learner = Manifests(tmp_path, RunDir(tmp_path).manifests, 'train', 1)
    for step in range(4):
        saver().save()
        learner.add(f'ckpt-{step}', [])
    assert _names(tmp_path) == ['00000003', '00000004']
    pair = next(iter(learner.whole()))
    assert (pair.train_step, pair.replay) == (3, {'replay_server': '00000004'})
    files = pair.parts['replay_server'].files
    assert {pathlib.Path(name).name for name in files} >= {'tables.tfrecord', 'items.tfrecord', 'chunks.tfrecord'}


def test_a_last_save_that_takes_too_long_is_not_begun(saver, tmp_path, caplog):
    hasty = saver(secs=1e-9)
    hasty.log_expected(interval_secs=300.0)
    assert 'a full table takes up to' in caplog.text and 's to save' in caplog.text
    assert 'or a stop loses up to 300 s of experience; raise --stop_timeout_secs, or lower' in caplog.text
    hasty.save_last()  # better than nothing
    assert _names(tmp_path) == ['00000001']
    hasty.save_last()
    assert _names(tmp_path) == ['00000001']
    assert 'until this job is killed: kept the checkpoint before; what came in the last 0 s is lost' in caplog.text
    hasty.save_last(is_stopped=False)
    assert _names(tmp_path) == ['00000001', '00000002']
    caplog.clear()
    saver().save_last()
    assert _names(tmp_path) == ['00000002', '00000003']
    assert 'saved the replay in' in caplog.text
    late = saver()
    late.not_stopped_at -= 31.0  # an interval's save went on while the job was stopped
    late.save_last()
    assert _names(tmp_path) == ['00000002', '00000003']


def test_its_status_counts_what_came_after_its_last_poll(small_run, monkeypatch, caplog):
    """A run may begin and end between two polls."""
    wants_save = replay_server.wants_save

    def last_poll(stop):
        monkeypatch.setattr(replay_server, '_POLL_SECS', 3600.0)
        return wants_save(stop)

    monkeypatch.setattr(replay_server, 'wants_save', last_poll)  # the first poll ends by it
    replay = small_run.start_replay()
    small_run.start(collect, num_environments=2)
    small_run.start(train, num_train_steps=20).join()
    assert small_run.status('replay_server')['inserts'] == 0
    assert 'there is no checkpoint of the replay yet: it begins empty' in caplog.text
    replay.stop.set()
    replay.join()
    status = small_run.status('replay_server')
    assert status['state'] == 'stopped' and status['inserts'] >= small_run.experience.replay.min_size
