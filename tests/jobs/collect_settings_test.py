import pytest

from tflearn.jobs.collect_settings import CollectOptions, EpisodeMetricsOptions


@pytest.mark.parametrize(
    ('argument', 'message'),
    [
        ({'report_metrics': 'collect_0'}, r"report_metrics='collect_0'; need True, False or a list of names"),
    ],
)
def test_rejects_invalid_options(argument, message):
    with pytest.raises(ValueError, match=message):
        CollectOptions(**argument)


@pytest.mark.parametrize(
    ('argument', 'message'),
    [
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
