import pytest

from tflearn.core.errors import LoggedError
from tflearn.environments.sync_vector_env import Failures, cause_of, seed_of


def test_failures_in_a_row_are_limited(caplog):
    failures = Failures(2, max_in_a_row=2)
    failures.add([0], 'one')
    failures.add([0], 'two')
    failures.add([1], 'one')
    assert failures.num_rebuilt == 3
    message = r'got 3 failures in a row of environment 0; need .*the cause: three \(its traceback is in the log\)$'
    with pytest.raises(LoggedError, match=message):
        failures.add([0], 'three\nTraceback')
    assert caplog.messages[-1] == 'environment 0 failed (3 in a row): three\nTraceback'
    with pytest.raises(RuntimeError, match='the cause: got nan$'):  # which raised nothing
        failures.add([0], 'got nan')


def test_a_step_between_failures_resets_the_count():
    failures = Failures(2, max_in_a_row=1)
    for _ in range(9):
        failures.add([0], 'cause')
        failures.record_step()
    failures.add([0, 1], 'cause')
    failures.record_step(failed=[1])
    failures.add([0], 'cause')
    with pytest.raises(RuntimeError, match='environment 1'):
        failures.add([1], 'cause')


def test_cause_is_the_error_and_its_traceback():
    try:
        raise OSError('no licence')
    except OSError as error:
        cause = cause_of(error)
    assert cause.splitlines()[0] == 'OSError: no licence'
    assert 'test_cause_is_the_error' in cause


def test_rebuilt_environments_get_other_seeds():
    assert seed_of(None, 1, num_rebuilt=1) is None
    assert [seed_of(7, i, num_rebuilt=0) for i in range(3)] == [7, 8, 9]
    others = {seed_of(7, i, num_rebuilt=n) for i in range(3) for n in range(1, 4)}
    assert len(others) == 9
    assert seed_of(7, 1, num_rebuilt=2) == seed_of(7, 1, num_rebuilt=2)
