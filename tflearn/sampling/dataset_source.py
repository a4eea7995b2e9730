"""DatasetSource: the batches of any `tf.data` dataset, and its position for the checkpoint.

Nothing is read ahead of the train steps that are asked for, but by the dataset itself
(`prefetch`): it may be a replay buffer that waits for new data, or that changes with the training.
"""

import base64
import functools
import inspect
import json
import pathlib
import tempfile
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from absl import logging

from tflearn.core import strategies
from tflearn.core.errors import UserValueError
from tflearn.core.workers import Agreement, StateOfWorkers
from tflearn.sampling.source import Batch, DatasetFn, Source, num_together

_CONSUMED = 'consumed'
_MIN_STACK = 4  # a copy of fewer batches would cost more than it saves
_MAX_STATE_BYTES = 128 << 20
_BEGINS_AGAIN = 'it begins again with its first batch'


class DatasetSource(Source):
    """A `Source` of a dataset's batches: a train step takes one for each replica of this process.

    Several batches of one fixed shape are drawn as one stack. Others are taken singly, by `pull`.

    Attributes:
      stacks: whether batches are drawn in stacks.
      num_replicas: the replicas of this process.
      num_consumed: batches that train steps took so far.
    """

    takes_indices = True
    reads_in_draws = True

    def __init__(
        self,
        dataset_fn: DatasetFn,
        strategy: tf.distribute.Strategy,
        check: Callable[[tf.data.Dataset], None] = lambda dataset: None,
        stacks: bool = True,
    ):
        """Makes the dataset, and reads nothing.

        Args:
          dataset_fn: called with the `InputContext` of this process; returns batches for one replica.
            If it has an argument `consumed`, that is the number of batches that earlier train steps
            took, which it skips.
          strategy: where train steps run.
          check: raises an error if the strategy cannot train on a dataset.
          stacks: whether several batches are drawn at once, if they have one fixed shape. XLA needs
            it; without XLA it costs more than it saves.
        """
        layout = strategies.layout(strategy)
        self._context = tf.distribute.InputContext(layout.input_pipelines, layout.worker, layout.replicas)
        self._dataset_fn, self._check = dataset_fn, check
        self._skips = _skips(dataset_fn)
        self.num_replicas = layout.replicas // layout.workers
        self._agreement = Agreement(strategy)
        self.num_consumed = 0
        dataset = self._first = self._make(0)
        self.element_spec = dataset.element_spec
        if self._skips:
            # Made in place of the one above when its first batch is read: then the checkpoint has
            # been restored.
            variant = lambda: tf.py_function(self._variant, (), tf.variant)  # noqa: E731
            dataset = tf.data.Dataset.from_tensors(0).flat_map(
                lambda _: tf.data.experimental.from_variant(variant(), self.element_spec)
            )
        together = num_together(self.element_spec) if stacks and layout.replicas == 1 else 0
        self.stacks = together >= _MIN_STACK
        # Tables, not variables: a dataset whose functions read one cannot be saved, and within the
        # scope of a strategy it would be another kind.
        self._waits_since = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float64, 0.0)
        if self.stacks:
            self.max_draw_steps = together
            self._wanted = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, default_value=1)
            self._keep_rests()
        elif self.num_replicas > 1:
            dataset = dataset.prefetch(self.num_replicas)  # while the replicas take a step
        self._singles = dataset
        self._iterator = iter(self._stacked(dataset) if self.stacks else dataset)

    def take_singly(self) -> None:
        """Makes batches come one by one; to be called before the first one is taken."""
        self.stacks, self.max_draw_steps = False, 1
        self._iterator = iter(self._singles)

    def _stacked(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """Returns a dataset of stacks of as many batches as are wanted when the first one is read."""
        given, own = dataset.options(), tf.data.Options()
        own.experimental_optimization.inject_prefetch = False
        if given.autotune.enabled is not False and given.experimental_optimization.inject_prefetch is not False:
            # As TensorFlow does by default. It would do so after the stacks, whose sizes are not
            # known in advance.
            dataset = dataset.prefetch(tf.data.AUTOTUNE)
        # A group ends with the number of elements that was wanted when they were read. That number
        # is its key: the size of a group is asked for once for each key.
        stacks = dataset.group_by_window(
            lambda *_: self._wanted.lookup(tf.constant(0, tf.int64)),
            lambda _, elements: elements.batch(self.max_draw_steps),
            window_size_func=lambda wanted: wanted,
        )
        return stacks.with_options(own)

    def _make(self, consumed: int) -> tf.data.Dataset:
        dataset = call(self._dataset_fn, self._context, consumed)
        self._check(dataset)
        return dataset

    def _variant(self) -> tf.Tensor:
        if self.num_consumed:
            self._first = self._make(self.num_consumed)  # kept, with its Python functions
        return tf.data.experimental.to_variant(self._first)

    @property
    def waiting_secs(self) -> float:  # type: ignore[override]
        """See `Source`."""
        since = float(self._waits_since.lookup(tf.constant(0, tf.int64)).numpy())
        return max(0.0, time.time() - since) if since else 0.0

    def _set_wait(self, since: tf.Tensor) -> list[tf.Operation]:
        """Sets since when a program waits; 0 if it does not. Returns the operation, if it is in a graph."""
        insert = self._waits_since.insert(tf.constant(0, tf.int64), since)
        return [] if insert is None else [insert]

    def grant(self, num_steps: int) -> int:
        """See `Source`. A draw waits."""
        return num_steps

    def draw(self, num_steps: tf.Tensor, seed: tf.Tensor, batch_size: tf.Tensor | None = None) -> Any:
        """See `Source`. Returns batches [n, ...] and n; at the end of the data one of zeros, and 0.

        Raises:
          ValueError: if batches can only be taken singly.
        """
        del seed, batch_size
        if not self.stacks:
            replicas = self._context.num_replicas_in_sync
            found = f'{replicas} replicas' if replicas > 1 else f'batches {self.element_spec}'
            raise UserValueError(
                f'got a DatasetSource with {found} as a source, or in a Mix, whose batches are stacked; need one '
                f'replica, and numbers of one fixed shape, {_MIN_STACK} batches of which have at most 16 MB; give the '
                'learner a function that returns a dataset (mixed by tf.data.Dataset.sample_from_datasets, or zip)'
            )
        with tf.device('CPU:0'):
            left = tf.shape(self._rests[0], tf.int64)[0] > 0
            return tf.cond(left, lambda: self._take_rests(num_steps), lambda: self._read(num_steps))

    def _read(self, num_steps: tf.Tensor) -> Any:
        insert = self._wanted.insert(tf.constant(0, tf.int64), tf.cast(num_steps, tf.int64))
        begin = self._set_wait(tf.timestamp())
        with tf.control_dependencies(begin if insert is None else [*begin, insert]):
            stack = self._iterator.get_next_as_optional()
        with tf.control_dependencies([stack.has_value()]):
            self._set_wait(tf.constant(0.0, tf.float64))

        def none() -> Any:
            # One, since the program may make the first batch of a draw ahead.
            zeros = tf.nest.map_structure(lambda spec: tf.zeros((1, *spec.shape), spec.dtype), self.element_spec)
            return zeros, tf.constant(0, tf.int64)

        return tf.cond(stack.has_value(), lambda: _counted(stack.get_value()), none)

    def num_drawn(self, drawn: Any) -> tf.Tensor:
        """See `Source`."""
        return drawn[1]

    def batch(self, drawn: Any, i: tf.Tensor) -> Batch:
        """Returns element `i` of a draw, as the dataset has it."""
        return tf.nest.map_structure(lambda column: tf.gather(column, i), drawn[0])

    def pull(self, since: tf.Tensor) -> tuple[tuple[Any, ...], tf.Tensor]:
        """Returns an optional element for each replica of this process, in order. For a graph.

        Args:
          since: when the program begins to wait [s since 1970], float64 scalar.
        """
        found: list[Any] = []
        known: list[Any] = self._set_wait(since)
        for _ in range(self.num_replicas):
            with tf.control_dependencies(known):
                found.append(self._iterator.get_next_as_optional())
            known = [found[-1].has_value()]
        with tf.control_dependencies(known):
            self._set_wait(tf.constant(0.0, tf.float64))
        return tuple(found), functools.reduce(tf.logical_and, [each.has_value() for each in found])

    def _keep_rests(self) -> None:
        with tf.device('CPU:0'):
            self._rests = [
                tf.Variable(tf.zeros((0, *spec.shape), spec.dtype), trainable=False, shape=(None, *spec.shape))
                for spec in tf.nest.flatten(self.element_spec)
            ]

    def put_back(self, drawn: Any, first: tf.Tensor, last: tf.Tensor | None = None) -> None:
        """See `Source`. The next draw has them, before what was put back earlier."""
        stack, count = drawn  # without a batch, a stack of zeros
        last = count if last is None else last
        with tf.device('CPU:0'):
            for variable, column in zip(self._rests, tf.nest.flatten(stack), strict=True):
                variable.assign(tf.concat([column[first:last], variable], axis=0))

    def _take_rests(self, num_steps: tf.Tensor) -> Any:
        columns = [variable.read_value() for variable in self._rests]
        with tf.control_dependencies(columns):
            for variable, column in zip(self._rests, columns, strict=True):
                variable.assign(column[num_steps:])
        return _counted(tf.nest.pack_sequence_as(self.element_spec, [column[:num_steps] for column in columns]))

    def state(self) -> dict[str, Any]:
        """Returns the position of each worker in its dataset."""
        rests = self._rests if self.stacks else []
        objects = None if self._skips else tf.train.Checkpoint(iterator=self._iterator, rests=rests)
        return {'dataset': StateOfWorkers(_Position(self, objects), self._agreement)}


def call(dataset_fn: DatasetFn, context: tf.distribute.InputContext, consumed: int = 0) -> tf.data.Dataset:
    """Returns the dataset, without the batches that were consumed if its function can skip them."""
    return dataset_fn(context, **({_CONSUMED: consumed} if _skips(dataset_fn) else {}))


def _skips(dataset_fn: DatasetFn) -> bool:
    return _CONSUMED in inspect.signature(dataset_fn).parameters


def _counted(stack: Any) -> tuple[Any, tf.Tensor]:
    return stack, tf.shape(tf.nest.flatten(stack)[0], tf.int64)[0]


class _Position(tf.train.experimental.PythonState):
    """The number of consumed batches, and the files in which TensorFlow saves an iterator: JSON."""

    def __init__(self, source: DatasetSource, objects: tf.train.Checkpoint | None):
        """Takes what TensorFlow saves; None if the dataset itself skips what was consumed."""
        self._source, self._objects, self._has_warned = source, objects, False
        self._spec = str(source.element_spec)

    def serialize(self) -> str:
        return json.dumps({_CONSUMED: self._source.num_consumed, 'spec': self._spec, 'files': self._files()})

    def _files(self) -> dict[str, str]:
        if self._objects is None or self._has_warned:
            return {}
        with tempfile.TemporaryDirectory() as directory:
            try:
                self._objects.write(f'{directory}/position')
            except tf.errors.OpError as error:
                reason = error.message.partition('}} ')[2] or error.message
                return self._none(f'TensorFlow cannot save its iterator: {reason.partition(". [Op:")[0]}')
            files = list(pathlib.Path(directory).iterdir())
            if (size := sum(path.stat().st_size for path in files)) > _MAX_STATE_BYTES:
                return self._none(f'its buffers have {size >> 20} MB, more than {_MAX_STATE_BYTES >> 20}')
            return {path.name: base64.b64encode(path.read_bytes()).decode() for path in files}

    def _none(self, reason: str) -> dict[str, str]:
        # Not tried again: it takes time, and may wait for data.
        self._has_warned = True
        logging.warning(
            'the position in the dataset is in no checkpoint (%s): in a run that continues %s; give dataset_fn an '
            'argument `consumed`, the number of batches to skip',
            reason,
            _BEGINS_AGAIN,
        )
        return {}

    def deserialize(self, string_value: str) -> None:
        saved = json.loads(string_value)
        if self._objects is None or self._restored(self._objects, saved):
            self._source.num_consumed = saved[_CONSUMED]

    def _restored(self, objects: tf.train.Checkpoint, saved: dict[str, Any]) -> bool:
        if saved[_CONSUMED] == 0:
            return False
        reason = 'the checkpoint has no position'
        if saved['spec'] != self._spec:
            reason = 'the checkpoint has the position in a dataset of other elements'
        elif saved['files']:
            with tempfile.TemporaryDirectory() as directory:
                for name, content in saved['files'].items():
                    (pathlib.Path(directory) / name).write_bytes(base64.b64decode(content))
                try:
                    objects.read(f'{directory}/position').assert_consumed()
                    return True
                except (tf.errors.OpError, AssertionError) as error:
                    reason = f'the checkpoint has the position in another dataset: {str(error).splitlines()[0]}'
        logging.warning('%s, after %d batches of the dataset: %s', reason, saved[_CONSUMED], _BEGINS_AGAIN)
        return False
