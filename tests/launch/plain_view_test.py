"""The lines that are written where there is no terminal."""

import dataclasses
import io
import time

from tests.launch.example_reports import example_run
from tflearn.launch.plain_view import PlainView, metrics_line
from tflearn.launch.reports import JobReport, RunReport


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
