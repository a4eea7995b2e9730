import shutil

import pytest
import tensorflow as tf

from tests.testing import written_summaries
from tflearn.learner.summaries import Summaries, SummaryOptions, SummarySources


def _steps(options, last, start=0):
    """The train steps up to `last` that are summarized by their numbers."""
    steps = []
    while (step := options.next_step(steps[-1] if steps else start)) is not None and step <= last:
        steps.append(step)
    return steps


def test_every_multiple_is_due():
    assert _steps(SummaryOptions(10), 35) == [10, 20, 30]
    assert _steps(SummaryOptions(10), 35, start=10) == [20, 30]
    assert _steps(SummaryOptions(1), 3) == [1, 2, 3]


def test_every_step_of_the_first_interval_is_due():
    assert _steps(SummaryOptions(4, first_interval=True), 13) == [1, 2, 3, 4, 8, 12]
    assert _steps(SummaryOptions(4, first_interval=True), 13, start=2) == [3, 4, 8, 12]


@pytest.mark.parametrize(('total', 'num_train_steps'), [(1, 7), (3, 10), (7, 7), (4, 1000)])
def test_a_total_is_spread_evenly(total, num_train_steps):
    steps = _steps(SummaryOptions(None, total=total, num_train_steps=num_train_steps), 10_000)
    assert len(steps) == total
    assert steps[-1] == num_train_steps
    gaps = [b - a for a, b in zip([0, *steps], steps, strict=False)]
    assert max(gaps) - min(gaps) <= 1


def test_intervals_may_be_combined():
    assert _steps(SummaryOptions(4, total=2, num_train_steps=10), 12) == [4, 5, 8, 10, 12]


def test_no_interval_means_no_summaries():
    assert SummaryOptions(None).next_step(0) is None


def test_seconds_make_the_next_step_due(tmp_path):
    now = [100.0]
    summaries = Summaries(tmp_path, SummaryOptions(1000, interval_secs=5.0), clock=lambda: now[0])
    assert summaries.next_step(3) == 1000
    now[0] += 5.0
    assert summaries.next_step(3) == 4
    summaries.write(4, {'loss': 1.0})
    assert summaries.next_step(4) == 1000
    now[0] += 4.9
    assert summaries.next_step(4) == 1000
    now[0] += 0.1
    assert summaries.next_step(9) == 10


def test_writes_scalars_and_texts(tmp_path):
    metrics = {'replay_size': 7, 'mean_return': None}
    summaries = Summaries(tmp_path, SummaryOptions(sources=SummarySources(metrics=lambda: metrics)))
    assert not list(tmp_path.iterdir()), 'no file before there is something to write'
    summaries.write(3, {'loss': 0.5, 'rss_mb': None})
    summaries.write_values(4, {'mine': 2.0})
    summaries.write_text(4, 'config', '# A title')
    summaries.close()
    expected = {'train/loss': {3: 0.5}, 'train/replay_size': {3: 7.0}, 'train/mine': {4: 2.0}}
    assert written_summaries.scalars(tmp_path) == expected
    assert written_summaries.texts(tmp_path) == {'config': '# A title'}


def test_queue_is_bounded(tmp_path):
    summaries = Summaries(tmp_path, SummaryOptions(max_queue=2, flush_secs=3600.0))
    for step in range(1, 8):
        summaries.write_values(step, {'mine': 1.0})
    # The newest may wait in the queue; without the bound all would.
    assert len(written_summaries.scalars(tmp_path)['train/mine']) >= 5
    summaries.close()
    assert len(written_summaries.scalars(tmp_path)['train/mine']) == 7


def test_recording_ends_with_its_block(tmp_path):
    train_step = tf.Variable(5, dtype=tf.int64)
    summaries = Summaries(tmp_path)
    with summaries.recording(train_step):
        tf.summary.scalar('within', 1.0)
    tf.summary.scalar('outside', 1.0)
    summaries.close()
    assert written_summaries.scalars(tmp_path) == {'within': {5: 1.0}}


@pytest.mark.parametrize(
    ('settings', 'message'),
    [
        ({'total': 5}, 'got total=5, num_train_steps=None; need 1 <= total <= num_train_steps'),
        ({'total': 5, 'num_train_steps': 4}, 'got total=5, num_train_steps=4; need'),
        ({'interval_steps': None, 'first_interval': True}, 'got first_interval=True without an interval'),
        ({'profile_steps': (5, 4)}, r'got profile_steps=\(5, 4\); need \(first, last\)'),
    ],
)
def test_rejects_invalid_options(settings, message):
    with pytest.raises(ValueError, match=message):
        SummaryOptions(**settings)


def test_nothing_is_written_while_the_disk_is_full(tmp_path, monkeypatch, caplog):
    summaries = Summaries(tmp_path, SummaryOptions(10))
    summaries.write(10, {'loss': 1.0})
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, 'disk_usage', lambda path: usage._replace(free=0))
    assert summaries.next_step(10) is None
    summaries.write(20, {'loss': 2.0})
    summaries.write_text(20, 'config', 'text')
    monkeypatch.undo()
    assert summaries.next_step(20) == 30
    summaries.write(30, {'loss': 3.0})
    summaries.close()
    assert written_summaries.scalars(tmp_path)['train/loss'] == {10: 1.0, 30: 3.0}
    assert caplog.text.count('no summaries are written while the disk') == 1
