"""Stable-Baselines3's and SBX's side of benchmarks/time_to_return.py: one run, with rl-zoo's settings.

It has an environment of its own: requirements_peers.txt.
Writes what `recorded_environment.read` reads: the start, which is the first environment step, and the end of each
episode. Both libraries step and train alternately in one process. SBX's programs are compiled by JAX at their first
calls, in the time that is counted; with --warm a first `learn` of the same model compiles them before, and the model's
first weights are put back.
"""

import argparse
import json
import os
import pathlib
import sys
import time
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.vec_env import VecEnvWrapper

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.suite import zoo  # noqa: E402

# The weights, optimizers and random numbers of SBX's models, by their attributes.
_STATES = ('policy.actor_state', 'policy.vf_state', 'policy.qf_state', 'ent_coef_state', 'key')


# Environment steps of the zoo's runs.
_ENV_STEPS = {
    ('PPO', 'CartPole-v1'): 100_000,
    ('SAC', 'Pendulum-v1'): 20_000,
    ('SAC', 'HalfCheetah-v5'): 1_000_000,
    ('DQN', 'CartPole-v1'): 50_000,
}


class Recorded(VecEnvWrapper):
    """Environments with a line in a file for their first step and for the end of every episode, while it has a path."""

    def __init__(self, venv: Any):
        super().__init__(venv)
        self.path: str | None = None
        self.deadline = float('inf')
        self._returns, self._env_steps = np.zeros(self.num_envs), 0

    def reset(self) -> Any:
        """Begins new episodes."""
        self._returns[:] = self._env_steps = 0
        return self.venv.reset()

    def step_async(self, actions: np.ndarray) -> None:
        """Begins a step."""
        if self.path and not self._env_steps:
            append(self.path, start=time.time())
        self.venv.step_async(actions)

    def step_wait(self) -> Any:
        """Ends a step.

        Raises:
          TimeoutError: after the deadline.
        """
        observations, rewards, dones, infos = self.venv.step_wait()
        self._env_steps += self.num_envs
        self._returns += rewards
        for i in np.flatnonzero(dones) if self.path else ():
            episode = [time.time(), float(self._returns[i])]
            append(self.path, episode=episode, process=os.getpid(), env_steps=self._env_steps)
        self._returns[dones] = 0.0
        if time.time() > self.deadline:
            raise TimeoutError('the limit was reached')
        return observations, rewards, dones, infos


def main() -> None:
    """Trains until the limit is reached, the settings' environment steps are taken, or it is ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--library', choices=('sb3', 'sbx'), required=True)
    parser.add_argument('--algorithm', choices=('ppo', 'sac', 'dqn'), required=True)
    parser.add_argument('--environment', required=True)
    parser.add_argument('--path', required=True, help='of the file that is written')
    parser.add_argument('--seed', type=int, required=True)
    parser.add_argument('--limit_secs', type=float, required=True)
    parser.add_argument('--warm', action='store_true', help='compiles before the first step that counts')
    options = parser.parse_args()
    if options.library == 'sb3' and options.algorithm != 'sac':
        torch.set_num_threads(1)  # faster than several for networks this small
    algorithm = options.algorithm.upper()
    task = algorithm, options.environment
    settings = zoo.SETTINGS[' '.join(task)]
    environment = Recorded(zoo.make_environment(options.environment, settings, options.seed))
    model = zoo.make_model(options.library.upper(), algorithm, settings, environment, options.seed)
    if options.warm:
        warm_up(model)
    environment.path, environment.deadline = options.path, time.time() + options.limit_secs
    try:
        model.learn(_ENV_STEPS[task])
    except TimeoutError:
        return


def warm_up(model: BaseAlgorithm) -> None:
    """Compiles a model's programs by a short `learn`, and puts its state back."""
    import jax

    # Arrays do not change, but the dicts that hold learning rates do.
    states = {
        path: jax.tree.map(lambda leaf: leaf, _get(model, path)) for path in _STATES if _get(model, path) is not None
    }
    starts = getattr(model, 'learning_starts', None)
    if starts is None:
        model.learn(1)  # one rollout, and its epochs
    else:
        model.learning_starts = 10
        model.learn(400 if model.train_freq == 1 else 1_000)
        model.learning_starts, model._n_updates = starts, 0
        model.replay_buffer.reset()
    for path, state in states.items():
        owner, _, name = path.rpartition('.')
        setattr(_get(model, owner) if owner else model, name, state)


def _get(model: Any, path: str) -> Any:
    for name in path.split('.'):
        model = getattr(model, name, None)
    return model


def append(path: str, **entry: object) -> None:
    """Appends a line to the file."""
    with open(path, 'a', encoding='utf-8') as lines:
        lines.write(json.dumps(entry) + '\n')


if __name__ == '__main__':
    main()
