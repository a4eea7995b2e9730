"""The settings that the jobs train and synchronous share."""

import pytest

from tflearn.jobs.policy_exports import ExportOptions
from tflearn.jobs.train_settings import Initial, Intervals, Settings
from tflearn.learner.learner import LearnerOptions
from tflearn.learner.summaries import SummaryOptions


def settings(summaries=SummaryOptions(), **intervals):
    return Settings(Intervals(**intervals), LearnerOptions(summaries=summaries), ExportOptions())


def test_totals_become_intervals_of_a_run():
    over = settings(num_checkpoints=4, num_exports=3, num_summaries=10).over(100)
    assert over.learner.checkpoint_interval_steps == 25
    assert over.intervals.export_interval_steps == 34, 'the last one is at the end'
    assert over.summary_steps == 10
    assert settings(summaries=None, num_summaries=2).over(100).summary_steps == 50


def test_without_totals_intervals_stay():
    given = settings(export_interval_steps=7)
    assert given.over(100) == given


def test_rejects_totals_that_no_run_has():
    with pytest.raises(ValueError, match=r'got Intervals.num_summaries=101 in a run of num_train_steps=100; need at'):
        settings(num_summaries=101).over(100)


def test_rejects_two_sources_of_first_values():
    with pytest.raises(ValueError, match=r"got Initial.checkpoint='a' and policy='b'; need one of them"):
        Initial(checkpoint='a', policy='b')
