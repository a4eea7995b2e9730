"""Who plays the other agents of a game: opponents of self-play,
and policies of runs that train simultaneously.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, create_empty_array, iterate

from tflearn.core.errors import UserValueError
from tflearn.environments import gathering

AGENT = 'agent'  # the part of the observation with the agent's index


class Opponent(Protocol):
    """Who plays other agents."""

    def begin(self) -> Any:
        """Returns who plays a new game: a hashable value for `act` and `end`;
        None where it is always the same.
        """

    def act(self, player: Any, observation: Any) -> np.ndarray:
        """Returns the actions [B] of a player for a batch of observations,
        a nest of arrays [B, ...].
        """

    def end(self, player: Any, score: float) -> None:
        """Takes the agent's score in a game against a player: 1 for a win, 0.5, or 0 for a loss."""


def check(policies: Mapping[str, Sequence[str]] | None, partners: Mapping[str, Any] | None) -> None:
    """Checks which policy is the run's own one: that without a partner.

    Raises:
      ValueError: if it is not exactly one.
    """
    named, played = (policies or {}).keys(), (partners or {}).keys()
    if (named or played) and (len(named - played) != 1 or not played <= named):
        raise UserValueError(
            f'got policies={sorted(named)} with partners={sorted(played)}; need a partner for each policy but the one '
            'that the run trains; start tflearn policies with exactly the policies of the game'
        )
    if wrong := [name for name in named if not name.isidentifier()]:
        raise UserValueError(f'got a policy {wrong[0]!r}; need a name of letters, digits and underscores')


def agents_of(everyone: Sequence[str], policies: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Returns the agents of each policy in the game's order;
    raises ValueError unless each agent has one policy.
    """
    named = [agent for members in policies.values() for agent in members]
    if sorted(named) != sorted(everyone) or not all(policies.values()):
        raise UserValueError(
            f'got policies={dict(policies)}; need each of the agents {", ".join(everyone)} in one of them, and one '
            'at least in each'
        )
    return {name: [agent for agent in everyone if agent in members] for name, members in policies.items()}


def with_agent(observation: Any, index: int) -> dict[str, Any]:
    """Returns an observation with the agent's index."""
    parts = observation if isinstance(observation, Mapping) else {'observation': observation}
    return {**parts, AGENT: index}


def space_with_agent(space: Any, num_agents: int, name: str) -> spaces.Dict:
    """Returns the space of such observations."""
    parts = dict(space.spaces) if isinstance(space, spaces.Dict) else {'observation': space}
    if AGENT in parts:
        raise UserValueError(
            f'got agent_id=True for {name}, whose observation has a part {AGENT!r}; set agent_id=False'
        )
    return spaces.Dict({**parts, AGENT: spaces.Discrete(num_agents)})


class Partners:
    """The agents of other policies in several games;
    those of all games that one player plays act as a batch.
    """

    def __init__(
        self,
        agents: Mapping[str, Sequence[str]],
        spaces_of: Mapping[str, tuple[Any, Any]],
        make_opponents: Mapping[str, Callable[[], Opponent]],
        agent_id: bool,
    ):
        """Takes the agents, and the spaces of observations and actions, of each policy,
        and what makes its player.
        """
        self._spaces, self._agent_id = spaces_of, agent_id
        self._opponents = {name: make_opponents[name]() for name in agents}
        self._policies = {agent: (name, index) for name, its in agents.items() for index, agent in enumerate(its)}
        self._players: dict[int, dict[str, Any]] = {}  # of each game, from its first actions on

    def begin(self, game: int) -> None:
        """Draws other players for a game."""
        self._players.pop(game, None)

    def end(self, game: int, score: float) -> None:
        """Reports a game's score of the agents whose partners these are."""
        for name, player in self._players.pop(game, {}).items():
            self._opponents[name].end(player, score)

    def actions(self, observations: Sequence[Mapping[str, Any]], origins: Sequence[str]) -> list[dict[str, Any]]:
        """Returns the actions by agent in each game, for the observations by agent there."""
        moves: list[dict[str, Any]] = [{} for _ in observations]
        asked: dict[tuple[str, Any], list[tuple[int, str]]] = {}
        for i, agents in enumerate(observations):
            for agent in agents:
                name, _ = self._policies[agent]
                players = self._players.setdefault(i, {})
                if name not in players:
                    players[name] = self._opponents[name].begin()
                asked.setdefault((name, players[name]), []).append((i, agent))
        for (name, player), rows in asked.items():
            space, action_space = self._spaces[name]
            batch = create_empty_array(space, len(rows))
            gather = gathering.gatherer(space, batch, [f'agent {agent} of {origins[i]}' for i, agent in rows])
            gather([self._observation(agent, observations[i][agent]) for i, agent in rows])
            actions = self._opponents[name].act(player, batch)
            if isinstance(action_space, spaces.Box):
                actions = np.clip(actions, action_space.low, action_space.high)
            for (i, agent), action in zip(rows, iterate(batch_space(action_space, len(rows)), actions), strict=True):
                moves[i][agent] = action
        return moves

    def _observation(self, agent: str, observation: Any) -> Any:
        return with_agent(observation, self._policies[agent][1]) if self._agent_id else observation
