"""What both sides' runs of the suite share as processes. It imports only Python's library, for the peers."""

import argparse
import ctypes
import json
import os
import pathlib
import signal
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
# The reset seed of the first evaluation environment, at every mark of every run of each side; the others follow it.
# Later episodes of an environment go on with its random numbers.
STARTS = 1_000_000
_PR_SET_PDEATHSIG = 1  # of Linux's prctl
_DECIDES = ('tflearn', 'scripts', 'gin', 'benchmarks', ':!benchmarks/results')


def revision() -> str:
    """Returns this checkout's commit, with '-dirty' if a file that decides a run differs from it or is new."""

    def git(*arguments: str) -> str:
        command = ['git', '-C', str(ROOT), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    return git('rev-parse', 'HEAD') + '-dirty' * bool(git('status', '--porcelain', '--', *_DECIDES))


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
