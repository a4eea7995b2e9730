"""The loop as users run it: real programs turn logs into policies; a killed loop goes on where it was."""

import json
import os
import signal
import stat

import numpy as np
import pytest
import tensorflow as tf

from tests.testing import forks
from tflearn.core.waiting import wait_until
from tflearn.data.reader import Dataset, EpisodeReader
from tflearn.files.run_dir import read_json

pytest.importorskip('pyarrow', reason='needs pip install ".[product]"')

DEADLINE_SECS = 240.0
ENVIRONMENT = {**os.environ, 'CUDA_VISIBLE_DEVICES': '-1', 'PYTHONPATH': str(forks.CHECKOUT)}
COLUMNS = """
reward_range = [-10, 10]
action = {kind = 'integer', high = 9}
[observation]
context = {column = 'observation', length = 8}
"""
LOOP = """
from __gin__ import dynamic_registration
from tflearn.extensions.product import loop

loop.loop.logs = @loop.Logs()
loop.Logs.decisions = ['decisions']
loop.Logs.outcomes = ['outcomes']
loop.Logs.columns = 'columns.toml'
loop.Logs.window_secs = 10.0
loop.Logs.settle_secs = 0.0
loop.loop.training = @loop.Training()
loop.Training.gin_file = 'neural_bandit_contextual_bandit'
loop.Training.gin_bindings = [
    'train.StopConditions.num_train_steps = 20', 'train.ExportOptions.policies = ("greedy_policy",)']
loop.loop.serving = 'serving'
loop.loop.gate = @loop.Gate()
loop.Gate.margin = 19.0
loop.Gate.epsilon = 0.2
"""


@pytest.fixture
def folder(tmp_path):
    """A folder with the files of a loop, and the logs of 300 decisions."""
    (tmp_path / 'columns.toml').write_text(COLUMNS)
    (tmp_path / 'typo.toml').write_text(COLUMNS.replace('action', 'acton'))
    (tmp_path / 'loop.gin').write_text(LOOP)
    log(tmp_path, 0)
    return tmp_path


def log(folder, number, count=300, **parts):
    random = np.random.default_rng(number)
    decisions, outcomes = [], [{'event_id': 'none', 'time': 1000.0 + 400 * (number + 1), 'reward': 0.0} | parts]
    for i in [*range(count), 399]:  # a log ends with its newest decision, whose window is open
        event = {'id': f'{number}-{i}', 'time': 1000.0 + 400 * number + i, 'probability': 0.1}
        event |= {'site': f'site {1 - number}' if i % 2 else 'any site'}  # a new one that is sorted before the others
        decisions.append(event | {'action': int(random.integers(10)), 'observation': random.normal(size=8).tolist()})
        outcomes.append({'event_id': event['id'], 'time': event['time'] + 1, 'reward': float(random.normal())} | parts)
    for name, rows in (('decisions', decisions), ('outcomes', outcomes)):
        (folder / name).mkdir(exist_ok=True)
        (folder / name / f'{name}-{number}.jsonl').write_text(''.join(json.dumps(row) + '\n' for row in rows))


FLAGS = ('--root_dir=runs/loop', '--gin_file=loop.gin', '--once')


def files(directory):
    return {path.relative_to(directory): path.read_bytes() for path in directory.rglob('*.tfrecord')}


def test_rounds_make_the_policy_that_serves_and_a_killed_loop_goes_on(folder):
    (folder / 'loop.gin').write_text(LOOP + '\nloop.Gate.held_out_rounds = 2\n')
    (folder / 'columns.toml').write_text(COLUMNS + "site = {kind = 'category'}\n")
    ended = forks.run('scripts', 'loop', *FLAGS, cwd=folder, env=ENVIRONMENT, timeout=DEADLINE_SECS)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    serving = folder / 'serving' / 'policies' / 'greedy_policy'
    assert read_json(serving / 'states.json')['stable'] == 20
    assert stat.S_IMODE((folder / 'runs' / 'loop').stat().st_mode) == 0o700
    rounds = folder / 'runs' / 'loop' / 'rounds'
    first = read_json(rounds / '1' / 'end.json')
    assert first['promoted'] and first['import']['steps'] == 300 and first['gate']['candidate']['low'] is not None
    idle = forks.run('scripts', 'loop', *FLAGS, cwd=folder, env=ENVIRONMENT, timeout=DEADLINE_SECS)
    assert (idle.returncode, 'no round is due' in idle.stdout) == (0, True)

    log(folder, 1)
    killed = forks.start('scripts', 'loop', *FLAGS, log=folder / 'killed.log', cwd=folder, env=ENVIRONMENT)
    wait_until((rounds / '2' / 'parts').exists, 'the data of round 2', DEADLINE_SECS)
    killed.send_signal(signal.SIGKILL)
    killed.wait(DEADLINE_SECS)
    before = files(rounds / '2')
    log(folder, 2)  # of the next round
    ended = forks.run('scripts', 'loop', *FLAGS, cwd=folder, env=ENVIRONMENT, timeout=DEADLINE_SECS)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert len(before) == 3 and files(rounds / '2') == before
    second = read_json(rounds / '2' / 'end.json')
    assert second['promoted'] and second['import']['steps'] == 601 and second['serves'] == 21
    first_times, times = (
        {episode['policy_info.time'][0] for episode in EpisodeReader(Dataset([str(path)])).episodes()}
        for path in sorted(rounds.glob('[12]/parts/held_out'))
    )
    new = times - first_times
    assert times > first_times and len(new) > 20 and min(new) >= 1400, 'what was held out stays so for another round'
    states = read_json(serving / 'states.json')
    assert [entry['version'] for entry in states['history']] == [20, 21]
    words, (policy,) = read_json(rounds / '2' / 'joined' / 'vocabularies.json'), serving.glob('21/metadata.json')
    assert words == read_json(policy)['vocabularies'] == {'observation.site': ['any site', 'site 1']}
    assert second['import']['unknown: observation.site'] == 151
    last = ended.stdout.splitlines()[-1]
    assert last.split()[0] == '2' and last.split()[-2:] == ['serves', '21']
    page = (folder / 'runs' / 'loop' / 'index.html').read_text()
    assert 'Version 21 serves' in page and page.count('<tr>') == 3


@pytest.mark.slow
def test_a_candidate_is_judged_further_by_the_next_round(folder):
    """About 60 decisions are held out from it, too few for its margin; the 301 that come later are enough."""
    (folder / 'loop.gin').write_text(LOOP.replace('margin = 19.0', 'margin = 2.5'))
    results = []
    for number in range(2):
        if number:
            log(folder, number)
        ended = forks.run('scripts', 'loop', *FLAGS, cwd=folder, env=ENVIRONMENT, timeout=DEADLINE_SECS)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        results.append(read_json(folder / 'runs' / 'loop' / 'rounds' / str(number + 1) / 'end.json'))
    first, second = results
    assert (first['gate']['outcome'], first['waits'], first['serves']) == ('not decided', 1, None)
    states = read_json(folder / 'serving' / 'policies' / 'greedy_policy' / 'states.json')
    assert states['history'][0]['why'].startswith('round 1 of ')
    assert second['promoted'] and second['waits'] == 2, 'the same round trains the next candidate'
    trained = read_json(folder / 'runs/loop/rounds/1/run/policies/greedy_policy/20/metadata.json')
    assert trained['gate']['num_units'] == first['gate']['num_units'] + 301


@pytest.mark.slow
@pytest.mark.parametrize(('cost', 'limit', 'outcome'), [(0.1, 1.9, 'within'), (1.9, 0.1, 'beyond')])
def test_a_candidate_beyond_its_limit_of_a_cost_is_not_promoted(folder, cost, limit, outcome):
    log(folder, 0, cost=cost)
    parts = "weights = {gain = 1}\nparts.gain = 'reward'\nparts.cost = {column = 'cost', low = 0, high = 2}\n"
    (folder / 'columns.toml').write_text(parts + COLUMNS)
    (folder / 'loop.gin').write_text(f"{LOOP}loop.Gate.limits = ['cost={limit}']\n")
    ended = forks.run('scripts', 'loop', *FLAGS, cwd=folder, env=ENVIRONMENT, timeout=DEADLINE_SECS)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    result = read_json(folder / 'runs' / 'loop' / 'rounds' / '1' / 'end.json')
    assert result['gate']['costs']['cost']['outcome'] == outcome, result['gate']['costs']
    assert result['promoted'] == (outcome == 'within') and result['gate']['difference']['low'] > -19
    assert (result['serves'] is None) == (outcome == 'beyond')


POSTERIOR = (
    LOOP[: LOOP.index('loop.Training.gin_file')]
    + """
loop.Training.gin_file = 'linear_thompson_contextual_bandit'
loop.Training.policy = 'collect_policy'
loop.Training.gin_bindings = [
    'import tflearn.jobs.train_offline', 'experience.Experience.replay = @experience.Uniform()',
    'train.StopConditions.num_train_steps = 300', 'train.ExportOptions.policies = ("collect_policy",)'{once}]
loop.loop.serving = 'serving'
loop.loop.gate = None
"""
)
ONCE = """,
    'train_offline.Reading.order = "epochs"', 'train_offline.DataStopConditions.max_epochs = 1'"""


@pytest.mark.slow
def test_a_posterior_counts_a_decision_once(folder):
    """Each round begins with what served, and reads the whole log again."""

    def turn():
        return forks.run('scripts', 'loop', *FLAGS, cwd=folder, env=ENVIRONMENT, timeout=DEADLINE_SECS)

    (folder / 'loop.gin').write_text(POSTERIOR.format(once=''))
    ended = turn()
    assert ended.returncode == 2 and "need order='epochs' and max_epochs=1" in ended.stderr, ended.stderr
    (folder / 'loop.gin').write_text(POSTERIOR.format(once=ONCE))
    for number, decisions in enumerate((300, 601)):
        if number:
            log(folder, number)
        ended = turn()
        assert ended.returncode == 0, ended.stdout + ended.stderr
        result = read_json(folder / 'runs' / 'loop' / 'rounds' / str(number + 1) / 'end.json')
        assert result['import']['steps'] == decisions
        version = folder / 'serving' / 'policies' / 'collect_policy' / str(result['serves'])
        roots = [each.numpy() for each in tf.saved_model.load(str(version)).model_variables if each.shape.rank == 3]
        precision = np.linalg.inv(roots[0] @ roots[0].swapaxes(1, 2))
        counted = precision[:, -1, -1].sum() - len(precision)  # the constant 1 among the features, less the prior
        assert abs(counted - decisions) < 1e-6, 'what fills up the last batch of 16 does not count'


@pytest.mark.parametrize(
    ('flags', 'message'),
    [
        (['--gin_file=loop.gin'], 'got no --root_dir; need one'),
        (['--root_dir=x', '--gin_file=loop.gin'], 'got no Schedule.decisions and no Schedule.hours; need one'),
        ([*FLAGS, '--gin_bindings=loop.Logs.window_secs=-1'], 'got loop.Logs.window_secs = -1'),
        (
            [*FLAGS, "--gin_bindings=loop.Logs.columns='none.toml'"],
            'got the column map /',
        ),
        ([*FLAGS, "--gin_bindings=loop.Logs.columns='typo.toml'"], "got 'acton' among the columns; need one of"),
        ([*FLAGS, "--gin_bindings=loop.Training.gin_file='no_run'"], "got gin_file='no_run'"),
        ([*FLAGS, "--gin_bindings=loop.Logs.outcomes=['gs://a/b']"], "got Logs.outcomes='gs://a/b', which is a URL"),
    ],
)
def test_mistakes_take_one_line(folder, flags, message):
    ended = forks.run('scripts', 'loop', *flags, cwd=folder, env=ENVIRONMENT, timeout=DEADLINE_SECS)
    assert ended.returncode == 2
    last = ended.stderr.splitlines()[-1]
    assert last.startswith(f'tflearn loop: error: {message}') and 'In call to' not in last, ended.stderr


@pytest.mark.parametrize('name', ['loop.Logs', 'loop.Training.warm_start', 'loop.Gate.held_out'])
def test_help_knows_the_settings_as_gin_files_write_them(name):
    told = forks.run('scripts', 'help', name, timeout=60)
    kind = name.split('.')[1]
    assert f'steps.{kind} (from tflearn.extensions.product.steps; loop.{kind}): ' in told.stdout, told.stderr
