import numpy as np

from tflearn.learner.metrics import rss_mb


def test_rss_grows_with_allocated_memory():
    before = rss_mb()
    held = np.ones(200_000_000, np.uint8)
    assert 190 < rss_mb() - before < 400
    assert held[-1] == 1


def test_rss_is_none_without_statm(tmp_path):
    assert rss_mb(tmp_path / 'absent') is None
