"""Population-based training: with runs that learn by counting, and by the program with real ones."""

import dataclasses
import math
import re
import sys

import optuna
import pytest

from tests.extensions.experiments.quick_population import CLIP, NETWORK, RATE, RUN, SPACE, population
from tests.testing import forks
from tests.testing.jobs import SMALL_BINDINGS
from tflearn.actors import evaluation_record
from tflearn.core.waiting import wait_until
from tflearn.extensions.experiments import runs
from tflearn.files.run_dir import RunDir

pytestmark = pytest.mark.usefixtures('forked_checks')

DEADLINE_SECS = 120.0


def trials(search):
    file = optuna.storages.journal.JournalFileBackend(str(search / 'study.journal'))
    return optuna.load_study(study_name='study', storage=optuna.storages.JournalStorage(file)).trials


def returns(search, number):
    return [each['mean_return'] for each in evaluation_record.read(RunDir(search / f'trial_{number}').evaluations)]


@pytest.fixture
def quick_runs(monkeypatch):
    monkeypatch.setattr(runs, '_RUN', RUN)
    monkeypatch.setattr(runs, '_POLL_SECS', 0.02)


@pytest.mark.usefixtures('quick_runs')
def test_the_worst_copy_the_best_with_what_it_has_learned_and_go_on_with_other_settings(tmp_path, capsys):
    found = population(tmp_path, quantile=0.5, resample=0.0, factor=2.0).run(sys.stdout)
    search = tmp_path / 'search'
    every = trials(search)
    assert len(every) == 12 and [trial.values[0] for trial in found] == sorted(
        (trial.values[0] for trial in every[8:]), reverse=True
    )
    assert every[0].params != every[1].params
    for first in (4, 8):
        before = sorted(every[first - 4 : first], key=lambda trial: -trial.values[0])
        for trial in every[first : first + 4]:
            parent, own = every[trial.user_attrs['parent']], every[trial.number - 4]
            copies = own in before[2:]
            assert trial.user_attrs['copies'] == copies and (parent in before[:2] if copies else parent == own)
            history = returns(search, trial.number)
            assert history[: first // 4 * 3] == returns(search, parent.number), 'what the parent learned'
            gain = 5 - abs(math.log10(trial.params[RATE]) + 3)
            assert history[first // 4 * 3] - history[first // 4 * 3 - 1] == pytest.approx(gain), 'with its own rate'
            if not copies:
                assert trial.params == parent.params
                continue
            rates = [parent.params[RATE] * 2, parent.params[RATE] / 2, 0.01, 1e-5]
            assert any(trial.params[RATE] == pytest.approx(rate) for rate in rates)
            assert 0 < abs(trial.params[CLIP] - parent.params[CLIP]) < 1.01 or trial.params[CLIP] in (0.5, 2.5)
            period = 'dqn.make_agent.target_update_period'
            assert 10 <= trial.params[period] <= 20
            assert abs(trial.params[period] - parent.params[period]) == 5 or trial.params[period] in (10, 20)
            assert trial.params[NETWORK] == parent.params[NETWORK], 'its weights are of this network'
    text = (search / 'population.md').read_text()
    assert [line.split(' | ')[0] for line in text.splitlines()[2:5]] == ['| 0', '| 1', '| 2']
    lineage, trial = [found[0].number], found[0]
    while 'parent' in trial.user_attrs:
        trial = every[trial.user_attrs['parent']]
        lineage.insert(0, trial.number)
    rows = text.split(f'The lineage of trial {found[0].number}:')[1].splitlines()[4:]
    assert [int(row.split(' | ')[0][2:]) for row in rows] == lineage and len(lineage) == 3
    assert f'\ngeneration 2, best return {found[0].values[0]:.4g}, mean ' in capsys.readouterr().out
    kept = [RunDir(search / f'trial_{number}').checkpoints.exists() for number in range(12)]
    assert kept == [False] * 8 + [True] * 4, 'what a run goes on with is there once'


def test_a_killed_population_goes_on_and_decides_the_same(tmp_path):
    def start(folder):
        return forks.start('tests.extensions.experiments.quick_population', folder, log=folder / 'log')

    killed, whole = (tmp_path / name for name in ('killed', 'whole'))
    killed.mkdir()
    whole.mkdir()
    never_killed, searches = start(whole), [start(killed)]
    for generation in range(3):
        hold = killed / f'hold_{300 * generation + 200}'
        hold.touch()
        record = RunDir(killed / 'search' / f'trial_{4 * generation + 1}').evaluations

        def waits(record=record, count=3 * generation + 1):
            if searches[-1].poll() is not None:  # the runs of the killed one had not ended
                searches.append(start(killed))
            return len(evaluation_record.read(record)) >= count

        try:
            wait_until(waits, f'the runs of generation {generation}', DEADLINE_SECS)
        finally:
            searches[-1].kill()
            searches[-1].wait(DEADLINE_SECS)
        hold.unlink()
        (killed / 'search' / 'unfinished').mkdir()  # what a killed copy and a killed writer leave
        with open(killed / 'search' / 'study.journal', 'a') as journal:
            journal.write('{"op_code": 4')
    wait_until(lambda: start(killed).wait(DEADLINE_SECS) == 0, 'the end of the search', DEADLINE_SECS)
    assert never_killed.wait(DEADLINE_SECS) == 0
    ours, others = (trials(folder / 'search') for folder in (killed, whole))
    assert len(ours) == 12 and all(trial.state.is_finished() for trial in ours)
    for trial, other in zip(ours, others, strict=True):
        assert (trial.params, trial.values) == (other.params, other.values)
        assert trial.user_attrs.get('parent') == other.user_attrs.get('parent')
        assert returns(killed / 'search', trial.number) == returns(whole / 'search', trial.number)


@pytest.mark.usefixtures('quick_runs')
def test_a_run_that_fails_is_replaced(tmp_path):
    space = tmp_path / 'space.py'
    space.write_text(f"""
def suggest(trial):
    low = 0.06 if trial.number == 1 else 1e-4
    return ['{RATE} = ' + str(trial.suggest_float('{RATE}', low, 0.1 if trial.number == 1 else 0.01, log=True))]
""")
    made = population(tmp_path, generations=2)
    search = dataclasses.replace(made.search, space=str(space))
    assert dataclasses.replace(made, search=search).run(sys.stdout)
    every = trials(tmp_path / 'search')
    assert 'diverged' in every[1].user_attrs['failed'] and every[5].user_attrs['copies'] and every[5].values
    assert '| 1 | ' in (tmp_path / 'search' / 'population.md').read_text().splitlines()[2], 'one has failed'


@pytest.mark.usefixtures('quick_runs')
def test_without_copies_the_settings_stay(tmp_path):
    assert population(tmp_path, generations=2, quantile=0.0).run(sys.stdout)
    every = trials(tmp_path / 'search')
    assert [trial.params for trial in every[:4]] == [trial.params for trial in every[4:]]


@pytest.mark.usefixtures('quick_runs')
def test_other_settings_are_refused(tmp_path):
    assert population(tmp_path, generations=1).run(sys.stdout)
    with pytest.raises(ValueError, match='got another generations than the search in .* was begun with'):
        population(tmp_path, generations=2).run(sys.stdout)
    with pytest.raises(ValueError, match='got another budget than the search in .* was begun with'):
        population(tmp_path).search.run(sys.stdout)


@pytest.mark.usefixtures('quick_runs')
def test_a_generation_that_fails_ends_it(tmp_path):
    with pytest.raises(ValueError, match='got only runs that failed, like this: .*diverged'):
        population(tmp_path, f'"{RATE}" = {{low = 0.06, high = 0.1}}').run(sys.stdout)


@pytest.mark.parametrize(
    ('flags', 'message'),
    [
        (['--population=1'], 'population'),
        (['--quantile=0.6'], 'quantile'),
        (['--factor=1'], 'factor'),
        (['--generations=0'], 'generations'),
        (['--resample=1.5'], 'resample'),
        (['--space=wrong.toml'], 'learning_rat'),
        (['--space=none.toml'], 'need a file that ends in .toml or .py'),
        (['--gin_bindings=train.StopConditions.num_train_steps = None'], 'got 10 generations of runs with a budget of'),
        (
            [
                '--gin_bindings=from tflearn.jobs import evaluate_settings',
                '--gin_bindings=evaluate.evaluate.options = @evaluate_settings.EvaluateOptions()',
                "--gin_bindings=evaluate_settings.EvaluateOptions.limits = {'cost': 1.0}",
            ],
            "got EvaluateOptions.limits={'cost': 1.0}; need none",
        ),
        (['--gin_bindings=train.StopConditions.num_train_steps = 9'], 'at least one for each generation'),
    ],
)
def test_wrong_inputs_are_refused_before_any_work(tmp_path, flags, message):
    (tmp_path / 'space.toml').write_text(SPACE)
    (tmp_path / 'wrong.toml').write_text(SPACE.replace('rate"', 'rat"'))
    given = ['--root_dir=search', '--gin_file=dqn_cartpole', '--space=space.toml', *flags]
    ended = forks.run('scripts', 'population', *given, timeout=DEADLINE_SECS, cwd=tmp_path)
    assert ended.returncode and message in ended.stderr + ended.stdout
    assert not (tmp_path / 'search').exists() and 'Traceback' not in ended.stderr


@pytest.mark.slow
def test_a_killed_program_goes_on_with_real_runs(tmp_path):
    (tmp_path / 'space.toml').write_text(f'"{RATE}" = {{low = 1e-5, high = 0.01, log = true}}\n')
    flags = ['--root_dir=search', '--gin_file=dqn_cartpole', '--space=space.toml', '--mode=synchronous']
    flags += ['--population=2', '--generations=2', '--quantile=0.5']
    flags += [f'--gin_bindings={binding}' for binding in SMALL_BINDINGS]
    start = lambda: forks.start('scripts', 'population', *flags, log=tmp_path / 'out', cwd=tmp_path)  # noqa: E731
    killed, second = start(), tmp_path / 'search' / 'trial_2.log'
    try:
        wait_until(lambda: killed.poll() is not None or second.exists(), 'the second generation', DEADLINE_SECS)
    finally:
        killed.kill()
        killed.wait(DEADLINE_SECS)
    wait_until(lambda: start().wait(DEADLINE_SECS) == 0, 'the end of the search', DEADLINE_SECS)
    out = (tmp_path / 'out').read_text()
    best = RunDir(tmp_path / re.search(r'the best run: (\S+)', out)[1])
    assert 'num_train_steps 60 reached' in out and (best.root / 'policies' / 'greedy_policy' / '60').is_dir()
    worst = next(trial for trial in trials(tmp_path / 'search') if trial.user_attrs.get('copies'))
    steps = evaluation_record.read(RunDir(tmp_path / 'search' / f'trial_{worst.number}').evaluations)
    assert [each['train_step'] for each in steps] == [0, 30, 60], 'it went on where its parent was'
