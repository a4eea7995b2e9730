"""The run directory of a worker; multi_worker_test has two."""

from tflearn.core import strategies
from tflearn.files.run_dir import RunDir, read_json, write_json
from tflearn.learner import checkpoints


def test_chief_writes_to_the_run_directory(tmp_path):
    with checkpoints.writable_run_dir(strategies.make('default'), RunDir(tmp_path)) as run_dir:
        assert run_dir.root == tmp_path


def test_other_workers_write_elsewhere_and_see_the_checkpoints(tmp_path, monkeypatch):
    layout = strategies.ReplicaLayout(replicas=2, input_pipelines=2, worker=1, workers=2, is_chief=False)
    monkeypatch.setattr(strategies, 'layout', lambda strategy: layout)
    run_dir = RunDir(tmp_path)
    run_dir.checkpoints.mkdir(parents=True)
    (run_dir.checkpoints / 'ckpt-1.index').write_text('complete')
    (run_dir.checkpoints / '.writing').mkdir()
    with checkpoints.writable_run_dir(strategies.make('default'), run_dir) as mine:
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
