"""Checkpoints of everything that training needs to continue as if it had not stopped,
the random state included.

They have TensorFlow's own layout (`ckpt-<step>.index`, `.data-*`, `checkpoint`), so its tools read
them. Four things are stricter: a restore names what does not fit, and then changes nothing; a
damaged newest checkpoint is skipped; an asynchronous save holds the values of one moment; weights
that are not finite are not saved, so that the previous checkpoint stays the newest.
"""

import contextlib
import json
import os
import random
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from tflearn.core import strategies
from tflearn.core.background import Background
from tflearn.core.errors import UserOSError, UserValueError, first_few
from tflearn.core.finite import finite_check
from tflearn.files.manifests import Manifests
from tflearn.files.numbered import CheckpointFiles, KeepEvery
from tflearn.files.run_dir import RunDir
from tflearn.learner.snapshots import CheckpointLayout, Snapshot, describe

_TIMEOUT_SECS = 600.0
_SCHEDULE = tf.keras.optimizers.schedules.LearningRateSchedule
# Legacy ones have all in variables.
_NAMES = ('learning_rate', 'momentum', 'rho', 'beta_1', 'beta_2', 'decay')
_KINDS = (tf.keras.optimizers.Optimizer, tf.keras.optimizers.legacy.Optimizer)


class Checkpoints:
    """Saves and restores named objects (agent, train step, policy version, ...),
    and keeps the newest few.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        objects: Mapping[str, Any],
        max_to_keep: int = 3,
        *,
        keep_every: KeepEvery = KeepEvery(),
        optional: Collection[str] = (),
        finite: Collection[str] = (),
        asynchronous: bool = False,
        manifests: Manifests | None = None,
    ):
        """Reads and writes nothing yet.

        Args:
          directory: the directory of the checkpoints; created with the first save. Only one process
            may write there.
          objects: trackable objects by the names that they have in the checkpoint.
          max_to_keep: number of newest checkpoints that are kept; at least 1.
          keep_every: which ones are never deleted, besides.
          optional: names of objects that only the checkpoint or only this process may have; they
            keep their values.
          finite: names of objects that are saved only while their variables are finite.
          asynchronous: `save` returns when it has a snapshot, and a background thread writes the
            files.
          manifests: which checkpoints belong together with those of other jobs; None: there are no
            others.
        """
        self._objects, self._optional, self._asynchronous = dict(objects), frozenset(optional), asynchronous
        self._finite, self._check_finite = frozenset(finite), finite_check({})
        self._checkpoint = tf.train.Checkpoint(**objects)
        # Reading creates it; TensorFlow's own restore needs it.
        self._checkpoint.save_counter.assign(0)
        self._manifests = manifests
        self.after_write: Callable[[], object] = lambda: (
            None
        )  # called when a checkpoint is written, before its manifest
        self._files = CheckpointFiles(directory, max_to_keep, keep_every, self._needed)
        self._background = Background('checkpoint_writer')
        self._layout: CheckpointLayout | None = None
        self.refusal: FloatingPointError | None = None  # why the newest save refused its values
        self.num_failed = 0  # saves in a row that could not be written
        self._step: int | None = None
        self.directory = self._files.directory

    @property
    def newest(self) -> str | None:
        """Path prefix of the newest checkpoint in the directory; None if there is none."""
        step = self._files.newest
        return None if step is None else self._files.prefix(step)

    @property
    def saved_step(self) -> int | None:
        """Train step of the last checkpoint restored, saved or being saved;
        None after a save that failed.
        """
        return None if self._background.failed else self._step

    def save(self, step: int) -> str:
        """Saves all objects as `ckpt-<step>`, atomically; returns the path prefix.

        While one checkpoint is being written another one may wait; a third replaces the one that
        waits.

        Raises:
          OSError: if it could not be written.
          FloatingPointError: if objects that must be finite are not.
          If saves are asynchronous, `wait` raises these errors, unless a later save succeeds.
        """
        layout = self._current_layout()
        snapshot = layout.snapshot()
        # Snapshots hold variables and Python states only: TensorFlow saves other objects, while we
        # wait.
        save = self._checkpoint.write if layout.unmapped else snapshot.write
        self._step = step
        self._background.submit(lambda: self._write(step, snapshot, save))
        if not self._asynchronous:
            self.wait()
        elif layout.unmapped:
            self._background.join(_TIMEOUT_SECS)
        return self._files.prefix(step)

    def wait(self, timeout_secs: float = _TIMEOUT_SECS) -> None:
        """Waits until everything is written and the background thread has ended.

        Raises:
          OSError, FloatingPointError: if the newest save failed.
          TimeoutError: if it takes longer.
        """
        self._background.join(timeout_secs)
        self._step = self.saved_step
        self._background.raise_failure()

    def restore_newest(self) -> str | None:
        """Restores the newest checkpoint that can be read; returns its path prefix.
        Skips damaged ones, with a warning.

        Those that manifests name come first, in their order. Checkpoints of later train steps than
        the one that a manifest names are moved to the directory `unused`. The objects must have all
        their variables.

        Raises:
          ValueError: if a readable checkpoint does not fit the objects; names what differs. Then
            nothing is restored.
        """
        self.wait()
        self._current_layout()  # now, so that the first save need not wait for it
        steps, start = self._files.numbers(), time.monotonic()
        named = [_step(name) for name in self._manifests.own()] if self._manifests else []
        for step in dict.fromkeys([*named, *reversed(steps)]):
            path = self._files.prefix(step)
            try:
                self._restore(path)
            except (tf.errors.OpError, IndexError) as error:
                logging.warning('skipped the damaged checkpoint %s: %s', path, _first_line(error))
                self._files.damaged.add(step)
                continue
            self._step = step
            if step in named:
                self._set_aside(step)
            self._add_manifest(step)
            logging.info('restored %s in %.1f s', path, time.monotonic() - start)
            return path
        if steps:
            raise UserValueError(
                f'got no readable checkpoint in {self.directory}, only {len(steps)} damaged; need a complete one; '
                'restore the directory from a backup, or start another --root_dir'
            )
        self._add_manifest(None)
        return None

    def _needed(self) -> set[int]:
        return set(map(_step, self._manifests.named())) if self._manifests else set()

    def _add_manifest(self, step: int | None) -> None:
        if self._manifests:
            name, files = (None, []) if step is None else (f'ckpt-{step}', self._files.files(step))
            self._manifests.add(name, files)

    def _set_aside(self, restored: int) -> None:
        """Moves newer checkpoints away: the replay that belongs to them is lost,
        or their writer had lost its lock.
        """
        for step in self._files.numbers():
            if step > restored and step not in self._files.damaged:
                logging.warning('moved %s to unused/: it is not of the restored pair', self._files.prefix(step))
                self._files.set_aside(step)

    def _current_layout(self) -> CheckpointLayout:
        if self._layout is None or self._layout.stale():
            first, self._layout = self._layout is None, CheckpointLayout(self._checkpoint)
            if first and self._finite:
                self._check_finite = finite_check(self._layout.snapshot().of(self._finite))
            if self._asynchronous and self._layout.unmapped:
                logging.warning('training waits for its checkpoints: no snapshot of %s', self._layout.unmapped)
        return self._layout

    def _write(self, step: int, snapshot: Snapshot, save: Any) -> None:
        self._refuse_not_finite(step, snapshot)
        try:
            self._files.write(step, save)
            self.after_write()
            self._add_manifest(step)
            self.num_failed = 0
        except (OSError, tf.errors.OpError) as error:
            path = self._files.prefix(step)
            self.num_failed += 1
            raise UserOSError(
                f'could not save {path} ({_first_line(error)}); the next save tries again; make room'
            ) from error

    def _refuse_not_finite(self, step: int, snapshot: Snapshot) -> None:
        self.refusal = None
        try:
            self._check_finite(snapshot.of(self._finite), f'variables at train step {step}')
        except FloatingPointError as error:
            newest = self.newest or 'none'
            self.refusal = FloatingPointError(f'{error}; they were not saved: the newest checkpoint is {newest}')
            raise self.refusal from error

    def _restore(self, path: str) -> None:
        absent = self._refuse_differences(path, describe(tf.train.load_checkpoint(path)))
        if absent:
            logging.info('%s has no %s: their present values are kept', path, ', '.join(sorted(absent)))
        objects = {name: value for name, value in self._objects.items() if name not in absent}
        tf.train.Checkpoint(**objects).read(path).assert_existing_objects_matched().expect_partial()

    def _refuse_differences(self, path: str, saved: dict[str, str]) -> set[str]:
        """Returns the names of the optional objects that are not in the checkpoint."""
        layout = self._current_layout()
        # Objects without snapshots (a table) may have another shape now: it depends on their
        # content.
        saved = {name: kind for name, kind in saved.items() if name not in layout.unmapped}
        wanted = {name: kind for name, kind in layout.described.items() if name not in layout.unmapped}
        absent = (_roots(wanted) - _roots(saved)) & self._optional
        unknown = (_roots(saved) - _roots(wanted)) & self._optional
        found = [
            f'{name} is {saved.get(name, "absent")} in the checkpoint, {wanted.get(name, "absent")} here'
            # Networks first: users change those, and the optimizer's slots follow.
            for name in sorted((saved.keys() | wanted.keys()) - {'save_counter'}, key=lambda n: ('optimizer' in n, n))
            if saved.get(name) != wanted.get(name) and not _roots([name]) & (absent | unknown)
        ]
        if found:
            raise UserValueError(
                f'got checkpoint {path} of another agent: {first_few(found)}; need the same networks and '
                'optimizers; undo the change, or start another --root_dir'
            )
        return absent


def _step(name: str) -> int:
    return int(name.rpartition('-')[2])


def _roots(names: Collection[str]) -> set[str]:
    return {name.split('/')[0] for name in names}


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def random_state() -> dict[str, Any]:
    """Returns what saves and restores Python's `random`, numpy's global state,
    and TensorFlow's global generator.

    A resumed run draws from these the numbers that it would have drawn. Other randomness is not
    restored: ops with a state in their kernel (`tf.random.uniform`, `tf.random.shuffle`, dropout,
    and the ops that most distributions sample with), which start again from the global seed;
    shuffles of `tf.data`; Reverb's selectors; environments; and other generators
    (`np.random.default_rng`), unless they are tracked too.

    It tracks the present `tf.random.get_global_generator()`: set another one before, not after.
    """
    return {'host': _HostState(), 'generator': tf.random.get_global_generator()}


class _HostState(tf.train.experimental.PythonState):
    """Python's and numpy's global states, as JSON."""

    def serialize(self) -> str:
        version, internal, gauss_next = random.getstate()
        numpy_state: Any = np.random.get_state()
        name, key, *rest = numpy_state
        return json.dumps({'python': [version, internal, gauss_next], 'numpy': [name, key.tolist(), *rest]})

    def deserialize(self, string_value: str) -> None:
        saved = json.loads(string_value)
        version, internal, gauss_next = saved['python']
        random.setstate((version, tuple(internal), gauss_next))
        np.random.set_state(tuple(saved['numpy']))


class OptimizerNumbers(tf.train.experimental.PythonState):
    """The program's learning rates, and what else a Keras optimizer has as a number in a variable;
    in the checkpoint.

    Keras keeps a learning rate in a variable, which a checkpoint restores whatever the program
    says. Here a change of the program counts; a number that the training itself changed, in a
    trigger for example, is restored as it was.
    """

    def __init__(self, agent: Any):
        """Reads the numbers before a checkpoint is restored."""
        self._variables = dict(_optimizer_variables(agent))
        self._now = {name: float(variable.numpy()) for name, variable in self._variables.items()}
        self._saved: dict[str, float] | None = None

    def serialize(self) -> str:
        """Returns the program's numbers as JSON."""
        return json.dumps(self._now)

    def deserialize(self, string_value: str) -> None:
        """Takes those of the program that wrote the checkpoint."""
        self._saved = json.loads(string_value)

    def keep(self) -> None:
        """Assigns the program's numbers that differ from those of the program before,
        after a restore.
        """
        for name, variable in self._variables.items():
            restored, now = float(variable.numpy()), self._now[name]
            before = restored if self._saved is None else self._saved.get(name, restored)
            if now not in (before, restored):
                variable.assign(now)
                logging.info('%s is %.6g, as the program says; the checkpoint has %.6g', name, now, restored)


def _optimizer_variables(agent: Any) -> Iterator[tuple[str, tf.Variable]]:
    optimizers = [part for part in tf.train.TrackableView(agent).descendants() if isinstance(part, _KINDS)]
    for number, optimizer in enumerate(optimizers):
        for name in _NAMES:
            variable = getattr(optimizer, name, None)
            # Computed at each step.
            is_schedule = isinstance(getattr(optimizer, f'_{name}', None), _SCHEDULE)
            if isinstance(variable, tf.Variable) and not is_schedule:
                yield f'{name} of optimizer {number} ({type(optimizer).__name__})', variable


@contextlib.contextmanager
def writable_run_dir(strategy: tf.distribute.Strategy, run_dir: RunDir) -> Iterator[RunDir]:
    """Provides each worker with its own run directory to write to.

    Every worker must save, since saving a variable may need all of them, but only the chief's files
    are kept.

    Args:
      run_dir: the run directory, on a file system that all workers share.

    Yields:
      `run_dir` on the chief. On every other worker a temporary one on its own machine, which is
      removed in the end; it links to the checkpoints that are in `run_dir` now, so that all workers
      restore the same one, and to the stop request.
    """
    layout = strategies.layout(strategy)
    if layout.workers > 1 and run_dir.location != str(run_dir.root):
        raise UserValueError(
            f'got {layout.workers} workers that train as one with --root_dir={run_dir.location}; need a directory that '
            'all machines share; mount one'
        )
    if layout.is_chief:
        run_dir.make()
        yield run_dir
        return
    with tempfile.TemporaryDirectory(prefix=f'tflearn_worker_{layout.worker}_') as directory:
        mine = RunDir(directory)
        mine.checkpoints.mkdir(parents=True)
        for path in run_dir.checkpoints.glob('c*'):  # not unfinished files
            # Replacing or removing the link does not touch the chief's file.
            (mine.checkpoints / path.name).symlink_to(path)
        mine.manifests.symlink_to(run_dir.manifests)
        # So that each worker sees a later request.
        mine.stop_request.symlink_to(run_dir.stop_request)
        yield mine
