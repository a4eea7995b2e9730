"""Self-play: games of several players in which one seat is the agent's, and opponents play the others."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from gymnasium.vector.utils import batch_space, create_empty_array, iterate

from tflearn.core.errors import UserError, UserValueError
from tflearn.core.settings import PositiveInt, checked
from tflearn.core.types import BatchedEnvironment
from tflearn.environments import gathering, sync_vector_env, vector_env
from tflearn.environments.vector_env import OnNonfinite
from tflearn.extensions.games import pettingzoo_env
from tflearn.extensions.games.partners import Opponent

_MASK = 'action_mask'


class Scripted:
    """An opponent whose moves are a function of one observation and a random number generator."""

    def __init__(self, move: Callable[[Any, np.random.Generator], int], seed: int = 0):
        """Takes the function, and the seed of the random numbers."""
        self._move, self._random = move, np.random.default_rng(seed)

    def begin(self) -> None:
        """See `Opponent`."""

    def act(self, player: None, observation: Any) -> np.ndarray:
        """See `Opponent`."""
        size = len(tf.nest.flatten(observation)[0])
        return np.array([self._move(sync_vector_env.item_of(observation, i), self._random) for i in range(size)])

    def end(self, player: None, score: float) -> None:
        """See `Opponent`."""


def random_move(observation: Any, random: np.random.Generator) -> int:
    """Returns one of the legal actions of an observation with the part 'action_mask'."""
    return int(random.choice(np.flatnonzero(observation[_MASK])))


def random_opponent() -> Scripted:
    """Returns an opponent that takes random legal actions."""
    return Scripted(random_move)


@checked
def make(
    game: str | Callable[..., Any],
    num_environments: PositiveInt,
    seed: int | None,
    opponents: Mapping[str, Callable[[], Opponent]],
    shares: Mapping[str, float] | None = None,
    kwargs: dict[str, Any] | None = None,
    on_nonfinite: OnNonfinite = 'rebuild',
) -> BatchedEnvironment:
    """Makes a batch of games in which the agent takes one seat, which is drawn for each game.

    A step is the agent's move and the moves of its opponents until its next turn. `info` has in the
    last step of a game `score_against/<name>`: 1 if the agent's return is above 0, 0 if it is
    below, else 0.5.

    Args:
      game: a module of PettingZoo that has `env`, such as 'pettingzoo.classic.connect_four_v3';
        'module:function'; or a function that makes a game. One with the parallel API is played in
        turn, where players do not see each other's new moves.
      num_environments: the number of games, which are played one after the other in this process.
      seed: game i is seeded with seed + i; None draws the seeds.
      opponents: functions that make the opponents, by name, such as `random_opponent` and
        `league.make`; one plays all other seats of a game.
      shares: the shares of games against them, by name; None: equal ones.
      kwargs: the game's arguments.
      on_nonfinite: what happens if an observation or a reward is not finite, see
        `gymnasium_env.make`.

    Raises:
      ValueError: if there is no such game, its players have different spaces, or the shares are of
        other opponents.
    """
    if not opponents or (shares is not None and (shares.keys() != opponents.keys() or min(shares.values()) < 0)):
        raise UserValueError(
            f'got the opponents {sorted(opponents)} with shares={shares}; need one at least, and a share of each, of 0 '
            'or more'
        )
    shares = shares or dict.fromkeys(opponents, 1.0)
    made = {name: (make_opponent(), shares[name]) for name, make_opponent in opponents.items()}
    games = TurnGames(pettingzoo_env.maker(game, 'env', kwargs), num_environments, made)
    return vector_env.VectorEnvironment(games, seed, on_nonfinite)


@dataclasses.dataclass
class _Game:
    """A game: who is the agent in it, and against whom.
    It may be `adapted` from the parallel API.
    """

    adapted: Any
    game: Any = dataclasses.field(init=False)
    own: str = ''
    opponent: str = ''
    player: Any = None
    total: float = 0.0

    def __post_init__(self) -> None:
        self.game = _in_turn(self.adapted)

    def reset(self, seed: int | None) -> tuple[None, dict[str, Any]]:
        self.game.reset(seed=seed)
        return None, {}

    def close(self) -> None:
        self.game.close()

    def set_progress(self, train_step: int, env_steps: int) -> None:
        if setter := sync_vector_env.progress_setter(self.game):
            setter(train_step, env_steps)

    def waits(self) -> bool:
        """Removes the players who have ended. Returns whether it is the turn of an opponent."""
        game = self.game
        while game.agents and (agent := game.agent_selection) != self.own:
            if not (game.terminations[agent] or game.truncations[agent]):
                return True
            game.step(None)
        return False


class TurnGames(sync_vector_env.RebuildingVectorEnv):
    """Games of PettingZoo's AEC API; what opponents are asked for at once is a batch."""

    def __init__(self, make_game: Callable[[], Any], num_games: int, opponents: Mapping[str, tuple[Opponent, float]]):
        """Makes the games; errors of `make_game` propagate.
        The opponents come with their shares.
        """
        with self._closed_after_errors():
            self._make(lambda: _Game(make_game()), num_games)
            game = self._environments[0].game
            name = pettingzoo_env.name_of(game)
            pettingzoo_env.check_game(game, name)
            self._space, action_space = pettingzoo_env.spaces_of_all(game, name, game.possible_agents)
            gathering.check_space(self._space, 'observation')
        super().__init__(num_games, name, (self._space, action_space, ()))
        self._action_space = batch_space(action_space, num_games)
        self._opponents, self._names = {key: opponent for key, (opponent, _) in opponents.items()}, list(opponents)
        shares = np.array([share for _, share in opponents.values()], float)
        self._shares = shares / shares.sum()
        self._origins = [sync_vector_env.origin_of(i, name) for i in range(num_games)]
        self._ended = [False] * num_games
        self._random = np.random.default_rng()

    def reset(self, seed: int | None) -> Any:
        """See `sync_vector_env.RebuildingVectorEnv`."""
        self._seed, self._random = seed if seed is not None else self._seed, np.random.default_rng(seed)
        failed: set[int] = set()
        for i, each in enumerate(self._environments):
            self._try(i, functools.partial(each.reset, sync_vector_env.seed_of(seed, i, 0)), failed)
            self._seat(i)
        self._play(failed)
        self._ended = [False] * self.num_envs
        return self._batch_of(range(self.num_envs))

    def step(self, action: Any) -> sync_vector_env.Step:
        """See `sync_vector_env.RebuildingVectorEnv`."""
        failed: set[int] = set()
        for i, (each, move) in enumerate(zip(self._environments, iterate(self._action_space, action), strict=True)):
            if self._ended[i]:
                self._try(i, functools.partial(each.reset, None), failed)
                self._seat(i)
            else:
                self._try(i, functools.partial(each.game.step, move), failed)
        self._play(failed)
        results = [self._result(i, self._ended[i] or i in failed) for i in range(self.num_envs)]
        self._ended = [terminated or truncated for _, terminated, truncated, _ in results]
        return self._step_of(self._batch_of(range(self.num_envs)), results, action, failed)

    def rebuild(self, causes: Mapping[int, str]) -> tuple[Any, np.ndarray]:
        """See `sync_vector_env.RebuildingVectorEnv`."""
        for i, cause in causes.items():
            self._rebuild(i, cause)
            self._ended[i] = False
        failed = set(causes)
        self._play(failed)
        return self._batch_of(range(self.num_envs)), self._rows(failed)

    def _seat(self, i: int) -> None:
        """Draws the agent's seat and its opponent in a game that begins."""
        each = self._environments[i]
        each.own, each.total = str(self._random.choice(each.game.possible_agents)), 0.0
        each.opponent = str(self._random.choice(self._names, p=self._shares))
        each.player = self._opponents[each.opponent].begin()

    def _play(self, failed: set[int]) -> None:
        """Moves the opponents until it is the agent's turn in all games."""
        waiting = list(range(self.num_envs))
        while waiting := [i for i in waiting if self._try(i, self._environments[i].waits, failed)]:
            moves: dict[Any, list[int]] = {}
            for i in waiting:
                moves.setdefault((self._environments[i].opponent, self._environments[i].player), []).append(i)
            for (name, player), games in moves.items():
                actions = self._opponents[name].act(player, self._batch_of(games))
                for i, move in zip(games, actions, strict=True):
                    self._try(i, functools.partial(self._environments[i].game.step, move), failed)

    def _try(self, i: int, function: Callable[[], Any], failed: set[int]) -> Any:
        """Returns what a function of a game returns;
        if it raises an error, begins a new game and returns True.
        """
        try:
            return function()
        except UserError:
            raise
        except sync_vector_env.FAILURES as error:
            failed.add(i)
            self._rebuild(i, sync_vector_env.cause_of(error))
            return True

    def _rebuild(self, i: int, cause: str) -> None:
        self._remade(i, cause, self._origins[i])
        self._seat(i)

    def _batch_of(self, games: Sequence[int]) -> Any:
        """Returns the observations of those whose turn it is."""
        batch = create_empty_array(self._space, len(games))
        gather = gathering.gatherer(self._space, batch, [self._origins[i] for i in games])
        gather([self._environments[i].game.observe(self._environments[i].game.agent_selection) for i in games])
        return batch

    def _result(self, i: int, begins: bool) -> tuple[Any, bool, bool, dict[str, Any]]:
        """Returns (reward, terminated, truncated, info) of the agent, whose turn it is."""
        each = self._environments[i]
        last = each.game.last(observe=False)
        _, reward, terminated, truncated, info = gathering.step_result(last, (), self._origins[i])
        if begins:
            return 0.0, terminated, truncated, {}
        each.total += reward
        if not (terminated or truncated):
            return reward, False, False, info
        score = 0.5 + 0.5 * float(np.sign(each.total))
        self._opponents[each.opponent].end(each.player, score)
        return reward, terminated, truncated, {**info, 'score_against': {each.opponent: score}}


def _in_turn(game: Any) -> Any:
    """Returns a game with the AEC API."""
    if hasattr(game, 'agent_iter'):
        return game
    from pettingzoo.utils import conversions

    return conversions.parallel_to_aec(game)
