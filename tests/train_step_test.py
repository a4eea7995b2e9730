import itertools

import pytest

from tflearn.train_step import create_train_step, crossed


def test_train_step_starts_at_zero():
    step = create_train_step()
    assert (int(step.numpy()), step.dtype.name, step.trainable) == (0, 'int64', False)


@pytest.mark.parametrize(
    ('interval', 'before', 'after', 'expected'),
    [
        (10, 0, 9, False),
        (10, 0, 10, True),
        (10, 10, 19, False),
        (10, 10, 45, True),
        (10, 9, 10, True),
        (1, 3, 3, False),
    ],
)
def test_crossed(interval, before, after, expected):
    assert crossed(interval, before, after) is expected


def test_crossed_neither_drifts_nor_misses():
    steps = range(0, 3001, 300)
    fired = [after for before, after in itertools.pairwise(steps) if crossed(1000, before, after)]
    assert fired == [1200, 2100, 3000]


@pytest.mark.parametrize(('interval', 'before', 'after'), [(0, 0, 1), (5, 2, 1)])
def test_crossed_rejects_invalid_arguments(interval, before, after):
    with pytest.raises(ValueError, match='got .*need'):
        crossed(interval, before, after)
