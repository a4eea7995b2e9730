"""Figures of this process, as Linux tells them."""

import os
import pathlib

_PAGES = pathlib.Path('/proc/self/statm')


def rss_mb(pages: pathlib.Path = _PAGES) -> float | None:
    """Returns the memory that this process holds [MB]; None where the system does not tell.

    Args:
      pages: the file in which the system tells it.
    """
    try:
        resident = int(pages.read_text(encoding='utf-8').split()[1])
    except OSError:
        return None
    return resident * os.sysconf('SC_PAGE_SIZE') / 1e6
