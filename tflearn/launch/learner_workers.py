"""The workers of a learner, processes that train as one:
on one machine, or each on a machine of its own.

Usage: learner_workers NUM_WORKERS PROGRAM ARGUMENT...

This program starts all workers as processes of this machine, and ends them. Each worker gets a
TF_CONFIG with free ports, and its part of the GPUs. Signals go to all workers. When one has ended,
the others have `LOST_SECS` to end too; so whoever watches this program starts all workers again, or
none.

On several machines they find each other through the run directory (`tf_config`)."""

import itertools
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
import types
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NoReturn

from tflearn.core import parent_death
from tflearn.core.errors import TRY_AGAIN_EXIT_STATUS, UserTimeoutError
from tflearn.files import messages
from tflearn.files.run_dir import RunDir, read_json, write_json
from tflearn.launch.local import free_address, free_port
from tflearn.launch.supervised_job import own_host

LOST_SECS = 45.0  # TensorFlow's heartbeat needs half a minute
_POLL_SECS = 0.05
_USER_ERROR, _STOPPED = 2, 128 + signal.SIGTERM
_DEVICES = 'CUDA_VISIBLE_DEVICES'


def environments(num_workers: int, inherited: Mapping[str, str]) -> list[dict[str, str]]:
    """Returns the environment of each worker: `inherited`,
    with its TF_CONFIG and its part of the visible GPUs.
    """
    addresses = [free_address() for _ in range(num_workers)]
    found = []
    for index in range(num_workers):
        config = {'cluster': {'worker': addresses}, 'task': {'type': 'worker', 'index': index}}
        found.append({**inherited, 'TF_CONFIG': json.dumps(config)})
        if gpus := [name for name in inherited.get(_DEVICES, '').split(',') if name]:
            found[-1][_DEVICES] = ','.join(gpus[index::num_workers])
    return found


def exit_status(statuses: Iterable[int]) -> int:
    """Returns the group's exit status: an error of a worker's own, if there is one;
    else whether to try again.

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


def run_group(command: Sequence[str], num_workers: int, lost_secs: float = LOST_SECS) -> int:
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
    command = parent_death.command(command, signal.SIGTERM)
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


_LOOK_SECS = 0.2


def tf_config(run_dir: RunDir, rank: int, workers: int, timeout_secs: float) -> str:
    """Publishes this worker's address, waits for the others' and returns TF_CONFIG.

    Each start of a worker has a name, and shows that it waits by counting in its file. The chief
    makes a group of those that wait; a name belongs to one group only. So whoever was started again
    early waits for the others.

    Args:
      run_dir: the run's directory, which the workers share.
      rank: this worker's index; 0 is the chief.
      workers: their number.
      timeout_secs: how long to wait [s].

    Raises:
      TimeoutError: if not all workers have come.
    """
    own = {'address': f'{own_host()}:{free_port()}', 'attempt': secrets.token_hex(8)}
    old = set((read_json(run_dir.address('train'), messages.Address) or {}).get('attempts', ()))
    first: dict[str, int] = {}
    deadline, pause = time.monotonic() + timeout_secs, threading.Event()
    for count in itertools.count():
        write_json(run_dir.address(f'train_{rank}'), {**own, 'count': count})
        missing = [0] if rank else _make_group(run_dir, workers, old, first)
        group = read_json(run_dir.address('train'), messages.Address) or {}
        if own['attempt'] in group.get('attempts', ()):
            task = {'type': 'worker', 'index': rank}
            return json.dumps({'cluster': {'worker': group['addresses']}, 'task': task})
        if time.monotonic() > deadline:
            others = [each for each in missing if each != rank] or missing  # it may have no time to see itself count
            raise UserTimeoutError(
                f'got no address of worker(s) {", ".join(map(str, others))} of {workers} within {timeout_secs:g} s; '
                f'need all of them to share {run_dir.root}'
            )
        pause.wait(_LOOK_SECS)
    raise AssertionError('unreachable')


def _make_group(run_dir: RunDir, workers: int, old: Collection[str], first: dict[str, int]) -> list[int]:
    """Publishes the group when all workers wait; else returns those that do not.

    Args:
      run_dir: the run's directory.
      workers: their number.
      old: the starts of workers that belong to an earlier group.
      first: the count at which each start of a worker was seen first, to be kept for the next call.
    """

    def waits(attempt: str | None, count: int | None) -> bool:
        if attempt is None or count is None or attempt in old:
            return False
        return first.setdefault(attempt, count) != count

    found = [read_json(run_dir.address(f'train_{i}'), messages.Address) or {} for i in range(workers)]
    missing = [
        i
        for i, other in enumerate(found)
        if 'address' not in other or not waits(other.get('attempt'), other.get('count'))
    ]
    if not missing:
        group = {'attempts': [each['attempt'] for each in found], 'addresses': [each['address'] for each in found]}
        write_json(run_dir.address('train'), group)
    return missing


def execute(command: Sequence[str], config: str) -> NoReturn:
    """Becomes the program `command` with that TF_CONFIG."""
    os.execve(command[0], list(command), {**os.environ, 'TF_CONFIG': config})


if __name__ == '__main__':
    sys.exit(run_group(sys.argv[2:], int(sys.argv[1])))
