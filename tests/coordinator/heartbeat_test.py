import contextlib

from tflearn.coordinator import heartbeat
from tflearn.coordinator.heartbeat import Heartbeat, HeartbeatWatch
from tflearn.core.waiting import wait_until
from tflearn.replay.reverb.server import ReplayServer


def test_the_server_hears_a_learner_and_knows_since_when_it_does_not(tmp_path, monkeypatch):
    monkeypatch.setattr(heartbeat, '_INTERVAL_SECS', 0.05)
    server, now = ReplayServer([heartbeat.table()], 0, tmp_path / 'checkpoints'), [0.0]

    def silent_secs():
        now[0] += 1.0
        watch.update(server.counts())
        return watch.silent_secs

    with contextlib.closing(server):
        watch = HeartbeatWatch(address := f'localhost:{server.port}', clock=lambda: now[0])
        assert silent_secs() == silent_secs() == 0.0, 'there was no learner yet'
        learner = Heartbeat(address)
        wait_until(lambda: silent_secs() == 0.0 and watch._heard, 'a heartbeat', 30)
        learner._closed.set()  # killed: it does not say that it ends
        learner._thread.join(30)
        silent_secs()
        before = silent_secs()
        now[0] += 70.0
        assert silent_secs() == before + 30.0, 'the server stood still'
        assert watch.is_lost(before) and not watch.is_lost(before + 31.0)
        learner.close()
        assert silent_secs() == 0.0
        now[0] += 5.0
        assert silent_secs() == 6.0
        assert not watch.is_lost(5.0), 'it ended in order'
        now[0] += 5.0
        assert silent_secs() == 0.0, 'the next learner is waited for'
