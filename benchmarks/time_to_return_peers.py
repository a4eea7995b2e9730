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
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecEnvWrapper

# The weights, optimizers and random numbers of SBX's models, by their attributes.
_STATES = ('policy.actor_state', 'policy.vf_state', 'policy.qf_state', 'ent_coef_state', 'key')


def linear(start: float) -> Callable[[float], float]:
    """Returns rl-zoo's `lin_` schedule: from `start` at the run's begin to 0 at its end."""
    return lambda left: left * start


# Of https://github.com/DLR-RM/rl-baselines3-zoo, hyperparams/{ppo,sac,dqn}.yml: (environments, environment steps,
# settings). Its HalfCheetah-v3 is gymnasium's HalfCheetah-v5 here, as in ours.
SETTINGS: dict[tuple[str, str], tuple[int, int, dict[str, Any]]] = {
    ('ppo', 'CartPole-v1'): (
        8,
        100_000,
        {
            'n_steps': 32,
            'batch_size': 256,
            'gae_lambda': 0.8,
            'gamma': 0.98,
            'n_epochs': 20,
            'ent_coef': 0.0,
            'learning_rate': linear(1e-3),
            'clip_range': linear(0.2),
        },
    ),
    ('sac', 'Pendulum-v1'): (1, 20_000, {'learning_rate': 1e-3}),
    ('sac', 'HalfCheetah-v5'): (1, 1_000_000, {'learning_starts': 10_000}),
    ('dqn', 'CartPole-v1'): (
        1,
        50_000,
        {
            'learning_rate': 2.3e-3,
            'batch_size': 64,
            'buffer_size': 100_000,
            'learning_starts': 1_000,
            'gamma': 0.99,
            'target_update_interval': 10,
            'train_freq': 256,
            'gradient_steps': 128,
            'exploration_fraction': 0.16,
            'exploration_final_eps': 0.04,
            'policy_kwargs': {'net_arch': [256, 256]},
        },
    ),
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
    if options.library == 'sbx':
        import sbx as library
    else:
        import stable_baselines3 as library

        if options.algorithm != 'sac':
            torch.set_num_threads(1)  # faster than several for networks this small
    number, env_steps, settings = SETTINGS[options.algorithm, options.environment]
    environment = Recorded(make_vec_env(options.environment, n_envs=number, seed=options.seed))
    algorithm = getattr(library, options.algorithm.upper())
    model = algorithm('MlpPolicy', environment, seed=options.seed, device='cpu', **settings)
    if options.warm:
        warm_up(model)
    environment.path, environment.deadline = options.path, time.time() + options.limit_secs
    try:
        model.learn(env_steps)
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
