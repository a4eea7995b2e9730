"""100 train steps of Stable-Baselines3's SAC, TD3 and PPO, for tests/agents/peer_steps_test.py.

    peers_environment/bin/python -m benchmarks.train_steps_peers

It runs in the peers' environment (requirements_peers.txt) and imports nothing of tflearn. What
trains are the peer's own `train` methods; the batches, the standard normal noise, and PPO's
environment are made here. The file has the losses of each step, the gradients that the optimizers
get, and the weights before the first step and after the last one. A vector of weights has the
layers in order, of each the kernel [inputs, outputs] and the bias.

Three settings are not the peer's defaults, since tflearn computes something else there: SAC's
log-probabilities are the paper's, without the 1e-6 that the peer adds in a logarithm; PPO's
advantages are not normalized, there over a minibatch, here over an iteration; and continuous
actions of PPO have a mean within the bounds. docs/from-sb3.md has these differences.
"""

import argparse
import json
import pathlib
from collections.abc import Callable, Sequence
from importlib import metadata
from typing import Any
from unittest import mock

import gymnasium
import numpy as np
import torch
from stable_baselines3 import PPO, SAC, TD3
from stable_baselines3.common import logger
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from stable_baselines3.common.vec_env import DummyVecEnv

OUTPUT = pathlib.Path(__file__).resolve().parents[1] / 'tests' / 'agents' / 'peer_steps.npz'
STEPS, BATCH, OBSERVATION, ACTION = 100, 32, 3, 2
SETTINGS = {
    'units': [8, 8],
    'learning_rate': 3e-3,
    'gamma': 0.95,
    'tau': 0.05,
    'lambda': 0.9,
    'clip': 0.1,
    'entropy_coefficient': 0.01,
    'gradient_clipping': 1.0,
    'environments': 4,
    'sequence': 32,
    'epochs': 5,
}

Arrays = dict[str, np.ndarray]


def main() -> None:
    """Writes the file."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument('--output', type=pathlib.Path, default=OUTPUT)
    options = parser.parse_args()
    torch.set_num_threads(1)
    batches = _batches(np.random.RandomState(0))
    found = {f'data/{name}': values for name, values in batches.items()}
    for name, steps in (
        ('sac', _off_policy(SAC, batches)),
        ('td3', _off_policy(TD3, batches)),
        ('ppo', _ppo(gymnasium.spaces.Discrete(3), 'MlpPolicy', batches)),
        ('ppo_continuous', _ppo(_Spaces.action_space, _BoundedPolicy, batches)),
    ):
        found |= {f'{name}/{key}': values for key, values in steps.items()}
    versions = {name: metadata.version(name) for name in ('stable-baselines3', 'torch', 'numpy')}
    about = json.dumps({'settings': SETTINGS, 'versions': versions})
    np.savez_compressed(options.output, about=np.array(about), **found)


def _batches(generator: np.random.RandomState) -> Arrays:
    """Returns transitions and noise, float16: the file is smaller, and both sides read the same."""
    shape = (STEPS, BATCH)
    drawn = {
        'observation': generator.normal(size=(*shape, OBSERVATION)),
        'next_observation': generator.normal(size=(*shape, OBSERVATION)),
        'action': generator.uniform(-1, 1, (*shape, ACTION)),
        'reward': generator.normal(size=shape),
        'done': generator.uniform(size=shape) < 0.1,
        'noise': generator.normal(size=(*shape, ACTION)),
        'next_noise': generator.normal(size=(*shape, ACTION)),
    }
    return {name: values.astype(np.float16) for name, values in drawn.items()}


class _Steps:
    """What a model's optimizers and losses had in each step.

    Attributes:
      gradients: part -> the gradients of its steps.
      losses: the losses whose gradients were computed, in order.
    """

    def __init__(self, optimizers: dict[str, torch.optim.Optimizer]):
        self._optimizers = optimizers
        self.gradients: dict[str, list[np.ndarray]] = {part: [] for part in optimizers}
        self.losses: list[float] = []
        for part, optimizer in optimizers.items():
            optimizer.register_step_pre_hook(lambda *_, part=part: self._record(part))

    def _record(self, part: str) -> None:
        self.gradients[part].append(_vector([each.grad for each in self._parameters(part)]))

    def _parameters(self, part: str) -> list[torch.Tensor]:
        (group,) = self._optimizers[part].param_groups
        return group['params']

    def weights(self) -> Arrays:
        """Returns the weights of each part."""
        return {part: _vector(self._parameters(part)) for part in self._optimizers}

    def recording(self) -> Any:
        """Returns a context in which the losses are recorded."""
        backward, losses = torch.Tensor.backward, self.losses

        def record(loss: torch.Tensor) -> None:
            losses.append(loss.item())
            backward(loss)

        return mock.patch.object(torch.Tensor, 'backward', record)

    def result(self, before: Arrays) -> Arrays:
        """Returns all arrays of a run with these weights before the first step."""
        found = {f'gradient/{part}': np.array(steps) for part, steps in self.gradients.items()}
        found |= {f'before/{part}': values for part, values in before.items()}
        return found | {f'after/{part}': values for part, values in self.weights().items()}


def _vector(tensors: Sequence[torch.Tensor]) -> np.ndarray:
    return np.concatenate([each.detach().numpy().T.ravel() for each in tensors]).astype(np.float32)


class _Spaces(gymnasium.Env):
    """An environment that nobody steps."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (OBSERVATION,))
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (ACTION,))


def _off_policy(make: Callable[..., Any], batches: Arrays) -> Arrays:
    """Returns the steps of SAC or TD3 on these batches."""
    model = make(
        'MlpPolicy',
        _Spaces(),
        learning_rate=SETTINGS['learning_rate'],
        buffer_size=1,
        gamma=SETTINGS['gamma'],
        tau=SETTINGS['tau'],
        policy_kwargs={'net_arch': SETTINGS['units']},
        seed=1,
        device='cpu',
        **({'ent_coef': 'auto_0.2'} if make is SAC else {}),
    )
    model.set_logger(logger.configure(None, []))
    optimizers = {'critic': model.critic.optimizer, 'actor': model.actor.optimizer}
    if make is SAC:
        optimizers['alpha'] = model.ent_coef_optimizer
        # Of log(1 - tanh(u)^2 + epsilon); the paper has none (arXiv 1812.05905, appendix C).
        model.actor.action_dist.epsilon = 0.0
    else:
        # So that some of its actions reach the bounds when the targets' noise is added.
        with torch.no_grad():
            for actor in (model.actor, model.actor_target):
                actor.mu[-2].weight *= 8
    steps = _Steps(optimizers)
    before = steps.weights()
    each = ({name: values[i] for name, values in batches.items()} for i in range(STEPS))
    losses = [_off_policy_step(model, batch) for batch in each]
    return {**steps.result(before), 'losses': np.array(losses), 'greedy': _greedy(model, batches)}


def _greedy(model: Any, batches: Arrays) -> np.ndarray:
    """Returns the actions of an evaluation after the last step, at the last batch's observations."""
    observations = batches['observation'][-1].astype(np.float32)
    return model.predict(observations, deterministic=True)[0].astype(np.float32)


def _off_policy_step(model: Any, arrays: Arrays) -> list[float]:
    """Takes a train step; returns the losses of critic, actor and temperature, or NaN for none."""
    batch = {name: torch.tensor(values.astype(np.float32)) for name, values in arrays.items()}
    samples = ReplayBufferSamples(
        *(batch[name] for name in ('observation', 'action', 'next_observation')),
        *(batch[name][:, None] for name in ('done', 'reward')),
    )
    # SAC draws at the observations first, then at the next ones.
    noise = iter([batch['noise'], batch['next_noise']])

    def fill(target: torch.Tensor, mean: float, deviation: float) -> torch.Tensor:
        return target.copy_(mean + deviation * batch['next_noise'])

    with (
        # SAC draws by the first, TD3 by the second.
        mock.patch('torch.distributions.normal._standard_normal', lambda *_, **__: next(noise)),
        mock.patch.object(torch.Tensor, 'normal_', fill),
        mock.patch.object(model.replay_buffer, 'sample', lambda *_, **__: samples),
    ):
        model.train(1, BATCH)
    found = dict(model.logger.name_to_value)
    model.logger.name_to_value.clear()
    return [found.get(f'train/{part}_loss', np.nan) for part in ('critic', 'actor', 'ent_coef')]


class _Scripted(gymnasium.Env):
    """Random observations and rewards; of twenty steps one terminates, and one is truncated.

    Attributes:
      steps: of each step the observation, the reward, whether the episode was terminated, and
        truncated, and the next observation.
    """

    observation_space = _Spaces.observation_space

    def __init__(self, action_space: gymnasium.Space, seed: int):
        self.action_space = action_space
        self._generator = np.random.RandomState(seed)
        self.steps: list[np.ndarray] = []

    def _observe(self) -> np.ndarray:
        drawn = self._generator.normal(size=OBSERVATION).astype(np.float16)
        self._observation = drawn.astype(np.float32)
        return self._observation

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        """See `gymnasium.Env.reset`; the seed is the constructor's."""
        return self._observe(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """See `gymnasium.Env.step`."""
        before, reward = self._observation, float(np.float16(self._generator.normal()))
        chance = self._generator.uniform()
        ends = chance < 0.05, 0.05 <= chance < 0.1
        self.steps.append(np.array([*before, reward, *ends, *self._observe()], np.float16))
        return self._observation, reward, *ends, {}


class _BoundedPolicy(ActorCriticPolicy):
    """Theirs, with the parameters of tflearn's normal distribution."""

    def _get_action_dist_from_latent(self, latent_pi: torch.Tensor) -> Any:
        mean = torch.tanh(self.action_net(latent_pi))
        deviation = torch.nn.functional.softplus(self.log_std)
        return self.action_dist.proba_distribution(mean, torch.log(deviation))


class _Buffer(RolloutBuffer):
    """Theirs, which also keeps the indices of minibatches, by environment, then by step."""

    indices: list[np.ndarray]

    def _get_samples(self, batch_inds: np.ndarray, env: Any = None) -> Any:
        self.indices.append(batch_inds)
        return super()._get_samples(batch_inds, env)


def _ppo(action_space: gymnasium.Space, policy: Any, batches: Arrays) -> Arrays:
    """Returns the steps of PPO, and what it made of the sequences of each iteration."""
    environments = [_Scripted(action_space, seed) for seed in range(SETTINGS['environments'])]
    model = PPO(
        policy,
        DummyVecEnv([lambda each=each: each for each in environments]),
        learning_rate=SETTINGS['learning_rate'],
        n_steps=SETTINGS['sequence'],
        batch_size=BATCH,
        n_epochs=SETTINGS['epochs'],
        gamma=SETTINGS['gamma'],
        gae_lambda=SETTINGS['lambda'],
        clip_range=SETTINGS['clip'],
        ent_coef=SETTINGS['entropy_coefficient'],
        max_grad_norm=SETTINGS['gradient_clipping'],
        normalize_advantage=False,
        rollout_buffer_class=_Buffer,
        policy_kwargs={'net_arch': SETTINGS['units']},
        seed=1,
        device='cpu',
    )
    model.rollout_buffer.indices = []
    steps = _Steps({'ppo': model.policy.optimizer})
    before, found = steps.weights(), {'action': [], 'log_prob': [], 'advantage': [], 'target': []}
    train = model.train

    def record() -> None:
        buffer = model.rollout_buffer
        arrays = (buffer.actions, buffer.log_probs, buffer.advantages, buffer.returns)
        for name, values in zip(found, arrays, strict=True):
            found[name].append(np.swapaxes(values, 0, 1).copy())
        train()

    with steps.recording(), mock.patch.object(model, 'train', record):
        per_iteration = SETTINGS['environments'] * SETTINGS['sequence']
        per_epoch = per_iteration // BATCH
        model.learn(per_iteration * STEPS // (per_epoch * SETTINGS['epochs']))
    return {
        **steps.result(before),
        **{name: np.array(values, np.float32) for name, values in found.items()},
        'losses': np.array(steps.losses)[:, None],
        'greedy': _greedy(model, batches),
        'steps': np.array([each.steps for each in environments]),
        'indices': np.array(model.rollout_buffer.indices, np.uint8),
    }


if __name__ == '__main__':
    main()
