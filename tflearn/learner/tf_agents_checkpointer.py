"""`Checkpoints` with the interface of TF-Agents' `common.Checkpointer`.

The layout is also TF-Agents': its checkpoints can be restored here, and the other way round.
"""

import dataclasses
import sys
from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from absl import logging

from tflearn.files.numbered import CheckpointFiles
from tflearn.files.run_dir import RunDir
from tflearn.learner.checkpoints import Checkpoints


@dataclasses.dataclass(frozen=True)
class Manager:
    """The checkpoints there are, path prefixes from the oldest, like a `tf.train.CheckpointManager`."""

    directory: str
    checkpoints: list[str]

    @property
    def latest_checkpoint(self) -> str | None:
        """Path prefix of the newest checkpoint; None if there is none."""
        return self.checkpoints[-1] if self.checkpoints else None


class Checkpointer:
    """Saves and restores named objects."""

    def __init__(self, run_dir: RunDir, objects: Mapping[str, Any], max_to_keep: int | None):
        """Reads and writes nothing yet.

        Args:
          objects: trackable objects by the names that they have in the checkpoint.
          max_to_keep: number of newest checkpoints that are kept; None keeps all.
        """
        keep = sys.maxsize if max_to_keep is None else max_to_keep
        self._objects = objects
        self._files = CheckpointFiles(run_dir.checkpoints, keep)
        self._checkpoints = Checkpoints(run_dir.checkpoints, objects, keep)

    @property
    def manager(self) -> Manager:
        """The checkpoints in the directory now."""
        return Manager(str(self._files.directory), [self._files.prefix(step) for step in self._files.numbers()])

    @property
    def checkpoint_exists(self) -> bool:
        """Whether there is a checkpoint in the directory now."""
        return bool(self.manager.checkpoints)

    @property
    def saved_step(self) -> int | None:
        """Train step of the last checkpoint restored or saved."""
        return self._checkpoints.saved_step

    def save(self, global_step: Any) -> None:
        """Saves a checkpoint atomically; returns when it is written."""
        self._checkpoints.save(int(tf.convert_to_tensor(global_step)))

    def restore(self, all_made: bool) -> bool:
        """Restores the newest checkpoint, if there is one; returns whether there was.

        Args:
          all_made: whether the objects have all their variables. If not, values wait for variables that are made later,
            and the checkpoint cannot be checked.

        Raises:
          ValueError: if it does not fit.
        """
        if all_made:
            return self._checkpoints.restore_newest() is not None
        newest = self.manager.latest_checkpoint
        if newest:
            logging.warning('restoring %s without a check whether it fits', newest)
            tf.train.Checkpoint(**self._objects).read(newest).expect_partial()
        return newest is not None
