import pytest

from tflearn.replay.checkpoints import SaveTime


def test_expects_the_time_of_the_last_save(tmp_path):
    now = [0.0]
    saves = SaveTime(tmp_path / 'checkpoints', clock=lambda: now[0])

    def save():
        now[0] += 4.0
        return 'path'

    assert saves.measure(save, 200_000_000) == 'path'
    assert saves.expected_secs(50_000_000) == pytest.approx(1.0)
    saves.measure(save, 1_000)  # too small to measure
    assert saves.expected_secs(50_000_000) == pytest.approx(1.0)


def test_measures_the_disk_before_the_first_save(tmp_path):
    saves = SaveTime(tmp_path)
    assert 0.0 < saves.expected_secs(1 << 20) < 10.0
    assert not list(tmp_path.iterdir())


def test_a_disk_that_cannot_be_written_is_no_reason_to_fail(tmp_path):
    (tmp_path / 'file').write_text('')
    assert SaveTime(tmp_path / 'file').expected_secs(1_000_000) == 0.0
