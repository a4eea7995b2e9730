"""One of several learner workers that train as one: they find each other through the run directory, by TF_CONFIG."""

import itertools
import json
import os
import secrets
import threading
import time
from collections.abc import Sequence
from typing import NoReturn

from tflearn.core.errors import UserTimeoutError
from tflearn.files.run_dir import RunDir, read_json, write_json
from tflearn.launch.local import free_port
from tflearn.launch.supervised_job import own_host

_POLL_SECS = 0.2


def tf_config(run_dir: RunDir, rank: int, workers: int, timeout_secs: float) -> str:
    """Publishes this worker's address, waits for the others' and returns TF_CONFIG.

    Each start of a worker has a name, and shows that it waits by counting in its file. The chief makes a group of
    those that wait; a name belongs to one group only. So whoever was started again early waits for the others.

    Args:
      run_dir: the run's directory, which the workers share.
      rank: this worker's index; 0 is the chief.
      workers: their number.
      timeout_secs: how long to wait [s].

    Raises:
      TimeoutError: if not all workers have come.
    """
    own = {'address': f'{own_host()}:{free_port()}', 'attempt': secrets.token_hex(8)}
    chief = _Chief(run_dir, workers) if rank == 0 else None
    deadline, pause = time.monotonic() + timeout_secs, threading.Event()
    for count in itertools.count():
        write_json(run_dir.address(f'train_{rank}'), {**own, 'count': count})
        missing = chief.look() if chief else [0]
        group = read_json(run_dir.address('train')) or {}
        if own['attempt'] in group.get('attempts', ()):
            task = {'type': 'worker', 'index': rank}
            return json.dumps({'cluster': {'worker': group['addresses']}, 'task': task})
        if time.monotonic() > deadline:
            raise UserTimeoutError(
                f'got no address of worker(s) {", ".join(map(str, missing))} of {workers} within {timeout_secs:g} s; '
                f'need all of them to share {run_dir.root}'
            )
        pause.wait(_POLL_SECS)
    raise AssertionError('unreachable')


class _Chief:
    """Makes a group of the workers that wait."""

    def __init__(self, run_dir: RunDir, workers: int):
        self._run_dir, self._workers = run_dir, workers
        self._old = set((read_json(run_dir.address('train')) or {}).get('attempts', ()))
        self._first: dict[str, int] = {}  # the count at which each start of a worker was seen first

    def look(self) -> list[int]:
        """Publishes the group when all workers wait; else returns those that do not."""
        found = [read_json(self._run_dir.address(f'train_{i}')) or {} for i in range(self._workers)]
        missing = [i for i, other in enumerate(found) if not self._waits(other.get('attempt'), other.get('count'))]
        if not missing:
            group = {'attempts': [each['attempt'] for each in found], 'addresses': [each['address'] for each in found]}
            write_json(self._run_dir.address('train'), group)
        return missing

    def _waits(self, attempt: str | None, count: int | None) -> bool:
        if attempt is None or count is None or attempt in self._old:
            return False
        return self._first.setdefault(attempt, count) != count


def execute(command: Sequence[str], config: str) -> NoReturn:
    """Becomes the program `command` with that TF_CONFIG."""
    os.execve(command[0], list(command), {**os.environ, 'TF_CONFIG': config})
