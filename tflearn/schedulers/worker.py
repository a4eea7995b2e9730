"""One of several learner workers that train as one: they find each other through the run directory, by TF_CONFIG."""

import json
import os
import threading
import time
from collections.abc import Sequence
from typing import NoReturn

from tflearn.errors import UserTimeoutError
from tflearn.launch.local import free_port
from tflearn.run_dir import RunDir, read_json, write_json
from tflearn.schedulers.supervise import own_host

_POLL_SECS = 0.2


def tf_config(run_dir: RunDir, rank: int, workers: int, attempt: str, timeout_secs: float) -> str:
    """Publishes this worker's address, waits for the others' and returns TF_CONFIG.

    Args:
      run_dir: the run's directory, which the workers share.
      rank: this worker's index; 0 is the chief.
      workers: their number.
      attempt: a name of this start of the group, the same for all; addresses of others are not used.
      timeout_secs: how long to wait [s].

    Raises:
      TimeoutError: if not all workers have come.
    """
    own = {'address': f'{own_host()}:{free_port()}', 'attempt': attempt}
    write_json(run_dir.address(f'train_{rank}'), own)
    deadline, pause = time.monotonic() + timeout_secs, threading.Event()
    while True:
        found = [read_json(run_dir.address(f'train_{i}')) or {} for i in range(workers)]
        missing = [i for i, other in enumerate(found) if other.get('attempt') != attempt]
        if not missing:
            cluster = {'worker': [other['address'] for other in found]}
            return json.dumps({'cluster': cluster, 'task': {'type': 'worker', 'index': rank}})
        if time.monotonic() > deadline:
            raise UserTimeoutError(
                f'got no address of worker(s) {", ".join(map(str, missing))} of {workers} within {timeout_secs:g} s; '
                f'need all of them to share {run_dir.root}'
            )
        pause.wait(_POLL_SECS)


def execute(command: Sequence[str], config: str) -> NoReturn:
    """Becomes the program `command` with that TF_CONFIG."""
    os.execve(command[0], list(command), {**os.environ, 'TF_CONFIG': config})
