import pytest
import tensorflow as tf

from tflearn.learner.summaries import Profile


def _traces(directory):
    return list(directory.glob('plugins/profile/*/*.xplane.pb'))


def test_boundaries_are_where_the_trace_begins_and_ends(tmp_path):
    profile = Profile(tmp_path, (11, 20))
    assert [profile.boundary(before) for before in (0, 9, 10, 19, 20, 100)] == [10, 10, 20, 20, None, None]
    assert Profile(tmp_path, (1, 1)).boundary(0) == 1


@pytest.mark.parametrize('start', [10, 15])
def test_writes_the_trace_once(tmp_path, start):
    profile = Profile(tmp_path, (11, 20))
    profile.at(0)
    profile.at(start)
    tf.add(1.0, 2.0)
    assert not _traces(tmp_path)
    for step in (20, 20, 30):
        profile.at(step)
    profile.stop()
    assert len(_traces(tmp_path)) == 1


def test_stop_writes_an_unfinished_trace(tmp_path):
    profile = Profile(tmp_path, (1, 100))
    profile.at(0)
    profile.stop()
    assert len(_traces(tmp_path)) == 1


@pytest.mark.parametrize(('steps', 'start'), [(None, 0), ((1, 5), 5)])
def test_traces_nothing_outside_the_steps(tmp_path, steps, start):
    profile = Profile(tmp_path, steps)
    for step in (start, start + 10):
        profile.at(step)
    profile.stop()
    assert not list(tmp_path.iterdir())


def test_training_continues_while_another_trace_runs(tmp_path):
    tf.profiler.experimental.start(str(tmp_path / 'other'))
    try:
        profile = Profile(tmp_path / 'mine', (1, 5))
        profile.at(0)
        profile.at(5)
        profile.stop()
    finally:
        tf.profiler.experimental.stop(save=False)
    assert not (tmp_path / 'mine').exists()
