"""The workers of a learner as processes of this machine, which train as one: one program starts and ends all of them.

Usage: worker_group NUM_WORKERS PROGRAM ARGUMENT...

Each worker gets a TF_CONFIG with free ports, and its part of the GPUs. Signals go to all workers. When one has ended,
the others have `LOST_SECS` to end too; so whoever watches this program starts all workers again, or none.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import types
from collections.abc import Iterable, Mapping, Sequence

from tflearn.core.errors import TRY_AGAIN_EXIT_STATUS
from tflearn.launch.local import free_address

LOST_SECS = 45.0  # TensorFlow's heartbeat needs half a minute
_POLL_SECS = 0.05
_USER_ERROR, _STOPPED = 2, 128 + signal.SIGTERM
_DEVICES = 'CUDA_VISIBLE_DEVICES'


def environments(num_workers: int, inherited: Mapping[str, str]) -> list[dict[str, str]]:
    """Returns the environment of each worker: `inherited`, with its TF_CONFIG and its part of the visible GPUs."""
    addresses = [free_address() for _ in range(num_workers)]
    found = []
    for index in range(num_workers):
        config = {'cluster': {'worker': addresses}, 'task': {'type': 'worker', 'index': index}}
        found.append({**inherited, 'TF_CONFIG': json.dumps(config)})
        if gpus := [name for name in inherited.get(_DEVICES, '').split(',') if name]:
            found[-1][_DEVICES] = ','.join(gpus[index::num_workers])
    return found


def exit_status(statuses: Iterable[int]) -> int:
    """Returns the group's exit status: an error of a worker's own, if there is one; else whether to try again.

    Args:
      statuses: the workers' exit statuses; negative: the signal that ended it.
    """
    each = {_STOPPED if status == -signal.SIGTERM else status for status in statuses}
    if each <= {0, _STOPPED}:
        return max(each)
    # TensorFlow's own service may abort a worker whose peer has ended, however that ended.
    own = each - {0, _STOPPED, TRY_AGAIN_EXIT_STATUS, -signal.SIGABRT}
    if _USER_ERROR in own:
        return _USER_ERROR
    return max(own) if own and min(own) > 0 else TRY_AGAIN_EXIT_STATUS


def run(command: Sequence[str], num_workers: int, lost_secs: float = LOST_SECS) -> int:
    """Runs the workers until all have ended. Returns the group's exit status.

    Args:
      command: the command of each worker.
      num_workers: their number.
      lost_secs: how long the others may go on when one has ended [s].
    """
    received: list[int] = []

    def receive(number: int, frame: types.FrameType | None) -> None:
        received.append(number)

    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, receive)
    workers = [subprocess.Popen(command, env=each) for each in environments(num_workers, os.environ)]
    deadline, pause = None, threading.Event()
    while alive := [worker for worker in workers if worker.poll() is None]:
        while received:
            to_all = received.pop(0)
            for worker in alive:
                worker.send_signal(to_all)
        if len(alive) < num_workers:
            deadline = deadline or time.monotonic() + lost_secs
            if time.monotonic() > deadline:
                sys.stderr.write(f'{len(alive)} workers have not ended {lost_secs:g} s after the first one: killed\n')
                for worker in alive:
                    worker.kill()
                    worker.wait()
        pause.wait(_POLL_SECS)
    return exit_status(worker.returncode for worker in workers)


if __name__ == '__main__':
    sys.exit(run(sys.argv[2:], int(sys.argv[1])))
