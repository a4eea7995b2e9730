"""Benchmarks: the suite's rows, results and page, and the simulator of docs/scale.md."""

import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import signal
import subprocess
import sys

import numpy as np
import pytest

from benchmarks import learning, offline, offline_report, throughput
from benchmarks.scale import fit as scale_fit
from benchmarks.scale import grid as scale_grid
from benchmarks.scale import model as scale_model
from benchmarks.scale import plan as scale_plan
from benchmarks.scale.model import Costs, Setting
from benchmarks.suite import __main__ as suite
from benchmarks.suite import judgement
from benchmarks.suite import page as suite_page
from benchmarks.suite import process as suite_process
from benchmarks.suite import results as suite_results
from benchmarks.suite import rows as suite_rows
from benchmarks.suite import run as suite_run
from benchmarks.suite import starts as suite_starts
from tests.end_to_end.programs import CHECKOUT
from tflearn.config import files, job_config
from tflearn.core.waiting import wait_until
from tflearn.environments import gymnasium_env

SECS = 300.0


@pytest.mark.parametrize('key', suite_rows.ROWS)
def test_bindings_of_each_row_are_valid(key):
    row = suite_rows.ROWS[key]
    bindings = [*suite_run.bindings(row.settings('tflearn')), *(f'{name}=1' for name in learning.SEEDS)]
    jobs = [f'tflearn.jobs.{job}' for job in ('replay_server', 'train', 'evaluate', 'collect')]
    job_config.check(files.resolve(row.gin_file), bindings, jobs)


JUDGED = judgement.all_rows(suite_rows.RESULTS)


def test_the_page_is_made_from_the_results():
    page = suite_page.text(JUDGED)
    assert (CHECKOUT / 'docs' / 'results.md').read_text(encoding='utf-8') == page
    assert all((CHECKOUT / 'docs' / 'images' / name).exists() for name in suite_page.pictures(JUDGED))


def test_each_row_worse_than_a_peer_has_a_remark():
    worse = [
        each.row.remark
        for each in JUDGED.values()
        for side in each.row.peers
        if not each.missing and each.verdict(side).word == 'worse'
    ]
    assert all(worse)


def test_each_row_has_a_budget():
    assert suite_rows.BUDGET.keys() == suite_rows.ROWS.keys()


def line(side='tflearn', seed=1, **others):
    row = suite_rows.ROWS['ppo_cartpole']
    result = {'error': None, 'secs': 3.0, 'env_steps': 102_400, 'curve': [[0, 9.0], [100, 480.0]], 'versions': {}}
    result['gin'] = suite_results.gin_digest(row.gin_file)
    return {'side': side, 'seed': seed, **result, 'settings': row.settings(side), **others}


def test_a_result_counts_for_equal_settings_and_if_its_line_is_complete(tmp_path):
    row = suite_rows.ROWS['ppo_cartpole']
    for result in (line('SB3'), line(seed=2), line(seed=1), line(seed=3, settings={'gin_file': 'ppo_cartpole'})):
        suite_results.append(tmp_path, 'ppo_cartpole', result)
    with (tmp_path / 'ppo_cartpole.jsonl').open('a') as file:
        file.write('{"side": "SB')
    found = [(each['side'], each['seed']) for each in suite_results.read(tmp_path, 'ppo_cartpole', row)]
    assert found == [('tflearn', 1), ('tflearn', 2), ('SB3', 1)]
    suite_results.append(tmp_path, 'ppo_cartpole', line('SBX'))
    assert suite_results.read(tmp_path, 'ppo_cartpole', row)[-1]['side'] == 'SBX'


def test_a_changed_gin_file_invalidates_our_results(tmp_path, monkeypatch):
    (tmp_path / 'part.gin').write_text('ppo.make_agent.gamma = 0.9\n')
    gin_file = tmp_path / 'whole.gin'
    gin_file.write_text(
        "# comment\nfrom tflearn.agents import ppo\n\ninclude 'part.gin'\nppo.make_agent.b = 1  # why\n"
    )
    monkeypatch.chdir(tmp_path)
    row = dataclasses.replace(suite_rows.ROWS['ppo_cartpole'], gin_file='whole.gin')
    named = {'settings': row.settings('tflearn'), 'gin': suite_results.gin_digest('whole.gin')}

    def seeds():
        return [(each['side'], each['seed']) for each in suite_results.read(tmp_path, 'key', row)]

    header = {'row': {}, 'gin': named['gin']}
    before = {name: value for name, value in line(seed=2, settings=row.settings('tflearn')).items() if name != 'gin'}
    for result in (header, line(seed=1, **named), before, line('SB3', settings=row.settings('SB3'))):
        suite_results.append(tmp_path, 'key', result)
    both = [('tflearn', 1), ('tflearn', 2), ('SB3', 1)]
    assert seeds() == both
    gin_file.write_text(gin_file.read_text().replace('# comment', '# other\nfrom tflearn.core import types'))
    assert seeds() == both, 'comments and imports bind nothing'
    (tmp_path / 'part.gin').write_text('ppo.make_agent.gamma = 0.99\n')
    assert seeds() == [('SB3', 1)]
    suite_results.append(tmp_path, 'key', line(seed=3, **{**named, 'gin': suite_results.gin_digest('whole.gin')}))
    assert seeds() == [('tflearn', 3), ('SB3', 1)]


def test_fresh_seeds_need_a_commit_and_the_result_names_it(tmp_path, capsys, monkeypatch):
    flags = [f'--results={tmp_path}', '--rows=ppo_cartpole', '--sides=tflearn', '--no_page']
    made = []
    monkeypatch.setattr(suite, 'run', lambda row, side, seed, python: made.append(seed) or line(side, seed))
    monkeypatch.setattr(suite_process, 'revision', lambda: '0123abc-dirty')
    assert suite.main([*flags, '--seeds', '1']) == 0
    assert suite.main(flags) == 1
    assert made == [1]
    assert 'got a checkout with changes for the fresh seed 11; need a commit' in capsys.readouterr().err
    monkeypatch.setattr(suite_process, 'revision', lambda: '0123abc')
    assert suite.main(flags) == 0
    assert made == [1, 11, 12, 13, 14, 15]


def test_the_revision_knows_changes_that_decide_a_run_only(tmp_path, monkeypatch):
    def git(*arguments):
        command = ['git', '-c', 'user.name=a', '-c', 'user.email=a@b', '-C', str(tmp_path), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.strip()

    git('init')
    for name in ('gin/a.gin', 'benchmarks/results/a.jsonl', 'docs/results.md'):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text('1')
    git('add', '-A')
    git('commit', '-m', 'first')
    monkeypatch.setattr(suite_process, 'ROOT', tmp_path)
    commit = git('rev-parse', 'HEAD')
    (tmp_path / 'docs' / 'results.md').write_text('2')
    (tmp_path / 'benchmarks' / 'results' / 'a.jsonl').write_text('2')
    assert suite_process.revision() == commit, 'the results of the runs before'
    new = tmp_path / 'gin' / 'b.gin'
    new.write_text('1')
    assert suite_process.revision() == f'{commit}-dirty'
    new.unlink()
    (tmp_path / 'gin' / 'a.gin').write_text('2')
    assert suite_process.revision() == f'{commit}-dirty'


def test_every_evaluation_has_the_same_starts():
    make = functools.partial(gymnasium_env.make, 'CartPole-v1')
    batches = [suite_starts.make(make, num_environments=2, seed=suite_process.STARTS) for _ in range(2)]

    def starts(batch, action):
        found = [batch.reset().observation]
        while len(found) < 3:
            time_step = batch.step(np.full(2, action, np.int64))
            found += [time_step.observation[:1]] if time_step.step_type[0] == 0 else []
        return [each.tolist() for each in found]

    with contextlib.closing(batches[0]), contextlib.closing(batches[1]):
        first = starts(batches[0], 0)
        assert len({str(each) for each in first}) == 3
        assert starts(batches[0], 0) == first, 'at the next mark'
        assert starts(batches[1], 1) == first, 'in another run, of another policy'


def test_a_row_says_whether_its_sides_had_the_same_starts():
    values = [480, 481, 482, 483, 484]
    both = judged(values, values)
    assert not both.same_starts('SB3')
    for side in ('tflearn', 'SB3'):
        for result in both.results[side]:
            result['starts'] = suite_process.STARTS
    assert both.same_starts('SB3') and not both.same_starts('SBX')


def judged(ours, theirs, first=11, failed=0):
    """Returns the judgement of ppo_cartpole of runs that end at these returns, and of failed ones."""
    results = {
        side: [
            *(line(side, first + i, curve=[[0, 9.0], [100, value], [200, value]]) for i, value in enumerate(values)),
            *(line(side, first + len(values) + i, error='exit status 1', curve=None) for i in range(failed)),
        ]
        for side, values in {'tflearn': ours, 'SB3': theirs, 'SBX': theirs}.items()
    }
    return judgement.Judgement(suite_rows.ROWS['ppo_cartpole'], results)


@pytest.mark.parametrize(
    ('ours', 'theirs', 'verdict'),
    [
        ([480, 481, 482, 483, 484], [459, 461, 462, 463, 464], 'better'),
        ([480, 481, 482, 483, 484], [479, 485, 486, 487, 488], 'equal'),
        ([430, 431, 432, 433, 434], [398, 429, 432, 433, 470], 'not told apart'),
        ([500, 500, 500, 500, 500], [500, 500, 500, 500, 500], 'equal'),
        ([475, 451, 452, 453, 454], [459, 461, 462, 463, 484], 'not told apart'),
        ([450, 451, 452, 453, 460], [459, 461, 462, 463, 464], 'worse'),
    ],
)
def test_ours_is_judged_by_an_exact_p_and_a_band(ours, theirs, verdict):
    assert judged(ours, theirs).verdict('SB3').word == verdict
    assert judged(theirs, ours).verdict('SB3').word == {'better': 'worse', 'worse': 'better'}.get(verdict, verdict)


def test_a_score_is_of_the_last_three_marks():
    group = judged([480.0], [9.0]).groups['tflearn']
    curve = np.interp(np.linspace(0, 200, 11), [0, 100, 200], [9.0, 480.0, 480.0])
    np.testing.assert_allclose(group.scores, [curve[-3:].mean()])
    np.testing.assert_allclose(group.areas, [np.trapz(curve) / 10])


def test_a_run_that_failed_counts_as_a_loss():
    all_ended = judged([480, 481, 482, 483, 484], [470, 471, 472, 473, 474])
    assert all_ended.verdict('SB3').word == 'better'
    with_failures = judgement.Judgement(
        all_ended.row, all_ended.results | {'tflearn': judged([480, 481], [], failed=3).results['tflearn']}
    )
    assert not with_failures.missing
    assert with_failures.verdict('SB3').probability == pytest.approx(0.4)
    assert with_failures.solved('tflearn') == ', 2 of 5 solve it after 100 steps'


def test_rows_of_tuning_seeds_and_of_few_seeds_do_not_count():
    values = [480, 481, 482, 483, 484]
    assert not judged(values, values).missing
    assert judged(values, values, first=1).missing == {'tflearn': 5, 'SB3': 5, 'SBX': 5}
    assert judged(values, values[:4]).missing == {'SB3': 1, 'SBX': 1}
    both = {'tflearn': [line(seed=1), *judged(values, []).results['tflearn']]}
    found = judgement.Judgement(suite_rows.ROWS['ppo_cartpole'], both)
    assert [run['seed'] for run in found.runs('tflearn')] == [11, 12, 13, 14, 15]


def test_the_table_counts_rows_of_fresh_seeds_only(tmp_path):
    for values, first in (([480, 470, 482, 483, 484], 11), ([480], 1)):
        for runs in judged(values, [9] * len(values), first).results.values():
            for result in runs:
                suite_results.append(tmp_path, 'ppo_cartpole', result)
    named = {
        'settings': suite_rows.ROWS['dqn_cartpole'].settings('tflearn'),
        'gin': suite_results.gin_digest('dqn_cartpole'),
    }
    suite_results.append(tmp_path, 'dqn_cartpole', line(seed=1, **named))
    page = suite_page.text(judgement.all_rows(tmp_path))
    counted, _, apart = page.partition('## Not counted')
    (ppo,) = [each for each in counted.splitlines() if each.startswith('| PPO | CartPole')]
    assert '482.0 [470.0, 484.0], mean 479.8, 4 of 5 solve it after 100 steps, area ' in ppo
    assert '0 of 5 solve it, area 9.00, 5 fresh seeds, 3 s' in ppo
    # The scores of the peers are tied, which gives other levels than 3.2%.
    assert '**better than SB3** (1.00); **better than SBX** (1.00) | 0.0079 (level 4.8%); ' in ppo
    assert ' | 0.016; 0.016 | ' in ppo
    rows = len(suite_rows.ROWS)
    assert f'Counted: 1 of {rows} rows, 0 of them without a peer.' in counted
    assert 'tflearn is better in 2, worse in 0, equal in 0, not told apart in 0, no verdict attainable in 0.' in counted
    assert '0.095 false ones are to be expected of 2 if no two sides differ.' in counted
    (dqn,) = [each for each in apart.splitlines() if each.startswith('| DQN | CartPole')]
    assert '1 tuning seed, 3 s | not run | not run | not counted; needs fresh seeds: tflearn 5, SB3 5, SBX 5' in dqn


def test_the_table_says_how_many_not_told_apart_are_low_what_would_show_and_our_fewer_steps(tmp_path):
    low = judged([475, 451, 452, 453, 454], [459, 461, 462, 463, 484])
    for runs in low.results.values():
        for result in runs:
            suite_results.append(tmp_path, 'ppo_cartpole', {**result, 'env_steps': 100_000})
    page = suite_page.text(judgement.all_rows(tmp_path))
    assert 'equal in 0, not told apart in 2, ' in page
    assert 'Of those not told apart 2 have a probability below 1/2.' in page
    ppo = next(each for each in page.splitlines() if each.startswith('| PPO | CartPole'))
    assert '| 102,400 (100,000) |' in ppo
    visible = low.verdict('SB3').visible
    assert f'not told apart from SB3 (0.16): a difference of {visible:.4g} (2.3 deviations) would show in 80%' in ppo


def test_the_table_says_what_failed(tmp_path):
    for result in (line(), line(seed=2, error='exit status 1', secs=1.0), line('SB3', error='exit status 1')):
        suite_results.append(tmp_path, 'ppo_cartpole', result)
    lines = suite_page.text(judgement.all_rows(tmp_path)).splitlines()
    ppo = next(each for each in lines if each.startswith('| PPO | CartPole'))
    assert '2 tuning seeds, 1 failed, 3 s | all 1 failed | not run |' in ppo


def test_the_budget_says_what_was_spent_and_stops_a_row(tmp_path, capsys):
    flags = [f'--results={tmp_path}', '--rows=ppo_cartpole', '--sides=tflearn', '--no_page']
    suite_results.append(tmp_path, 'ppo_cartpole', line(seed=1, secs=7200.0))
    suite_results.append(tmp_path, 'ppo_cartpole', line(seed=11, secs=7200.0))
    assert suite.main([*flags, '--budget']) == 0
    given = suite_rows.BUDGET['ppo_cartpole']
    # Of the peers each of the five seeds takes the estimate of the row, 5 minutes.
    cells = f'| {given:.1f} | 2.0 | {4 * 2 + 10 * 5 / 60:.1f} | 14 |'
    assert capsys.readouterr().out.splitlines()[2:] == [f'| ppo_cartpole {cells}', f'| all {cells}']
    assert suite.main(flags) == 0
    assert capsys.readouterr().err == f'ppo_cartpole: no more runs, 2.0 h are spent of its budget of {given:g} h\n'


def test_it_says_which_run_of_how_many_is_made_and_how_long_the_rest_takes(tmp_path, capsys, monkeypatch):
    suite_results.append(tmp_path, 'ppo_cartpole', line(secs=7200.0))
    flags = [f'--results={tmp_path}', '--seeds', '1', '2', '3', '--no_page']
    monkeypatch.setattr(suite, 'run', lambda row, side, seed, python: line(side, seed, secs=7200.0))
    assert suite.main([*flags, '--rows=ppo_cartpole', '--sides=tflearn']) == 0
    logged = capsys.readouterr().err.splitlines()
    assert logged[0] == 'run 1 of 2: ppo_cartpole, tflearn, seed 2; all that are left take about 4.0 h'
    assert logged[2] == 'run 2 of 2: ppo_cartpole, tflearn, seed 3; all that are left take about 2.0 h'
    assert suite.main([*flags, '--rows=dqn_cartpole', '--sides=tflearn', '--max_secs=0']) == 0
    assert capsys.readouterr().err == '3 runs are left: --max_secs=0 is over\n'


def test_a_run_that_fails_is_a_line_with_its_reason():
    failed = suite.run(suite_rows.ROWS['ppo_cartpole'], 'SB3', 1, pathlib.Path(sys.executable))
    assert failed['error'] == "exit status 1: ModuleNotFoundError: No module named 'stable_baselines3'"


TINY = """
import sys
from benchmarks.suite import __main__ as suite, rows as suite_rows
row = suite_rows.Row('DQN', 'CartPole-v1', 'dqn_cartpole', 200, 2_000, ('Uniform.min_size=200',), 'synchronous')
suite_rows.ROWS['tiny'] = row
suite_rows.BUDGET['tiny'] = 1.0
sys.exit(suite.main(['--rows', 'tiny', '--seeds', '1', '2', '--no_page', *sys.argv[1:]]))
"""


@pytest.mark.slow
def test_a_killed_suite_continues_without_repeating_runs(tmp_path: pathlib.Path):
    command = [sys.executable, '-c', TINY, f'--results={tmp_path}']
    environment = {**os.environ, 'PYTHONPATH': str(CHECKOUT)}
    lines = tmp_path / 'tiny.jsonl'
    suite = subprocess.Popen(command, cwd=CHECKOUT, env=environment)
    try:
        wait_until(lines.exists, 'the first run', SECS)
        wait_until(lambda: children(suite.pid) or suite.poll() is not None, 'the second run', SECS)
        (second,) = children(suite.pid)
        suite.send_signal(signal.SIGKILL)
        suite.wait(60)
        wait_until(lambda: not pathlib.Path(f'/proc/{second}').exists(), 'the end of the run without a reader', SECS)
    finally:
        suite.kill()
        suite.wait(60)
    first = lines.read_text()
    assert [json.loads(each)['seed'] for each in first.splitlines()] == [1]
    subprocess.run([*command, '--max_secs=0'], cwd=CHECKOUT, env=environment, check=True, timeout=SECS)
    assert lines.read_text() == first
    subprocess.run(command, cwd=CHECKOUT, env=environment, check=True, timeout=SECS)
    assert lines.read_text().startswith(first)
    found = [json.loads(each) for each in lines.read_text().splitlines()]
    assert [(each['seed'], each['error']) for each in found] == [(1, None), (2, None)]
    assert len(found[1]['curve']) > suite_rows.MARKS


def children(pid):
    return pathlib.Path(f'/proc/{pid}/task/{pid}/children').read_text().split()


# The simulator of docs/scale.md agrees with closed formulas where there are some.

FREE = Costs(
    vector_step=1e-6,
    write_chunk=1e-6,
    serve_chunk=1e-6,
    read_chunk=1e-6,
    read_step=0.0,
    message=0.0,
    wake_up=0.0,
    hand_over=0.0,
    timer=1e-4,
)


def test_saturated_server_serves_one_chunk_per_service_time():
    costs = dataclasses.replace(FREE, serve_chunk=2e-3)
    found = scale_model.simulate(Setting(collectors=4, shards=1), costs)
    assert found['chunks'] == pytest.approx(500, rel=0.02)
    assert found['cpu']['server'] == pytest.approx(1.0, rel=0.02)
    assert found['steps'] == pytest.approx(500 * 16 * costs.steps_per_row, rel=0.02)


def test_saturated_core_is_shared_by_collectors_and_reader():
    costs = dataclasses.replace(FREE, vector_step=1e-4, write_chunk=4e-4, read_chunk=8e-4, read_step=1e-5)
    found = scale_model.simulate(Setting(collectors=8, shards=2), costs)
    per_chunk = 1e-4 + 4e-4 + 8e-4 + 16 * 1e-5  # 16 steps of 16 environments are 16 chunks
    assert found['chunks'] == pytest.approx(1 / per_chunk, rel=0.02)
    assert found['cpu']['collector'] + found['cpu']['reader'] == pytest.approx(1.0, rel=0.02)


def test_delay_limits_a_reader_to_two_round_trips_for_each_stream():
    found = scale_model.simulate(Setting(collectors=8, shards=1, hold_secs=5e-3), FREE)
    assert found['chunks'] == pytest.approx(scale_model.MAX_STREAMS / (4 * 5e-3), rel=0.06)


def test_paced_collectors_keep_their_pace():
    found = scale_model.simulate(Setting(collectors=4, shards=2, pace=4_000.0), FREE)
    assert found['steps'] == pytest.approx(16_000 * FREE.steps_per_row, rel=0.03)


def test_limiter_keeps_the_samples_per_insert():
    setting = Setting(collectors=2, shards=1, train_rate=50.0)
    found = scale_model.simulate(setting, FREE, settle_secs=1.0, secs=5.0)
    wanted = setting.train_rate * setting.batch_size / setting.samples_per_insert
    assert found['steps'] == pytest.approx(wanted, rel=0.05)


def test_halves_of_the_grid_are_as_large_and_were_measured_in_all_rounds():
    points = scale_grid.points()
    grid = [point for point in points if point.load in scale_grid.GRID_LOADS]
    assert len(grid) == 4 * 3 * 3 * 2
    assert sum(point.is_training for point in grid) == len(grid) / 2
    measured = scale_fit.load()
    assert set(measured) == set(points)
    assert all(len(value.rounds) == 2 for value in measured.values())


def test_plan_below_saturation_moves_all_steps():
    plan = scale_plan.Plan(2e4, shards=2, readers=2, collectors=20)
    costs, wire = Costs(), (400.0, 20.0)
    shares = scale_plan.shares(plan, costs, wire)
    assert max(shares.values()) < scale_plan.MOST
    found = scale_plan.simulate(plan, costs, wire)
    assert found['inserted'] == pytest.approx(plan.steps, rel=0.05)
    assert found['read'] == pytest.approx(plan.steps, rel=0.05)


def test_plan_has_what_each_part_needs():
    plan = scale_plan.smallest(scale_plan.Plan(1e6, shards=1, readers=1), Costs(), (400.0, 20.0))
    shares = scale_plan.shares(plan, Costs(), (400.0, 20.0))
    assert max(shares.values()) <= scale_plan.MOST
    fewer = dataclasses.replace(plan, shards=plan.shards - 1)
    assert scale_plan.shares(fewer, Costs(), (400.0, 20.0))["a replay server's core"] > scale_plan.MOST


def test_relays_divide_the_time_of_a_publication():
    assert scale_plan.weights(50, 1_000, 0, 10.0) == pytest.approx(40.0)  # 50 GB at 10 Gb/s
    assert scale_plan.weights(50, 1_000, 32, 10.0) == pytest.approx(0.04 * 64)


def test_a_side_of_throughput_that_ends_no_episode_in_its_measured_part_has_no_rate():
    episodes = [(1.0, 5.0, 100), (2.0, 5.0, 300)]
    assert throughput.steps_per_sec(episodes, 0.0, 3.0) == 200.0
    assert throughput.steps_per_sec(episodes, 0.0, 1.0) is None
    assert throughput.steps_per_sec(episodes, 5.0, 9.0) is None
    figures = {'secs_to_return': 3.0, 'command_secs_to_return': 4.0, 'steps_to_return': 500, 'cores': 1.0}
    found = {
        'cartpole: PPO, one process: 0': {**figures, 'steps_per_sec': None, 'memory_mb': 10.0},
        'cartpole: SB3 PPO: 0': {**figures, 'steps_per_sec': 1_000.0, 'memory_mb': 10.0},
    }
    ours, theirs = throughput.table('cartpole', ['PPO, one process', 'SB3 PPO'], found).splitlines()[2:]
    cells = [cell.strip() for cell in ours.split('|')[1:-1]]
    assert cells == ['PPO, one process', '-', '0.00', '3.0', '1.00', '4.0', '1.00', '500', '1.00', '-', '10']
    assert theirs.split('|')[2].strip() == '1,000'


def test_bindings_of_the_learning_benchmark_are_valid():
    bindings = [*(f'{name}=1' for name in learning.SEEDS), *learning.QUICK_BINDINGS]
    jobs = [f'tflearn.jobs.{job}' for job in ('replay_server', 'train', 'evaluate', 'collect')]
    job_config.check(files.resolve('dqn_cartpole'), bindings, jobs)


@pytest.mark.parametrize('task', offline.TASKS)
def test_bindings_of_the_offline_benchmark_are_valid(task):
    jobs = [f'tflearn.jobs.{job}' for job in ('replay_server', 'train', 'evaluate', 'collect')]
    behaviour = [*offline.TASKS[task].behaviour, 'train.ExportOptions.keep_last=10_000']
    for gin_file, *bindings in (behaviour, *offline.TASKS[task].agents.values()):
        seeds = (f'{name}=1' for name in learning.SEEDS)
        job_config.check(files.resolve(gin_file), [*bindings, *offline.TASKS[task].evaluation, *seeds], jobs)


def offline_rows(agent, returns, level='medium'):
    facts = {'random_return': 0.0, 'expert_return': 200.0, 'data_return': 80.0, 'train_secs': 2.0}
    return [
        {'task': 'cartpole', 'level': level, 'agent': agent, 'mean_return': float(each), **facts} for each in returns
    ]


def test_the_offline_benchmark_reports_what_was_run():
    found = [
        *offline_rows('BC', [100, 110, 90, 105]),
        *offline_rows('IQL', [150, 151, 149, 154]),
        *offline_rows('CQL', [130]),
        *offline_rows('BC', [191], 'expert'),
    ]
    lines = offline_report.table(found, seeds=4).splitlines()
    assert '| cartpole | medium | 80.0 | IQL | 151.0 | 149.0 to 154.0 (87.5%) | 76 | 4 | 2 |' in lines
    assert '| cartpole | medium | 80.0 | CQL | 130.0 | too few seeds | 65 | **1 of 4** | 2 |' in lines
    judged = offline_report.verdicts(found).splitlines()
    assert 'cartpole: IQL beside BC on medium data: better, p 0.029 (level 2.9%)' in judged
    assert 'cartpole: CQL beside BC on medium data: too few seeds to tell' in judged
    assert 'cartpole: BC has a score of 95.5 on expert data; within 5%: True' in judged


def test_a_cell_of_the_offline_benchmark_is_found_again(tmp_path):
    cell = offline.Cell('cartpole', 'medium', 'BC', 1, 20, ('bc_cartpole', 'a.b=1'))
    row = {**dataclasses.asdict(cell), 'mean_return': 3.0}
    (tmp_path / 'results.jsonl').write_text(json.dumps(row) + '\n{"task": "cartp')
    assert list(offline._results(tmp_path)) == [cell]
    other = dataclasses.replace(cell, episodes=30)
    assert other.folder(tmp_path) != cell.folder(tmp_path) == dataclasses.replace(cell).folder(tmp_path)
