"""Do several agents learn? Two cooperative and two competitive tasks, five seeds each, beside a scripted reference.

    python -m benchmarks.several_agents --root_dir=runs/several --tasks spread talk tic_tac_toe

`spread` (needs mpe2: `pip install --no-deps mpe2`): two agents of `simple_spread_v3` share one policy (PPO); the number
is the return of an agent, of the last version, beside agents that go to the landmarks which together are nearest.
`talk` (mpe2 too): a speaker and a listener of `simple_speaker_listener_v4`, which have other spaces, are two policies
(PPO), which learn from the changes of the reward (`Approach`); the number is the return of an episode of the unchanged
game, beside a speaker that names the landmark and a listener that goes there.
`tic_tac_toe` and `connect_four` (PettingZoo): PPO against a league of its own earlier versions and random moves; the
number is the score (1 a win, 0.5 a draw) of the last version against the scripted opponent, which wins and blocks where
it can, and which the run never meets; and against random moves. The scripted one's score against itself is 0.5: the
target is to beat it by more than the error of 400 games.

The last exports act in plain TensorFlow.
"""

import functools
import itertools
import json
import pathlib
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import tflearn  # noqa: E402
from benchmarks import command_line  # noqa: E402
from tflearn.agents import ppo  # noqa: E402
from tflearn.core.experience import BatchItems, Experience, Iteration, Queue, Slicing  # noqa: E402
from tflearn.extensions.games import (  # noqa: E402
    league,
    pettingzoo_env,
    turn_game,
)
from tflearn.files.run_dir import RunDir  # noqa: E402
from tflearn.jobs.policy_exports import ExportOptions  # noqa: E402
from tflearn.networks.networks import NetworkOptions  # noqa: E402
from tflearn.optimization.optimizers import OptimizerOptions  # noqa: E402


class Approach:
    """simple_speaker_listener_v4 with the change of the reward as the reward: how much nearer the listener has come.

    The policy with the greatest discounted sum is the same one: that of the changes is the constant -r_0 plus
    (1 - gamma) times that of the rewards. A message's effect stands out of them, since where the listener begins does
    not count.
    """

    def __init__(self, **kwargs: Any):
        """Takes the game's arguments."""
        from mpe2 import simple_speaker_listener_v4

        self._game, self._rewards = simple_speaker_listener_v4.parallel_env(**kwargs), {}

    def __getattr__(self, name: str) -> Any:
        if name.startswith('_'):
            raise AttributeError(name)
        return getattr(self._game, name)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        """Begins a game."""
        self._rewards = {}
        return self._game.reset(seed=seed, options=options)

    def step(self, actions: Mapping[str, int]) -> tuple[Any, ...]:
        """Steps; the first reward is 0, since nobody has moved before it."""
        observations, rewards, *rest = self._game.step(actions)
        before, self._rewards = self._rewards or rewards, rewards
        return observations, {agent: reward - before[agent] for agent, reward in rewards.items()}, *rest


SPREAD = functools.partial(pettingzoo_env.make, 'mpe2.simple_spread_v3', kwargs={'N': 2, 'max_cycles': 25})
TALK = functools.partial(
    pettingzoo_env.make,
    'benchmarks.several_agents:Approach',
    kwargs={'max_cycles': 25},
    policies={'speaker': ('speaker_0',), 'listener': ('listener_0',)},
)
TARGETS = {'spread': -10.0, 'talk': -15.0, 'tic_tac_toe': 0.55, 'connect_four': 0.55}
_EPISODES = 400
_SEED = 10_000_000  # of evaluations at the end


def train(
    unroll_steps: int, num_steps: int, gamma: float, agent: Mapping[str, Any], **run: Any
) -> tuple[Callable[[Any], Any], int]:
    """Trains PPO with iterations of so many steps. Returns the last version's policy, and the environment steps."""
    trained = tflearn.train(**settings(unroll_steps, num_steps, gamma, agent), **run)
    return exported(trained.run_dir), trained.env_steps


def exported(run_dir: RunDir) -> Callable[[Any], np.ndarray]:
    """Returns a run's last export in plain TensorFlow, as a function of a batch of observations."""
    act = tf.saved_model.load(str(run_dir.greedy_policy / 'latest')).signatures['serving_default']
    inputs = act.structured_input_signature[1]

    def policy(observation: Any) -> np.ndarray:
        parts = observation if isinstance(observation, Mapping) else {'': observation}
        named = {f'observation_{name}'.rstrip('_'): part for name, part in parts.items()}
        return act(**{name: tf.cast(part, inputs[name].dtype) for name, part in named.items()})['action'].numpy()

    return policy


def settings(unroll_steps: int, num_steps: int, gamma: float, agent: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments of `tflearn.train` for PPO with iterations of so many steps."""
    return {
        'make_agent': functools.partial(
            ppo.make_agent,
            **{
                'loss': ppo.PPOLoss(gamma=gamma, entropy_coefficient=0.01),
                'optimizer': OptimizerOptions(learning_rate=1e-3),
                **agent,
            },
        ),
        'experience': Experience(
            slicing=Slicing(sequence_length=unroll_steps + 1, stride=unroll_steps, cross_episodes=True),
            replay=Queue(max_size=num_steps // unroll_steps, max_policy_lag=2, training=Iteration(8, 400)),
            batch=BatchItems(num_steps // unroll_steps),
        ),
        'learner_options': tflearn.LearnerOptions(summaries=tflearn.SummaryOptions(None)),
        'num_episodes': 32,
    }


def go_to_landmark(observation: np.ndarray, num_agents: int = 2) -> int:
    """Returns the move of an agent of simple_spread to its landmark: that of the least sum of distances."""
    landmarks = observation[4 : 4 + 2 * num_agents].reshape(num_agents, 2)
    agents = np.concatenate(
        [np.zeros((1, 2)), observation[4 + 2 * num_agents :][: 2 * (num_agents - 1)].reshape(-1, 2)]
    )
    distances = np.linalg.norm(landmarks[None] - agents[:, None], axis=-1)
    nearest = min(itertools.permutations(range(num_agents)), key=lambda order: sum(distances[range(num_agents), order]))
    return go(landmarks[nearest[0]], observation)


def go(way: np.ndarray, observation: np.ndarray) -> int:
    """Returns the move of an agent whose observation begins with its velocity, along a way [2]."""
    way = way - 0.5 * observation[:2]
    axis = int(np.argmax(np.abs(way)))
    return 0 if abs(way[axis]) < 0.05 else 1 + 2 * axis + int(way[axis] > 0)


def win_or_block(observation: Mapping[str, np.ndarray], random: np.random.Generator) -> int:
    """Returns a move of Connect Four or tic-tac-toe: one that wins, else one that blocks, else a random legal one."""
    stones, legal = observation['observation'], np.flatnonzero(observation['action_mask'])
    rows, columns = stones.shape[:2]
    falls = len(observation['action_mask']) == columns
    for player in (0, 1):
        for move in legal:
            cell = (rows - 1 - int(stones[:, move].sum()), move) if falls else divmod(move, columns)
            if _wins(stones[..., player], *cell, 4 if falls else 3):
                return int(move)
    return int(random.choice(legal))


def _wins(stones: np.ndarray, row: int, column: int, needed: int) -> bool:
    for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
        length = 1
        for sign in (1, -1):
            for distance in range(1, needed):
                r, c = row + sign * distance * down, column + sign * distance * right
                if not (0 <= r < stones.shape[0] and 0 <= c < stones.shape[1] and stones[r, c]):
                    break
                length += 1
        if length >= needed:
            return True
    return False


def played(make_environment: Any, policy: Callable[[Any], Any], num_episodes: int = _EPISODES) -> float:
    """Returns the mean return of a policy."""
    environment = make_environment(num_environments=20, seed=_SEED)
    time_step, returns, total = environment.reset(), [], np.zeros(environment.num_environments)
    while len(returns) < num_episodes:
        observation = time_step.observation
        if isinstance(observation, Mapping):  # the last one of a game has no legal action, and its action no effect
            mask = observation['action_mask']
            observation = {**observation, 'action_mask': np.where(mask.any(1, keepdims=True), mask, 1)}
        time_step = environment.step(policy(observation))
        total += time_step.reward
        ended = time_step.step_type == 2
        returns += total[ended].tolist()
        total[ended] = 0.0
    environment.close()
    return float(np.mean(returns))


def spread(**run: Any) -> dict[str, float]:
    """Trains two agents of simple_spread; returns the last version's return per agent."""
    policy, env_steps = train(
        25,
        1600,
        0.95,
        {},
        make_environment=SPREAD,
        num_environments=16,
        export_interval_steps=1600,
        exports=ExportOptions(('greedy_policy',)),
        **run,
    )
    return {'return': played(SPREAD, policy), 'env_steps': env_steps}


def spread_references() -> dict[str, float]:
    """Returns the returns of the scripted agents, and of random ones."""
    random = np.random.default_rng(0)
    return {
        'scripted': played(SPREAD, lambda observations: np.array([go_to_landmark(each) for each in observations])),
        'random': played(SPREAD, lambda observations: random.integers(5, size=len(observations))),
    }


def talk(**run: Any) -> dict[str, float]:
    """Trains a speaker and a listener, each in a run of its own; returns what their last exports reach together."""
    agent = {
        'loss': ppo.PPOLoss(gamma=0.8, lambda_=0.8, entropy_coefficient=0.02),
        'optimizer': OptimizerOptions(learning_rate=2e-3),
    }
    trained = tflearn.train_policies(
        {'speaker': {}, 'listener': {}},
        **settings(25, 3200, 0.8, agent),
        make_environment=TALK,
        num_environments=32,
        export_interval_steps=640,
        exports=ExportOptions(('greedy_policy', 'collect_policy'), update_interval_steps=1),
        **run,
    )
    policies = {name: exported(each.run_dir) for name, each in trained.items()}

    def act(name: str, observation: np.ndarray) -> int:
        return int(policies[name.partition('_')[0]](observation[np.newaxis])[0])

    return {'return': talked(act), 'env_steps': max(each.env_steps for each in trained.values())}


def talk_references() -> dict[str, float]:
    """Returns the returns of the scripted speaker and listener, and of random ones."""
    random = np.random.default_rng(0)

    def scripted(agent: str, observation: np.ndarray) -> int:
        if agent == 'speaker_0':
            return int(np.argmax(observation))
        return go(observation[2:8].reshape(3, 2)[np.argmax(observation[8:])], observation)

    return {
        'scripted': talked(scripted),
        'random': talked(lambda agent, observation: int(random.integers(3 if agent == 'speaker_0' else 5))),
    }


def talked(act: Callable[[str, np.ndarray], int]) -> float:
    """Returns the mean return of the listener, which is the speaker's too, where `act` plays both."""
    from mpe2 import simple_speaker_listener_v4

    game, returns = simple_speaker_listener_v4.parallel_env(max_cycles=25), []
    for episode in range(_EPISODES):
        observations, _ = game.reset(seed=_SEED + episode)
        returns.append(0.0)
        while game.agents:
            observations, rewards, *_ = game.step({agent: act(agent, observations[agent]) for agent in game.agents})
            returns[-1] += rewards['listener_0']
    return float(np.mean(returns))


def self_play(game: str, root_dir: pathlib.Path, **run: Any) -> dict[str, float]:
    """Trains by self-play; returns the last version's scores."""
    versions = functools.partial(
        league.League, str(root_dir), 'raw_policy', num_versions=8, power=1.0, random_moves=0.05
    )
    agent = {
        'loss': ppo.PPOLoss(entropy_coefficient=0.02),
        'action_mask': 'action_mask',
        'network': NetworkOptions((256, 256), activation='relu', shared=True),
        'normalize_observations': False,
        'normalize_rewards': False,
    }
    policy, env_steps = train(
        32,
        4096,
        0.99,
        agent,
        make_environment=against(
            game, {'league': versions, 'random': turn_game.random_opponent}, {'league': 0.9, 'random': 0.1}
        ),
        root_dir=root_dir,
        num_environments=64,
        export_interval_steps=440,
        exports=ExportOptions(('greedy_policy', 'raw_policy'), keep_last=100),
        **run,
    )
    return {**scores(game, policy), 'env_steps': env_steps}


def self_play_references(game: str) -> dict[str, float]:
    """Returns the scores of the scripted moves, and of random ones."""
    return {
        f'{name}, {other}': score
        for name, make_opponent in REFERENCES.items()
        for other, score in scores(game, functools.partial(make_opponent().act, None)).items()
    }


def scores(game: str, policy: Callable[[Any], Any]) -> dict[str, float]:
    """Returns the scores of a policy against each reference."""
    return {name: 0.5 + 0.5 * played(against(game, {name: each}), policy) for name, each in REFERENCES.items()}


REFERENCES = {
    'scripted': functools.partial(turn_game.Scripted, win_or_block),
    'random': turn_game.random_opponent,
}


def against(game: str, opponents: Mapping[str, Any], shares: Mapping[str, float] | None = None) -> Any:
    """Returns what makes games against these opponents."""
    return functools.partial(turn_game.make, f'pettingzoo.classic.{game}_v3', opponents=opponents, shares=shares)


def _self_play(game: str, max_env_steps: int) -> tuple[Any, ...]:
    return functools.partial(self_play, game), functools.partial(self_play_references, game), max_env_steps, 'scripted'


TASKS = {
    'spread': (spread, spread_references, 250_000, 'return'),
    'talk': (talk, talk_references, 150_000, 'return'),
    'tic_tac_toe': _self_play('tictactoe', 150_000),
    'connect_four': _self_play('connect_four', 600_000),
}


def main() -> None:
    """Runs the tasks, and prints a line for each run."""
    parser = command_line.parser(__doc__)
    parser.add_argument('--root_dir', type=pathlib.Path, default=pathlib.Path('runs/several_agents'))
    parser.add_argument('--tasks', nargs='+', choices=TASKS, default=list(TASKS))
    parser.add_argument('--seeds', nargs='+', type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument('--quick', action='store_true', help='one seed, few steps')
    given = parser.parse_args()
    found: dict[str, Any] = {}
    for name in given.tasks:
        trained, references, max_env_steps, key = TASKS[name]
        found[name] = {'references': references(), 'target': TARGETS[name], 'runs': []}
        print(name, json.dumps(found[name]['references']), flush=True)
        for seed in given.seeds[: 1 if given.quick else None]:
            begun = time.monotonic()
            root_dir, env_steps = given.root_dir / f'{name}_{seed}', 5_000 if given.quick else max_env_steps
            result = trained(root_dir=root_dir, seed=seed, max_env_steps=env_steps)
            result = {'seed': seed, **result, 'secs': round(time.monotonic() - begun)}
            found[name]['runs'].append(result)
            print(name, json.dumps(result), 'reached' if result[key] >= TARGETS[name] else 'missed', flush=True)
            command_line.write(given.json, found)


if __name__ == '__main__':
    main()
