"""Games of several agents with known behaviour. They import no TensorFlow."""

from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv


class Shifts(ParallelEnv):
    """Agents that leave and come: 'day' works all 6 steps, 'night' in steps 1, 2 and 5, 6, 'late' in steps 4 and 5.

    The reward is the action; 'night' is terminated, 'late' is truncated in its last step, and 'day' terminated.
    """

    metadata: ClassVar[dict[str, Any]] = {'name': 'shifts'}
    possible_agents: ClassVar[list[str]] = ['day', 'night', 'late']
    leaves: ClassVar[dict[str, tuple[int, ...]]] = {'day': (6,), 'night': (2, 6), 'late': (5,)}
    comes: ClassVar[dict[int, str]] = {3: 'late', 4: 'night'}

    def observation_space(self, agent: str) -> spaces.Space:
        return spaces.Dict(observation=spaces.Box(0, 10, (2,)), action_mask=spaces.MultiBinary(2))

    def action_space(self, agent: str) -> spaces.Space:
        return spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.agents, self._time = ['day', 'night'], 0
        return self._observations(self.agents), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        assert list(actions) == self.agents
        self._time += 1
        acted = self.agents
        ended = {agent: self._time in self.leaves[agent] for agent in acted}
        self.agents = [agent for agent in acted if not ended[agent]]
        if self._time in self.comes:
            self.agents.append(self.comes[self._time])
        return (
            self._observations({*acted, *self.agents}),
            {agent: int(actions[agent]) for agent in acted},
            {agent: ended[agent] and agent != 'late' for agent in acted},
            {agent: ended[agent] and agent == 'late' for agent in acted},
            {agent: {'time': self._time} for agent in acted},
        )

    def _observations(self, agents: Any) -> dict[str, Any]:
        mask = np.ones(2, np.int8)
        # One that has ended has no legal action.
        return {
            agent: {
                'observation': np.array([self._time, self.possible_agents.index(agent)], np.float32),
                'action_mask': mask if agent in self.agents else 0 * mask,
            }
            for agent in agents
        }


class Meeting(ParallelEnv):
    """Three agents on a line of random places, each moves by -1, 0 or 1; all are paid for being close. 8 steps."""

    metadata: ClassVar[dict[str, Any]] = {'name': 'meeting'}
    possible_agents: ClassVar[list[str]] = ['left', 'middle', 'right']

    def observation_space(self, agent: str) -> spaces.Space:
        return spaces.Box(-20, 20, (3,), np.float64)

    def action_space(self, agent: str) -> spaces.Space:
        return spaces.Discrete(3)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        if seed is not None:
            self._random = np.random.default_rng(seed)
        self.agents, self._left, self._places = list(self.possible_agents), 8, self._random.uniform(-5, 5, 3)
        return self._by_agent(self._observation), self._by_agent(lambda i: {})

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        self._left -= 1
        self._places = np.clip(self._places + [int(actions[agent]) - 1 for agent in self.agents], -10, 10)
        spread = float(np.ptp(self._places))
        found = (
            self._by_agent(self._observation),
            self._by_agent(lambda i: -spread),
            self._by_agent(lambda i: False),
            self._by_agent(lambda i: not self._left),
            self._by_agent(lambda i: {'spread': spread}),
        )
        self.agents = self.agents if self._left else []
        return found

    def _by_agent(self, of: Any) -> dict[str, Any]:
        return {agent: of(i) for i, agent in enumerate(self.possible_agents)}

    def _observation(self, i: int) -> np.ndarray:
        return np.roll(self._places, -i) - [0, self._places[i], self._places[i]]


class Talk(ParallelEnv):
    """The speaker sees a number and says one; the listener, who hears it a step later, is to take it. 8 steps.

    Both get 1 for each number that the listener takes as it was seen the step before. Their spaces differ.
    """

    metadata: ClassVar[dict[str, Any]] = {'name': 'talk'}
    possible_agents: ClassVar[list[str]] = ['speaker', 'listener']

    def __init__(self) -> None:
        self._random = np.random.default_rng()

    def observation_space(self, agent: str) -> spaces.Space:
        return spaces.Box(0, 1, (2 if agent == 'speaker' else 3,))

    def action_space(self, agent: str) -> spaces.Space:
        return spaces.Discrete(3 if agent == 'speaker' else 2)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        if seed is not None:
            self._random = np.random.default_rng(seed)
        self.agents, self._left, self._seen, self._said = list(self.possible_agents), 8, None, None
        return self._observations(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        self._left -= 1
        reward = float(self._before is not None and int(actions['listener']) == self._before)
        self._said = int(actions['speaker'])
        agents, self.agents = self.agents, self.agents if self._left else []
        return (
            self._observations(),
            dict.fromkeys(agents, reward),
            dict.fromkeys(agents, False),
            dict.fromkeys(agents, not self._left),
            {agent: {} for agent in agents},
        )

    def _observations(self) -> dict[str, Any]:
        self._before, self._seen = self._seen, int(self._random.integers(2))
        heard = np.zeros(3, np.float32) if self._said is None else np.eye(3, dtype=np.float32)[self._said]
        return {'speaker': np.eye(2, dtype=np.float32)[self._seen], 'listener': heard}
