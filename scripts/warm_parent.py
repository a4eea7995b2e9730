"""Loads the libraries of all jobs, then forks jobs for tflearn-launch, which starts it; see launch/warm_parent.py."""

import pathlib
import runpy
import socket
import sys

from tflearn.core import preflight
from tflearn.launch import warm_parent

_MODULES = (
    'tensorflow',
    'gym',
    *(f'tflearn.replay.reverb.{half}' for half in ('client', 'server')),
    *(f'tflearn.jobs.{job}' for job in ('replay_server', 'train', 'collect', 'evaluate', 'feed')),
)


def main() -> None:
    """Runs the program; its argument is the descriptor of its socket. In a fork, runs the job's program."""
    load()
    run(socket.socket(fileno=int(sys.argv[1])))


def load() -> None:
    """Loads the libraries."""
    preflight.import_from_here()
    # The forks' collections leave it alone: its memory stays shared.
    preflight.import_quietly(*_MODULES, finds_gpus=False)


def run(connection: socket.socket) -> None:
    """Forks jobs on request; in a fork, runs the job's program."""
    module, *arguments = warm_parent.serve(connection)
    import numpy as np

    np.random.seed()  # The only generator that is loaded with a state, which all jobs would share.
    pathlib.Path('/proc/self/comm').write_text(module.rpartition('.')[2], encoding='utf-8')
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name='__main__', alter_sys=True)


if __name__ == '__main__':
    main()
