"""Checkpoints by the names that TF-Agents' `common.Checkpointer` gives to things, over `Checkpoints`.

The layout is TF-Agents' too: its checkpoints can be restored here, and those saved here by it.
"""

import dataclasses
import sys
from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from absl import logging

from tflearn.checkpoints.checkpoints import Checkpoints
from tflearn.checkpoints.files import CheckpointFiles
from tflearn.run_dir import RunDir


@dataclasses.dataclass(frozen=True)
class Manager:
    """What there is, as `tf.train.CheckpointManager` says it.

    Attributes:
      directory: of the checkpoints.
      checkpoints: path prefixes, the oldest first.
    """

    directory: str
    checkpoints: list[str]

    @property
    def latest_checkpoint(self) -> str | None:
        """Path prefix of the newest."""
        return self.checkpoints[-1] if self.checkpoints else None


class Checkpointer:
    """Saves and restores named objects."""

    def __init__(self, run_dir: RunDir, objects: Mapping[str, Any], max_to_keep: int | None):
        """Reads and writes nothing yet.

        Args:
          run_dir: where the checkpoints are.
          objects: trackable objects by the names that they have in the checkpoint.
          max_to_keep: newest checkpoints that are kept; None keeps all.
        """
        keep = sys.maxsize if max_to_keep is None else max_to_keep
        self._objects = objects
        self._files = CheckpointFiles(run_dir.checkpoints, keep, None)
        self._checkpoints = Checkpoints(run_dir.checkpoints, objects, keep)

    @property
    def manager(self) -> Manager:
        """What is in the directory now."""
        return Manager(str(self._files.directory), [self._files.path(step) for step in self._files.steps()])

    @property
    def checkpoint_exists(self) -> bool:
        """Says whether there is any checkpoint."""
        return bool(self._files.steps())

    @property
    def saved_step(self) -> int | None:
        """Train step of what was last restored or saved."""
        return self._checkpoints.saved_step

    def save(self, global_step: Any) -> None:
        """Saves a checkpoint, whole or not at all; returns when it is written.

        Args:
          global_step: train step that it is named after.
        """
        self._checkpoints.save(int(tf.convert_to_tensor(global_step)))

    def restore(self, all_made: bool) -> bool:
        """Restores the newest checkpoint, if there is one.

        Args:
          all_made: whether the objects have all their variables. Else values wait for variables that are made later,
            and nothing can tell whether the checkpoint fits.

        Returns:
          Whether there was one.

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
