import tensorflow as tf

from tflearn.coordinator import control, reports
from tflearn.core.experience import Experience


def _read(served, reader):
    reader.read(served.server.counts()[reports.REPORTS].size)


def _steps(count):
    return {'env_steps': count}


def _episodes(*returns):
    return [{'return': episode_return} for episode_return in returns]


def test_counts_are_summed_over_collectors_not_over_reports(serve):
    served = serve(Experience())
    first, second = reports.Reporter(served.address), reports.Reporter(served.address)
    first.report(_steps(100), _episodes(1.0, 2.0))
    second.report(_steps(10), [])
    first.report(_steps(150), _episodes(6.0))
    reader = reports.ReportReader(served.address)
    _read(served, reader)
    assert (reader.env_steps, reader.mean_return) == (160, 3.0)
    _read(served, reader)
    assert reader.env_steps == 160


def test_all_counts_and_metrics_arrive(serve):
    served = serve(Experience())
    first, second = reports.Reporter(served.address), reports.Reporter(served.address)
    reader = reports.ReportReader(served.address)
    assert reader.metrics() == {'env_steps': 0, 'mean_return': None}
    first.report({'env_steps': 5, 'dropped_episodes': 1}, [{'return': 1.0, 'info/speed': 3.0}, {'return': 2.0}])
    second.report({'env_steps': 5, 'dropped_episodes': 2, 'lost_steps': 7}, [{'return': 3.0, 'info/speed': 4.0}])
    _read(served, reader)
    assert reader.metrics() == {
        'env_steps': 10,
        'dropped_episodes': 3,
        'lost_steps': 7,
        'mean_return': 2.0,
        'mean_info/speed': 3.5,
    }


def test_checkpoint_restores_the_counts(serve, tmp_path):
    served = serve(Experience())
    collector = reports.Reporter(served.address)
    collector.report(_steps(100), _episodes(5.0))
    reader = reports.ReportReader(served.address)
    _read(served, reader)
    path = tf.train.Checkpoint(reports=reader).write(str(tmp_path / 'checkpoint'))
    restored = reports.ReportReader(served.address)
    tf.train.Checkpoint(reports=restored).read(path).assert_consumed()
    collector.report(_steps(130), _episodes(7.0))  # the same collector continues
    _read(served, restored)
    assert (restored.env_steps, restored.mean_return) == (130, 6.0)


def test_keeps_the_newest_of_many_episodes(serve):
    served = serve(Experience())
    reports.Reporter(served.address).report(_steps(1), _episodes(*[0.0] * 10 + [2.0] * reports.MAX_EPISODES))
    reader = reports.ReportReader(served.address)
    _read(served, reader)
    assert reader.mean_return == 2.0


def test_reports_survive_a_server_outage(serve):
    served = serve(Experience())
    reporter = reports.Reporter(served.address)
    served.server.close()
    reporter.report(_steps(10), [])
    back = serve(Experience(), served.server.port)
    reporter.report(_steps(20), [])
    reader = reports.ReportReader(back.address)
    _read(back, reader)
    assert reader.env_steps == 20


def test_collectors_that_are_silent_are_forgotten_but_not_their_counts(serve):
    served, now = serve(Experience()), [0.0]
    first, second = reports.Reporter(served.address), reports.Reporter(served.address)
    reader = reports.ReportReader(served.address, clock=lambda: now[0])
    first.report(_steps(100), [])
    second.report(_steps(10), [])
    _read(served, reader)
    assert (reader.num_live, reader.env_steps) == (2, 110)
    now[0] = 10.0
    second.report(_steps(20), [])
    _read(served, reader)
    assert (reader.num_live, reader.env_steps) == (1, 120)
    now[0] = control.FORGET_SECS + 1
    _read(served, reader)
    assert sorted(reader._counts) == sorted([second.held.lease.owner, 'forgotten'])
    now[0] += 10
    _read(served, reader)
    assert (list(reader._counts), reader.num_live, reader.env_steps) == (['forgotten'], 0, 120)
    assert reader.metrics()['env_steps'] == 120


def test_a_collector_that_was_silent_for_long_counts_once(serve):
    """Whether it was forgotten meanwhile or not."""
    served, now = serve(Experience()), [0.0]
    collector = reports.Reporter(served.address, clock=lambda: now[0])
    forgetting = reports.ReportReader(served.address, clock=lambda: now[0])
    other = reports.ReportReader(served.address, clock=lambda: 0.0)
    collector.report(_steps(100), [])
    _read(served, forgetting)
    other.deserialize(forgetting.serialize())
    now[0] = control.FORGET_SECS / 2 + 1
    owner = collector.held.lease.owner
    collector.report(_steps(130), [])
    assert collector.held.lease.owner != owner
    now[0] = control.FORGET_SECS + 1
    (text,) = reports.connection.receive(served.address, reports.REPORTS, 1)
    for reader in (forgetting, other):
        assert reports.connection.send(served.address, reports.REPORTS, 'report', text.decode())
        _read(served, reader)
        assert reader.env_steps == 130
    assert owner in other._counts and owner not in forgetting._counts
    now[0] += 1.0
    collector.report(_steps(140), [])
    _read(served, forgetting)
    assert forgetting.env_steps == 140
