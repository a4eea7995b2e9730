"""What both sides' runs of the suite share as processes. It imports only Python's library, for the peers."""

import argparse
import ctypes
import json
import os
import pathlib
import signal
import sys

_PR_SET_PDEATHSIG = 1  # of Linux's prctl


def evaluation_seed(seed: int) -> int:
    """Returns the first seed of a run's evaluation environments: for each side; other runs have other episodes."""
    return 1_000_000 + 100 * seed


def parsed(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Returns the flags of one run of either side, which ends with its parent from now on."""
    parser.add_argument('--settings', type=json.loads, required=True, help="JSON: the row's settings of that side")
    parser.add_argument('--seed', type=int, required=True)
    parser.add_argument('--output', type=pathlib.Path, required=True, help='JSON file of the result')
    parser.add_argument('--parent', type=int, required=True, help='process id of the suite, with which it ends')
    options = parser.parse_args()
    end_with_parent(options.parent)
    return options


def end_with_parent(parent: int) -> None:
    """Ends this process when its parent does, even if that is killed; a run that nobody reads would go on.

    Args:
      parent: its process id; it may have ended already.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit(1)
