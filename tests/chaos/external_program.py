"""A collector's environment of external simulators, which random actions act in; prints where it listens."""

import sys
import threading

import numpy as np

from tflearn.environments import external_env
from tflearn.environments.external_server import ExternalOptions


def main() -> None:
    """Acts until its standard input ends."""
    options = ExternalOptions(ports=(0,), step_timeout_secs=0.5, begin_wait_secs=0.05, slot_timeout_secs=0.5)
    environment = external_env.make(4, None, {'shape': (2,)}, {'choices': 5}, options)
    environment.reset()
    sys.stdout.write(f'{environment.address}\n')
    sys.stdout.flush()
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    rng = np.random.default_rng(0)
    while not ended.is_set():
        environment.step(rng.integers(0, 5, 4))
    environment.close()


if __name__ == '__main__':
    main()
