"""The settings with which other libraries are compared, RL Zoo's, and the models made with them.

It imports nothing of tflearn, and the libraries only to make a model: they are in an environment of their own
(requirements_peers.txt).
"""

import importlib
import json
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

ZOO = 'https://github.com/DLR-RM/rl-baselines3-zoo'
ZOO_COMMIT = '22e3ff2450fd92033f7f032915e1f64894a09584'
# Side -> modules, the first one that has the algorithm's class.
MODULES = {'SB3': ('stable_baselines3', 'sb3_contrib'), 'SBX': ('sbx',)}

# 'algorithm environment' -> settings of the zoo's hyperparams/<algorithm>.yml. 'lin_X' falls linearly from X to 0;
# `n_envs` environments step together; `noise_std` is normal action noise, in units of the action; `normalize` is
# Stable-Baselines3's VecNormalize; `activation_fn` is the name of a layer of PyTorch. The zoo's HalfCheetah-v4 and the
# like are gymnasium's v5 here, as in ours. For SAC and TD3 on InvertedDoublePendulum, which is not in the zoo,
# these are its settings for MuJoCo's tasks, but with 1,000 random steps instead of 10,000, as in ours, for short runs.
SETTINGS: dict[str, dict[str, Any]] = json.loads(pathlib.Path(__file__).with_name('zoo.json').read_text('utf-8'))


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
    if activation := arguments.get('policy_kwargs', {}).get('activation_fn'):
        layers = importlib.import_module('torch.nn')
        arguments['policy_kwargs'] = {**arguments['policy_kwargs'], 'activation_fn': getattr(layers, activation)}
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
