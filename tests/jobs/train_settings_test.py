"""The settings that the jobs train and synchronous share."""

import pytest

from tflearn.core.experience import Experience
from tflearn.jobs.policy_exports import ExportOptions
from tflearn.jobs.train_settings import Initial, Intervals, Settings
from tflearn.learner.learner import LearnerOptions
from tflearn.learner.stop_conditions import StopConditions
from tflearn.learner.summaries import SummaryOptions


def over(num_train_steps, summaries=SummaryOptions(), **intervals):
    """Returns the settings of a run of so many train steps."""
    groups = Intervals(**intervals), LearnerOptions(summaries=summaries), ExportOptions(), Initial(), Experience()
    return Settings.make(*groups, StopConditions(num_train_steps))


def test_totals_become_intervals_of_a_run():
    settings = over(100, num_checkpoints=4, num_exports=3, num_summaries=10)
    assert settings.learner.checkpoint_interval_steps == 25
    assert settings.intervals.export_interval_steps == 34, 'the last one is at the end'
    assert settings.summary_steps == 10
    assert over(100, summaries=None, num_summaries=2).summary_steps == 50


def test_without_totals_intervals_stay():
    assert over(100, export_interval_steps=7).intervals == Intervals(export_interval_steps=7)


def test_rejects_totals_that_no_run_has():
    with pytest.raises(ValueError, match=r'got Intervals.num_summaries=101 in a run of num_train_steps=100; need at'):
        over(100, num_summaries=101)


def test_rejects_two_sources_of_first_values():
    with pytest.raises(ValueError, match=r"got Initial.checkpoint='a' and policy='b'; need one of them"):
        Initial(checkpoint='a', policy='b')
