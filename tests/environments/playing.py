"""Environments of external simulators with a policy that acts in them, and clients, for tests."""

import collections
import contextlib
import threading

import numpy as np

from tflearn.core import life
from tflearn.core.types import IDLE
from tflearn.environments import external_env
from tflearn.environments.external_client import SimulatorClient
from tflearn.environments.external_server import ExternalOptions

DEADLINE_SECS = 60.0
QUICK = ExternalOptions(ports=(0,), step_timeout_secs=5.0, begin_wait_secs=0.2, slot_timeout_secs=5.0)


def make(num_environments=2, options=QUICK, observation=None, action=None):
    """Makes an environment whose observation is a pair of numbers: the client's and the step's."""
    return external_env.make(num_environments, None, observation or {'shape': (2,)}, action or {'choices': 5}, options)


class Playing:
    """A policy that answers (number of the client + step) modulo 5, in a thread, until it is closed.

    Attributes:
      time_steps: all time steps that the environment returned.
    """

    def __init__(self, environment, act=None, report=lambda: None):
        self.environment, self.time_steps, self.idle = environment, [environment.reset()], []
        self._act = act or (lambda observation: (observation.sum(axis=1) % 5).astype(np.int64))
        self._report, self._stop, self.error = report, threading.Event(), None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        try:
            with life.reported(self._report):
                while not self._stop.is_set():
                    self.idle.append(self.environment.info[IDLE])
                    self.time_steps.append(self.environment.step(self._act(self.time_steps[-1].observation)))
        except Exception as error:
            # A step that begins after the close is refused: the policy acts between two steps when the test ends.
            if not (self._stop.is_set() and 'after close()' in str(error)):
                self.error = error

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self._stop.set()
        self.environment.close()  # it ends a step that waits for simulators
        self._thread.join(DEADLINE_SECS)
        assert not self._thread.is_alive()
        if self.error:
            raise self.error


def play(address, number, lengths, end='terminated'):
    """Plays episodes of these lengths as the client of this number; returns the actions."""
    simulator, actions = SimulatorClient(address, DEADLINE_SECS), []
    with contextlib.closing(simulator):
        for length in lengths:
            actions.append(simulator.begin([number, 0]))
            for t in range(1, length + 1):
                action = simulator.step(t / 2, [number, t], **({end: True} if t == length else {}))
                if action is not None:
                    actions.append(action)
            assert action is None
            assert simulator.last_return == sum(t / 2 for t in range(1, length + 1))
    return actions


def steps_of(playing):
    """Returns the episodes of all slots: by client, lists of (step type, reward, discount, step) of each time step."""
    found = collections.defaultdict(list)
    for slot in range(playing.environment.num_environments):
        episode = None
        for time_step, idle in zip(playing.time_steps, [*playing.idle, None], strict=False):
            step_type, observation = int(time_step.step_type[slot]), time_step.observation[slot]
            if step_type == 0:
                episode = None if idle is None or idle[slot] else []
                if episode is not None:
                    found[int(observation[0])].append(episode)
            if episode is not None:
                episode.append(
                    (step_type, float(time_step.reward[slot]), float(time_step.discount[slot]), int(observation[1]))
                )
    return found
