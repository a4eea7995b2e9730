"""Exported policies that play in a game: a league of earlier versions, drawn by scores,
and the newest one.
"""

import os
import pathlib
from collections.abc import Mapping
from typing import Any, NotRequired, TypedDict

import numpy as np
import tensorflow as tf

from tflearn.core.errors import UserFileNotFoundError, UserValueError
from tflearn.core.settings import Fraction, NonNegativeFloat, PositiveInt, checked
from tflearn.core.waiting import wait_until
from tflearn.files import digests, messages
from tflearn.files.lock import locked
from tflearn.files.run_dir import RunDir, local_path, read_json, write_json
from tflearn.policies import loader, updates, versions
from tflearn.policies.loaded_model import LoadedModel
from tflearn.policies.loader import LoadedPolicy
from tflearn.policies.policy_function import PolicyFunction

_MASK = 'action_mask'
_WAIT_SECS = 300.0  # for the first version
_GAMES = 20  # after which versions and scores are looked at again
# The weight of a game after one more against the same version: the agent changes.
_FORGETTING = 0.98


class League:
    """An opponent of `turn_game.make`: versions in a run directory,
    which it loads as an evaluation does.

    The table of scores is a file of that directory, `league.json`: for each version the number of
    games and the sum of the agent's scores in them, in which later games count more. All
    environments of the run add theirs.
    """

    @checked
    def __init__(
        self,
        run_dir: str | os.PathLike[str],
        policy: str = 'greedy_policy',
        num_versions: PositiveInt = 10,
        power: NonNegativeFloat = 2.0,
        random_moves: Fraction = 0.1,
        seed: int = 0,
    ):
        """Loads nothing yet.

        Args:
          run_dir: the directory of the run whose versions play: its own one, or another's.
          policy: the name of the exported policy, of those that `ExportOptions.policies` names and
            `keep_last` keeps.
          num_versions: how many versions play: the newest one, and others at equal distances before
            it.
          power: a version is drawn with a probability proportional to (1 - score)^power, as in
            Vinyals et al. 2019 ("Grandmaster level in StarCraft II", prioritized fictitious
            self-play); 0 draws all alike.
          random_moves: the share of random legal moves, without which two policies that act by the
            mode always play the same game.
          seed: of the draws.
        """
        self._run_dir = RunDir(local_path(run_dir, 'run_dir'))
        self._policy, self._num_versions, self._power = policy, num_versions, power
        self._random_moves, self._random = random_moves, np.random.default_rng(seed)
        self._loaded: dict[int, PolicyFunction] = {}  # those that have played in some game
        self._playing: list[int] = []
        self._scores: dict[str, list[float]] = {}
        self._new: list[tuple[int, float]] = []
        self._num_begun = 0

    def begin(self) -> int:
        """Draws the version that plays a new game."""
        if self._num_begun % _GAMES == 0:
            self._refresh()
        self._num_begun += 1
        weights = np.array([(1.0 - self._score(step)) ** self._power for step in self._playing])
        return int(self._random.choice(self._playing, p=weights / weights.sum()))

    def act(self, player: int, observation: Any) -> np.ndarray:
        """Returns the actions [B] of a version for a batch of observations,
        a nest of arrays [B, ...].
        """
        policy = self._loaded[player]
        policy.reset()
        actions = np.array(policy(observation))
        bounds = policy.metadata['specs']['action']
        for i in np.flatnonzero(self._random.random(len(actions)) < self._random_moves):
            legal = np.arange(bounds['maximum'] - bounds['minimum'] + 1)
            if isinstance(observation, Mapping) and _MASK in observation:
                legal = np.flatnonzero(observation[_MASK][i])
            actions[i] = bounds['minimum'] + self._random.choice(legal)
        return actions

    def end(self, player: int, score: float) -> None:
        """Adds the agent's score in a game against a version."""
        self._new.append((player, score))
        if len(self._new) >= _GAMES:
            self._share_scores()

    def _score(self, step: int) -> float:
        """Returns the agent's mean score against a version, below 1; 0.5 for one without games."""
        games, total = self._scores.get(str(step), (0.0, 0.0))
        return (total + 1.0) / (games + 2.0)

    def _refresh(self) -> None:
        """Chooses the versions that play, and loads those that are new."""
        directory = self._run_dir.policy(self._policy)
        found = wait_until(lambda: versions.versions(directory), f'a version in {directory}', _WAIT_SECS)
        chosen = {found[round(i)] for i in np.linspace(len(found) - 1, 0, min(len(found), self._num_versions))}
        for step in sorted(chosen - self._loaded.keys()):
            try:
                self._loaded[step] = _player(loader.load(directory / str(step)))
            except UserFileNotFoundError:  # it was pruned just then
                continue
        self._playing = sorted(chosen & self._loaded.keys())
        self._scores = self._read()

    def _read(self) -> dict[str, list[float]]:
        return (read_json(self._run_dir.league, _Scores) or {}).get('versions', {})

    def _share_scores(self) -> None:
        path = self._run_dir.league
        # Collectors of one machine or file system add theirs.
        with locked(path.with_name(f'.{path.name}.lock')):
            scores = self._read()
            for step, score in self._new:
                games, total = scores.get(str(step), (0.0, 0.0))
                scores[str(step)] = [_FORGETTING * games + 1.0, _FORGETTING * total + score]
            write_json(path, {'policy': self._policy, 'versions': scores})
        self._scores, self._new = scores, []


class _Scores(TypedDict):
    """`RunDir.league`: of each version the games, weighted by their age,
    and the sum of their scores.
    """

    versions: NotRequired[dict[str, tuple[NonNegativeFloat, NonNegativeFloat]]]


class Newest:
    """An opponent or partner whose run trains beside:
    the newest version of its policy, or update where it makes them.

    Each new game may get newer weights. `ExportOptions.update_interval_steps` of that run says how
    often there are some; they are loaded in a few milliseconds.
    """

    def __init__(self, run_dir: str | os.PathLike[str], policy: str = 'collect_policy'):
        """Loads nothing yet.

        Args:
          run_dir: the directory of its run.
          policy: the name of the exported policy; 'collect_policy' acts as its own collectors do.
        """
        self._directory = RunDir(local_path(run_dir, 'run_dir')).policy(policy)
        self._model: LoadedModel | None = None
        self._policy: PolicyFunction | None = None
        self._step = -1

    def begin(self) -> None:
        """Loads what is newer than the weights that play now."""
        if self._model is None:
            wait_until(lambda: versions.versions(self._directory), f'a version in {self._directory}', _WAIT_SECS)
        update = max(updates.steps(self._directory), default=-1)
        version = max(versions.versions(self._directory), default=-1)
        try:
            if self._model is not None and update not in (-1, self._step) and update >= version:
                path = updates.folder(self._directory) / str(update)
                with digests.checked(path) as copy:
                    self._take(self._model.with_weights(copy), path, update)
            elif self._model is None or (version > update and version != self._step):
                path = self._directory / str(version)
                self._take(loader.load_model(path)[0], path, version)
        except FileNotFoundError:  # it was pruned just then
            if self._model is None:
                self.begin()

    def act(self, player: None, observation: Any) -> np.ndarray:
        """Returns the actions [B] for a batch of observations, a nest of arrays [B, ...]."""
        assert self._policy is not None
        self._policy.reset()
        return np.array(self._policy(observation))

    def end(self, player: None, score: float) -> None:
        """See `turn_game.Opponent`."""

    def _take(self, model: LoadedModel, path: pathlib.Path, step: int) -> None:
        self._policy = _player(LoadedPolicy(path, model, read_json(path / versions.METADATA, messages.Metadata) or {}))
        self._model, self._step = model, step


def _player(loaded: LoadedPolicy) -> PolicyFunction:
    """Returns a policy without memory as a function."""
    if tf.nest.flatten(loaded.initial_state(1)):
        raise UserValueError(f'got the policy {loaded.path} with memory; need one without, to play in a game')
    return PolicyFunction(loaded, allow_nonfinite=True)
