import math

import pytest

from tflearn.jobs.collect_settings import CollectOptions, EpisodeLimit, EpisodeMetricsOptions


@pytest.mark.parametrize(
    ('argument', 'message'),
    [
        ({'initial_random_steps': -1}, r'got CollectOptions\.initial_random_steps=-1; need an integer of at least 0'),
        ({'initial_random_steps': 0.5}, r'got CollectOptions\.initial_random_steps=0\.5; need an integer'),
        ({'max_env_steps': 0}, r'max_env_steps=0; need an integer of at least 1'),
        ({'lease_secs': 1.0}, r'lease_secs=1\.0; need at least 2\.0 seconds'),
        ({'report_metrics': 'collect_0'}, r"report_metrics='collect_0'; need True, False or a list of names"),
    ],
)
def test_rejects_invalid_options(argument, message):
    with pytest.raises(ValueError, match=message):
        CollectOptions(**argument)


@pytest.mark.parametrize(
    ('argument', 'message'),
    [
        ({'max_episodes_per_version': 0}, 'got EpisodeLimit.max_episodes_per_version=0; need an integer of at least 1'),
        ({'versions_ahead': -1}, 'got EpisodeLimit.versions_ahead=-1; need an integer of at least 0'),
        ({'collect_at_least_every_secs': math.inf}, 'collect_at_least_every_secs=inf; need seconds above 0, or None'),
    ],
)
def test_rejects_invalid_episode_limits(argument, message):
    with pytest.raises(ValueError, match=message):
        EpisodeLimit(**{'max_episodes_per_version': 1, **argument})


@pytest.mark.parametrize(
    ('argument', 'message'),
    [
        ({'buffer_size': 0}, 'got EpisodeMetricsOptions.buffer_size=0; need an integer of at least 1'),
        ({'gamma': 1.1}, r'got EpisodeMetricsOptions.gamma=1\.1; need a number in \[0, 1\]'),
        ({'on_episode': 3}, 'got EpisodeMetricsOptions.on_episode=3; need a function of an episode'),
    ],
)
def test_rejects_invalid_metrics(argument, message):
    with pytest.raises(ValueError, match=message):
        EpisodeMetricsOptions(**argument)


def test_chooses_the_collectors_that_report_metrics():
    assert CollectOptions().reports_metrics('collect_0')
    assert not CollectOptions(report_metrics=False).reports_metrics('collect_0')
    chosen = CollectOptions(report_metrics=('collect_0', 'collect_2'))
    assert [chosen.reports_metrics(f'collect_{i}') for i in range(3)] == [True, False, True]
