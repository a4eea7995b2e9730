"""The supervised job: fits a Keras model to labelled examples, validates it, and exports it as a SavedModel."""

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any

import numpy as np
import tensorflow as tf
from absl import logging

from tflearn.core import precision as precisions
from tflearn.core import strategies, waiting
from tflearn.core.errors import UserOSError, UserValueError
from tflearn.core.settings import NonNegativeFloat, PositiveInt, Range, checked, checked_dataclass
from tflearn.core.train_step import create_train_step
from tflearn.files import numbered, temporary
from tflearn.files.run_dir import write_json
from tflearn.jobs.run import Run
from tflearn.jobs.session import only_learner, set_seed
from tflearn.jobs.train_settings import Device
from tflearn.learner.learner import Learner, LearnerOptions, Trigger
from tflearn.learner.stop_conditions import DataStopConditions
from tflearn.learner.validation import Validator
from tflearn.optimization.optimizers import OptimizerOptions
from tflearn.optimization.supervised import Examples, ItemFunction, SupervisedAgent
from tflearn.policies import exporter
from tflearn.sampling.minibatches import ExampleSource

_MOST_PER_CALL = 1_000
_VALIDATION_BATCH = 1_024
_PART = 'model'


@checked_dataclass(frozen=True)
class Fitting:
    """How long a model is fitted, and on which of the examples it is validated.

    Attributes:
      epochs: the passes over the examples.
      batch_size: the examples of a train step, over all replicas.
      validation_share: the share of the examples that are not trained on, chosen by the seed; 0 validates nothing,
        unless there are examples for it. They are validated on after each epoch.
      patience: the validations in a row without a lower loss after which the fitting ends; None: all epochs.
      min_improvement: how much lower a loss must be to count.
    """

    epochs: PositiveInt = 10
    batch_size: PositiveInt = 32
    validation_share: Annotated[float, Range(least=0, below=1)] = 0.1
    patience: PositiveInt | None = None
    min_improvement: NonNegativeFloat = 0.0


def from_files(paths: Sequence[str], target: str = 'y') -> tuple[Any, Any]:
    """Reads examples from files `.npz` of numpy: arrays [N, ...] by name.

    Args:
      paths: the files; the examples of all of them are joined.
      target: the name of the array of targets. The others are the model's input: a dict by name, or the array itself if
        there is one.

    Raises:
      OSError: if a file cannot be read.
      ValueError: if it has no targets, or no input.
    """
    columns: dict[str, list[np.ndarray]] = {}
    for path in paths:
        try:
            with np.load(path) as file:
                for name in file.files:
                    columns.setdefault(name, []).append(file[name])
        except (OSError, ValueError) as error:
            raise UserOSError(f'got {path}, which cannot be read ({error}); need a file .npz of numpy') from error
    joined = {name: np.concatenate(parts) for name, parts in columns.items()}
    if target not in joined or len(joined) < 2:
        raise UserValueError(f'got files with the arrays {sorted(joined)}; need {target!r}, the targets, and an input')
    y = joined.pop(target)
    return (joined if len(joined) > 1 else next(iter(joined.values()))), y


@checked
def supervised(
    *,
    run: Run,
    make_dataset: Callable[[], Any],
    make_model: Callable[[], tf.keras.Model],
    loss: str | tf.keras.losses.Loss | ItemFunction,
    metrics: Mapping[str, str | ItemFunction] | None = None,
    make_validation_dataset: Callable[[], Any] | None = None,
    fitting: Fitting = Fitting(),
    optimizer: OptimizerOptions = OptimizerOptions(),
    seed: int | None = None,
    device: Device = Device(),
    learner_options: LearnerOptions = LearnerOptions(),
) -> None:
    """Fits a model to examples, and exports it to `models/<train step>` of the run's directory.

    The export is a SavedModel with one named input for each array of the examples ('x' if there is one), and outputs by
    the names of the model's ('y' if there is one). With validation it has the weights of the least validation loss.
    The same call continues a job that was stopped, with the batches that it would have had.

    Args:
      run: the run.
      make_dataset: returns the examples: (x, y) of arrays [N, ...] or nests of them, or a `tf.data.Dataset` of single
        pairs, which is read into memory.
      make_model: returns a Keras model: x -> outputs.
      loss: see `SupervisedAgent`.
      metrics: more numbers by name: functions of (targets, outputs), or the names of Keras' metrics.
      make_validation_dataset: returns the examples for validation, instead of a share.
      fitting: how long, and on what.
      optimizer: the optimizer; a learning rate of 1e-3 by default.
      seed: the seed of weights and order; None draws one.
      device: see the train job.
      learner_options: the intervals of checkpoints and summaries, and how train steps are taken.

    Raises:
      ValueError: if the examples, the model and the loss do not fit each other.
    """
    device.check_no_dry_run('the supervised job')
    begun = time.monotonic()
    with only_learner(run, device) as (run, strategy, stopped):
        with waiting.may_exit(run.stop, stopped):
            layout = strategies.layout(strategy)
            if layout.workers > 1 or fitting.batch_size % layout.replicas:
                raise UserValueError(
                    f'got Fitting.batch_size={fitting.batch_size} on {layout.replicas} replicas of {layout.workers} '
                    'workers; need one worker, and a multiple of the replicas'
                )
            seed = set_seed(seed, strategy, repeatable=True)
            examples, kept = _divided(make_dataset, make_validation_dataset, fitting, seed)
            with strategy.scope(), precisions.use(device.precision):
                agent = _agent(examples, make_model, loss, metrics, optimizer, fitting.batch_size // layout.replicas)
            source = ExampleSource(examples, fitting.batch_size, fitting.epochs, seed)
            fit = _Fit(run, agent, source, kept, fitting, learner_options, strategy)
        fit.run(begun)


def _agent(
    examples: Examples,
    make_model: Callable[[], Any],
    loss: Any,
    metrics: Mapping[str, str | ItemFunction] | None,
    optimizer: OptimizerOptions,
    batch_size: int,
) -> SupervisedAgent:
    specs = tf.nest.map_structure(lambda leaf: tf.TensorSpec(leaf.shape[1:], leaf.dtype), examples)
    train_step = create_train_step()
    made = optimizer.make(train_step, batch_size, {_PART: 1e-3})[_PART]
    given = metrics or {}
    functions = {name: tf.keras.metrics.get(each) if isinstance(each, str) else each for name, each in given.items()}
    return SupervisedAgent(specs.observation, specs.target, make_model(), loss, train_step, made, functions)


def _divided(
    make_dataset: Callable[[], Any], make_validation_dataset: Callable[[], Any] | None, fitting: Fitting, seed: int
) -> tuple[Examples, Examples | None]:
    """Returns the examples to train on, and those for validation; None if there are none."""
    examples = _arrays(make_dataset())
    if make_validation_dataset is not None:
        return examples, _arrays(make_validation_dataset())
    size = len(tf.nest.flatten(examples)[0])
    num_kept = round(size * fitting.validation_share)
    if not num_kept:
        if fitting.patience is not None:
            raise UserValueError(f'got Fitting.patience={fitting.patience} without validation; need validation_share')
        return examples, None
    order = np.random.default_rng(seed).permutation(size)
    return _select(examples, order[num_kept:]), _select(examples, order[:num_kept])


def _arrays(given: Any) -> Examples:
    """Returns examples as nests of arrays [N, ...], of numbers that Keras computes with."""
    if isinstance(given, tf.data.Dataset):
        pairs = list(given.as_numpy_iterator())
        given = tf.nest.map_structure(lambda *leaves: np.stack(leaves), *pairs) if pairs else ()
    if not isinstance(given, tuple) or len(given) != 2:
        raise UserValueError(f'got examples of the type {type(given).__name__}; need a pair (x, y)')
    arrays = tf.nest.map_structure(np.asarray, given)
    if len(sizes := {leaf.shape[:1] for leaf in tf.nest.flatten(arrays)}) != 1:
        raise UserValueError(f'got arrays of {sorted(sizes)} examples; need equally many in each')
    single = lambda leaf: leaf.astype(np.float32) if leaf.dtype == np.float64 else leaf  # noqa: E731
    return Examples(*tf.nest.map_structure(single, arrays))


def _select(examples: Examples, rows: Any) -> Examples:
    return tf.nest.map_structure(lambda leaf: leaf[rows], examples)


class _Fit:
    """A model that is fitted, with its validation and its best weights."""

    def __init__(
        self,
        run: Run,
        agent: SupervisedAgent,
        source: ExampleSource,
        kept: Examples | None,
        fitting: Fitting,
        options: LearnerOptions,
        strategy: tf.distribute.Strategy,
    ):
        self._run, self._spec, self._source, self._epochs = run, agent.collect_data_spec, source, fitting.epochs
        self._model: Any = agent.network
        self._validator: Validator | None = None
        state: dict[str, Any] = {}
        if kept is not None:
            conditions = DataStopConditions(patience=fitting.patience, min_improvement=fitting.min_improvement)
            self._validator = Validator(lambda: _batches(kept), source.steps_per_epoch, conditions)
            with strategy.scope():
                self._best = [tf.Variable(each, trainable=False) for each in self._model.variables]
            state = {'validation': self._validator, 'best': tf.train.Checkpoint(weights=self._best)}
        validating = dataclasses.replace(options, make_triggers=lambda learner: self._triggers(learner, options))
        self._learner = Learner(agent, source, run.dir, strategy=strategy, options=validating, state=state)

    def run(self, begun: float) -> None:
        """Takes train steps to the end, then exports the model and writes the result; or until it is stopped."""
        status, learner = self._run.status('train'), self._learner
        try:
            while (reason := self._end_reason()) is None and not self._run.stop.is_set():
                left = self._source.steps_per_epoch - learner.step % self._source.steps_per_epoch
                result = learner.run(min(left, _MOST_PER_CALL))
                status.update('running', train_step=learner.step, loss=result.loss, **result.extra)
                if waiting.wants_save(self._run.stop):
                    learner.save()
        finally:
            learner.close()
        if reason is None:
            status.update('stopped', train_step=learner.step)
            return
        metrics = self._export()
        facts = {'train_step': learner.step, 'seconds': round(time.monotonic() - begun, 1), **metrics}
        write_json(self._run.dir.train_result, {'reason': reason, **facts})
        status.update('finished', **facts)
        logging.info('finished: %s, at train step %d', reason, learner.step)

    def _triggers(self, learner: Learner, options: LearnerOptions) -> Sequence[Trigger]:
        own = options.make_triggers(learner) if options.make_triggers else ()
        if self._validator is None:
            return own
        validate = self._validator.make_trigger(learner)

        def keep_best(before: int, after: int) -> bool:
            validated = validate(before, after)
            if validated and self._validator and self._validator.best_step == after:
                for kept, now in zip(self._best, self._model.variables, strict=True):
                    kept.assign(now)
            return validated

        return (*own, keep_best)

    def _end_reason(self) -> str | None:
        if self._source.ended:
            return f'{self._epochs} epochs are over'
        return self._validator.end_reason() if self._validator else None

    def _export(self) -> dict[str, Any]:
        """Exports the best weights. Returns the numbers of the validation."""
        facts: dict[str, Any] = {}
        step, model = self._learner.step, self._model
        if self._validator and self._validator.best_loss is not None:
            step = self._validator.best_step
            facts = {'best_step': step, 'validation_loss': self._validator.best_loss}
            for kept, now in zip(self._best, model.variables, strict=True):
                now.assign(kept)
        path = self._run.dir.root / 'models' / str(step)
        if not path.exists():
            written = temporary.temporary(path)
            exporter.export_model(model, self._spec.observation, str(written))
            numbered.put(written, path)
        return facts


def _batches(examples: Examples) -> Iterator[tuple[int, Examples]]:
    """Returns batches to validate on, and how many examples are in each."""
    size = len(tf.nest.flatten(examples)[0])
    for begin in range(0, size, _VALIDATION_BATCH):
        part = _select(examples, slice(begin, begin + _VALIDATION_BATCH))
        yield min(_VALIDATION_BATCH, size - begin), tf.nest.map_structure(tf.constant, part)
