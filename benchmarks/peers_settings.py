"""The settings with which other libraries are compared, RL Zoo's, and the models made with them.

It imports nothing of tflearn, and the libraries only to make a model: they are in an environment of their own
(requirements_peers.txt).
"""

import importlib
from collections.abc import Callable, Mapping
from typing import Any

ZOO = 'https://github.com/DLR-RM/rl-baselines3-zoo'
ZOO_COMMIT = '22e3ff2450fd92033f7f032915e1f64894a09584'
# Side -> modules, the first one that has the algorithm's class.
MODULES = {'SB3': ('stable_baselines3', 'sb3_contrib'), 'SBX': ('sbx',)}

_TD3_PENDULUM = {
    'gamma': 0.98,
    'buffer_size': 200_000,
    'learning_starts': 10_000,
    'noise_std': 0.1,
    'gradient_steps': 1,
    'train_freq': 1,
    'learning_rate': 1e-3,
    'policy_kwargs': {'net_arch': [400, 300]},
}
_TD3_MUJOCO = {
    'learning_starts': 10_000,
    'noise_std': 0.1,
    'train_freq': 1,
    'gradient_steps': 1,
    'learning_rate': 1e-3,
    'batch_size': 256,
    'policy_kwargs': {'net_arch': [400, 300]},
}
_DQN_CARTPOLE = {
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
}
_DQN_TUNED = {
    'learning_rate': 6.3e-4,
    'batch_size': 128,
    'buffer_size': 50_000,
    'learning_starts': 0,
    'gamma': 0.99,
    'target_update_interval': 250,
    'train_freq': 4,
    'gradient_steps': -1,
    'exploration_fraction': 0.12,
    'exploration_final_eps': 0.1,
    'policy_kwargs': {'net_arch': [256, 256]},
}
_MUJOCO = ('HalfCheetah-v5', 'Hopper-v5')
# (algorithm's class, environment) -> settings of the zoo's hyperparams/<algorithm>.yml, as JSON. 'lin_X' falls linearly
# from X to 0; `n_envs` environments step together; `noise_std` is normal action noise, in units of the action;
# `normalize` is Stable-Baselines3's VecNormalize. The zoo's HalfCheetah-v4 and the like are gymnasium's v5 here, as in
# ours.
SETTINGS: dict[tuple[str, str], dict[str, Any]] = {
    ('PPO', 'CartPole-v1'): {
        'n_envs': 8,
        'n_steps': 32,
        'batch_size': 256,
        'gae_lambda': 0.8,
        'gamma': 0.98,
        'n_epochs': 20,
        'ent_coef': 0.0,
        'learning_rate': 'lin_0.001',
        'clip_range': 'lin_0.2',
    },
    ('DQN', 'CartPole-v1'): {**_DQN_CARTPOLE, 'policy_kwargs': {'net_arch': [256, 256]}},
    ('QRDQN', 'CartPole-v1'): {**_DQN_CARTPOLE, 'policy_kwargs': {'net_arch': [256, 256], 'n_quantiles': 10}},
    ('A2C', 'CartPole-v1'): {'n_envs': 8, 'ent_coef': 0.0},
    ('DQN', 'Acrobot-v1'): _DQN_TUNED,
    ('DQN', 'LunarLander-v3'): _DQN_TUNED,
    ('PPO', 'Pendulum-v1'): {
        'n_envs': 4,
        'n_steps': 1_024,
        'gae_lambda': 0.95,
        'gamma': 0.9,
        'n_epochs': 10,
        'ent_coef': 0.0,
        'learning_rate': 1e-3,
        'clip_range': 0.2,
        'use_sde': True,
        'sde_sample_freq': 4,
    },
    ('SAC', 'Pendulum-v1'): {'learning_rate': 1e-3},
    ('TQC', 'Pendulum-v1'): {'learning_rate': 1e-3},
    ('TD3', 'Pendulum-v1'): _TD3_PENDULUM,
    ('DDPG', 'Pendulum-v1'): _TD3_PENDULUM,
    **{('SAC', name): {'learning_starts': 10_000} for name in _MUJOCO},
    **{('TD3', name): _TD3_MUJOCO for name in _MUJOCO},
    ('PPO', 'Walker2d-v5'): {
        'normalize': True,
        'n_envs': 1,
        'batch_size': 32,
        'n_steps': 512,
        'gamma': 0.99,
        'learning_rate': 5.05041e-05,
        'ent_coef': 0.000585045,
        'clip_range': 0.1,
        'n_epochs': 20,
        'gae_lambda': 0.95,
        'max_grad_norm': 1,
        'vf_coef': 0.871923,
    },
}


def make_environment(name: str, settings: Mapping[str, Any], seed: int) -> Any:
    """Returns Stable-Baselines3's environments, as many as the settings ask for."""
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    environments = make_vec_env(name, settings.get('n_envs', 1), seed=seed)
    return VecNormalize(environments, gamma=settings['gamma']) if settings.get('normalize') else environments


def make_model(side: str, algorithm: str, settings: Mapping[str, Any], environment: Any, seed: int) -> Any:
    """Returns a model of Stable-Baselines3's interface.

    Args:
      side: 'SB3' or 'SBX'.
      algorithm: the class's name in that library.
    """
    import numpy as np
    from stable_baselines3.common.noise import NormalActionNoise

    arguments = {name: _schedule(value) for name, value in settings.items() if name not in ('n_envs', 'normalize')}
    if noise := arguments.pop('noise_std', None):
        size = environment.action_space.shape
        arguments['action_noise'] = NormalActionNoise(np.zeros(size), noise * np.ones(size))
    modules = [importlib.import_module(name) for name in MODULES[side]]
    model = next(getattr(module, algorithm) for module in modules if hasattr(module, algorithm))
    return model('MlpPolicy', environment, seed=seed, device='cpu', **arguments)


def _schedule(value: Any) -> Any:
    """Returns RL Zoo's 'lin_X' as a function of the share of the run that remains; anything else as it is."""
    if not (isinstance(value, str) and value.startswith('lin_')):
        return value
    first = float(value.removeprefix('lin_'))
    falling: Callable[[float], float] = lambda remaining: remaining * first  # noqa: E731
    return falling
