"""Agreement and run directory of one process; multi_worker_test has two."""

import numpy as np
import pytest
import tensorflow as tf

from tflearn.distribute import strategies, workers
from tflearn.run_dir import RunDir, read_json, write_json
from tflearn.waiting import PeerStopped


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


def test_chief_writes_to_the_run_directory(tmp_path):
    with workers.writable_run_dir(strategies.make('default'), RunDir(tmp_path)) as run_dir:
        assert run_dir.root == tmp_path


def test_other_workers_write_elsewhere_and_see_the_checkpoints(tmp_path, monkeypatch):
    layout = strategies.ReplicaLayout(replicas=2, input_pipelines=2, worker=1, workers=2, is_chief=False)
    monkeypatch.setattr(strategies, 'layout', lambda strategy: layout)
    run_dir = RunDir(tmp_path)
    run_dir.checkpoints.mkdir(parents=True)
    (run_dir.checkpoints / 'ckpt-1.index').write_text('complete')
    (run_dir.checkpoints / '.writing').mkdir()
    with workers.writable_run_dir(strategies.make('default'), run_dir) as mine:
        assert mine.root != tmp_path
        assert [path.name for path in mine.checkpoints.iterdir()] == ['ckpt-1.index']
        assert (mine.checkpoints / 'ckpt-1.index').read_text() == 'complete'
        (mine.checkpoints / 'ckpt-1.index').unlink()
        (mine.checkpoints / 'ckpt-2.index').write_text('new')
        assert read_json(mine.stop_request) is None
        write_json(run_dir.stop_request, {'reason': 'enough'})
        assert read_json(mine.stop_request) == {'reason': 'enough'}
    assert not mine.root.exists()
    assert {path.name for path in run_dir.checkpoints.iterdir()} == {'ckpt-1.index', '.writing'}


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
