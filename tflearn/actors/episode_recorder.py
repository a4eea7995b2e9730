"""EpisodeRecorder: hands each finished episode, with its data, to a function of the user."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.trajectories import time_step as ts

from tflearn.actors.episode_metrics import EpisodeMetrics
from tflearn.core.errors import UserTypeError
from tflearn.core.resumable import Resumable

_FIRST = int(ts.StepType.FIRST)


@dataclasses.dataclass(frozen=True)
class CollectedEpisode:
    """An episode of L steps.

    Attributes:
      collector: the collector's name.
      environment: the index of its environment.
      observation: nest of arrays [L + 1, ...]: with the last one.
      action: nest of arrays [L, ...], as they were executed.
      reward: float32 [L].
      terminated: whether it ended by itself, and not by a time limit.
      policy_info: nest of arrays [L, ...], such as log-probabilities.
      metrics: 'return', 'length', 'info/<key>', ...; see `episode_metrics.EpisodeMetrics`.
    """

    collector: str
    environment: int
    observation: Any
    action: Any
    reward: np.ndarray
    terminated: bool
    policy_info: Any
    metrics: Mapping[str, float]


# Returns numbers that become metrics of the episode, or None.
OnEpisode = Callable[[CollectedEpisode], Mapping[str, float] | None]


class EpisodeRecorder(Resumable):
    """Observer, after `EpisodeMetrics`, that keeps the steps [B] of each environment's current episode."""

    _KEPT = ('_rows',)

    def __init__(
        self,
        metrics: EpisodeMetrics,
        num_environments: int,
        collector: str,
        on_episode: OnEpisode,
        next_time_step: Callable[[], ts.TimeStep],
    ):
        """Keeps nothing yet.

        Args:
          metrics: the metrics of the same environments' episodes, which get what `on_episode`
            returns.
          num_environments: B.
          collector: the collector's name.
          on_episode: called with each episode that ends.
          next_time_step: returns the time step after the newest row.
        """
        self._metrics, self._collector, self._on_episode = metrics, collector, on_episode
        self._next_time_step = next_time_step
        self._rows: list[list[Any]] = [[] for _ in range(num_environments)]

    def __call__(self, row: Any) -> None:
        """Adds one step of every environment.

        Raises:
          UserTypeError: if the function returned anything else than numbers by name.
        """
        for i, begins in enumerate((row.step_type == _FIRST).tolist()):
            if begins:
                self._rows[i] = []
            self._rows[i].append(row)
        for i, metrics in self._metrics.ended.items():
            metrics.update(self._finish(i, metrics))

    def _finish(self, i: int, metrics: Mapping[str, float]) -> dict[str, float]:
        """Calls the function with the episode of environment i that the newest row ends.
        Returns its metrics.
        """
        rows, self._rows[i] = self._rows[i], []
        last = self._next_time_step()
        stack = lambda *leaves: np.stack([leaf[i] for leaf in leaves])  # noqa: E731
        episode = CollectedEpisode(
            self._collector,
            i,
            tf.nest.map_structure(stack, *(row.observation for row in rows), last.observation),
            tf.nest.map_structure(stack, *(row.action for row in rows)),
            stack(*(row.reward for row in rows)),
            not bool(last.discount[i]),
            tf.nest.map_structure(stack, *(row.policy_info for row in rows)),
            dict(metrics),
        )
        returned = self._on_episode(episode)
        try:
            return {f'custom/{name}': float(value) for name, value in (returned or {}).items()}
        except (AttributeError, TypeError, ValueError) as error:
            raise UserTypeError(
                f'got {returned!r} from on_episode; need numbers by name, such as {{"detour": 0.5}}, or None'
            ) from error
