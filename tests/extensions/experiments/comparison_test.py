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
    bad, good = found.groups
    assert (bad.label, good.label, good.missing) == ('bad', 'good', ())
    last_marks = np.mean([0.9, 0.95, 1.0])
    np.testing.assert_allclose(bad.scores, [0.05 * LAST * last_marks] * 5)
    np.testing.assert_allclose(good.scores, (0.1 + 0.01 * np.arange(5)) * LAST * last_marks)
    np.testing.assert_allclose(bad.areas, [0.05 * LAST / 2] * 5)
    ((label, verdict),) = found.verdicts().items()
    assert (label, verdict.word, verdict.probability, verdict.p) == ('good', 'better', 1.0, pytest.approx(2 / 252))
    cells = '| good | 5 | 114 [95, 133] (93.75%), mean 114 | 60 | 1 | 0.0079 (level 4.8%) | 0.0079 | better |'
    assert cells in str(found).splitlines()
    assert str(found).endswith('0.048 false ones are to be expected of 1 if no two sides differ.')
    worse = tflearn.compare(tmp_path / 'bad', tmp_path / 'good', lower_is_better=True).verdicts()['good']
    assert worse.word == 'worse'


def test_fewer_than_four_runs_decide_nothing(add_run, tmp_path):
    for seed in range(3):
        add_run(f'one/seed_{seed}', 0.1 + 0.01 * seed)
        add_run(f'two/seed_{seed}', 0.2 + 0.01 * seed)
    found = tflearn.compare(tmp_path / 'one', tmp_path / 'two')
    row = '| two | 3 | 199.5, mean 199.5 | 105 |  |  |  | too few seeds to tell |'
    assert str(found).splitlines()[-1] == row, 'no p, no interval, no expected number of false verdicts'


def test_runs_of_one_name_are_pairs(add_run, tmp_path):
    for seed in range(8):
        add_run(f'first/seed_{seed}', 0.1 + 0.1 * seed)
        add_run(f'second/seed_{seed}', 0.11 + 0.1 * seed + 0.001 * (seed % 3))
    roots = tmp_path / 'first', tmp_path / 'second'
    words = [
        tflearn.compare(*roots, **given).verdicts()['second'].word
        for given in ({}, {'equal_within': 1_000.0}, {'paired': True})
    ]
    assert words == ['not told apart', 'equal', 'better']
    add_run('second/seed_9')
    with pytest.raises(ValueError, match='got paired runs .*seed_9 of second and .*; need runs of the same names'):
        tflearn.compare(*roots, paired=True).verdicts()


def test_each_comparison_of_a_table_has_holms_p(add_run, tmp_path):
    for seed in range(5):
        for name, slope in (('first', 0.1), ('second', 0.3), ('third', 0.1)):
            add_run(f'{name}/seed_{seed}', slope + 0.001 * seed + 0.0003 * (name == 'third'))
    found = tflearn.compare(*(tmp_path / name for name in ('first', 'second', 'third')))
    second, third = found.verdicts().values()
    assert second.holm == pytest.approx(2 * second.p) == pytest.approx(4 / 252)
    assert third.holm == third.p
    assert str(found).endswith('0.063 false ones are to be expected of 2 if no two sides differ.')


def test_single_runs_that_differ_in_seeds_only_are_one_group(add_run):
    text = '# made today\ntrain.Initial.seed = {}\ndqn.make_agent.gamma = {}\n'
    settings = {'run0': (1, 0.9), 'run1': (2, 0.9), 'other/run0': (3, 0.9), 'run2': (1, 0.5)}
    paths = [add_run(name, config=text.format(*its)) for name, its in settings.items()]
    groups = [(group.label, len(group.names)) for group in tflearn.compare(*paths).groups]
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
    found = tflearn.compare(tmp_path / 'group')
    (group,), (cells,) = found.groups, found.cells()
    assert (group.names, group.missing) == (('seed_1',), ('seed_2',))
    assert cells[1] == '1 (no evaluation: seed_2)'


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
