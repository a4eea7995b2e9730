"""MinAtar: five games like Atari's, on a grid of 10 x 10 (extra `minatar`).

Young and Tian 2019, "MinAtar: An Atari-Inspired Testbed for Thorough and Reproducible Reinforcement
Learning Experiments", arXiv:1903.03176.
"""

import functools
from typing import Annotated, Any

import gymnasium
import numpy as np

from tflearn.core.settings import PositiveInt, Range, checked
from tflearn.core.types import BatchedEnvironment
from tflearn.environments import registry, vector_env

GAMES = ('asterix', 'breakout', 'freeway', 'seaquest', 'space_invaders')
SIZE = 10


@checked
def make(
    game: str,
    num_environments: PositiveInt,
    seed: int | None,
    repeat_action_probability: Annotated[float, Range(least=0, below=1)] = 0.1,
    difficulty_ramping: bool = True,
) -> BatchedEnvironment:
    """Makes a batch of a MinAtar game, with the game's own action set.
    The defaults are the paper's.

    Args:
      game: one of 'asterix', 'breakout', 'freeway', 'seaquest' and 'space_invaders'.
      num_environments: the number of games, which are stepped one after the other.
      seed: game i is seeded with seed + i; None draws the seeds.
      repeat_action_probability: the probability that a step repeats the previous action ("sticky
        actions").
      difficulty_ramping: whether a game becomes harder while it goes on.

    Returns:
      The batch; see `BatchedEnvironment`. Close it when done. Observations are uint8 [B, 10, 10,
      channels], 255 where the channel's object is and 0 elsewhere: networks see 1 and 0.

    Raises:
      ValueError: for an unknown game, if MinAtar is not installed, or for invalid arguments.
    """
    with registry.needed(game):
        import minatar
    if game not in GAMES:
        raise registry.unknown('game', game, GAMES, "one of MinAtar's")
    make_game = functools.partial(
        minatar.Environment, game, sticky_action_prob=repeat_action_probability, difficulty_ramping=difficulty_ramping
    )
    return vector_env.in_process(lambda: _MinAtar(make_game), num_environments, seed)


class _MinAtar(gymnasium.Env):
    """A game. MinAtar's own class for gymnasium has the channels as booleans,
    which no network here takes.
    """

    def __init__(self, make_game: Any):
        self._game = make_game()
        self._actions = self._game.minimal_action_set()
        self.action_space = gymnasium.spaces.Discrete(len(self._actions))
        channels = self._game.state_shape()[-1]
        self.observation_space = gymnasium.spaces.Box(0, 255, (SIZE, SIZE, channels), np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict]:
        """See `gymnasium.Env`."""
        super().reset(seed=seed)
        if seed is not None:
            self._game.seed(seed)
        self._game.reset()
        return self._observation(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict]:
        """See `gymnasium.Env`. Games have no time limit but their own."""
        reward, is_over = self._game.act(self._actions[int(action)])
        return self._observation(), float(reward), bool(is_over), False, {}

    def _observation(self) -> np.ndarray:
        return self._game.state().astype(np.uint8) * np.uint8(255)
