import threading

import pytest

from tflearn.core.background import Background, Thread, ending_with_threads

DEADLINE_SECS = 20.0


def test_runs_the_newest_work_and_leaves_no_thread():
    background, go, done = Background('worker'), threading.Event(), []

    def first():
        assert go.wait(DEADLINE_SECS)
        done.append(1)

    background.submit(first)  # which begins, although its thread may not have come so far
    background.submit(lambda: done.append(2))
    background.submit(lambda: done.append(3))
    go.set()
    background.join(DEADLINE_SECS)
    assert done == [1, 3]
    assert 'worker' not in [thread.name for thread in threading.enumerate()]
    background.submit(lambda: done.append(4))
    background.join(DEADLINE_SECS)
    assert done == [1, 3, 4]


def test_raises_a_failure_once():
    background = Background('worker')
    background.submit(lambda: 1 // 0)
    background.join(DEADLINE_SECS)
    assert background.failed
    with pytest.raises(ZeroDivisionError):
        background.raise_failure()
    background.raise_failure()


def test_success_clears_an_earlier_failure():
    background = Background('worker')
    for work in (lambda: 1 // 0, lambda: None):
        background.submit(work)
        background.join(DEADLINE_SECS)
    assert not background.failed
    background.raise_failure()


def test_join_has_a_deadline():
    background, go = Background('worker'), threading.Event()
    background.submit(lambda: go.wait(DEADLINE_SECS))
    with pytest.raises(TimeoutError, match='worker'):
        background.join(0.01)
    go.set()
    background.join(DEADLINE_SECS)


@pytest.mark.filterwarnings('ignore::pytest.PytestUnhandledThreadExceptionWarning')
@pytest.mark.parametrize('kind', [MemoryError, OSError, SystemExit])
def test_a_job_ends_when_a_thread_dies(kind):
    def die():
        raise kind('by chance')

    stop = threading.Event()
    with (
        pytest.raises(RuntimeError, match=f'the thread ingest died .{kind.__name__}: by chance') as error,
        ending_with_threads(stop),
    ):
        thread = Thread(die, 'ingest')
        thread.start()
        thread.join(DEADLINE_SECS)
        assert stop.is_set()
    assert isinstance(error.value.__cause__, kind)
    with ending_with_threads(threading.Event()):
        pass
