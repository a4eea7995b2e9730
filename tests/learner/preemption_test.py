"""Notices of maintenance, from a server that answers as Google Cloud's metadata server does."""

import threading

import pytest

from tflearn.core.waiting import PeerStopped, Stopped
from tflearn.learner import preemption

DEADLINE_SECS = 60


def test_no_notice(metadata):
    assert preemption.notice() is None
    metadata.values['maintenance-event'] = 'MIGRATE_ON_HOST_MAINTENANCE'  # the machine goes on elsewhere
    assert preemption.notice() is None


@pytest.mark.parametrize(
    ('name', 'value'), [('maintenance-event', 'TERMINATE_ON_HOST_MAINTENANCE'), ('preempted', 'TRUE')]
)
def test_notice_stops_the_job_which_asks_for_another_start(metadata, name, value):
    stop = threading.Event()
    message = f'this machine has the notice {name}={value}; start it again'
    with pytest.raises(PeerStopped, match=message), preemption.watched(True, stop, poll_secs=0.02):
        assert not stop.wait(0.1)
        metadata.values[name] = value
        assert stop.wait(DEADLINE_SECS)
        raise Stopped('as a wait of the job ends')


def test_without_a_notice_the_block_ends_as_it_would(metadata):
    stop = threading.Event()
    with preemption.watched(True, stop, poll_secs=0.02):
        pass
    with pytest.raises(Stopped), preemption.watched(True, stop, poll_secs=0.02):
        raise Stopped('asked by a user')
    assert not stop.is_set()
    with preemption.watched(False, stop):
        assert not [each for each in threading.enumerate() if each.name == 'preemption']


@pytest.mark.parametrize('what', ['other', 'none'])
def test_a_server_that_is_not_googles_is_no_notice(metadata, monkeypatch, caplog, what):
    metadata.flavor = None
    if what == 'none':
        monkeypatch.setenv('GCE_METADATA_HOST', 'localhost:1')
    with pytest.raises(OSError):
        preemption.notice()
    stop = threading.Event()
    with preemption.watched(True, stop, poll_secs=0.01):
        assert not stop.wait(0.2)
    assert caplog.text.count('no notice of maintenance can be seen') == 1
