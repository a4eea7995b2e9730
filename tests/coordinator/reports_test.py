import json

import pytest
import tensorflow as tf

from tflearn.coordinator import control, reports, state


@pytest.fixture
def run(coordinating):
    """A coordinator, and its learner."""
    server = coordinating.serve()
    return server, coordinating.learner(server)


def _steps(count):
    return {'env_steps': count}


def _episodes(*returns):
    return [{'return': episode_return} for episode_return in returns]


def test_counts_are_summed_over_collectors_not_over_reports(coordinating, run):
    server, learner = run
    first, second = reports.Reporter(coordinating.job(server)), reports.Reporter(coordinating.job(server))
    first.report(_steps(100), _episodes(1.0, 2.0))
    second.report(_steps(10), [])
    first.report(_steps(150), _episodes(6.0))
    reader = reports.ReportReader(learner)
    reader.read()
    assert (reader.env_steps, reader.mean_return) == (160, 3.0)
    reader.read()
    assert reader.env_steps == 160


def test_means_are_over_the_newest_episodes(coordinating, run):
    server, learner = run
    reader = reports.ReportReader(learner, num_episodes=2)
    reports.Reporter(coordinating.job(server)).report(_steps(10), _episodes(1.0, 2.0, 6.0))
    reader.read()
    assert reader.mean_return == reader.metrics()['mean_return'] == 4.0


def test_all_counts_and_metrics_arrive(coordinating, run):
    server, learner = run
    first, second = reports.Reporter(coordinating.job(server)), reports.Reporter(coordinating.job(server))
    reader = reports.ReportReader(learner)
    assert reader.metrics() == {'env_steps': 0, 'mean_return': None}
    first.report({'env_steps': 5, 'dropped_episodes': 1}, [{'return': 1.0, 'info/speed': 3.0}, {'return': 2.0}])
    second.report({'env_steps': 5, 'dropped_episodes': 2, 'lost_steps': 7}, [{'return': 3.0, 'info/speed': 4.0}])
    reader.read()
    assert reader.metrics() == {
        'env_steps': 10,
        'dropped_episodes': 3,
        'lost_steps': 7,
        'reported_episodes': 3,
        'mean_return': 2.0,
        'mean_info/speed': 3.5,
    }


def limited(reporter, taken, limit=300):
    """Reports; returns how many more environment steps the collector may take, and how many nobody has taken."""
    assert reporter.report({'env_steps': taken, control.ENV_STEPS_LIMIT: limit}, [])
    return reporter.allowed_env_steps - taken, reporter.env_steps_left


def test_collectors_together_take_a_limit_of_environment_steps(coordinating, run):
    server, learner = run
    first, second = (reports.Reporter(coordinating.job(server), 2) for _ in range(2))
    reader = reports.ReportReader(learner)
    assert limited(first, 0) == (0, 300), 'the run may have steps of before: the learner has not said how many'
    reader.read()
    taken = {first: 0, second: 0}
    for _ in range(40):
        for reporter in taken:
            allowed, left = limited(reporter, taken[reporter])
            assert 0 <= allowed <= 300 - sum(taken.values()) <= left
            taken[reporter] += allowed
    assert sum(taken.values()) == 300 and min(taken.values()) > 50
    reader.read()
    assert reader.collection_ended


def test_a_limit_counts_the_steps_of_earlier_sessions_and_of_collectors_that_are_gone(coordinating, run, monkeypatch):
    server, learner = run
    now = [100.0]
    monkeypatch.setattr(server.state, '_clock', lambda: now[0])
    reader = reports.ReportReader(learner)
    reader.deserialize(json.dumps({'counts': {'a': _steps(250)}, 'episodes': [], 'env_steps_limit': None}))
    reader.read()
    first, second = (reports.Reporter(coordinating.job(server), 2) for _ in range(2))
    assert limited(first, 0) == (25, 50)
    assert limited(second, 0)[0] == (50 - 25) // 4
    now[0] += 60.0  # the lease of the first one has expired: what it was allowed and did not report is free again
    assert limited(second, 6) == (44 // 4, 44)
    second.report({'env_steps': 17}, [])
    assert second.allowed_env_steps == 0, 'it waits for the learner, and leaves its part to others'
    assert limited(first, 20) == (13 // 2, 13)
    assert limited(first, 33) == (0, 0)


def test_a_collector_that_reports_as_another_one_keeps_its_limit(coordinating, run, monkeypatch):
    server, learner = run
    now = [0.0]
    monkeypatch.setattr(server.state, '_clock', lambda: now[0])
    collector = reports.Reporter(coordinating.job(server), 2, clock=lambda: now[0])
    reports.ReportReader(learner).read()
    assert limited(collector, 100) == (100, 200)
    now[0] = control.FORGET_SECS
    assert limited(collector, 140) == (40, 160), 'there are two now, of which one is silent'


def test_checkpoint_restores_the_counts(coordinating, run, tmp_path):
    server, learner = run
    collector = reports.Reporter(coordinating.job(server))
    collector.report(_steps(100), _episodes(5.0))
    reader = reports.ReportReader(learner)
    reader.read()
    path = tf.train.Checkpoint(reports=reader).write(str(tmp_path / 'checkpoint'))
    restored = reports.ReportReader(learner)
    tf.train.Checkpoint(reports=restored).read(path).assert_consumed()
    collector.report(_steps(130), _episodes(7.0))  # the same collector continues
    restored.read()
    assert (restored.env_steps, restored.mean_return) == (130, 6.0)


@pytest.mark.parametrize('value', [float('nan'), float('inf'), -1e301])
def test_a_metric_that_is_not_finite_is_left_out_and_its_episode_counts(coordinating, run, value):
    server, learner = run
    reader = reports.ReportReader(learner)
    episodes = [{'return': value, 'length': 5}, {'return': 2.0, 'length': 7}]
    assert reports.Reporter(coordinating.job(server)).report(_steps(10), episodes)
    reader.read()
    assert reader.metrics() == {'env_steps': 10, 'reported_episodes': 2, 'mean_return': 2.0, 'mean_length': 6.0}


def test_a_checkpoint_of_an_earlier_version_with_a_nan_is_restored_without_it(coordinating, run):
    _, learner = run
    reader = reports.ReportReader(learner)
    saved = {'counts': {}, 'episodes': [{'return': float('nan')}], 'env_steps_limit': None, 'next_episodes': {}}
    reader.deserialize(json.dumps(saved))
    assert reader.mean_return is None


def test_reports_that_no_learner_reads_take_bounded_memory_and_are_kept_by_their_sender(coordinating, run, monkeypatch):
    monkeypatch.setattr(state, '_MAX_REPORT_BYTES', 4_000)
    server, learner = run
    first, second = reports.Reporter(coordinating.job(server)), reports.Reporter(coordinating.job(server))
    assert first.report(_steps(10), _episodes(*range(15)))
    assert not second.report(_steps(10), _episodes(*range(15)))
    reader = reports.ReportReader(learner)
    for _ in range(3):  # the second reading acknowledges the first one's episodes
        reader.read()
    assert second.report(_steps(20), _episodes(15))
    reader.read()
    assert (reader.env_steps, reader.count('reported_episodes')) == (30, 31)


@pytest.mark.parametrize('episode', [{}, {'x' * 256: 1.0}])
def test_what_a_report_takes_is_measured_by_its_objects_and_names(coordinating, run, monkeypatch, episode):
    monkeypatch.setattr(state, '_MAX_REPORT_BYTES', 50_000)
    server, _ = run
    reporters = [reports.Reporter(coordinating.job(server)) for _ in range(4)]
    taken = [reporter.report(_steps(10), [episode] * 250) for reporter in reporters]
    assert taken == ([True] * 3 + [False] if not episode else [False] * 4)


def test_the_learner_reads_more_than_a_sender_may_send_at_once(coordinating, run):
    server, learner = run
    collector, reader = reports.Reporter(coordinating.job(server)), reports.ReportReader(learner)
    metrics = {f'info/{i:0200}': 1.0 for i in range(16)}
    for i in range(3):
        assert collector.report(_steps(10 * i), [metrics] * reports.MAX_EPISODES)
    reader.read()
    assert reader.count('reported_episodes') == 3 * reports.MAX_EPISODES


def test_all_of_many_episodes_arrive_in_parts(coordinating, run):
    server, learner = run
    reader, reporter = reports.ReportReader(learner), reports.Reporter(coordinating.job(server))
    reporter.report(_steps(1), _episodes(*[0.0] * 300, *[2.0] * 300))
    for _ in range(3):
        reader.read()
        reporter.report(_steps(1), [])
    reader.read()
    assert reader.mean_return == 2.0 and reader.count('reported_episodes') == 600
    reporter.report(_steps(1), [])
    assert not reporter._kept, 'all are acknowledged'


def test_no_episode_is_lost_or_counted_twice_with_the_coordinator(coordinating, run):
    server, learner = run
    reader, reporter = reports.ReportReader(learner), reports.Reporter(coordinating.job(server))
    total = 0
    for round_ in range(12):
        reporter.report({'env_steps': round_, 'episodes': total + 3}, _episodes(1.0, 2.0, 3.0))
        total += 3
        if round_ % 2:
            reader.read()
        if round_ % 3 == 0:  # before the learner has read some, and before the collector knows what it has read
            server.close()
            assert not reporter.report({'env_steps': round_, 'episodes': total}, [])
            reader.read()
            server = coordinating.serve(port=server.port)
    reporter.report({'env_steps': 12, 'episodes': total}, [])
    reader.read()
    assert (reader.count('episodes'), reader.count('reported_episodes')) == (total, total)
    assert (reader.env_steps, reader.mean_return) == (12, 2.0)


def test_a_report_that_the_learner_reads_twice_counts_once(coordinating, run):
    server, learner = run
    reporter = reports.Reporter(coordinating.job(server))
    reporter.report({'env_steps': 3}, _episodes(1.0, 2.0))
    reader, again = reports.ReportReader(learner), reports.ReportReader(learner)
    reader.read()
    again.deserialize(reader.serialize())  # a learner that was started again before it had acknowledged
    again.read()
    assert again.count('reported_episodes') == 2 and len(again._episodes) == 2


def test_collectors_that_are_silent_are_forgotten_but_not_their_counts(coordinating, run):
    (server, learner), now = run, [0.0]
    first, second = reports.Reporter(coordinating.job(server)), reports.Reporter(coordinating.job(server))
    reader = reports.ReportReader(learner, clock=lambda: now[0])
    first.report(_steps(100), [])
    second.report(_steps(10), [])
    reader.read()
    assert (reader.num_live, reader.env_steps) == (2, 110)
    now[0] = 10.0
    second.report(_steps(20), [])
    reader.read()
    assert (reader.num_live, reader.env_steps) == (1, 120)
    now[0] = control.FORGET_SECS + 1
    reader.read()
    assert sorted(reader._counts) == sorted([second.acquired_lease.lease.owner, 'forgotten'])
    now[0] += 10
    reader.read()
    assert (list(reader._counts), reader.num_live, reader.env_steps) == (['forgotten'], 0, 120)
    assert reader.metrics()['env_steps'] == 120


def test_a_collector_that_was_silent_for_long_counts_once(coordinating, run):
    """Whether it was forgotten meanwhile or not."""
    (server, learner), now = run, [0.0]
    collector = reports.Reporter(coordinating.job(server), clock=lambda: now[0])
    forgetting = reports.ReportReader(learner, clock=lambda: now[0])
    other = reports.ReportReader(learner, clock=lambda: 0.0)
    collector.report(_steps(100), [])
    forgetting.read()
    other.deserialize(forgetting.serialize())
    now[0] = control.FORGET_SECS / 2 + 1
    owner = collector.acquired_lease.lease.owner
    collector.report(_steps(130), [])
    assert collector.acquired_lease.lease.owner != owner
    now[0] = control.FORGET_SECS + 1
    for reader in (forgetting, other):
        reader.read()
        assert reader.env_steps == 130
    assert owner in other._counts and owner not in forgetting._counts
    now[0] += 1.0
    collector.report(_steps(140), [])
    forgetting.read()
    assert forgetting.env_steps == 140
