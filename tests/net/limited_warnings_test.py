"""Warnings that clients can cause without an end are counted."""

from tflearn.net.limited_warnings import LimitedWarnings


def test_what_is_left_out_is_counted(caplog):
    now = 0.0
    warnings = LimitedWarnings(first=2, clock=lambda: now)
    for number in range(5):
        warnings.log('refused %s', number)
    now = 61.0
    warnings.log('refused %s', 5)
    warnings.log('refused %s', 6)
    assert caplog.messages == ['refused 0', 'refused 1', 'refused 5 (and 3 more since the last such line)']
