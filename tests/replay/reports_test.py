import tensorflow as tf

from tflearn.experience import Experience
from tflearn.replay import reports


def _read(served, reader):
    reader.read(served.server.info()[reports.REPORTS].current_size)


def test_counts_add_up_over_collectors_and_not_over_reports(serve):
    served = serve(Experience())
    first, second = reports.Reporter(served.address), reports.Reporter(served.address)
    first.report(100, [1.0, 2.0])
    second.report(10, [])
    first.report(150, [6.0])
    reader = reports.ReportReader(served.address)
    _read(served, reader)
    assert (reader.env_steps, reader.mean_return) == (160, 3.0)
    _read(served, reader)
    assert reader.env_steps == 160


def test_a_checkpoint_carries_the_counts(serve, tmp_path):
    served = serve(Experience())
    collector = reports.Reporter(served.address)
    collector.report(100, [5.0])
    reader = reports.ReportReader(served.address)
    _read(served, reader)
    path = tf.train.Checkpoint(reports=reader).write(str(tmp_path / 'checkpoint'))
    restored = reports.ReportReader(served.address)
    tf.train.Checkpoint(reports=restored).read(path).assert_consumed()
    collector.report(130, [7.0])  # the same collector goes on
    _read(served, restored)
    assert (restored.env_steps, restored.mean_return) == (130, 6.0)


def test_of_many_episodes_the_newest_are_told(serve):
    served = serve(Experience())
    reports.Reporter(served.address).report(1, [0.0] * 10 + [2.0] * reports.MAX_EPISODES)
    reader = reports.ReportReader(served.address)
    _read(served, reader)
    assert reader.mean_return == 2.0


def test_a_server_that_is_away_loses_nothing_but_time(serve):
    served = serve(Experience())
    reporter = reports.Reporter(served.address)
    served.server.close()
    reporter.report(10, [])
    back = serve(Experience(), served.server.port)
    reporter.report(20, [])
    reader = reports.ReportReader(back.address)
    _read(back, reader)
    assert reader.env_steps == 20
