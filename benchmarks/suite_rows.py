"""The suite's rows as data: which algorithm learns which task for how long, and what it is compared with."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks import peers_settings

EPISODES = 20  # of one evaluation, which acts by the mode
MARKS = 10  # evaluations of a run, after the one of the untrained policy
OURS = 'tflearn'

# Of one trained agent at the zoo's number of steps, in the zoo's benchmark.md at that commit.
ZOO_FIGURE = 'RL Zoo, one agent at {} steps'


@dataclasses.dataclass(frozen=True)
class Peer:
    """A run of another library, at RL Zoo's settings.

    Attributes:
      algorithm: the class's name in that library.
      zoo: the zoo's file of hyperparameters, in its folder hyperparams/.
      settings: of that file, as `peers_settings.SETTINGS` has them.
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


def _peers(algorithm: str, environment: str, *sides: str) -> dict[str, Peer]:
    settings = peers_settings.SETTINGS[algorithm, environment]
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
        peers=_peers('PPO', 'CartPole-v1', 'SB3', 'SBX'),
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
        _peers('DQN', 'CartPole-v1', 'SB3', 'SBX'),
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
        peers=_peers('SAC', 'Pendulum-v1', 'SB3', 'SBX'),
        published=_zoo(-156.995, '20,000'),
    ),
    'tqc_pendulum': Row(
        'TQC',
        'Pendulum-v1',
        'tqc_pendulum',
        10_000,
        11_000,
        mode='synchronous',
        peers=_peers('TQC', 'Pendulum-v1', 'SBX'),
        published=_zoo(-151.340, '20,000'),
    ),
    # The zoo's settings begin to train at 10,000 steps, so these have the zoo's 20,000.
    **{
        f'{algorithm.lower()}_pendulum': Row(
            algorithm,
            'Pendulum-v1',
            f'{algorithm.lower()}_pendulum',
            19_000,
            20_000,
            mode='synchronous',
            peers=_peers(algorithm, 'Pendulum-v1', 'SB3', 'SBX'),
            published=_zoo(figure, '20,000'),
        )
        for algorithm, figure in (('TD3', -151.855), ('DDPG', -152.099))
    },
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
        _peers('DQN', 'Acrobot-v1', 'SB3'),
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
