"""The suite's rows as data: which algorithm learns which task for how long, and what it is compared with."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

EPISODES = 20  # of one evaluation, which acts by the mode
MARKS = 10  # evaluations of a run, after the one of the untrained policy
OURS = 'tflearn'

ZOO = 'https://github.com/DLR-RM/rl-baselines3-zoo'
ZOO_COMMIT = '22e3ff2450fd92033f7f032915e1f64894a09584'
# Of one trained agent at the zoo's number of steps, in the zoo's benchmark.md at that commit.
ZOO_FIGURE = 'RL Zoo, one agent at {} steps'


@dataclasses.dataclass(frozen=True)
class Peer:
    """A run of another library, at RL Zoo's settings.

    Attributes:
      algorithm: the class's name in that library.
      zoo: the zoo's file of hyperparameters, in its folder hyperparams/.
      settings: of that file. 'lin_X' falls linearly from X to 0; `n_envs` environments step together; `noise_std` is
        normal action noise, in units of the action.
    """

    algorithm: str
    zoo: str
    settings: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Row:
    """An algorithm in an environment.

    Attributes:
      algorithm: its name.
      environment: gymnasium's name of the task.
      gin_file: the packaged gin file; None if there is none yet, so the row is not run.
      train_steps: of our run.
      env_steps: environment steps of the peers' runs: what ours takes for `train_steps`.
      bindings: gin statements after those of the file.
      mode: see `tflearn.train`; 'synchronous' takes one process, for algorithms that draw uniformly.
      peers: 'SB3' or 'SBX' -> what is compared.
      published: a published return and its source.
      remark: why the row is not run, or, where it is below a peer, why and what was tried.
    """

    algorithm: str
    environment: str
    gin_file: str | None
    train_steps: int
    env_steps: int
    bindings: Sequence[str] = ()
    mode: str = 'processes'
    peers: Mapping[str, Peer] = dataclasses.field(default_factory=dict)
    published: tuple[float, str] | None = None
    remark: str = ''

    def settings(self, side: str) -> dict[str, Any]:
        """Returns all that decides a run but its seed, as JSON. A result counts only for equal settings."""
        marks = {'episodes': EPISODES, 'marks': MARKS}
        if side != OURS:
            peer = self.peers[side]
            fixed = {'algorithm': peer.algorithm, 'environment': self.environment, 'env_steps': self.env_steps}
            return {**fixed, **marks, 'settings': dict(peer.settings)}
        bindings = [f'train.StopConditions.num_train_steps={self.train_steps}', *self.bindings]
        return {'gin_file': self.gin_file, 'bindings': bindings, 'mode': self.mode, **marks}


_DQN = {
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
}
_PPO = {
    'n_envs': 8,
    'n_steps': 32,
    'batch_size': 256,
    'gae_lambda': 0.8,
    'gamma': 0.98,
    'n_epochs': 20,
    'ent_coef': 0.0,
    'learning_rate': 'lin_0.001',
    'clip_range': 'lin_0.2',
}
_TD3 = {
    'gamma': 0.98,
    'buffer_size': 200_000,
    'learning_starts': 10_000,
    'noise_std': 0.1,
    'gradient_steps': 1,
    'train_freq': 1,
    'learning_rate': 1e-3,
    'policy_kwargs': {'net_arch': [400, 300]},
}
_ACROBOT = {
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


def _peers(algorithm: str, settings: Mapping[str, Any], *sides: str) -> dict[str, Peer]:
    return {side: Peer(algorithm, f'{algorithm.lower()}.yml', settings) for side in sides}


def _zoo(figure: float, steps: str) -> tuple[float, str]:
    return figure, ZOO_FIGURE.format(steps)


_HALF = 'learning_rate/schedules.linear.steps=12_250'  # as many as the run has
_MUJOCO = 'Not run: 300,000 steps a seed take hours on two cores.'
_NO_FILE = 'no gin file yet'
_CARTPOLE = {
    'ppo_cartpole': Row(
        'PPO',
        'CartPole-v1',
        'ppo_cartpole',
        8_000,
        102_400,
        peers=_peers('PPO', _PPO, 'SB3', 'SBX'),
        published=_zoo(500.0, '100,000'),
    ),
    'dqn_cartpole': Row(
        'DQN',
        'CartPole-v1',
        'dqn_cartpole',
        12_250,
        50_000,
        (_HALF,),
        'synchronous',
        _peers('DQN', _DQN, 'SB3', 'SBX'),
        _zoo(500.0, '50,000'),
    ),
    'qr_dqn_cartpole': Row(
        'QR-DQN',
        'CartPole-v1',
        'qr_dqn_cartpole',
        12_250,
        50_000,
        (_HALF,),
        'synchronous',
        published=_zoo(500.0, '50,000'),
    ),
    'c51_cartpole': Row('C51', 'CartPole-v1', 'c51_cartpole', 12_250, 50_000, mode='synchronous'),
    'rainbow_cartpole': Row(
        'Rainbow', 'CartPole-v1', 'rainbow_cartpole', 12_250, 50_000, (_HALF, 'beta/schedules.linear.steps=12_250')
    ),
    'discrete_sac_cartpole': Row(
        'SAC, discrete', 'CartPole-v1', 'discrete_sac_cartpole', 25_000, 51_000, mode='synchronous'
    ),
    'a2c_cartpole': Row('A2C', 'CartPole-v1', 'a2c_cartpole', 4_000, 512_000, published=_zoo(500.0, '500,000')),
    'reinforce_cartpole': Row('REINFORCE', 'CartPole-v1', 'reinforce_cartpole', 1_000, 4_000_000),
    'impala_cartpole': Row('IMPALA', 'CartPole-v1', 'impala_cartpole', 4_000, 1_024_000),
}
_PENDULUM = {
    'sac_pendulum': Row(
        'SAC',
        'Pendulum-v1',
        'sac_pendulum',
        10_000,
        11_000,
        mode='synchronous',
        peers=_peers('SAC', {'learning_rate': 1e-3}, 'SB3', 'SBX'),
        published=_zoo(-156.995, '20,000'),
    ),
    'tqc_pendulum': Row(
        'TQC',
        'Pendulum-v1',
        'tqc_pendulum',
        10_000,
        11_000,
        mode='synchronous',
        peers=_peers('TQC', {'learning_rate': 1e-3}, 'SBX'),
        published=_zoo(-151.340, '20,000'),
    ),
    # The zoo's settings begin to train at 10,000 steps, so these have the zoo's 20,000.
    'td3_pendulum': Row(
        'TD3',
        'Pendulum-v1',
        'td3_pendulum',
        19_000,
        20_000,
        mode='synchronous',
        peers=_peers('TD3', _TD3, 'SB3', 'SBX'),
        published=_zoo(-151.855, '20,000'),
    ),
    'ddpg_pendulum': Row(
        'DDPG',
        'Pendulum-v1',
        'ddpg_pendulum',
        19_000,
        20_000,
        mode='synchronous',
        peers=_peers('DDPG', _TD3, 'SB3', 'SBX'),
        published=_zoo(-152.099, '20,000'),
    ),
    'droq_pendulum': Row('DroQ', 'Pendulum-v1', 'droq_pendulum', 20_000, 2_000, mode='synchronous'),
    'ppo_pendulum': Row('PPO', 'Pendulum-v1', 'ppo_pendulum', 40_000, 256_000, published=_zoo(-172.225, '100,000')),
}
_ACROBOT_ROWS = {
    'dqn_acrobot': Row(
        'DQN',
        'Acrobot-v1',
        'dqn_acrobot',
        49_500,
        100_000,
        ('learning_rate/schedules.linear.steps=49_500',),
        'synchronous',
        _peers('DQN', _ACROBOT, 'SB3'),
        _zoo(-76.639, '100,000'),
    ),
}
_LARGER = {
    'dqn_lunar_lander': Row(
        'DQN', 'LunarLander-v3', 'dqn_lunar_lander', 150_000, 300_000, published=_zoo(154.382, '100,000')
    ),
    'sac_halfcheetah': Row(
        'SAC', 'HalfCheetah-v5', 'sac_halfcheetah', 290_000, 300_000, remark=_MUJOCO, published=_zoo(9535.451, '1M')
    ),
    'td3_halfcheetah': Row(
        'TD3', 'HalfCheetah-v5', 'td3_halfcheetah', 290_000, 300_000, remark=_MUJOCO, published=_zoo(9655.666, '1M')
    ),
    'sac_hopper': Row('SAC', 'Hopper-v5', None, 0, 300_000, remark=_NO_FILE, published=_zoo(2325.547, '1M')),
    'td3_hopper': Row('TD3', 'Hopper-v5', None, 0, 300_000, remark=_NO_FILE, published=_zoo(3606.390, '1M')),
    'ppo_walker2d': Row('PPO', 'Walker2d-v5', None, 0, 1_000_000, remark=_NO_FILE, published=_zoo(3478.798, '1M')),
    **{
        f'dqn_minatar_{game.lower()}': Row('DQN', f'MinAtar/{game}-v1', None, 0, 5_000_000, remark=_NO_FILE)
        for game in ('Asterix', 'Breakout', 'Freeway', 'Seaquest', 'SpaceInvaders')
    },
    'dqn_pong': Row('DQN', 'PongNoFrameskip-v4', 'dqn_pong', 1_000_000, 4_000_000, published=_zoo(20.602, '10M')),
}

ROWS: dict[str, Row] = {**_CARTPOLE, **_PENDULUM, **_ACROBOT_ROWS, **_LARGER}
