"""When a job that died is started again."""

import pytest

from tflearn.launch import processes
from tflearn.launch.processes import RestartBudget
from tflearn.launch.topology import MAX_RESTARTS, RULES


@pytest.mark.parametrize(
    ('kind', 'exit_code', 'restarts'),
    [
        ('train', -9, True),
        ('train', 75, True),
        ('train', 1, False),
        ('train', 143, False),
        ('replay_server', -11, True),
        ('replay_server', 0, False),
        ('collect', 1, True),
        ('collect', 143, True),
        ('evaluate', 1, True),
        ('evaluate', 0, False),
    ],
)
def test_what_is_started_again(kind, exit_code, restarts):
    assert RULES[kind].restarts(exit_code) == restarts


def test_a_job_that_does_not_start_gets_longer_and_longer_delays_and_then_none():
    budget = RestartBudget(clock=lambda: 0.0, seed=0)
    delays = [budget.spend(has_run=False) for _ in range(processes.MAX_FAILED_STARTS + 1)]
    assert delays[-1] is None
    for i, delay in enumerate(delays[:-1]):
        assert 0.5 <= delay / (0.5 * 2**i) <= 1.5
    assert len(set(delays)) == len(delays)


def test_a_job_that_ran_may_be_started_again_so_many_times_within_the_window():
    now = 0.0
    budget = RestartBudget(clock=lambda: now, seed=0)
    for now in range(MAX_RESTARTS):  # noqa: B007 - the clock reads it
        assert budget.spend(has_run=True) <= 1.0
    assert budget.text == 'restart 20 of 20 within 10 min'
    assert budget.spend(has_run=True) is None
    now = processes.WINDOW_SECS + 0.5
    assert budget.spend(has_run=True) is not None, 'the first one is out of the window'
    assert budget.spend(has_run=True) is None


def test_a_run_between_two_failed_starts_counts():
    budget = RestartBudget(clock=lambda: 0.0, seed=0)
    for _ in range(processes.MAX_FAILED_STARTS + 1):
        assert budget.spend(has_run=False) is not None
        assert budget.spend(has_run=True) is not None
