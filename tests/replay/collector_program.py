"""A collector without a policy, for tests that kill it: `python -m tests.replay.collector_program ADDRESS`."""

import sys
import threading

import numpy as np
from tf_agents.trajectories import trajectory

from tests import fakes
from tests.replay.replay_program import EXPERIENCE
from tests.testing.replay import DATA_SPEC
from tflearn.replay import backend
from tflearn.replay.storage import REPLAY, Storage
from tflearn.replay.writers import ReplayWriter

LENGTHS = (7, 30)
_PAUSE_SECS = 0.002


def main() -> None:
    """Writes until it is killed."""
    address, stop = sys.argv[1], threading.Event()
    storage = Storage(EXPERIENCE, DATA_SPEC)
    backend.wait_for_table(address, REPLAY, storage.signature, 60)
    writer = ReplayWriter(address, storage, len(LENGTHS), stop, server_timeout_secs=20)
    environment = fakes.CheckedEnvironment(LENGTHS)
    step, action = environment.reset(), np.ones(len(LENGTHS), np.int64)
    while True:
        next_step = environment.step(action)
        row = trajectory.Trajectory(
            step_type=step.step_type,
            observation=step.observation,
            action=action,
            policy_info=(),
            next_step_type=next_step.step_type,
            reward=next_step.reward,
            discount=next_step.discount,
        )
        writer(row, 0)
        step = next_step
        stop.wait(_PAUSE_SECS)


if __name__ == '__main__':
    main()
