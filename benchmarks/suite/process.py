"""What both sides' runs of the suite share as processes. It imports only Python's library, for the peers."""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # of Linux's prctl


def evaluation_seed(seed: int) -> int:
    """Returns the first seed of a run's evaluation environments: for each side; other runs have other episodes."""
    return 1_000_000 + 100 * seed


def end_with_parent(parent: int) -> None:
    """Lets this process end when its parent does, even if that is killed; a run that nobody reads would go on.

    Args:
      parent: its process id; it may have ended already.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit(1)
