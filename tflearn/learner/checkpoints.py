"""Checkpoints of everything that training needs to go on as if it had not stopped.

TensorFlow's own layout (`ckpt-<step>.index`, `.data-*`, `checkpoint`), so its tools read them. Two things are stricter:
a restore names whatever does not fit and touches nothing then, and a damaged newest checkpoint is passed over.
"""

import os
import pathlib
import tempfile
from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from absl import logging

from tflearn.run_dir import write_whole

_VALUE = '/.ATTRIBUTES/VARIABLE_VALUE'
_IGNORED = ('save_counter', '_CHECKPOINTABLE_OBJECT_GRAPH')


class Checkpoints:
    """Saves and restores named objects (agent, steps, versions, metrics), and keeps the newest few."""

    def __init__(self, directory: str | os.PathLike[str], objects: Mapping[str, Any], max_to_keep: int = 3):
        """Reads the directory; restores nothing yet.

        Args:
          directory: of the checkpoints; made with the first save.
          objects: trackable objects by the names that they have in the checkpoint.
          max_to_keep: checkpoints kept; at least 1.
        """
        if max_to_keep < 1:
            raise ValueError(f'got max_to_keep={max_to_keep}; need at least 1')
        self._checkpoint = tf.train.Checkpoint(**objects)
        _mend_state(pathlib.Path(directory))
        self._manager = tf.train.CheckpointManager(self._checkpoint, str(directory), max_to_keep=max_to_keep)
        self.directory = pathlib.Path(directory)

    @property
    def newest(self) -> str | None:
        """Path prefix of the newest checkpoint."""
        return self._manager.latest_checkpoint

    def save(self, step: int) -> str:
        """Saves all objects as `ckpt-<step>`; a reader sees the whole checkpoint or none.

        Args:
          step: the train step.

        Returns:
          The path prefix.
        """
        return self._manager.save(checkpoint_number=step)

    def restore_newest(self) -> str | None:
        """Restores the newest checkpoint that can be read; passes over damaged ones, with a warning.

        Returns:
          Its path prefix, or None when there is none.

        Raises:
          ValueError: if a readable checkpoint does not fit the objects; names what differs. Nothing is restored then.
        """
        damaged = []
        for path in reversed(self._manager.checkpoints):
            try:
                saved = _values(path)
                self._refuse_differences(path, saved)
                self._checkpoint.restore(path).assert_existing_objects_matched().expect_partial()
            except (tf.errors.OpError, IndexError) as error:
                logging.warning('passed over the damaged checkpoint %s: %s', path, str(error).splitlines()[0])
                damaged.append(path)
                continue
            return path
        if damaged:
            raise ValueError(
                f'got no readable checkpoint in {self.directory}, only {len(damaged)} damaged; need a whole one; '
                'restore the directory from a backup, or start another --root_dir'
            )
        return None

    def _refuse_differences(self, path: str, saved: dict[str, str]) -> None:
        with tempfile.TemporaryDirectory() as directory:
            wanted = _values(self._checkpoint.write(os.path.join(directory, 'objects')))
        found = [
            f'{name} is {saved.get(name, "absent")} in the checkpoint, {wanted.get(name, "absent")} here'
            # The optimizer's slots follow the networks, and are not what somebody has changed.
            for name in sorted(saved.keys() | wanted.keys(), key=lambda name: ('optimizer' in name, name))
            if saved.get(name) != wanted.get(name)
        ]
        if found:
            more = f' (and {len(found) - 3} more)' if len(found) > 3 else ''
            raise ValueError(
                f'got checkpoint {path} of another agent: {"; ".join(found[:3])}{more}; need the same networks and '
                'optimizers; take back the change, or start another --root_dir'
            )


def _mend_state(directory: pathlib.Path) -> None:
    """Rewrites the file `checkpoint`, by which TensorFlow finds the others, if it does not name the newest one."""
    found = sorted(directory.glob('ckpt-*.index'), key=lambda path: int(path.stem.rpartition('-')[2]))
    if not found:
        return
    names = [path.stem for path in found]
    state = directory / 'checkpoint'
    if state.exists() and f'"{names[-1]}"' in state.read_text(errors='replace'):
        return
    logging.warning('%s does not name the newest checkpoint: it is written anew', state)
    lines = [f'model_checkpoint_path: "{names[-1]}"']
    lines += [f'all_model_checkpoint_paths: "{name}"' for name in names]
    lines += [f'all_model_checkpoint_timestamps: {path.stat().st_mtime}' for path in found]
    write_whole(state, '\n'.join(lines) + '\n')


def _values(path: str) -> dict[str, str]:
    """Returns the dtype and shape of every value in a checkpoint, by name."""
    reader = tf.train.load_checkpoint(path)
    dtypes = reader.get_variable_to_dtype_map()
    return {
        name.removesuffix(_VALUE): f'{dtypes[name].name}{shape}'
        for name, shape in reader.get_variable_to_shape_map().items()
        if not name.startswith(_IGNORED)
    }
