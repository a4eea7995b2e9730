"""Any environment, with a line in a file for its first step and for the end of every episode."""

import json
import os
import time
from typing import Any

import numpy as np
from tf_agents.trajectories import time_step as ts

from tflearn.core.types import BatchedEnvironment, EnvironmentFactory
from tflearn.environments.wrappers import Wrapper


def make(
    num_environments: int, seed: int | None, *, make_environment: EnvironmentFactory, path: str
) -> BatchedEnvironment:
    """Makes an environment, see `EnvironmentFactory`.

    Args:
      num_environments: B.
      seed: of the first.
      make_environment: makes the one that is recorded.
      path: of the file; `read` returns its content. Nothing is written before the first step.
    """
    return RecordedEnvironment(make_environment(num_environments=num_environments, seed=seed), path)


def read(path: str | os.PathLike[str]) -> tuple[float | None, list[tuple[float, float, int]]]:
    """Returns the time of the first step, and (time, return, environment steps) of each episode, in their order.

    Times are seconds since 1970; without a file there is no first step and no episode. Environment steps are all that
    were taken until the episode's end, also those of episodes that had not ended: in the process that reports it as of
    that moment, in another process as of its last episode's end.
    """
    if not os.path.exists(path):
        return None, []
    with open(path, encoding='utf-8') as lines:
        entries = [json.loads(line) for line in lines if line.endswith('\n')]
    starts = [entry['start'] for entry in entries if 'start' in entry]
    episodes, env_steps = [], {}
    for entry in sorted((entry for entry in entries if 'episode' in entry), key=lambda entry: entry['episode']):
        env_steps[entry['process']] = entry['env_steps']
        episodes.append((*entry['episode'], sum(env_steps.values())))
    return min(starts, default=None), episodes


def append(path: str | os.PathLike[str], **entry: Any) -> None:
    """Appends a line atomically, also if several processes write."""
    with open(path, 'a', encoding='utf-8') as lines:
        lines.write(json.dumps(entry) + '\n')


class RecordedEnvironment(Wrapper):
    """Another environment whose episodes are also recorded."""

    def __init__(self, environment: BatchedEnvironment, path: str):
        """Takes over `environment`: it is closed with this."""
        super().__init__(environment)
        self._path, self._started = path, False
        self._returns, self._env_steps = np.zeros(self.num_environments), 0

    def step(self, action: Any) -> ts.TimeStep:
        """Applies `action`, and writes a line for each episode that ends."""
        if not self._started:
            append(self._path, start=time.time())
            self._started = True
        time_step = self._environment.step(action)
        first = time_step.step_type == ts.StepType.FIRST
        self._returns = np.where(first, 0.0, self._returns + time_step.reward)
        self._env_steps += int(np.count_nonzero(~first))
        for i in np.flatnonzero(time_step.step_type == ts.StepType.LAST):
            episode = [time.time(), float(self._returns[i])]
            append(self._path, episode=episode, process=os.getpid(), env_steps=self._env_steps)
        return time_step
