"""Recommending items to users: thousands of actions, each with a known embedding,
of which a part are candidates.

A task like a recommender's: what a user thinks of an item is the product of the two vectors. Users
get bored: after an item, the part of their taste along it has shrunk. What is known of a user may
come to mean another taste: `drift`.
"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from tflearn.core.errors import UserValueError
from tflearn.core.settings import PositiveInt, checked
from tflearn.core.types import BatchedEnvironment
from tflearn.environments import vector_env

_BOREDOM = 0.3  # of the taste along a shown item


def embeddings(num_items: int = 2_000, num_factors: int = 16) -> np.ndarray:
    """Returns the items' vectors, of length 1, float32 [num_items, num_factors]:
    the same in all processes.

    Args:
      num_items: the number of items.
      num_factors: the numbers of each vector.
    """
    drawn = np.random.default_rng(0).normal(size=(num_items, num_factors))
    return (drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype(np.float32)


def turned(vectors: np.ndarray, drift: float) -> np.ndarray:
    """Returns vectors [..., even number] whose numbers are turned, two by two:
    what is known of users of this taste.

    Args:
      drift: the angle [radians]; 0 changes nothing, a quarter turn leaves nothing of what was
        learned before.
    """
    pairs = vectors.reshape(*vectors.shape[:-1], -1, 2)
    first, second = pairs[..., 0], pairs[..., 1]
    sine, cosine = np.sin(drift), np.cos(drift)
    return np.stack([cosine * first - sine * second, sine * first + cosine * second], axis=-1).reshape(vectors.shape)


class Recommender(gymnasium.Env):
    """A session: a user is shown one item after the other, none twice.

    Observation: a dict with `user`, the taste, float32 [num_factors]; `left`, the share of the
      session that is left,
    float32 [1]; `candidates`, 1 for each item that may be shown. Action: an item. Reward: taste
    times item, in [-1, 1], and normal noise of deviation 0.1. Info: `regret`, the highest reward
    without noise of any candidate less the shown one's.
    """

    def __init__(self, items: np.ndarray, num_candidates: int, session_steps: int, drift: float = 0.0):
        """Takes the items' vectors, how many are candidates in a session, its steps, and the drift;
        see `turned`.
        """
        self._items, self._num_candidates, self._session_steps = items, num_candidates, session_steps
        self._drift = drift
        num_items, num_factors = items.shape
        self.action_space = spaces.Discrete(num_items)
        self.observation_space = spaces.Dict(
            user=spaces.Box(-1.0, 1.0, (num_factors,), np.float32),
            left=spaces.Box(0.0, 1.0, (1,), np.float32),
            candidates=spaces.MultiBinary(num_items),
        )
        self._taste, self._num_steps = np.zeros(num_factors), 0
        self._candidates = np.zeros(num_items, np.int8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict, dict]:
        """Draws a user and the candidates."""
        super().reset(seed=seed)
        drawn = self.np_random.normal(size=self._taste.shape)
        self._taste, self._num_steps = drawn / np.linalg.norm(drawn), 0
        self._candidates = np.zeros(len(self._items), np.int8)
        self._candidates[self.np_random.choice(len(self._items), self._num_candidates, replace=False)] = 1
        return self._observation(), {}

    def step(self, action: int) -> tuple[dict, float, bool, bool, dict]:
        """Shows an item.

        Raises:
          ValueError: if it is no candidate.
        """
        if not self._candidates[action]:
            raise UserValueError(f'got the item {action}; need a candidate; name the mask: action_mask = "candidates"')
        rewards = self._items @ self._taste
        reward, best = float(rewards[action]), float(rewards[self._candidates > 0].max())
        self._candidates = self._candidates.copy()
        self._candidates[action] = 0
        self._taste = self._taste - _BOREDOM * reward * self._items[action]
        self._num_steps += 1
        noise = 0.1 * self.np_random.normal()
        ends = self._num_steps == self._session_steps
        return self._observation(), reward + noise, ends, False, {'regret': best - reward}

    def _observation(self) -> dict[str, np.ndarray]:
        user = turned(self._taste, self._drift) if self._drift else self._taste
        left = np.array([1 - self._num_steps / self._session_steps], np.float32)
        return {'user': user.astype(np.float32), 'left': left, 'candidates': self._candidates}


@checked
def make(
    num_environments: PositiveInt,
    seed: int | None,
    num_items: int = 2_000,
    num_factors: PositiveInt = 16,
    num_candidates: int = 500,
    session_steps: PositiveInt = 5,
    drift: float = 0.0,
) -> BatchedEnvironment:
    """Makes a batch of recommenders of the same items.

    Args:
      num_items: the number of items, which are the actions.
      num_factors: the numbers of an item's and of a user's vector.
      num_candidates: the items that may be shown in a session.
      session_steps: the items that are shown in a session [steps].
      drift: the angle of `turned` [radians], for an even `num_factors`.

    Raises:
      ValueError: if a number is below 1, or there are fewer items than candidates, or fewer of
        these than steps.
    """
    if not session_steps <= num_candidates <= num_items:
        raise UserValueError(
            f'got session_steps={session_steps}, num_candidates={num_candidates}, num_items={num_items}; need at least '
            'as many items as candidates, and as many candidates as steps'
        )
    items = embeddings(num_items, num_factors)
    return vector_env.in_process(
        lambda: Recommender(items, num_candidates, session_steps, drift), num_environments, seed
    )
