"""Columns that no file needs to hold, since they follow from an episode's rewards."""

from collections.abc import Callable, Mapping

import numpy as np
from tf_agents.trajectories import time_step as ts

from tflearn.data.columns import Column


def _episode_return(rewards: np.ndarray) -> np.ndarray:
    """Returns the sum of all rewards [T], for each step."""
    return np.full(len(rewards), rewards.sum())


def _return_to_go(rewards: np.ndarray) -> np.ndarray:
    """Returns the sum of the rewards [T] from each step on."""
    return np.cumsum(rewards[::-1])[::-1]


_FUNCTIONS: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    'policy_info.episode_return': _episode_return,
    'policy_info.return_to_go': _return_to_go,
}
# As agents ask for them (`bc.EPISODE_WEIGHTS`).
COLUMNS = tuple(Column(name, 'float32', ()) for name in _FUNCTIONS)


def compute(column: Column, episode: Mapping[Column, np.ndarray]) -> np.ndarray:
    """Returns the values [T] of one of `COLUMNS`.

    Args:
      column: which one.
      episode: the values [T, ...] of the columns that a file holds; if it has several rewards, they are added.
    """
    named = {stored.name: values for stored, values in episode.items()}
    step_type = named['step_type']
    rewards = [values for name, values in named.items() if name.partition('.')[0] == 'reward']
    total = sum(reward.astype(np.float64).reshape(len(step_type), -1).sum(axis=1) for reward in rewards)
    # After the last action there is no reward.
    return _FUNCTIONS[column.name](np.where(step_type == ts.StepType.LAST, 0.0, total)).astype(column.dtype)
