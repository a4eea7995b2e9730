"""Other libraries' side of benchmarks/throughput.py: one run, with the settings that it is given.

Each library has an environment of its own: requirements_sample_factory.txt and requirements_peers.txt say how to make
it. Writes what `recorded_environment.read` reads, and trains until it is killed.
"""

import argparse
import functools
import json
import os
import pathlib
import sys
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Processes that a library starts import this file again, without its arguments.
_GIVEN = 'THROUGHPUT_SETTINGS'


class Game(gymnasium.Env):
    """MinAtar's Breakout as tflearn has it: images of bytes, and the game's own actions."""

    def __init__(self) -> None:
        import minatar

        self._game = minatar.Environment('breakout')
        self._actions = self._game.minimal_action_set()
        self.action_space = gymnasium.spaces.Discrete(len(self._actions))
        self.observation_space = gymnasium.spaces.Box(0, 255, self._game.state_shape(), np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict]:
        """See `gymnasium.Env`."""
        if seed is not None:
            self._game.seed(seed)
        self._game.reset()
        return self._observation(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict]:
        """See `gymnasium.Env`."""
        reward, is_over = self._game.act(self._actions[int(action)])
        return self._observation(), float(reward), bool(is_over), False, {}

    def _observation(self) -> np.ndarray:
        return self._game.state().astype(np.uint8) * np.uint8(255)


def make_one(name: str) -> gymnasium.Env:
    """Makes one environment, without gymnasium's checks of each step."""
    return Game() if name == 'minatar' else gymnasium.make(name, disable_env_checker=True)


class Record:
    """The record of one process: a line for its first step and for the end of every episode."""

    def __init__(self, path: str) -> None:
        self._path, self._env_steps = path, 0

    def add(self, env_steps: int, returns: Any) -> None:
        """Adds steps that were taken together, and the returns of the episodes that they ended."""
        if not self._env_steps:
            self._append(start=time.time())
        self._env_steps += env_steps
        for value in returns:
            self._append(episode=[time.time(), float(value)], process=os.getpid(), env_steps=self._env_steps)

    def _append(self, **entry: object) -> None:
        with open(self._path, 'a', encoding='utf-8') as lines:
            lines.write(json.dumps(entry) + '\n')


@functools.cache
def record() -> Record:
    """The record of this process."""
    return Record(given()['path'])


def given() -> dict[str, Any]:
    """The settings; see `throughput.Task`."""
    return json.loads(os.environ[_GIVEN])


class One(gymnasium.Wrapper):
    """One environment with a record."""

    def reset(self, **kwargs: Any) -> Any:
        """Begins an episode."""
        self._return = 0.0
        return self.env.reset(**kwargs)

    def step(self, action: Any) -> Any:
        """Takes a step."""
        result = self.env.step(action)
        self._return += result[1]
        record().add(1, [self._return] if result[2] or result[3] else [])
        return result


class Many:
    """Environments that are stepped together, with a record: gymnasium's vector environment, or one after the other."""

    def __init__(self, name: str, num: int) -> None:
        # From gymnasium 1.0 on it begins an episode one step later than these libraries expect.
        is_native = name == 'CartPole-v1' and gymnasium.__version__ < '1'
        self._native = gymnasium.make_vec(name, num, vectorization_mode='custom') if is_native else None
        self._envs = [] if self._native else [make_one(name) for _ in range(num)]
        one = self._envs[0] if self._envs else None
        self.observation_space = one.observation_space if one else self._native.single_observation_space
        self.action_space = one.action_space if one else self._native.single_action_space
        self._returns = np.zeros(num)

    def reset(self, seed: int | None = None) -> Any:
        """Begins new episodes."""
        if self._native:
            return self._native.reset(seed=seed)[0]
        return np.stack([env.reset(seed=None if seed is None else seed + i)[0] for i, env in enumerate(self._envs)])

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Takes a step; an episode that ends is followed by a new one's first observation."""
        if self._native:
            observations, rewards, terminated, truncated, _ = self._native.step(actions)
        else:
            observations, rewards, terminated, truncated = self._step(actions)
        self._returns += rewards
        (ended,) = np.nonzero(terminated | truncated)
        record().add(len(rewards), self._returns[ended])
        self._returns[ended] = 0.0
        return observations, rewards, terminated, truncated

    def _step(self, actions: np.ndarray) -> Any:
        if isinstance(self.action_space, gymnasium.spaces.Box):
            actions = np.clip(actions, self.action_space.low, self.action_space.high)
        steps = [env.step(action)[:4] for env, action in zip(self._envs, actions, strict=True)]
        observations, rewards, terminated, truncated = zip(*steps, strict=True)
        observations = [
            env.reset()[0] if one or other else observation
            for env, observation, one, other in zip(self._envs, observations, terminated, truncated, strict=True)
        ]
        flags = np.array([terminated, truncated], bool)
        return np.stack(observations), np.array(rewards, np.float32), *flags


class SampleFactoryMany(gymnasium.Env):
    """`Many` with Sample Factory's interface for batches."""

    is_multiagent = True

    def __init__(self, name: str, num: int) -> None:
        self._many, self.num_agents = Many(name, num), num
        self.observation_space, self.action_space = self._many.observation_space, self._many.action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict]:
        """See `gymnasium.Env`."""
        return self._many.reset(seed), {}

    def step(self, action: Any) -> Any:
        """See `gymnasium.Env`."""
        observations, rewards, terminated, truncated = self._many.step(action)
        return observations, rewards.astype(np.float32), terminated, truncated, {}


def make_sample_factory(name: str, cfg: Any, _: Any, render_mode: str | None = None) -> gymnasium.Env:
    """Makes an environment for Sample Factory."""
    del render_mode
    if not cfg.batched_sampling:
        return One(make_one(name))
    return SampleFactoryMany(name, given()['num_environments'] // cfg.num_workers // cfg.num_envs_per_worker)


def make_encoder(cfg: Any, obs_space: Any) -> Any:
    """Makes the network of an image: one convolution and one layer, as tflearn's side has it."""
    import torch
    from sample_factory.model.encoder import Encoder
    from torch import nn

    size, _, channels = obs_space['obs'].shape
    filters, units = given()['filters'], given()['units'][0]

    class Images(Encoder):
        def __init__(self) -> None:
            super().__init__(cfg)
            flat = filters * (size - 2) ** 2
            layers = nn.Conv2d(channels, filters, 3), nn.ReLU(), nn.Flatten(), nn.Linear(flat, units), nn.ReLU()
            self.layers = nn.Sequential(*layers)

        def forward(self, obs_dict: Any) -> torch.Tensor:
            return self.layers(obs_dict['obs'].permute(0, 3, 1, 2))

        def get_out_size(self) -> int:
            return units

    return Images()


def sample_factory(its: dict[str, Any], flags: list[str]) -> None:
    """Trains APPO."""
    from sample_factory.algo.utils.context import global_model_factory
    from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
    from sample_factory.envs.env_utils import register_env
    from sample_factory.train import run_rl

    name = its['environment']
    register_env(name, make_sample_factory)
    if its['filters']:
        global_model_factory().register_encoder_factory(make_encoder)
    batches = its['num_environments'] * its['rollout'] // its['minibatch']
    values: dict[str, Any] = {
        'env': name,
        'experiment': 'run',
        'train_dir': os.path.dirname(its['path']),
        'device': 'cpu',
        'seed': its['seed'],
        'use_rnn': False,
        'rollout': its['rollout'],
        'batch_size': its['minibatch'],
        'num_batches_per_epoch': batches,
        'num_epochs': its['epochs'],
        'learning_rate': its['learning_rate'],
        'gamma': its['discount'],
        'gae_lambda': its['lambda_'],
        'ppo_clip_ratio': 0.2,
        'exploration_loss_coeff': its['entropy'],
        'max_grad_norm': 0.5,
        'value_bootstrap': True,
        'shuffle_minibatches': True,
        'normalize_input': not its['filters'],
        'obs_scale': 255.0 if its['filters'] else 1.0,
        'nonlinearity': 'relu' if its['filters'] else 'tanh',
        'actor_critic_share_weights': bool(its['filters']),
        'adaptive_stddev': False,
        'initial_stddev': its['deviation'] or 1.0,
        'default_niceness': os.nice(0),
    }
    command = [f'--{flag}={value}' for flag, value in values.items()]
    command += ['--encoder_mlp_layers', *map(str, its['units'])]
    parser, _ = parse_sf_args([*command, *flags])
    run_rl(parse_full_cfg(parser, [*command, *flags]))


def sbx(its: dict[str, Any], flags: list[str]) -> None:
    """Trains SBX's PPO, or with --sb3 Stable-Baselines3's."""
    from stable_baselines3.common.vec_env import VecEnv

    sys.path.insert(0, str(ROOT))
    from benchmarks.suite import zoo

    class Environments(VecEnv):
        """`Many` with Stable-Baselines3's interface."""

        def __init__(self) -> None:
            self._many = Many(its['environment'], its['num_environments'])
            super().__init__(its['num_environments'], self._many.observation_space, self._many.action_space)

        def reset(self) -> Any:
            return self._many.reset(its['seed'])

        def step_async(self, actions: np.ndarray) -> None:
            self._actions = actions

        def step_wait(self) -> Any:
            observations, rewards, terminated, truncated = self._many.step(self._actions)
            ended = terminated | truncated
            infos: list[dict[str, Any]] = [{} for _ in rewards]
            for i in np.flatnonzero(ended):
                # The last observation is not kept, so that a time limit counts as an end.
                infos[i] = {'TimeLimit.truncated': False, 'terminal_observation': observations[i]}
            return observations, rewards, ended, infos

        def close(self) -> None:
            pass

        def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
            return [None] * self.num_envs

        def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
            pass

        def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
            return [None] * self.num_envs

        def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
            return [False] * self.num_envs

    settings = {
        'n_steps': its['rollout'],
        'batch_size': its['minibatch'],
        'n_epochs': its['epochs'],
        'learning_rate': its['learning_rate'],
        'gamma': its['discount'],
        'gae_lambda': its['lambda_'],
        'ent_coef': its['entropy'],
        'max_grad_norm': 0.5,
        'policy_kwargs': {'net_arch': its['units']},
    }
    if its['deviation']:
        settings['policy_kwargs']['log_std_init'] = float(np.log(its['deviation']))
    side = 'SB3' if '--sb3' in flags else 'SBX'
    model = zoo.make_model(side, 'PPO', settings, Environments(), its['seed'])
    model.learn(10**10)


LIBRARIES: dict[str, Callable[[dict[str, Any], list[str]], None]] = {'sample_factory': sample_factory, 'sbx': sbx}


def main() -> None:
    """Trains."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--library', choices=[*LIBRARIES], required=True)
    parser.add_argument('--settings', required=True, help='JSON')
    options, flags = parser.parse_known_args()
    os.environ[_GIVEN] = options.settings
    sys.argv[1:] = []
    LIBRARIES[options.library](json.loads(options.settings), flags)


if __name__ == '__main__':
    main()
