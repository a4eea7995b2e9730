"""Figures of this process, as Linux tells them."""

import pathlib

_STATUS = pathlib.Path('/proc/self/status')


def rss_mb(status: pathlib.Path = _STATUS) -> float | None:
    """Returns the memory that this process holds [MB]; None where the system does not tell."""
    try:
        lines = status.read_text(encoding='utf-8').splitlines()
    except OSError:
        return None
    kilobytes = [int(line.split()[1]) for line in lines if line.startswith('VmRSS:')]  # of 1024 bytes
    return kilobytes[0] * 1024 / 1e6 if kilobytes else None
