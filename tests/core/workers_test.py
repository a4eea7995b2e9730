"""Agreement and states of one process; multi_worker_test and offline_workers_test have two."""

import json
import threading

import numpy as np
import pytest
import tensorflow as tf

from tflearn.core import strategies, workers
from tflearn.core.waiting import PeerStopped


@pytest.mark.parametrize('name', ['default', 'mirrored:2'])
def test_one_process_agrees_with_itself(name):
    agreement = workers.Agreement(strategies.make(name))
    assert agreement.on_any(True) is True
    assert agreement.on_any(False) is False
    assert (agreement.least(3), agreement.greatest(3), agreement.of_chief(3)) == (3, 3, 3)
    agreement.check_same(7, 'the train step')


def test_values_by_replica():
    agreement = workers.Agreement(strategies.make('mirrored:2'))
    np.testing.assert_array_equal(agreement.values(7), [7, 7])


def of_two(monkeypatch, worker):
    """Lets two replicas of this process seem two workers, of which this is one."""
    layout = strategies.ReplicaLayout(replicas=2, input_pipelines=2, worker=worker, workers=2, is_chief=worker == 0)
    monkeypatch.setattr(strategies, 'layout', lambda strategy: layout)
    return strategies.make('mirrored:2')


class Position(tf.train.experimental.PythonState):
    def __init__(self, text):
        self.text = text

    def serialize(self):
        return self.text

    def deserialize(self, string_value):
        self.text = string_value


def test_texts_by_worker(monkeypatch):
    assert workers.Agreement(strategies.make('default')).texts('one') == ['one']
    assert workers.Agreement(of_two(monkeypatch, 1)).texts('two é') == ['two é', 'two é']


def test_an_error_of_one_worker_is_one_of_all(monkeypatch):
    agreement = workers.Agreement(of_two(monkeypatch, 1))
    with agreement.together('the data'):
        pass
    with pytest.raises(OSError, match='mine'), agreement.together('the data'):
        raise OSError('mine')
    monkeypatch.setattr(agreement, 'on_any', lambda flag: True)
    with (
        pytest.raises(PeerStopped, match='got an error of another worker in the data; see its log'),
        agreement.together('the data'),
    ):
        pass


def test_who_was_not_asked_to_stop_has_to_start_again():
    stop = threading.Event()
    workers.check_own_stop(workers.StopReason.CONDITION, stop, 7)
    with pytest.raises(PeerStopped, match='stopped at train step 7, because another worker was asked to stop'):
        workers.check_own_stop(workers.StopReason.REQUEST, stop, 7)
    stop.set()
    workers.check_own_stop(workers.StopReason.REQUEST, stop, 7)


def test_the_state_of_one_worker_is_that_of_the_object(caplog):
    mine = Position('{"drawn": 3}')
    state = workers.StateOfWorkers(mine, workers.Agreement(strategies.make('default')))
    assert state.serialize() == mine.text
    state.deserialize('{"drawn": 5}')
    assert mine.text == '{"drawn": 5}' and not caplog.text
    state.deserialize(json.dumps({'workers': ['{"drawn": 7}', '{"drawn": 8}']}))
    assert mine.text == '{"drawn": 7}'
    assert 'the checkpoint has the positions of 2 workers, now there are 1' in caplog.text


def test_each_worker_restores_its_own_state(monkeypatch, caplog):
    mine = Position('{"drawn": 3}')
    state = workers.StateOfWorkers(mine, workers.Agreement(of_two(monkeypatch, 1)))
    assert json.loads(state.serialize()) == {'workers': ['{"drawn": 3}', '{"drawn": 3}']}
    state.deserialize(json.dumps({'workers': ['{"drawn": 7}', '{"drawn": 8}']}))
    assert mine.text == '{"drawn": 8}' and not caplog.text
    state.deserialize('{"drawn": 5}')
    assert mine.text == '{"drawn": 5}'
    assert 'the checkpoint has the positions of 1 workers, now there are 2' in caplog.text


@pytest.mark.parametrize('num_workers', [1, 2])
def test_a_lost_worker_asks_for_the_start_of_all(monkeypatch, num_workers):
    layout = strategies.ReplicaLayout(
        replicas=num_workers, input_pipelines=num_workers, worker=0, workers=num_workers, is_chief=True
    )
    monkeypatch.setattr(strategies, 'layout', lambda strategy: layout)
    lost = tf.errors.UnavailableError(None, None, 'Collective ops is aborted\nmore')
    expected = tf.errors.UnavailableError if num_workers == 1 else PeerStopped
    with pytest.raises(expected, match='Collective ops is aborted'), workers.peer_failures(None):
        raise lost
