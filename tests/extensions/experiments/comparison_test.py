"""Runs whose evaluations are written as the evaluate job writes them."""

import csv
import io

import numpy as np
import pytest
from matplotlib import image

import tflearn
from tflearn.actors.evaluation_record import EvaluationRecord
from tflearn.extensions.experiments import comparison
from tflearn.files.run_dir import RunDir, write_atomically, write_json

LAST = 1000


@pytest.fixture
def add_run(tmp_path):
    """Returns a function that adds a run whose return rises by `slope` for each environment step; returns its path."""

    def add_run(name, slope=0.1, last=LAST, reason=None, config=None):
        run_dir = RunDir(tmp_path / name)
        record = EvaluationRecord(run_dir.evaluations)
        for i, steps in enumerate(range(0, last + 1, 100)):
            mean = slope * steps
            record.append(
                {
                    'train_step': 2 * steps,
                    'env_steps': steps,
                    'mean_return': mean,
                    'returns': [mean],
                    'metrics': {'info/error': -mean},
                    'exported_at': 1e9 + i,
                }
            )
        if reason:
            write_json(run_dir.done, {'reason': reason, 'train_step': 2 * last})
        if config:
            write_atomically(run_dir.config, config)
        return run_dir.root

    return add_run


def test_two_folders_of_runs_are_two_groups(add_run, tmp_path):
    for seed in range(5):
        add_run(f'good/seed_{seed}', 0.1 + 0.01 * seed)
        add_run(f'bad/seed_{seed}', 0.05)
    found = tflearn.compare(tmp_path / 'bad', str(tmp_path / 'good'))
    bad, good = found.rows()
    assert (bad.label, good.label, good.num_runs, good.missing) == ('bad', 'good', 5, ())
    last_marks = np.mean([0.9, 0.95, 1.0])
    assert bad.score == pytest.approx((0.05 * LAST * last_marks,) * 3)
    assert good.score[0] == pytest.approx(0.12 * LAST * last_marks)
    assert good.score[0] > good.score[1] >= 0.1 * LAST * last_marks
    assert bad.area == pytest.approx(0.05 * LAST / 2)
    assert (bad.verdict, good.verdict, good.improvement) == ('', 'better', (1.0, 1.0, 1.0))
    assert str(found).splitlines()[-1].startswith('| good | 5 | 114 [')
    worse = list(tflearn.compare(tmp_path / 'bad', tmp_path / 'good', lower_is_better=True).rows())[1]
    assert worse.verdict == 'worse'


def test_one_run_decides_nothing(add_run):
    rows = list(tflearn.compare(add_run('one', 0.1), add_run('two', 0.2)).rows())
    assert (rows[1].improvement[0], rows[1].verdict) == (1.0, 'not decided')
    assert rows[1].cells == ('two', '1', '190', '100', '1', 'not decided')


def test_single_runs_that_differ_in_seeds_only_are_one_group(add_run):
    text = '# made today\ntrain.Initial.seed = {}\ndqn.make_agent.gamma = {}\n'
    settings = {'run0': (1, 0.9), 'run1': (2, 0.9), 'other/run0': (3, 0.9), 'run2': (1, 0.5)}
    paths = [add_run(name, config=text.format(*its)) for name, its in settings.items()]
    groups = [(row.label, row.num_runs) for row in tflearn.compare(*paths).rows()]
    assert groups == [(str(paths[0]), 3), ('run2', 1)], 'also two of one name'


def test_a_run_that_reached_its_target_keeps_its_last_value(add_run, tmp_path):
    add_run('group/fast', 0.2, last=500, reason='target_return 100 reached at train step 1000')
    add_run('group/slow', 0.1, last=LAST, reason='num_train_steps 2000 reached')
    (group,) = tflearn.compare(tmp_path / 'group').groups
    assert group.marks[-1] == LAST
    assert group.curves[:, -1].tolist() == [100.0, 100.0]
    add_run('group/ended', 0.1, last=400, reason='num_train_steps 800 reached')
    (group,) = tflearn.compare(tmp_path / 'group').groups
    assert group.marks[-1] == 400


@pytest.mark.parametrize(('axis', 'last'), [('env_steps', LAST), ('train_step', 2 * LAST), ('secs', 10)])
def test_the_axis(add_run, axis, last):
    (group,) = tflearn.compare(add_run('run'), axis=axis).groups
    assert group.marks[-1] == last
    assert group.curves[0, -1] == 0.1 * LAST


def test_another_metric(add_run):
    (group,) = tflearn.compare(add_run('run'), metric='info/error').groups
    assert group.curves[0, -1] == -0.1 * LAST


def test_runs_without_evaluations_are_named(add_run, tmp_path):
    add_run('group/seed_1')
    write_json(RunDir(tmp_path / 'group' / 'seed_2').status('train'), {'state': 'running'})
    (row,) = tflearn.compare(tmp_path / 'group').rows()
    assert (row.num_runs, row.missing) == (1, ('seed_2',))
    assert row.cells[1] == '1 (no evaluation: seed_2)'


def test_a_line_that_is_being_written_stays(add_run):
    path = add_run('run')
    file = RunDir(path).evaluations
    with file.open('a') as lines:
        lines.write('{"train_step": 2')
    before = file.read_bytes()
    tflearn.compare(path)
    assert file.read_bytes() == before


def test_the_files(add_run, tmp_path):
    for seed in range(2):
        add_run(f'group/seed_{seed}', 0.1 * (1 + seed))
    found = tflearn.compare(tmp_path / 'group')
    comparison.write(found, tmp_path / 'output')
    rows = list(csv.DictReader(io.StringIO((tmp_path / 'output' / 'comparison.csv').read_text())))
    assert len(rows) == 2 * (comparison.MARKS + 1)
    assert rows[-1] == {'group': 'group', 'run': 'seed_1', 'env_steps': '1000', 'return': '200'}
    assert (tmp_path / 'output' / 'comparison.md').read_text().startswith(str(found))
    drawn = image.imread(tmp_path / 'output' / 'comparison.png')
    assert len(np.unique(drawn.reshape(-1, drawn.shape[-1]), axis=0)) > 10


def test_errors(add_run, tmp_path):
    add_run('run')
    (tmp_path / 'empty').mkdir()
    for arguments, message in [
        ((), 'got no run; need'),
        ((tmp_path / 'empty',), 'which is no run; need the --root_dir of a run'),
        ((tmp_path / 'nowhere',), 'which is no run'),
        (('s3://bucket/run',), 'which is a URL'),
    ]:
        with pytest.raises(ValueError, match=message):
            tflearn.compare(*arguments)
    with pytest.raises(ValueError, match='got run without evaluations that have info/none and env_steps; need'):
        tflearn.compare(tmp_path / 'run', metric='info/none')
    with pytest.raises(ValueError, match="got axis='steps'; need one of env_steps, secs, train_step"):
        tflearn.compare(tmp_path / 'run', axis='steps')
