"""Searches: with runs that write evaluations as the evaluate job does, and by the program with real ones."""

import json
import re
import signal
import sys

import optuna
import pytest
from matplotlib import image

from tests.extensions.experiments.quick_search import BUDGET, RATE, RUN, SPACE, tuning
from tests.testing import forks
from tests.testing.jobs import SMALL_BINDINGS
from tflearn.config import files, job_config
from tflearn.core.waiting import wait_until
from tflearn.extensions.experiments import runs
from tflearn.extensions.experiments.tuning import Tuning, read_space, resolve_space, run_finals
from tflearn.files.run_dir import RunDir

pytestmark = pytest.mark.usefixtures('forked_checks')

DEADLINE_SECS = 240.0


def trials(folder):
    storage = optuna.storages.JournalStorage(
        optuna.storages.journal.JournalFileBackend(str(folder / 'search' / 'study.journal'))
    )
    return optuna.load_study(study_name='study', storage=storage).trials


@pytest.fixture
def start(tmp_path):
    """Returns a function that starts the search of quick_search.py; its output is in `log` there."""
    started = []

    def start_search():
        started.append(forks.start('tests.extensions.experiments.quick_search', tmp_path, log=tmp_path / 'log'))
        return started[-1]

    yield start_search
    for each in started:
        each.kill()


@pytest.fixture
def quick_runs(monkeypatch):
    monkeypatch.setattr(runs, '_RUN', RUN)
    monkeypatch.setattr(runs, '_POLL_SECS', 0.02)


@pytest.mark.usefixtures('quick_runs')
def test_the_best_trial_is_found_and_others_are_pruned(tmp_path, capsys):
    space = tmp_path / 'space.py'  # trial 8, when at least five have ended, is the worst
    space.write_text(f"""
def suggest(trial):
    rate = trial.suggest_float('{RATE}', 1e-4, 1e-2, log=True)
    return ['{RATE} = ' + str(1e-5 if trial.number == 8 else rate)]
""")
    assert tuning(tmp_path, space=str(space), num_trials=12, parallel=2).run(sys.stdout)
    found = trials(tmp_path)
    assert len(found) == 12 and {trial.state.name for trial in found} == {'COMPLETE', 'PRUNED'}
    pruned = found[8]
    assert pruned.state.name == 'PRUNED' and 5 <= max(pruned.intermediate_values) < 10
    out = capsys.readouterr().out
    assert re.search(r'trial 8: pruned after \d of 20 parts, return -?\d', out)
    record = RunDir(tmp_path / 'search' / 'trial_8')
    assert record.evaluations.exists() and not record.done.exists()
    best = max((trial for trial in found if trial.state.name == 'COMPLETE'), key=lambda trial: trial.value)
    text = (tmp_path / 'search' / 'best.gin').read_text()
    assert text.startswith(f'# Trial {best.number} of 12, with its own seed: score {best.value:.4g}')
    assert f'{RATE} = {best.params[RATE]}' in text and '.seed = ' not in text
    assert len((tmp_path / 'search' / 'tuning.md').read_text().splitlines()) == 2 + 12 + 2
    assert image.imread(tmp_path / 'search' / 'tuning.png').shape[:2] == (450, 1200)


@pytest.mark.usefixtures('quick_runs')
def test_of_trials_that_reach_the_target_the_fastest_is_the_best(tmp_path, capsys):
    space = tmp_path / 'space.py'
    space.write_text(f"""
def suggest(trial):
    return ['{RATE} = ' + str([1.01e-3, 1e-3, 1e-4][trial.number])]
""")
    assert tuning(tmp_path, space=str(space), methods=('random', 'none')).run(sys.stdout)
    result = 'score 100, the target after 1,000 environment steps'
    text = (tmp_path / 'search' / 'best.gin').read_text()
    assert text.startswith(f'# Trial 1 of 3, with its own seed: {result} (return).'), 'of equally fast ones the better'
    rows = (tmp_path / 'search' / 'tuning.md').read_text().splitlines()
    assert [row.split(' | ')[0] for row in rows[2:5]] == ['| 1', '| 0', '| 2'], 'the best one first'
    assert (
        f'trial 2: done: max_env_steps 1000 reached; score 60; the best is trial 1 ({result})\n'
        in capsys.readouterr().out
    )
    assert trials(tmp_path)[0].user_attrs == {'env_steps': 1000, 'reached_target': True}
    assert not trials(tmp_path)[2].user_attrs['reached_target']


@pytest.mark.usefixtures('quick_runs')
def test_of_the_finalists_the_best_with_fresh_seeds_is_chosen(tmp_path, capsys):
    space = tmp_path / 'space.py'
    space.write_text(f"suggest = lambda trial: ['{RATE} = ' + str([1e-4, 1e-3, 2e-3, 1e-5][trial.number])]")
    search = tuning(tmp_path, space=str(space), num_trials=4, parallel=4, methods=('random', 'none'))
    study = search.run(sys.stdout)
    lucky = study.trials[0].number  # as if it had been the best one
    (tmp_path / 'search' / 'trial_1').rename(tmp_path / 'search' / 'other')
    (tmp_path / 'search' / 'trial_0').rename(tmp_path / 'search' / 'trial_1')
    (tmp_path / 'search' / 'other').rename(tmp_path / 'search' / 'trial_0')
    found = run_finals(search, study, 3, 2, sys.stdout)
    assert found.groups[0].names == ('seed_200000', 'seed_200001')
    out = capsys.readouterr().out
    assert lucky == 0 and 'seed 100001: done' in out and '| trial_1 | 2 | ' in out
    assert f'{RATE} = 0.001' in (tmp_path / 'search' / 'best.gin').read_text()
    assert (tmp_path / 'search' / 'finalists' / 'comparison.png').exists()


LIMITED = [
    BUDGET,
    'from tflearn.jobs import evaluate',
    'from tflearn.jobs import evaluate_settings',
    'evaluate.evaluate.options = @evaluate_settings.EvaluateOptions()',
    "evaluate_settings.EvaluateOptions.limits = {'return_1': 0.5}",
]


@pytest.mark.usefixtures('quick_runs')
def test_a_trial_above_a_limit_of_its_evaluations_is_no_candidate(tmp_path, capsys):
    space = tmp_path / 'space.py'
    space.write_text(f"suggest = lambda trial: ['{RATE} = ' + str([9e-4, 2e-4, 4e-4, 8e-4][trial.number])]")
    search = tuning(tmp_path, space=str(space), num_trials=4, gin_bindings=LIMITED)
    study = search.run(sys.stdout)
    out = capsys.readouterr().out
    assert re.search(r'trial 0: done: [^;]*; return_1 0.9\d* is above 0.5\n', out), 'nothing is the best one yet'
    assert re.search(r'trial 3: done: [^;]*; return_1 0.8\d* is above 0.5; the best is trial 2 ', out)
    rows = [row.split(' | ')[:2] for row in (tmp_path / 'search' / 'tuning.md').read_text().splitlines()]
    assert rows[2:6] == [['| 2', 'complete'], ['| 1', 'complete'], ['| 0', 'above a limit'], ['| 3', 'above a limit']]
    assert f'{RATE} = 0.0004' in (tmp_path / 'search' / 'best.gin').read_text()
    (tmp_path / 'search' / 'trial_1').rename(tmp_path / 'search' / 'other')
    (tmp_path / 'search' / 'trial_3').rename(tmp_path / 'search' / 'trial_1')  # as if it had been lucky
    run_finals(search, study, 2, 2, sys.stdout)
    assert f'{RATE} = 0.0004' in (tmp_path / 'search' / 'best.gin').read_text(), 'of fresh seeds too'


@pytest.mark.usefixtures('quick_runs')
def test_a_search_whose_trials_are_all_above_a_limit_has_no_best_one(tmp_path):
    space = tmp_path / 'space.py'
    space.write_text(f"suggest = lambda trial: ['{RATE} = 0.001']")
    with pytest.raises(ValueError, match="got no trial that has a score within the limits {'return_1': 0.5} in"):
        tuning(tmp_path, space=str(space), num_trials=1, gin_bindings=LIMITED).run(sys.stdout)
    assert not (tmp_path / 'search' / 'best.gin').exists()


def test_a_killed_search_goes_on(tmp_path, start):
    first = tmp_path / 'search' / 'trial_0' / 'evaluations.jsonl'
    (tmp_path / 'hold').touch()
    search, output = start(), []
    wait_until(lambda: first.exists() and first.read_text().count('\n') >= 2, 'evaluations', DEADLINE_SECS)
    search.kill()
    search.wait(DEADLINE_SECS)
    (tmp_path / 'hold').unlink()
    with open(tmp_path / 'search' / 'study.journal', 'a') as journal:
        journal.write('{"op_code": 4')  # what a killed writer leaves

    def again():
        code = start().wait(DEADLINE_SECS)
        output.append((tmp_path / 'log').read_text())
        return code

    # Until its trials have ended, the folder is locked.
    wait_until(lambda: again() == 0, 'the end of the search', DEADLINE_SECS)
    found = trials(tmp_path)
    assert len(found) == 4 and all(trial.state.is_finished() for trial in found)
    for trial in found:
        lines = RunDir(tmp_path / 'search' / f'trial_{trial.number}').evaluations
        steps = [json.loads(line)['env_steps'] for line in lines.read_text().splitlines()] if lines.exists() else []
        assert steps == sorted(set(steps)), 'none twice'
        assert steps or 'failed' in trial.user_attrs
    assert 'got another' not in ''.join(output)


def test_a_signal_leaves_trials_for_the_next_call(tmp_path, start):
    (tmp_path / 'hold').touch()
    search = start()
    wait_until((tmp_path / 'search' / 'trial_1' / 'evaluations.jsonl').exists, 'an evaluation', DEADLINE_SECS)
    search.send_signal(signal.SIGTERM)
    assert search.wait(DEADLINE_SECS) == 1
    assert (tmp_path / 'log').read_text().count('stopped; the same command continues it') == 2
    assert [trial.state.name for trial in trials(tmp_path)] == ['RUNNING'] * 2


GRID = f'"{RATE}" = [1e-4, 1e-3]\n"dqn.make_agent.target_update_period" = {{low = 1, high = 9, step = 4}}\n'


@pytest.mark.usefixtures('quick_runs')
def test_a_grid_tries_each_combination_once(tmp_path):
    space = tmp_path / 'grid.toml'
    space.write_text(GRID)
    settings = {'space': str(space), 'methods': ('grid', 'none')}
    with pytest.raises(ValueError, match='got --trials=3 of a grid of 6; need --trials=6'):
        tuning(tmp_path, **settings).run(sys.stdout)
    assert not (tmp_path / 'search').exists()
    assert tuning(tmp_path, num_trials=6, parallel=3, **settings).run(sys.stdout)
    found = [tuple(trial.params.values()) for trial in trials(tmp_path)]
    assert sorted(found) == [(rate, period) for rate in ('0.0001', '0.001') for period in (1, 5, 9)]
    with pytest.raises(ValueError, match='got another sampler than the search in .* was begun with'):
        tuning(tmp_path, **{**settings, 'methods': ('tpe', 'none')}).run(sys.stdout)


def test_a_range_without_steps_is_no_grid(tmp_path):
    with pytest.raises(ValueError, match='learning_rate in .*space.toml for --sampler=grid; need TOML with lists'):
        tuning(tmp_path, methods=('grid', 'none')).run(sys.stdout)
    assert not (tmp_path / 'search').exists()


@pytest.mark.usefixtures('quick_runs')
def test_other_settings_are_refused(tmp_path):
    assert tuning(tmp_path, num_trials=1).run(sys.stdout)
    with pytest.raises(ValueError, match='got another lower_is_better than the search in .* was begun with'):
        tuning(tmp_path, num_trials=2, lower_is_better=True).run(sys.stdout)


@pytest.mark.usefixtures('quick_runs')
def test_a_search_whose_trials_all_fail_ends(tmp_path):
    space = tmp_path / 'space.py'
    space.write_text(f"suggest = lambda trial: ['{RATE} = 0.5']")
    with pytest.raises(ValueError, match='got only trials that failed, trial_2 like this: .*diverged'):
        tuning(tmp_path, space=str(space), num_trials=9).run(sys.stdout)


@pytest.mark.usefixtures('quick_runs')
def test_a_search_without_a_score_has_no_best_one(monkeypatch, tmp_path):
    monkeypatch.setattr(runs, '_RUN', RUN.replace('write_json(', "sys.exit('diverged at the end')\nwrite_json("))
    with pytest.raises(ValueError, match='got no trial that has a score in'):
        tuning(tmp_path, methods=('random', 'none')).run(sys.stdout)


@pytest.mark.parametrize(
    ('text', 'message'),
    [
        ('x = 1', 'got x = 1 in'),
        ('x = {low = 2, high = 1}', 'with low < high'),
        ('x = {low = 0.0, high = 1.0, log = true}', '0 < low'),
        ('x = {low = 1, high = 4, log = true, step = 2}', 'of which Optuna says'),
        ('x = [', r'which cannot be read \(.*need TOML'),
        (SPACE.replace('rate', 'rat'), 'learning_rat'),
    ],
)
def test_wrong_spaces(tmp_path, text, message):
    (tmp_path / 'space.toml').write_text(text)
    with pytest.raises(ValueError, match=message):
        Tuning(tmp_path / 'search', 'dqn_cartpole', str(tmp_path / 'space.toml'), 1).run(sys.stdout)
    assert not (tmp_path / 'search').exists()


@pytest.mark.parametrize(
    'algorithm',
    [
        pytest.param(path.stem, marks=[] if path.stem in ('ppo', 'c51') else pytest.mark.slow)
        for path in sorted((files.folder() / 'algorithms').glob('*.gin'))
    ],
)
def test_there_is_a_space_for_each_algorithm(algorithm):
    uses = [name for name in files.runs() if f"include 'algorithms/{algorithm}.gin'" in files.resolve(name).read_text()]
    space = resolve_space(None, uses[0])
    bindings = read_space(space)(optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0)).ask())
    jobs = [f'tflearn.jobs.{job}' for job in ('train', 'collect', 'evaluate')]
    assert job_config.check(files.resolve(uses[0]), bindings, jobs).values
    text = space.read_text()
    if algorithm not in ('linucb', 'linear_thompson'):  # they have no rate
        low, high = map(float, re.search(rf'"{RATE}" = {{low = (\S+), high = (\S+),', text).groups())
        assert high >= 100 * low


@pytest.mark.slow
def test_the_program_finds_a_gin_file_that_runs(tmp_path):
    (tmp_path / 'space.toml').write_text(SPACE.replace('high = 0.1', 'high = 0.01'))
    flags = [f'--root_dir={tmp_path / "search"}', '--gin_file=dqn_cartpole', f'--space={tmp_path / "space.toml"}']
    flags += ['--trials=2', '--parallel=2', '--seeds=1', '--finalists=1', '--mode=synchronous']
    flags += [f'--gin_bindings={binding}' for binding in SMALL_BINDINGS]
    program = forks.start('scripts', 'tune', *flags, log=tmp_path / 'out', cwd=tmp_path)
    try:
        assert program.wait(DEADLINE_SECS) == 0, (tmp_path / 'out').read_text()
    finally:
        program.kill()
    out = (tmp_path / 'out').read_text()
    assert re.search(
        r'trial 1: done: num_train_steps 60 reached, mean return .*; score [\d.]+; the best is trial [01]', out
    )
    assert '\nfinalists: trial ' in out and ' alone; no fresh seeds choose\n' in out
    assert 'seed 200000: done: num_train_steps 60 reached' in out and '\nfresh seeds: return at ' in out
    assert {'comparison.md', 'seed_200000'} <= {path.name for path in (tmp_path / 'search' / 'best').iterdir()}
