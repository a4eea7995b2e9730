"""The report and the list of runs that tflearn seeds has made, by their programs."""

import base64
import collections
import html
import json
import re
import shlex
import shutil
import subprocess
import time
import types

import numpy as np
import pytest

import tflearn
from tests.testing import forks
from tflearn.config import job_config
from tflearn.extensions.experiments import report
from tflearn.extensions.experiments.checks import Points
from tflearn.files.run_dir import RunDir, write_json
from tflearn.files.status import Status

CHROMIUM = next(filter(None, map(shutil.which, ('chromium', 'chromium-browser', 'google-chrome'))), None)
MAX_BYTES = 5_000_000
VIDEO = b'video of the best policy'
CHANGED = 'fc_layer_params = (8,)', 'fc_layer_params = (16,)'


@pytest.fixture(scope='module')
def reported(two_seeds, tmp_path_factory):
    """The report of the two runs as one group, and of others, worse ones, which differ in a setting."""
    folder = tmp_path_factory.mktemp('report')
    shutil.copytree(two_seeds.root, folder / 'good')
    for path in shutil.copytree(two_seeds.root, folder / 'bad').glob('seed_*/config.gin'):
        path.write_text(path.read_text().replace(*CHANGED))
    for path in (folder / 'bad').glob('seed_*/evaluations.jsonl'):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        path.write_text(''.join(json.dumps({**line, 'mean_return': 0.1}) + '\n' for line in lines))
    for seed in (3, 4):
        video = RunDir(folder / 'good' / f'seed_{seed}').videos / 'train_step_30' / 'film.mp4'
        video.parent.mkdir(parents=True)
        video.write_bytes(VIDEO)
    ended = forks.run('scripts', 'report', 'bad', 'good', '--output=page.html', timeout=60.0, cwd=folder)
    assert ended.returncode == 0, ended.stderr
    page = (folder / 'page.html').read_text()
    return types.SimpleNamespace(folder=folder, page=page, text=html.unescape(page), output=ended.stdout)


def test_it_answers_the_four_questions(reported):
    answers = dict(re.findall(r'<dt>(.*?)</dt><dd>(.*?)</dd>', reported.text))
    assert re.fullmatch(r'good: return [\d.]+, mean [\d.]+, over 2 runs', answers['Which setting was best?'])
    assert answers['How sure is that?'] == 'bad beside good: too few seeds to tell'
    times = re.findall(r'<td>good</td><td>seed_\d</td><td>(training [^<]*)</td>', reported.text)
    shares = [dict(re.findall(r'(\w[^%]*?) (\d+)%', each)) for each in times]
    assert [len(each) for each in shares] == [4, 4]
    secs = collections.Counter()  # of both runs: the shares of a longer one weigh more
    for run in (RunDir(reported.folder / 'good' / f'seed_{seed}') for seed in (3, 4)):
        secs.update(report._times(run, report._read_series(run))[0])
    ((part, most),) = secs.most_common(1)
    named = f"good: {part}, {most / secs.total():.0%} of the learner's time"
    assert answers['What was slow?'].startswith(named)
    command = re.sub('</?code>', '', answers['How do I repeat it?'])
    assert command in reported.output
    program, verb, *flags = shlex.split(command)
    assert (program, verb) == ('tflearn', 'seeds')
    assert {'--first_seed=3', '--seeds=2', '--mode=synchronous'} <= {*flags}
    gin_file = reported.folder / flags[0].removeprefix('--gin_file=')
    job_config.check(gin_file, (), ['tflearn.jobs.train', 'tflearn.jobs.synchronous'], lambda *given: None)


COLLECTED = {'environment_secs': 98.0, 'policy_secs': 28.0, 'writing_secs': 14.0}


@pytest.mark.parametrize(
    ('in_processes', 'wait_share', 'slow'),
    [
        (True, 0.1, "training, 80% of the learner's time"),
        (True, 0.8, "waiting for data, 80% of the learner's time; of the collectors' time environment took 70%"),
        (False, 0.0, "collecting, 70% of the learner's time; of the collectors' time environment took 70%"),
    ],
)
def test_it_names_what_took_the_learner_most_time(tmp_path, in_processes, wait_share, slow):
    """The time of collectors in processes of their own, which the learner's status has too, is not the learner's."""
    run_dir = RunDir(tmp_path)
    write_json(run_dir.status('train'), {'state': 'finished', **COLLECTED})
    if in_processes:
        write_json(run_dir.status('collect_0'), {'state': 'finished', **COLLECTED})
    steps = np.array([100, 200])
    metrics = {'steps_per_sec': 1.0, 'data_wait_share': wait_share, 'trigger_secs': 10.0 if in_processes else 0.0}
    found = {f'train/{name}': Points(steps, np.full(2, value)) for name, value in metrics.items()}
    assert report._bottleneck([report._times(run_dir, found)]) == slow


def test_the_time_of_each_collector_is_its_own(tmp_path):
    run_dir = RunDir(tmp_path)
    slow_disk = {'environment_secs': 20.0, 'policy_secs': 20.0, 'writing_secs': 160.0}
    for job, secs in (('collect_0', COLLECTED), ('collect_1', slow_disk)):
        write_json(run_dir.status(job), {'state': 'finished', **secs})
    assert report._by_job(report._times(run_dir, {})[1]) == (
        'collect_0: environment 70%, policy 20%, writing 10%; collect_1: environment 10%, policy 10%, writing 80%'
    )


def test_it_fits_a_narrow_screen_and_a_dark_one(reported):
    assert '<meta name="viewport" content="width=device-width' in reported.page
    assert 'color-scheme: light dark' in reported.page
    assert reported.page.count('<div><table>') == reported.page.count('<table>') > 3, 'a wide table scrolls'


def test_it_has_all_parts(reported):
    assert reported.page.count('src="data:image/png;base64,') == 3
    assert base64.b64encode(VIDEO).decode() in reported.page
    row = '<tr><td>networks.NetworkOptions.fc_layer_params</td><td>(8,)</td><td>(16,)</td></tr>'
    assert row in reported.text
    assert 'train.Initial.seed</td>' not in reported.text, 'a seed is no difference'
    assert reported.text.count('done: num_train_steps 60 reached') == 4
    assert len(re.findall(r'environment \d+%, policy \d+%, writing \d+%', reported.text)) == 4
    assert len(re.findall(r'training \d+%, waiting for data \d+%, publishing, exporting, saving', reported.text)) == 4
    assert re.search(r'code_revision ([0-9a-f]{40}|version)', reported.text)


def test_its_times_are_dates_and_it_names_the_version(reported):
    date = r'\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[+-]\d\d:\d\d'
    assert re.search(rf'<p>Written by tflearn {re.escape(tflearn.__version__)}, {date}\.</p>', reported.text)
    endings = reported.text.partition('What ended the runs')[2].partition('Configuration')[0]
    assert len(re.findall(rf'<td>{date}</td></tr>', endings)) == 4
    assert ' ago<' not in reported.text


def test_a_run_that_could_not_be_checked_looks_neither_right_nor_wrong(reported):
    findings = re.findall(r'<td>([^<]*)</td></tr>', reported.text.partition('What was slow</h2>')[2])[:4]
    assert all(re.search(r'unknown|: ', finding) for finding in findings), findings


def test_a_video_that_is_too_large_is_named(reported):
    for path in (reported.folder / 'good').glob('seed_*/videos/*/film.mp4'):
        path.write_bytes(bytes(3_000_000))
    ended = forks.run('scripts', 'report', 'good', '--output=large.html', timeout=60.0, cwd=reported.folder)
    assert ended.returncode == 0, ended.stderr
    page = (reported.folder / 'large.html').read_text()
    assert 'It is too large for this page: ' in page and '<video' not in page
    assert 'there is no other setting to compare with; these are 2 runs' in page


def test_names_of_runs_are_escaped(reported):
    run = reported.folder / 'a<i>&b'
    shutil.copytree(reported.folder / 'good' / 'seed_3', run)
    (file,) = RunDir(run).videos.glob('*/film.mp4')
    file.write_bytes(VIDEO)
    ended = forks.run('scripts', 'report', run.name, '--output=names.html', timeout=60.0, cwd=reported.folder)
    assert ended.returncode == 0, ended.stderr
    page = (reported.folder / 'names.html').read_text()
    assert 'a<i>' not in page
    assert '<p>a&lt;i&gt;&amp;b, train step 30 (best: ' in page and base64.b64encode(VIDEO).decode() in page


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason='needs Chromium')
def test_the_page_of_ten_runs_opens_in_chromium_without_an_error_or_a_request(reported):
    for seed in range(5, 13):
        group = reported.folder / ('good' if seed % 2 else 'bad')
        shutil.copytree(group / 'seed_3', group / f'seed_{seed}')
    page, log = reported.folder / 'ten.html', reported.folder / 'net.json'
    forks.run('scripts', 'report', 'good', 'bad', f'--output={page}', timeout=120.0, cwd=reported.folder)
    assert page.read_text().count('over 6 runs') == 1
    assert page.stat().st_size < MAX_BYTES
    flags = ['--headless', '--no-sandbox', '--disable-gpu', '--disable-background-networking', '--no-first-run']
    flags += ['--enable-logging=stderr', f'--log-net-log={log}', '--dump-dom']
    ended = subprocess.run(
        [CHROMIUM, *flags, f'--user-data-dir={reported.folder / "browser"}', page.as_uri()],
        capture_output=True, text=True, timeout=120.0, check=True,
    )  # fmt: skip
    assert 'Which setting was best?' in ended.stdout
    assert 'CONSOLE' not in ended.stderr, 'an error, or what the content policy of the page refuses'
    # Those that the browser itself makes, for its updates, have none.
    assert set(re.findall(r'"initiator":"([^"]*)"', log.read_text())) <= {'not an origin'}


def test_the_list_of_a_folder(reported, tmp_path):
    # Of this process, which goes on as a notebook's does.
    Status(RunDir(reported.folder / 'dead').status('train')).update('failed: no disk\n  In call to')
    half = RunDir(reported.folder / 'half')
    for name, state, when in (
        ('train', 'running', 1.0),
        ('collect', 'running', time.time()),
        ('evaluate', 'failed', 1.0),
    ):
        write_json(half.status(name), {'state': state, 'time': when})
    write_json(RunDir(reported.folder / 'unborn').failure, {'message': 'no learner'})
    (reported.folder / 'not[1]').mkdir()  # no run: TensorFlow could not save one there
    ended = forks.run('scripts', 'list', reported.folder, timeout=60.0)
    assert ended.returncode == 0, ended.stderr
    head, *rows = (re.split(r' {2,}', line) for line in ended.stdout.splitlines())
    assert head == ['run', 'state', 'train steps', 'env steps', 'newest return', 'best return', 'last report']
    found = {row[0]: row[1:] for row in rows}
    assert found['bad/seed_3'][:2] == ['done: num_train_steps 60 reached', '60']
    assert found['bad/seed_3'][3:5] == ['0.1', '0.1']
    assert found['dead'][0] == 'failed: train no disk'
    assert found['half'][0] == 'running, but train is silent, evaluate failed'
    assert found['unborn'][0] == 'failed: no learner'
    ended = forks.run('scripts', 'list', tmp_path, timeout=60.0)
    assert (ended.returncode, ended.stderr.count('\n')) == (2, 1)
    assert 'without a run; need a folder of runs' in ended.stderr
