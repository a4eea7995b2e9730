"""Atari 2600 games with the standard preprocessing (extra `atari`).

Machado et al. 2018, "Revisiting the Arcade Learning Environment", arXiv:1709.06009; Mnih et al.
2015, "Human-level control through deep reinforcement learning", Nature 518. A step repeats one
action for 4 frames; the pixel-wise maximum of the last two, in grey, is resized to 84x84; an
observation stacks the last 4 of these. ALE does all of it in C++, one thread per game.
"""

import functools
from typing import Annotated, Any

import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv

from tflearn.core.settings import NonNegativeInt, PositiveInt, Range, checked
from tflearn.core.types import BatchedEnvironment
from tflearn.environments import registry, vector_env, wrappers

FRAMES_PER_STEP = 4


@checked
def make(
    game: str,
    num_environments: PositiveInt,
    seed: int | None,
    repeat_action_probability: Annotated[float, Range(least=0, below=1)] = 0.25,
    max_noops: NonNegativeInt = 0,
    clip_rewards: bool = True,
    end_with_life: bool = False,
    max_episode_steps: PositiveInt = 27_000,
) -> BatchedEnvironment:
    """Makes a batch of an Atari game.

    The defaults are Machado et al.'s, except for 4 frames per step and the game's own action set.
    Mnih et al. used repeat_action_probability 0, max_noops 30 and end_with_life True.

    Args:
      game: ALE's name of the game, such as 'pong' or 'ms_pacman'.
      num_environments: the number of games, which are stepped together.
      seed: game i is seeded with seed + i; None draws the seeds.
      repeat_action_probability: the probability that a frame repeats the previous action ("sticky
        actions").
      max_noops: the largest number of frames without action at the start of an episode.
      clip_rewards: whether to clip rewards to [-1, 1]; evaluate with the true ones.
      end_with_life: whether to terminate an episode when a life is lost; the next episode continues
        the game, see `wrappers.EpisodicLife`. An evaluation should play complete games:
        `evaluate.evaluate.make_environment = @evaluation/atari.make` and
        `evaluation/atari.make.end_with_life = False`.
      max_episode_steps: the number of steps, of 4 frames each, after which a game is truncated; the
        default is half an hour of play.

    Returns:
      The batch; see `BatchedEnvironment`. Close it when done. Observations are uint8 [B, 84, 84,
      4], oldest frame first; `info` has 'lives'.

    Raises:
      ValueError: for an unknown game, if ALE is not installed, or for invalid arguments.
    """
    with registry.needed(game):
        from ale_py import roms
        from ale_py.vector_env import AtariVectorEnv
    if game not in (known := roms.get_all_rom_ids()):
        raise registry.unknown('game', game, known, "one of ALE's")
    make_games = functools.partial(
        AtariVectorEnv,
        game,
        num_environments,
        frameskip=FRAMES_PER_STEP,
        repeat_action_probability=repeat_action_probability,
        noop_max=max_noops,
        reward_clipping=clip_rewards,
        episodic_life=False,  # ALE's own resets the game
        use_fire_reset=False,
        max_num_frames_per_episode=max_episode_steps * FRAMES_PER_STEP,
    )
    games = vector_env.native(lambda: _channels_last(make_games()), seed)
    if end_with_life:
        return wrappers.EpisodicLife(games)
    return games


def _channels_last(games: VectorEnv) -> VectorEnv:
    """Returns the environments with the frames as the last dimension of observations;
    ALE has them first.
    """
    shape = games.single_observation_space.shape or ()

    def last(observation: Any) -> np.ndarray:
        return np.moveaxis(observation, 1, -1)

    return gymnasium.wrappers.vector.TransformObservation(
        games,
        last,
        single_observation_space=gymnasium.spaces.Box(0, 255, (*shape[1:], shape[0]), np.uint8),
    )
