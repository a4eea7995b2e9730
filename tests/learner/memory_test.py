import numpy as np

from tflearn.learner.metrics import rss_mb


def test_memory_is_what_the_process_holds():
    before = rss_mb()
    held = np.ones(200_000_000, np.uint8)
    assert 190 < rss_mb() - before < 400
    assert held[-1] == 1


def test_where_the_system_does_not_tell(tmp_path):
    assert rss_mb(tmp_path / 'absent') is None
