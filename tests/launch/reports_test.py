"""How the metrics of a run are shown, and the lines that are written where there is no terminal."""

import dataclasses
import io
import time

import pytest

from tests.launch.example_reports import example_run
from tflearn.launch.reports import JobReport, PlainView, RunReport, count, duration, metrics_line, plain, rate


def test_all_metrics():
    assert example_run().metrics() == {
        'train steps': '12,400 of 20,000 at 93.1/s',
        'env steps': '49,600 at 372/s',
        'replay': '49,600 of 100,000',
        'samples/insert': '64.13 (target 64)',
        'collect return': '231.4',
        'greedy return': '342.1 (target 475)',
        'policy lag': '1.3 versions',
        'data wait': '12%',
        'time left': '1 min 22 s',
    }


def test_progress_and_time_left():
    assert example_run().progress == (12_400, 20_000)
    assert example_run().secs_left == 82.0


def test_omits_unknown_metrics():
    paced = JobReport('collect_0', 'collect', 'running', metrics={'episodes': 3, 'overruns': 0})
    assert paced.summary() == 'episodes 3, overruns 0', 'that no step of a robot came late is known'
    targets = {'samples_per_insert': None, 'samples_per_insert_target': 32.0, 'target_return': 475.0}
    jobs = [JobReport(kind, kind, 'starting', metrics=targets) for kind in ('replay_server', 'train', 'evaluate')]
    run = RunReport((*jobs, JobReport('collect_0', 'collect', 'running')), 1.0)
    assert run.metrics() == {}
    assert run.progress is None
    assert [job.summary() for job in run.jobs] == [''] * 4


def test_rates_count_living_jobs_only():
    metrics = {'env_steps_per_sec': 100.0, 'mean_return': 3.0}
    living = JobReport('collect_0', 'collect', 'running', metrics=metrics)
    dead = JobReport('collect_1', 'collect', 'died', alive=False, metrics=metrics)
    train = JobReport('train', 'train', 'finished', alive=False, metrics={'train_step': 7, 'train_steps_per_sec': 9.0})
    run = RunReport((train, living, dead), 1.0)
    assert run.metrics() == {'train steps': '7', 'env steps': 'at 100/s', 'collect return': '3'}


def test_ignores_metrics_that_are_no_finite_numbers():
    metrics = {'loss': float('nan'), 'policy_version': 'seven', 'train_step': True, 'env_steps': None}
    job = JobReport('train', 'train', 'running', metrics=metrics)
    assert [job.number(key) for key in (*metrics, 'other')] == [None] * 5


def test_summaries_of_the_jobs():
    assert {job.name: job.summary() for job in example_run().jobs} == {
        'replay_server': 'inserts 49,600, samples 3,180,000',
        'train': 'loss 0.01235, policy version 124',
        'evaluate': 'train step 12,000, episodes 20, best 361.5',
        'collect_0': '186/s, mean return 220.4, episodes 301, environment 61%, policy 30%, writing 9%',
        'collect_1': '186/s, mean return 242.3, episodes 298, environment 61%, policy 30%, writing 9%',
    }


def test_running_job_without_reports_is_silent():
    def silent_secs(state, secs):
        return JobReport('train', 'train', state, metrics={'time': time.time() - secs}).silent_secs

    assert silent_secs('running', 5.0) is None
    assert silent_secs('waiting for weights from the learner', 100.0) is None
    # A learner that saves for seconds says that it waits for data, and goes on reporting.
    for state in ('running', 'waiting for data', 'waiting for newer weights', 'waiting for simulators'):
        assert silent_secs(state, 100.0) == pytest.approx(100.0, abs=5.0)


def test_a_step_of_the_clock_makes_no_job_silent():
    metrics = {'time': time.time() - 3600.0}
    assert JobReport('train', 'train', 'running', metrics=metrics, unchanged_secs=1.0).silent_secs is None
    metrics = {'time': time.time() + 3600.0}
    assert JobReport('train', 'train', 'running', metrics=metrics, unchanged_secs=60.0).silent_secs == 60.0


@pytest.mark.parametrize(
    ('text', 'expected'),
    [
        (count(None), ''),
        (count(0), '0'),
        (count(1234567), '1,234,567'),
        (plain(None), ''),
        (plain(-142.336), '-142.3'),
        (plain(123456.7), '123,457'),
        (plain(0.000012345), '1.234e-05'),
        (rate(3.14), '3.1/s'),
        (rate(1234.5), '1,234/s'),
        (duration(0.2), '0 s'),
        (duration(59.7), '1 min 00 s'),
        (duration(185), '3 min 05 s'),
        (duration(7480), '2 h 04 min'),
    ],
)
def test_numbers(text, expected):
    assert text == expected


def test_rates_of_a_silent_job_are_not_shown():
    now = time.time()
    metrics = {'train_steps_per_sec': 100.0, 'train_step': 500, 'env_steps_per_sec': 50.0}

    def shown(secs):
        jobs = tuple(
            JobReport(kind, kind, 'running', metrics=metrics | {'time': now - secs}) for kind in ('train', 'collect')
        )
        return RunReport(jobs, 60.0).metrics()['train steps'], jobs[1].summary()

    assert shown(1.0) == ('500 at 100/s', '50.0/s')
    assert shown(20.0) == ('500', '')


def test_failed_saves_of_all_jobs_are_counted():
    jobs = (
        JobReport('train', 'train', 'running', metrics={'time': time.time(), 'failed_saves': 2, 'failed_exports': 1}),
        JobReport('replay_server', 'replay_server', 'running', metrics={'time': time.time(), 'failed_saves': 1}),
    )
    assert RunReport(jobs, 60.0).metrics()['failed saves'] == '3'
    assert RunReport(jobs, 60.0).metrics()['failed exports'] == '1'
    assert [job.summary() for job in jobs] == ['failed saves 2, failed exports 1', 'failed saves 1']
    none = JobReport('train', 'train', 'running', metrics={'time': time.time(), 'failed_saves': 0})
    assert 'failed saves' not in RunReport((none,), 60.0).metrics()


def test_an_evaluation_that_goes_on_shows_how_far_it_is():
    progress = {'episodes_ended': 3, 'episodes_wanted': 20, 'evaluation_steps': 1234, 'evaluation_secs_left': 75.0}
    metrics = {**progress, 'target_metric': 'info_end/success', 'target': 0.9, 'target_value': 0.5, 'time': time.time()}
    job = JobReport('evaluate', 'evaluate', 'running', metrics=metrics)
    text = 'plays episodes: 3 of 20, 1,234 steps, 1 min 15 s left'
    assert job.evaluation == job.summary() == text
    report = RunReport((job,), 1.0)
    assert report.metrics() == {'target metric': '0.5 (target 0.9)'}
    assert metrics_line(report) == f'target metric 0.5 (target 0.9) | evaluate: {text}'
    assert dataclasses.replace(job, metrics=dict.fromkeys(progress)).evaluation == ''


def shown(*reports, interval_secs=10.0):
    """What a view writes for `reports`, without the time of day."""
    out = io.StringIO()
    view = PlainView(out, interval_secs)
    for report in reports:
        view.show(report)
    return [line.partition(' ')[2] for line in out.getvalue().splitlines()]


def test_all_metrics_are_on_one_line():
    assert metrics_line(example_run()) == (
        'train steps 12,400 of 20,000 at 93.1/s | env steps 49,600 at 372/s | replay 49,600 of 100,000 | '
        'samples/insert 64.13 (target 64) | collect return 231.4 | greedy return 342.1 (target 475) | '
        'policy lag 1.3 versions | data wait 12% | time left 1 min 22 s'
    )


def test_logs_new_states_once():
    jobs = [JobReport(name, name, 'starting') for name in ('train', 'evaluate')]
    before = RunReport(tuple(jobs), 1.0)
    after = RunReport((dataclasses.replace(jobs[0], state='waiting for a first item'), jobs[1]), 2.0)
    assert shown(before, before, after) == ['train, evaluate: starting', 'train: waiting for a first item']


def test_logs_a_state_again_only_after_a_restart():
    reports = []
    for restarts in (0, 0, 1):
        states = ('starting', 'waiting for a policy', 'running', 'waiting for a policy', 'running')
        reports += [RunReport((JobReport('evaluate', 'evaluate', state, restarts=restarts),), 1.0) for state in states]
    assert shown(*reports) == ['evaluate: starting', 'evaluate: waiting for a policy', 'evaluate: running'] * 2


def test_logs_metrics_and_jobs_that_do_not_run_at_intervals():
    job = JobReport('train', 'train', 'waiting for a first item')
    reports = [RunReport((job,), secs) for secs in (0.5, 9.5, 10.2, 15.0, 20.1, 55.0, 59.0, 60.0)]
    assert shown(*reports)[1:] == [
        f'[{time}] train: waiting for a first item' for time in ('10 s', '20 s', '55 s', '1 min 00 s')
    ]


def test_names_a_silent_job():
    job = JobReport('train', 'train', 'running', metrics={'time': time.time() - 30.0})
    assert metrics_line(RunReport((job,), 60.0)) == 'train: silent for 30 s'


def test_does_not_log_states_that_events_report():
    assert shown(*(RunReport((JobReport('train', 'train', state),), 1.0) for state in ('running', 'stopping'))) == [
        'train: running'
    ]


def test_indents_details_of_an_event():
    out = io.StringIO()
    PlainView(out).event('train died:\n  the end')
    assert [line.partition(' ')[2] for line in out.getvalue().splitlines()] == ['train died:', '     the end']
