"""Ends a process with its parent, however that ends:
the kernel of Linux sends a signal (PR_SET_PDEATHSIG).

To the kernel the parent is the *thread* that started the process: a thread that ends takes its
processes along. Elsewhere than on Linux nothing is sent.

This file is also the program by which another one is started so: it imports only the standard
library, and becomes that program within milliseconds.
"""

import ctypes
import os
import sys
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int, number: int) -> None:
    """Arranges that this process gets a signal when its parent ends.
    Ends it if that has ended already.

    Args:
      parent: the process id of the parent.
      number: the signal.
    """
    if sys.platform == 'linux':
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(128 + number)


def command(program: Sequence[str], number: int) -> list[str]:
    """Returns the command by which this process starts a program that gets a signal when this process ends.

    Args:
      program: the program and its arguments.
      number: the signal.
    """
    return [sys.executable, '-I', '-S', __file__, str(os.getpid()), str(int(number)), *program]


if __name__ == '__main__':
    end_with_parent(int(sys.argv[1]), int(sys.argv[2]))
    os.execvp(sys.argv[3], sys.argv[3:])
