"""Collectors: environment steps of a session, by other processes or by this one;
none if its data are in files.
"""

import json
import pickle
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf
from absl import logging

from tflearn.core import side_tasks
from tflearn.core.resumable import Resumable
from tflearn.files.manifests import Manifests
from tflearn.jobs.collection import Collection
from tflearn.sampling.source import Source


class Progress(tf.train.experimental.PythonState):
    """The run's counts over all sessions; they belong in the checkpoint.

    Attributes:
      policy_version: the newest version of the weights that act; -1 in a checkpoint that does not
        have it.
      secs: the time of collecting and training [seconds]. In a session's first call, which
        compiles, only waiting for data counts.
      env_steps: environment steps that this process took.
      episodes: episodes that it finished.
    """

    def __init__(self) -> None:
        self.policy_version = self.env_steps = self.episodes = 0
        self.secs = 0.0

    def serialize(self) -> str:
        """Returns the state as JSON."""
        names = ('policy_version', 'secs', 'env_steps', 'episodes')
        return json.dumps({name: getattr(self, name) for name in names})

    def deserialize(self, string_value: str) -> None:
        """Restores the state of a checkpoint."""
        saved = json.loads(string_value)
        self.policy_version, self.secs = saved.get('policy_version', -1), saved['secs']
        self.env_steps, self.episodes = saved.get('env_steps', 0), saved.get('episodes', 0)


def used_up_reason(max_env_steps: int | None) -> str:
    """Returns why training ends when no more steps are collected,
    and all that may be done with them is done.
    """
    return f'CollectOptions.max_env_steps {max_env_steps} reached, and the data are used up'


class Collectors:
    """Nobody takes environment steps; subclasses are those who do.

    Attributes:
      progress: the run's counts, which belong in the checkpoint.
      are_remote: whether they act in other processes, so that the session polls them, and waits for
        no export.
      publish_interval_steps: train steps between two versions of the weights that act.
      manifests: see `Checkpoints`.
    """

    are_remote = False
    publish_interval_steps = 1
    manifests: Manifests | None = None

    def __init__(self) -> None:
        self.progress = Progress()

    @property
    def env_steps(self) -> int:
        """The run's environment steps."""
        return self.progress.env_steps

    @property
    def mean_return(self) -> float | None:
        """The mean return of the newest episodes; None before the first has ended."""
        return None

    def state(self) -> Mapping[str, Any]:
        """Returns what belongs in the checkpoint, by name."""
        return {'in_step': self.progress}

    def newest_version(self) -> int:
        """Returns the newest version of the weights that was ever published,
        as far as it is known.
        """
        return 0

    def facts(self) -> Mapping[str, Any]:
        """Returns what the metadata of an exported policy say of the data."""
        return {'env_steps': self.env_steps, 'mean_return': self.mean_return}

    def begin(self, step: int) -> None:
        """Begins, once the checkpoint of this train step was restored."""

    def collect(self, step: int) -> None:
        """Takes the environment steps of a cycle of the session, with the newest weights."""

    def due_steps(self, source: Source) -> int:
        """Returns the train steps of a cycle of the session; 0 if it should collect more before."""
        return source.owed_steps

    def publish(self, step: int, pretrains: bool, finished: bool) -> None:
        """Makes them act with the weights now, of `progress.policy_version`.

        Args:
          step: the train step.
          pretrains: whether they should wait, since training is on demonstrations alone.
          finished: whether training has ended.
        """

    def poll(self) -> None:
        """Receives their reports, on a thread of the session;
        raises PeerLost if they will never come.
        """

    def end_reason(self, used_up: bool) -> str | None:
        """Returns why training is over, besides the stop conditions; None while it goes on.

        Args:
          used_up: whether the learner waits for data.
        """
        del used_up
        return None

    def metrics(self) -> dict[str, Any]:
        """Returns their metrics, in this process those that do not depend on the clock."""
        return {}

    def rates(self) -> dict[str, Any]:
        """Returns those that do, if `metrics` lacks them."""
        return {}

    def close(self) -> None:
        """Stops them: those of this process at once, others from waiting for it."""

    def end(self, finished: bool) -> None:
        """Sends what is still to be sent; `finished` is whether training has ended."""


class ProcessState(tf.train.experimental.PythonState):
    """The content of a process's environments and of its replay,
    with which a run that is resumed goes on.

    Attributes:
      is_restored: whether a checkpoint had it.
    """

    def __init__(self, parts: Mapping[str, Resumable], fits: str):
        """
        Args:
          parts: what is saved and restored, in this order.
          fits: a text of the settings with which the content can be taken over.
        """
        self._parts, self._fits, self.is_restored = dict(parts), fits, False

    def serialize(self) -> bytes:
        """Returns the content, pickled."""
        return pickle.dumps((self._fits, {name: part.content() for name, part in self._parts.items()}))

    def deserialize(self, string_value: bytes) -> None:
        """Restores the content of a checkpoint, if it is one of the same settings and parts."""
        fits, contents = pickle.loads(string_value)
        if fits == self._fits and contents.keys() == self._parts.keys():
            for name, part in self._parts.items():
                part.set_content(contents[name])
            self.is_restored = True


class OwnCollectors(Collectors):
    """Environments in this process: a batched step in each cycle."""

    def __init__(
        self,
        collection: Collection,
        write: Any,
        kept: Mapping[str, Resumable],
        close: Callable[[], None],
        fits: str = '',
        max_env_steps: int | None = None,
    ):
        """
        Args:
          collection: takes the steps.
          write: a `LocalQueue` or `LocalReplay`: stores a step of every environment, with the
            version of the policy that took it.
          kept: what belongs in the checkpoint besides, since `write` fills it.
          close: closes the environments.
          fits: see `ProcessState`.
          max_env_steps: the run's environment steps after which no more are taken; None is no
            limit.
        """
        super().__init__()
        self._max_env_steps, self._is_used_up = max_env_steps, False
        collection.identify_environment()
        self._collection, self._write, self._close = collection, write, close
        self._earlier = {'env_steps': 0, 'episodes': 0}
        self._state = ProcessState({'collection': collection, **kept}, fits)

    def state(self) -> Mapping[str, Any]:
        """See `Collectors`."""
        return {**super().state(), 'in_process': self._state}

    @property
    def mean_return(self) -> float | None:
        """See `Collectors`."""
        return self._collection.metrics.mean_return

    def begin(self, step: int) -> None:
        """See `Collectors`."""
        metrics = self._collection.metrics  # with the steps before, if they are in the checkpoint
        self._earlier = {name: getattr(self.progress, name) - getattr(metrics, name) for name in self._earlier}
        if step and not self._state.is_restored:
            logging.info('the checkpoint has no replay for these settings: it is filled before training continues')
        elif self._state.is_restored and not self._collection.continues_episodes:
            self._write.begin_with_next()

    @property
    def _has_ended(self) -> bool:
        return self._max_env_steps is not None and self.progress.env_steps >= self._max_env_steps

    def due_steps(self, source: Source) -> int:
        """See `Collectors`; what the steps that were taken allow."""
        if self._has_ended:
            source.end_collection()
        owed = source.owed_steps
        self._is_used_up = self._has_ended and not owed
        return owed

    def end_reason(self, used_up: bool) -> str | None:
        """See `Collectors`."""
        del used_up  # it does not wait
        return used_up_reason(self._max_env_steps) if self._is_used_up else None

    def collect(self, step: int) -> None:
        """See `Collectors`."""
        if self._has_ended:
            return
        self._collection.run(
            1, lambda row: self._write(row, self.progress.policy_version), self.progress.env_steps, step
        )
        metrics = self._collection.metrics
        self.progress.env_steps = self._earlier['env_steps'] + metrics.env_steps
        self.progress.episodes = self._earlier['episodes'] + metrics.episodes

    def metrics(self) -> dict[str, Any]:
        """See `Collectors`."""
        return {
            'env_steps': self.progress.env_steps,
            'episodes': self.progress.episodes,
            'dropped_episodes': self._collection.metrics.dropped_episodes,
            **self._collection.failures,
            **self._collection.metrics.means(),
        }

    def close(self) -> None:
        """Closes the environments: a robot stops before the last checkpoint, which may take long, is saved."""
        with side_tasks.guarded('close the environments'):
            self._collection.keep_environment()
            self._close()

    def rates(self) -> dict[str, Any]:
        """See `Collectors`."""
        return {'env_steps_per_sec': self._collection.metrics.env_steps_per_sec, **self._collection.secs}
