"""Nim, a game in which few moves are legal: who takes the last counter wins.

Bouton 1901, "Nim, A Game with a Complete Mathematical Theory" (Annals of Mathematics 3): the player
to move can win if and only if the exclusive or of the heaps' sizes, the nim sum, is not 0: a move
that makes it 0 keeps the win.
"""

import functools
import operator
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np

from tflearn.core.errors import UserValueError
from tflearn.core.settings import Fraction, PositiveInt, checked
from tflearn.core.types import BatchedEnvironment
from tflearn.environments import vector_env


@checked
def make(
    num_environments: PositiveInt, seed: int | None, heaps: Sequence[int] = (3, 4, 5), skill: Fraction = 0.5
) -> BatchedEnvironment:
    """Makes a batch of games.

    Args:
      heaps: the sizes of the heaps at the start.
      skill: the probability with which each move of the opponent is one of the best, in [0, 1].

    Raises:
      ValueError: if there is no environment, no heap, an empty one, or a skill out of its range.
    """
    if not heaps or min(heaps) < 1:
        raise UserValueError(f'got heaps={tuple(heaps)}; need one or more, each of 1 or more')
    return vector_env.in_process(lambda: Nim(tuple(heaps), skill), num_environments, seed)


def nim_sum(heaps: Sequence[int]) -> int:
    """Returns the exclusive or of the heaps' sizes."""
    return functools.reduce(operator.xor, (int(heap) for heap in heaps), 0)


class Nim(gymnasium.Env):
    """Two players take counters in turn, each time one or more of one heap; the agent begins.

    Observation: a dict with `heaps`, the sizes, and `legal`, 1 for each legal action. Action: heap
      * most + number - 1,
    where `most` is the size of the largest heap at the start. Reward: at the end 1 for a win, -1
    for a loss; an illegal action loses. Info: `illegal`, 1 after an illegal action, else 0.
    """

    def __init__(self, heaps: tuple[int, ...], skill: float):
        """Takes the heaps at the start, and the share of the opponent's moves that are among the best."""
        self._start, self._skill, self._most = heaps, skill, max(heaps)
        self._heaps = list(heaps)
        num_actions = len(heaps) * self._most
        self.action_space = gymnasium.spaces.Discrete(num_actions)
        self.observation_space = gymnasium.spaces.Dict(
            heaps=gymnasium.spaces.MultiDiscrete(np.array(heaps) + 1), legal=gymnasium.spaces.MultiBinary(num_actions)
        )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict]:
        """See `gymnasium.Env`."""
        super().reset(seed=seed)
        self._heaps = list(self._start)
        return self._observation(), {'illegal': 0}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict]:
        """See `gymnasium.Env`. The opponent moves too, unless the game has ended."""
        if not self._legal()[action]:
            return self._observation(), -1.0, True, False, {'illegal': 1}
        reward = 0.0
        if not self._take(int(action)):
            reward = 1.0
        elif not self._take(self._reply()):
            reward = -1.0
        return self._observation(), reward, reward != 0, False, {'illegal': 0}

    def _take(self, action: int) -> bool:
        """Takes counters; returns whether any are left."""
        heap, number = divmod(action, self._most)
        self._heaps[heap] -= number + 1
        return any(self._heaps)

    def _reply(self) -> int:
        """Returns the opponent's action: one of the best, if there is one and its skill allows it,
        or any legal one.
        """
        legal = np.flatnonzero(self._legal()).tolist()
        if self.np_random.random() < self._skill:
            best = [action for action in legal if not nim_sum(self._after(action))]
            legal = best or legal
        return int(self.np_random.choice(legal))

    def _after(self, action: int) -> list[int]:
        heap, number = divmod(action, self._most)
        return [size - (number + 1) * (i == heap) for i, size in enumerate(self._heaps)]

    def _legal(self) -> np.ndarray:
        """Returns int8 [number of actions]."""
        numbers = np.arange(self._most)
        return np.concatenate([numbers < size for size in self._heaps]).astype(np.int8)

    def _observation(self) -> dict[str, np.ndarray]:
        return {'heaps': np.array(self._heaps, np.int64), 'legal': self._legal()}
