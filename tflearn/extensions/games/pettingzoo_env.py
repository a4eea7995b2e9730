"""PettingZoo's parallel environments: each agent of a policy, in each copy,
is a row of the batch.
"""

import functools
import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.vector.utils import batch_space, create_empty_array, iterate

from tflearn.core.errors import UserError, UserTypeError, UserValueError
from tflearn.core.resumable import Resumable
from tflearn.core.settings import PositiveInt, checked
from tflearn.core.types import IDLE, BatchedEnvironment
from tflearn.environments import gathering, registry, sync_vector_env, vector_env
from tflearn.environments.vector_env import OnNonfinite
from tflearn.extensions.games import partners
from tflearn.extensions.games.partners import Opponent, Partners

_ALL = 'all'
_NEEDED = ('possible_agents', 'observation_space', 'action_space', 'reset', 'step')


@checked
def make(
    game: str | Callable[..., Any],
    num_environments: PositiveInt,
    seed: int | None,
    kwargs: dict[str, Any] | None = None,
    agent_id: bool = False,
    teams: Mapping[str, Sequence[str]] | None = None,
    policies: Mapping[str, Sequence[str]] | None = None,
    partners: Mapping[str, Callable[[], Opponent]] | None = None,
    on_nonfinite: OnNonfinite = 'rebuild',
) -> BatchedEnvironment:
    """Makes a batch of all agents of some copies of a PettingZoo environment with the parallel API.

    The batch has `num_environments` times the number of possible agents rows: those of the first
    copy come first. An agent that is terminated or truncated ends its episode; until it comes back,
    or a new game begins when no agent is left, its row is idle. `info` has the sum of an agent's
    rewards in its last step, `agent_return/<agent>`, and in one row of a game's last step those of
    each team, `team_return/<team>`.

    Args:
      game: a module that has `parallel_env`, such as 'pettingzoo.butterfly.pistonball_v6';
        'module:function' or 'module:Class' for another one in it; or a function or class itself. It
        may be any object with the attributes of PettingZoo's `ParallelEnv`.
      num_environments: the number of copies, which are stepped one after the other in this process.
      seed: copy i is seeded with seed + i; None draws the seeds.
      kwargs: the function's arguments.
      agent_id: whether the observation has the agent's index, as the part 'agent' beside
        'observation' or beside the parts that are there.
      teams: the agents of each team by its name; None: one team, 'all', of all of them.
      policies: the agents of each policy by its name, where there are several; None: one of all
        agents. Only the agents of the run's policy, which is the one without a partner, are rows
        then.
      partners: functions that make who plays the other policies, by name, such as `league.Newest`.
      on_nonfinite: what happens if an observation or a reward is not finite, see
        `gymnasium_env.make`.

    Returns:
      The batch; see `BatchedEnvironment`. Close it when done.

    Raises:
      ValueError: if there is no such environment, agents of one policy have different spaces, teams
        or policies do not have each agent once, or not exactly one policy is without a partner.
      TypeError: if it does not have the parallel API.
    """
    rows = AgentRows(maker(game, 'parallel_env', kwargs), num_environments, agent_id, teams, policies, partners)
    return vector_env.VectorEnvironment(rows, seed, on_nonfinite)


def maker(game: str | Callable[..., Any], function: str, kwargs: Mapping[str, Any] | None) -> Callable[[], Any]:
    """Returns a function that makes a game; `game` is as for `make`,
    and `function` is taken of a module alone.
    """
    make_game: Any = game
    if isinstance(game, str):
        module, _, name = game.partition(':')
        with registry.needed(game):
            make_game = getattr(importlib.import_module(module), name or function, None)
        if make_game is None:
            raise UserValueError(
                f'got game={game!r}, which has no {name or function}; need a module that has it; name another one as '
                "'module:function'"
            )
    return functools.partial(make_game, **(kwargs or {}))


def name_of(game: Any) -> str:
    """Returns what errors call a game: the name in its metadata, or else its class."""
    return str((getattr(game, 'metadata', None) or {}).get('name') or sync_vector_env.name_of(game))


class AgentRows(sync_vector_env.RebuildingVectorEnv, Resumable):
    """Games that are stepped one after the other,
    with a row for each possible agent of the policy in each of them.

    A row whose agent is not in its game is idle: it returns FIRST, with the observation of another
    agent, since its own would have no legal action, or categories out of bounds.
    """

    _KEPT = (
        *('_environments', '_present', '_playing', '_seen', '_others', '_returns', '_game_returns', '_ended', '_items'),
        *('_seed', '_progress', '_columns', 'failures'),
    )

    def __init__(
        self,
        make_game: Callable[[], Any],
        num_games: int,
        agent_id: bool = False,
        teams: Mapping[str, Sequence[str]] | None = None,
        policies: Mapping[str, Sequence[str]] | None = None,
        make_partners: Mapping[str, Callable[[], Opponent]] | None = None,
    ):
        """Makes the games; errors of `make_game` propagate. See `make`."""
        partners.check(policies, make_partners)
        self._agent_id = agent_id
        with self._closed_after_errors():
            self._make(make_game, num_games)
            name = name_of(self._environments[0])
            check_game(self._environments[0], name)
            if hasattr(self._environments[0], 'agent_iter'):
                raise UserTypeError(
                    f'got {name}, whose agents act in turn (AEC); need its `parallel_env`, or turn_game.make for '
                    'self-play'
                )
            self._everyone: list[str] = list(self._environments[0].possible_agents)
            self._team_of = _team_of(self._everyone, teams)
            agents = partners.agents_of(self._everyone, policies) if policies else {'': self._everyone}
            its_spaces = {policy: self._spaces_of(its, name) for policy, its in agents.items()}
            (own,) = agents.keys() - (make_partners or {}).keys()
            self._agents = agents.pop(own)
            observation_space, action_space = its_spaces[own]
            self._partners = Partners(agents, its_spaces, make_partners or {}, agent_id)
        size = num_games * len(self._agents)
        super().__init__(size, name, (observation_space, action_space, ()))
        self._game_origins = [sync_vector_env.origin_of(i, name) for i in range(num_games)]
        self._origins = [f'agent {agent} of {game}' for game in self._game_origins for agent in self._agents]
        self._action_space = batch_space(action_space, size)
        self._batch = create_empty_array(observation_space, size)
        self._gather = gathering.gatherer(observation_space, self._batch, self._origins)
        self._items: list[Any] = [None] * size  # the newest observation of each row
        # The agents with a row that act next.
        self._present: list[list[str]] = [[] for _ in self._environments]
        self._playing: list[list[str]] = [[] for _ in self._environments]  # these and the partners
        # The newest observations of partners.
        self._seen: list[dict[str, Any]] = [{} for _ in self._environments]
        # What idle rows return: of an agent that goes on, since one that has ended may have no
        # legal action.
        self._others: list[Any] = [None for _ in self._environments]
        self._returns = [0.0] * size
        self._game_returns: list[dict[str, float]] = [{} for _ in self._environments]
        # Of an ended game, for the next own step.
        self._ended: list[dict[str, Any]] = [{} for _ in self._environments]

    def reset(self, seed: int | None) -> Any:
        """See `sync_vector_env.RebuildingVectorEnv`."""
        self._seed = seed if seed is not None else self._seed
        for i, game in enumerate(self._environments):
            self._present[i] = []
            try:
                self._begin(i, self._reset_result(i, game.reset(seed=sync_vector_env.seed_of(seed, i, 0))))
            except UserError:
                raise
            except sync_vector_env.FAILURES as error:
                self._rebuild(i, sync_vector_env.cause_of(error))
        self._gather(self._items)
        return self._batch

    def step(self, action: Any) -> sync_vector_env.Step:
        """See `sync_vector_env.RebuildingVectorEnv`; rows that are idle, or whose agent has come,
        count as rebuilt.
        """
        actions, results, first = list(iterate(self._action_space, action)), [], []
        moves = self._partners.actions(self._seen, self._game_origins)
        for i, game in enumerate(self._environments):
            acted, rows = self._present[i], self._rows_of(i)
            try:
                if self._playing[i]:
                    own = dict(zip(self._agents, (actions[row] for row in rows), strict=True))
                    results += self._step(i, {**own, **moves[i]})
                else:
                    results += self._begin(i, self._reset_result(i, game.reset()))
            except UserError:
                raise
            except sync_vector_env.FAILURES as error:
                acted = []
                results += self._rebuild(i, sync_vector_env.cause_of(error))
            first += [row for row, agent in zip(rows, self._agents, strict=True) if agent not in acted]
        self._gather(self._items)
        return self._step_of(self._batch, results, action, first)

    def rebuild(self, causes: Mapping[int, str]) -> tuple[Any, Any]:
        """See `sync_vector_env.RebuildingVectorEnv`; all agents of a game begin a new one."""
        games = {row // len(self._agents): cause for row, cause in causes.items()}
        for i, cause in games.items():
            self._rebuild(i, cause)
        self._gather(self._items)
        return self._batch, self._rows(row for i in games for row in self._rows_of(i))

    def _spaces_of(self, agents: Sequence[str], name: str) -> tuple[Any, Any]:
        observation_space, action_space = spaces_of_all(self._environments[0], name, agents)
        if self._agent_id:
            observation_space = partners.space_with_agent(observation_space, len(agents), name)
        gathering.check_space(observation_space, 'observation')
        return observation_space, action_space

    def _rows_of(self, i: int) -> range:
        return range(i * len(self._agents), (i + 1) * len(self._agents))

    def _reset_result(self, i: int, result: Any) -> Any:
        return gathering.reset_result(result, self._game_origins[i])[0]

    def _rebuild(self, i: int, cause: str) -> list[Any]:
        rows = self._rows_of(i)
        # An idle row cannot fail.
        failed = [rows[self._agents.index(agent)] for agent in self._present[i]]
        return self._begin(i, self._remade(i, cause, self._game_origins[i], failed or rows))

    def _begin(self, i: int, observations: Any) -> list[Any]:
        """Begins a game with the observations of its agents.
        Returns (reward, terminated, truncated, info) of rows.
        """
        self._game_returns[i] = dict.fromkeys(self._everyone, 0.0)
        self._partners.begin(i)
        self._take(i, observations, ())
        if not self._present[i]:
            who = ' of its policy' if len(self._agents) < len(self._everyone) else ''
            raise UserValueError(f'got no agents{who} after reset() of {self._game_origins[i]}; need one at least')
        return [(0.0, False, False, {IDLE: agent not in self._present[i]}) for agent in self._agents]

    def _step(self, i: int, actions: Mapping[str, Any]) -> list[Any]:
        """Steps a game. Returns (reward, terminated, truncated, info) of its rows."""
        acted, rows = self._present[i], self._rows_of(i)
        playing = self._playing[i]
        stepped = self._environments[i].step({agent: actions[agent] for agent in playing})
        if not isinstance(stepped, tuple) or len(stepped) != 5:
            raise UserTypeError(
                f'got {type(stepped).__name__} from step() of {self._game_origins[i]}; need (observations, rewards, '
                'terminations, truncations, infos), each a dict by agent'
            )
        self._take(i, stepped[0], acted)
        for agent in playing:
            self._game_returns[i][agent] += float(self._of(agent, stepped[1], i))
        results: list[Any] = []
        for row, agent in zip(rows, self._agents, strict=True):
            if agent not in acted:
                self._returns[row] = 0.0
                results.append((0.0, False, False, {IDLE: agent not in self._present[i]}))
                continue
            own = [self._of(agent, part, i) for part in stepped[:4]]
            _, *result, info = gathering.step_result((*own, stepped[4].get(agent, {})), (), self._origins[row])
            ended = result[1] or result[2]
            if ended == (agent in self._present[i]):
                what = 'has ended and is among its agents' if ended else 'has not ended and is not among its agents'
                raise UserValueError(
                    f'got {self._origins[row]}, which {what}; need an agent to leave `agents` in the step that '
                    'terminates or truncates it'
                )
            self._returns[row] += result[0]
            results.append((*result, {**info, IDLE: False}))
            if ended:
                results[-1][-1]['agent_return'] = {agent: self._returns[row]}
                self._returns[row] = 0.0
        if not self._playing[i]:
            self._end(i)
        if acted and self._ended[i]:
            ended, self._ended[i] = self._ended[i], {}
            info = results[self._agents.index(acted[0])][-1]
            info |= {**ended, 'agent_return': {**ended['agent_return'], **info.get('agent_return', {})}}
        return results

    def _end(self, i: int) -> None:
        """Sums up a game that has ended."""
        returns, teams = self._game_returns[i], dict.fromkeys(self._team_of.values(), 0.0)
        for agent, value in returns.items():
            teams[self._team_of[agent]] += value
        others = {agent: value for agent, value in returns.items() if agent not in self._agents}
        self._ended[i] = {'team_return': teams, 'agent_return': others}
        self._partners.end(i, 0.5 + 0.5 * float(np.sign(sum(returns[agent] for agent in self._agents))))

    def _take(self, i: int, observations: Any, acted: Iterable[str]) -> None:
        """Reads which agents go on, and the observations of these and of those that have acted."""
        present = list(self._environments[i].agents)
        if unknown := [agent for agent in present if agent not in self._everyone]:
            raise UserValueError(
                f'got the agent {unknown[0]!r} of {self._game_origins[i]}; need one of its possible_agents '
                f'({", ".join(map(str, self._everyone))}); name all that may come there'
            )
        self._playing[i], self._present[i] = present, [agent for agent in present if agent in self._agents]
        self._seen[i] = {agent: self._of(agent, observations, i) for agent in present if agent not in self._agents}
        if self._present[i]:
            self._others[i] = self._of(self._present[i][0], observations, i)
        for index, row in enumerate(self._rows_of(i)):
            agent = self._agents[index]
            is_there = agent in acted or agent in present
            observation = self._of(agent, observations, i) if is_there else self._others[i]
            if self._agent_id:
                observation = partners.with_agent(observation, index)
            self._items[row] = observation

    def _of(self, agent: str, part: Any, i: int) -> Any:
        if not isinstance(part, Mapping) or agent not in part:
            got = f'the agents {sorted(map(str, part))}' if isinstance(part, Mapping) else type(part).__name__
            raise UserValueError(
                f'got {got} from {self._game_origins[i]} without {agent}, which is in the game; need observations, '
                'rewards, terminations and truncations of all agents that act, and observations of those that come'
            )
        return part[agent]


def check_game(game: Any, name: str) -> None:
    """Checks that a game names its agents and their spaces; raises as `make` does."""
    if missing := [needed for needed in _NEEDED if not hasattr(game, needed)]:
        raise UserTypeError(
            f'got {name} without {", ".join(missing)}; need an environment of PettingZoo, with all '
            'agents that may come in possible_agents'
        )
    if not game.possible_agents:
        raise UserValueError(f'got {name} without possible_agents; need all agents that may come there')


def spaces_of_all(game: Any, name: str, agents: Sequence[str]) -> tuple[Any, Any]:
    """Returns the observation and the action space of all agents of a policy;
    raises as `make` does.
    """
    of_agents = {agent: (game.observation_space(agent), game.action_space(agent)) for agent in agents}
    first, spaces_of_first = next(iter(of_agents.items()))
    for agent, own in of_agents.items():
        for what, one, other in zip(('observations', 'actions'), spaces_of_first, own, strict=True):
            if one != other:
                raise UserValueError(
                    f'got {name}, whose agents have different {what}: {first} {_in_line(one)}, {agent} '
                    f'{_in_line(other)}; need equal ones for one policy; pad them (supersuit.pad_observations_v0, '
                    'pad_action_space_v0), or train a policy for each kind of agent (pettingzoo_env.make.policies)'
                )
    return spaces_of_first


def _in_line(space: Any) -> str:
    return ' '.join(str(space).split())


def _team_of(agents: Sequence[str], teams: Mapping[str, Sequence[str]] | None) -> dict[str, str]:
    """Returns the team of each agent."""
    found = [(agent, team) for team, members in (teams or {_ALL: agents}).items() for agent in members]
    if sorted(agent for agent, _ in found) != sorted(agents):
        raise UserValueError(f'got teams={teams}; need each of the agents {", ".join(agents)} in one of them')
    return dict(found)
