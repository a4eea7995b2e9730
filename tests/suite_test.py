"""The suite's rows, its results as data, and the page that is made from them."""

import json
import os
import pathlib
import signal
import subprocess
import sys

import numpy as np
import pytest

from benchmarks import learning
from benchmarks.suite import __main__ as suite
from benchmarks.suite import page as suite_page
from benchmarks.suite import results as suite_results
from benchmarks.suite import rows as suite_rows
from benchmarks.suite import run as suite_run
from tests.end_to_end.programs import CHECKOUT
from tflearn.config import files, preview
from tflearn.core.waiting import wait_until

SECS = 300.0


@pytest.mark.parametrize('key', suite_rows.ROWS)
def test_bindings_of_each_row_are_valid(key):
    row = suite_rows.ROWS[key]
    bindings = [*suite_run.bindings(row.settings('tflearn')), *(f'{name}=1' for name in learning.SEEDS)]
    jobs = [f'tflearn.jobs.{job}' for job in ('replay_server', 'train', 'evaluate', 'collect')]
    preview.check(files.resolve(row.gin_file), bindings, jobs)


def test_the_page_is_made_from_the_results():
    summaries = suite_page.read_statistics(suite_rows.RESULTS)
    page = suite_page.text(suite_rows.RESULTS, summaries)
    assert (CHECKOUT / 'docs' / 'results.md').read_text(encoding='utf-8') == page
    assert all((CHECKOUT / 'docs' / 'images' / name).exists() for name in suite_page.pictures(summaries))


def test_each_row_below_a_peer_has_a_remark():
    summaries = suite_page.read_statistics(suite_rows.RESULTS)
    below = [
        row.remark
        for key, row in suite_rows.ROWS.items()
        for side in row.peers
        if 'below' in suite_page.compared(summaries.get(key, {}), side)
    ]
    assert below and all(below)


def test_statistics_are_those_of_the_results():
    summaries = suite_page.read_statistics(suite_rows.RESULTS)
    expected = {
        key: {side: [run['curve'][-1][1] for run in runs if run['error'] is None] for side, runs in sides.items()}
        for key, sides in suite_results.all_rows(suite_rows.RESULTS).items()
    }
    found = {(key, side): each for key, sides in summaries.items() for side, each in sides.items()}
    assert found.keys() == {(key, side) for key, sides in expected.items() for side, runs in sides.items() if runs}
    for (key, side), summary in found.items():
        scores = np.sort(np.array(expected[key][side], np.float64))
        cut = len(scores) // 4
        np.testing.assert_allclose(summary['iqm'], scores[cut : len(scores) - cut].mean(), atol=1e-3)
        assert summary['low'] - 1e-3 <= summary['iqm'] <= summary['high'] + 1e-3
        assert summary['runs'] == len(scores)


def line(side='tflearn', seed=1, **others):
    row = suite_rows.ROWS['ppo_cartpole']
    result = {'error': None, 'secs': 3.0, 'curve': [[0, 9.0], [100, 480.0]], 'versions': {}}
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


def test_the_table_says_what_is_below_what_failed_and_what_was_not_run(tmp_path):
    for result in (
        line(),
        line(seed=2, error='exit status 1', secs=1.0),
        line('SB3', error='exit status 1'),
    ):
        suite_results.append(tmp_path, 'ppo_cartpole', result)
    ours = {'runs': 1, 'iqm': 480.0, 'low': 480.0, 'high': 480.0}
    theirs = {'runs': 3, 'iqm': 500.0, 'low': 490.0, 'high': 500.0}
    lines = suite_page.text(tmp_path, {'ppo_cartpole': {'tflearn': ours}}).splitlines()
    ppo = next(each for each in lines if each.startswith('| PPO | CartPole'))
    assert '| 480.0, 1 seed, 1 failed, 3 s | all 1 failed | not run |' in ppo
    assert next(each for each in lines if each.startswith('| SAC | Hopper')).count('not run') == 3
    assert suite_page.compared({'tflearn': ours, 'SB3': theirs}, 'SB3') == '**10.0 below** the interval of SB3'
    assert suite_page.compared({'tflearn': theirs, 'SB3': theirs}, 'SB3') == 'as good as SB3'


def test_it_says_which_run_of_how_many_is_made_and_how_long_the_rest_takes(tmp_path, capsys, monkeypatch):
    suite_results.append(tmp_path, 'ppo_cartpole', line(secs=7200.0))
    flags = [f'--results={tmp_path}', '--seeds=3', '--no_page']
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
sys.exit(suite.main(['--rows', 'tiny', '--seeds=2', '--no_page', *sys.argv[1:]]))
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
