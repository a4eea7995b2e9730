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
      gin_file: the packaged gin file.
      train_steps: of our run.
      env_steps: environment steps of the peers' runs: what ours takes for `train_steps`.
      bindings: gin statements after those of the file.
      mode: see `tflearn.train`; 'synchronous' takes one process, for algorithms that draw uniformly.
      peers: 'SB3' or 'SBX' -> what is compared.
      published: a published return and its source, or the task's best possible or its reference's.
      minutes: an estimate of a seed's on two cores, of the slowest side.
      episodes: of one evaluation.
    """

    algorithm: str
    environment: str
    gin_file: str
    train_steps: int
    env_steps: int
    bindings: Sequence[str] = ()
    mode: str = 'processes'
    peers: Mapping[str, Peer] = dataclasses.field(default_factory=dict)
    published: tuple[float, str] | None = None
    minutes: float = 5.0
    episodes: int = EPISODES

    def settings(self, side: str) -> dict[str, Any]:
        """Returns all that decides a run but its seed, as JSON. A result counts only for equal settings."""
        marks = {'episodes': self.episodes, 'marks': MARKS}
        if side != OURS:
            peer = self.peers[side]
            fixed = {'algorithm': peer.algorithm, 'environment': self.environment, 'env_steps': self.env_steps}
            return {**fixed, **marks, 'settings': dict(peer.settings)}
        bindings = [f'train.StopConditions.num_train_steps={self.train_steps}', *self.bindings]
        return {'gin_file': self.gin_file, 'bindings': bindings, 'mode': self.mode, **marks}


def _peers(algorithm: str, environment: str, *sides: str) -> dict[str, Peer]:
    settings = peers_settings.SETTINGS[algorithm, environment]
    return {side: Peer(algorithm, f'{algorithm.lower()}.yml', settings) for side in sides or ('SB3', 'SBX')}


def _zoo(figure: float, steps: str) -> tuple[float, str]:
    return figure, ZOO_FIGURE.format(steps)


_HALF = 'learning_rate/schedules.linear.steps=12_250'  # as many as the run has
_BANDIT = 'Contextual bandit'
_CARTPOLE = {
    'ppo_cartpole': Row(
        'PPO',
        'CartPole-v1',
        'ppo_cartpole',
        8_000,
        102_400,
        peers=_peers('PPO', 'CartPole-v1'),
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
        _peers('DQN', 'CartPole-v1'),
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
        _peers('QRDQN', 'CartPole-v1', 'SB3'),
        _zoo(500.0, '50,000'),
    ),
    'c51_cartpole': Row('C51', 'CartPole-v1', 'c51_cartpole', 12_250, 50_000, mode='synchronous'),
    'rainbow_cartpole': Row(
        'Rainbow',
        'CartPole-v1',
        'rainbow_cartpole',
        12_250,
        50_000,
        (_HALF, 'beta/schedules.linear.steps=12_250'),
    ),
    'discrete_sac_cartpole': Row(
        'SAC, discrete', 'CartPole-v1', 'discrete_sac_cartpole', 25_000, 51_000, mode='synchronous'
    ),
    'a2c_cartpole': Row(
        'A2C',
        'CartPole-v1',
        'a2c_cartpole',
        4_000,
        512_000,
        peers=_peers('A2C', 'CartPole-v1', 'SB3'),
        published=_zoo(500.0, '500,000'),
    ),
    'reinforce_cartpole': Row('REINFORCE', 'CartPole-v1', 'reinforce_cartpole', 1_000, 4_000_000),
    'impala_cartpole': Row(
        'IMPALA',
        'CartPole-v1',
        'impala_cartpole',
        4_000,
        1_024_000,
    ),
    'v_mpo_cartpole': Row('V-MPO', 'CartPole-v1', 'v_mpo_cartpole', 8_000, 200_000),
}
_PENDULUM = {
    'sac_pendulum': Row(
        'SAC',
        'Pendulum-v1',
        'sac_pendulum',
        10_000,
        11_000,
        mode='synchronous',
        peers=_peers('SAC', 'Pendulum-v1'),
        published=_zoo(-156.995, '20,000'),
    ),
    'tqc_pendulum': Row(
        'TQC',
        'Pendulum-v1',
        'tqc_pendulum',
        10_000,
        11_000,
        mode='synchronous',
        peers=_peers('TQC', 'Pendulum-v1'),
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
            peers=_peers(algorithm, 'Pendulum-v1'),
            published=_zoo(figure, '20,000'),
        )
        for algorithm, figure in (('TD3', -151.855), ('DDPG', -152.099))
    },
    'droq_pendulum': Row('DroQ', 'Pendulum-v1', 'droq_pendulum', 20_000, 2_000, mode='synchronous'),
    'ppo_pendulum': Row(
        'PPO',
        'Pendulum-v1',
        'ppo_pendulum',
        40_000,
        256_000,
        peers=_peers('PPO', 'Pendulum-v1', 'SB3'),
        published=_zoo(-172.225, '100,000'),
    ),
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
_SOURCE_BEST = 'the best possible'
_SOURCE_SCRIPT = 'a scripted reference'
_OWN_TASKS = {
    'dqn_nim': Row('DQN', 'Nim, masked', 'dqn_nim', 15_000, 61_000, (), 'synchronous', {}, (1.0, _SOURCE_BEST), 1, 100),
    'dqn_catch': Row(
        'DQN', 'Catch, pixels', 'dqn_catch', 10_000, 81_000, (), 'synchronous', {}, (1.0, _SOURCE_BEST), 1, 100
    ),
    'ppo_catch': Row(
        'PPO', 'Catch, pixels', 'ppo_catch', 8_000, 204_800, (), 'processes', {}, (1.0, _SOURCE_BEST), 1, 100
    ),
    'ppo_inlining': Row(
        'PPO', 'Inlining', 'ppo_inlining', 12_000, 307_200, (), 'processes', {}, (12.3, _SOURCE_SCRIPT), 2, 500
    ),
    'ppo_floorplan': Row(
        'PPO',
        'Floorplans, masked',
        'ppo_floorplan',
        3_200,
        81_920,
        (),
        'processes',
        {},
        (0.365, _SOURCE_SCRIPT),
        6,
        200,
    ),
    'dqn_bit_flip': Row(
        'DQN with HER',
        'Bit flipping',
        'dqn_bit_flip',
        10_000,
        81_000,
        (),
        'processes',
        {},
        (-6.5, _SOURCE_BEST),
        1,
        100,
    ),
    'dqn_rnd_deep_sea': Row(
        'DQN with RND',
        'Deep sea, exploration',
        'dqn_rnd_deep_sea',
        10_000,
        21_000,
        mode='synchronous',
        published=(0.99, _SOURCE_BEST),
        minutes=1,
    ),
    'ppo_t_maze': Row(
        'PPO with LSTM',
        'T-maze, memory',
        'ppo_t_maze',
        5_000,
        64_000,
        (),
        'processes',
        {},
        (4.0, _SOURCE_BEST),
        2,
        100,
    ),
    'r2d2_t_maze': Row(
        'R2D2', 'T-maze, memory', 'r2d2_t_maze', 4_000, 80_000, (), 'processes', {}, (4.0, _SOURCE_BEST), 2, 100
    ),
    'impala_cartpole_hidden': Row(
        'IMPALA with LSTM',
        'CartPole-v1, velocities hidden',
        'impala_cartpole_hidden',
        6_000,
        4_800_000,
        published=(500.0, _SOURCE_BEST),
        minutes=15,
    ),
    'linucb_contextual_bandit': Row(
        'LinUCB', _BANDIT, 'linucb_contextual_bandit', 500, 8_000, (), 'processes', {}, (0.529, _SOURCE_BEST), 1, 200
    ),
    'linear_thompson_contextual_bandit': Row(
        'Thompson sampling, linear',
        _BANDIT,
        'linear_thompson_contextual_bandit',
        500,
        8_000,
        published=(0.529, _SOURCE_BEST),
        minutes=1,
        episodes=200,
    ),
    'neural_bandit_contextual_bandit': Row(
        'Neural epsilon-greedy',
        _BANDIT,
        'neural_bandit_contextual_bandit',
        4_000,
        8_000,
        mode='synchronous',
        published=(0.529, _SOURCE_BEST),
        minutes=1,
        episodes=200,
    ),
    'dqn_embedded_recommender': Row(
        'DQN with action embeddings',
        'Recommender, 2,000 items, masked',
        'dqn_embedded_recommender',
        4_000,
        17_000,
        mode='synchronous',
        published=(2.49, _SOURCE_BEST),
        minutes=1,
        episodes=100,
    ),
}
_LARGER = {
    'dqn_lunar_lander': Row(
        'DQN',
        'LunarLander-v3',
        'dqn_lunar_lander',
        150_000,
        300_000,
        peers=_peers('DQN', 'LunarLander-v3', 'SB3'),
        published=_zoo(154.382, '100,000'),
        minutes=10,
    ),
    **{
        f'{algorithm.lower()}_{name.lower()}': Row(
            algorithm,
            f'{name}-v5',
            f'{algorithm.lower()}_{name.lower()}',
            290_000,
            300_000,
            mode='synchronous',
            peers=_peers(algorithm, f'{name}-v5'),
            published=_zoo(figure, '1M'),
            minutes=45,
        )
        for algorithm, name, figure in (
            ('SAC', 'HalfCheetah', 9535.451),
            ('TD3', 'HalfCheetah', 9655.666),
            ('SAC', 'Hopper', 2325.547),
            ('TD3', 'Hopper', 3606.390),
        )
    },
    'ppo_walker2d': Row(
        'PPO',
        'Walker2d-v5',
        'ppo_walker2d',
        156_160,
        1_000_000,
        peers=_peers('PPO', 'Walker2d-v5'),
        published=_zoo(3478.798, '1M'),
        minutes=40,
    ),
    **{
        f'dqn_minatar_{game}': Row(
            'DQN',
            f'MinAtar/{game.title().replace("_", "")}-v1',
            'dqn_minatar',
            250_000,
            1_000_000,
            (f"minatar_env.make.game='{game}'",),
            'synchronous',
            minutes=30,
        )
        for game in ('asterix', 'breakout', 'freeway', 'seaquest', 'space_invaders')
    },
    'dqn_pong': Row(
        'DQN',
        'ALE/Pong-v5',
        'dqn_pong',
        200_000,
        400_000,
        mode='synchronous',
        published=_zoo(20.602, '10M'),
        minutes=60,
        episodes=10,
    ),
}

ROWS: dict[str, Row] = {**_CARTPOLE, **_PENDULUM, **_ACROBOT_ROWS, **_OWN_TASKS, **_LARGER}
