import logging

from tflearn.tools.watch import Watch


def test_a_warning_comes_once_until_it_looks_right_again(caplog):
    watch = Watch()
    with caplog.at_level(logging.WARNING):
        for step in range(1, 20):
            watch(100 * step, {'extra/clipped_share': 0.1 if step < 10 else 0.9, 'loss': None})
    (text,) = [record.getMessage() for record in caplog.records]
    assert text.startswith('train step 1000: clipped-share: train/extra/clipped_share is ')
    assert text.endswith('see docs/diagnosis.md#clipped-share')
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        for step in range(20, 60):
            watch(100 * step, {'extra/clipped_share': 0.1 if step < 40 else 0.9})
    assert len(caplog.records) == 1


def test_a_long_run_keeps_few_points():
    watch = Watch()
    for step in range(3000):
        watch(step, {'loss': 1.0})
    assert len(watch._steps['train/loss']) <= 512
    assert watch._steps['train/loss'][-1] == 2999
