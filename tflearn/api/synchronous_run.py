"""The synchronous job with the evaluate job beside it, in this process, with their progress on stderr."""

import concurrent.futures
import contextlib
import dataclasses
import inspect
import logging as standard_logging
import math
import pathlib
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from absl import logging

from tflearn.api import run_check
from tflearn.config import files, going_on, job_config, names
from tflearn.core import background, waiting
from tflearn.files.run_dir import RunDir
from tflearn.jobs.collect_settings import CollectOptions
from tflearn.jobs.evaluate import evaluate
from tflearn.jobs.run import Hooks, Run
from tflearn.jobs.synchronous import synchronous, with_limit
from tflearn.jobs.train import train
from tflearn.jobs.train_settings import Initial, grouped
from tflearn.launch import local, supervisor
from tflearn.launch.code_revision import code_revision

_PACKAGE = str(pathlib.Path(__file__).resolve().parents[1])
_NO_TIMEOUT_SECS = float('inf')
_POLL_SECS = 0.2  # after which a stop is noticed
_JOIN_SECS = 10.0
# Evaluations do not play episodes that were trained on.
EVALUATION_SEED = 1_000_000


@contextlib.contextmanager
def _progress_logged() -> Iterator[None]:
    """Logs what jobs report to stderr during the block, unless this is a notebook, or the program has set up its own
    logging. Nothing of the block is logged before or after it: absl would set up logging of its own.
    """
    root, verbosity = standard_logging.getLogger(), logging.get_verbosity()
    if root.handlers or local.in_notebook():
        yield
        return
    handler = standard_logging.StreamHandler()
    handler.setFormatter(standard_logging.Formatter('%(asctime)s %(message)s', '%H:%M:%S'))
    handler.addFilter(_is_progress)
    root.addHandler(handler)
    logging.set_verbosity(logging.INFO)
    try:
        yield
    finally:
        root.removeHandler(handler)
        logging.set_verbosity(verbosity)


def _is_progress(record: standard_logging.LogRecord) -> bool:
    """Returns whether a record is for the user: a warning, or a report of this package but for its waits."""
    own = record.pathname.startswith(_PACKAGE) and record.pathname != waiting.__file__
    return own or (record.levelno > standard_logging.INFO and record.name != 'tensorflow')  # it prints its own


@_progress_logged()
def of_objects(run_dir: RunDir, arguments: Mapping[str, Any], evaluation: Mapping[str, Any]) -> None:
    """Runs both jobs with Python objects as arguments.

    Args:
      run_dir: the run's directory.
      arguments: those of the synchronous job that this function does not give, or single settings of its groups.
      evaluation: those of the evaluate job.

    Raises:
      ValueError: if an argument cannot be used.
    """
    arguments = grouped(arguments)
    stop_conditions = with_limit(arguments['stop_conditions'], arguments.get('collect_options', CollectOptions()))
    stop_conditions.check()
    going_on.reopen(run_dir, {**stop_conditions.given(), 'target_return': evaluation.get('target_return')})
    seed = arguments.get('initial', Initial()).seed
    _run(
        run_dir,
        lambda stop, hooks: synchronous(
            run=Run(run_dir, stop, hooks=dataclasses.replace(hooks, describe=_code)), **arguments
        ),
        lambda stop, hooks: evaluate(
            run=Run(run_dir, stop, connect_timeout_secs=_NO_TIMEOUT_SECS, hooks=hooks),
            idle_timeout_secs=_NO_TIMEOUT_SECS,
            make_environment=arguments['make_environment'],
            seed=None if seed is None else seed + EVALUATION_SEED,
            **evaluation,
        ),
    )


@_progress_logged()
def of_gin_file(run_dir: RunDir, gin_file: str, gin_bindings: Sequence[str]) -> None:
    """Runs both jobs as a gin file configures them. What this process had bound with gin before is forgotten.

    Args:
      run_dir: the run's directory.
      gin_file: a path, or the name of a packaged gin file.
      gin_bindings: gin statements that come after it.

    Raises:
      ValueError: if the configuration is wrong.
    """
    path = files.resolve(gin_file)
    effective = run_check.check(run_check.Question(str(path), gin_bindings, ['tflearn.jobs.evaluate']))
    for line in going_on.begin(run_dir, effective, 'tflearn.jobs.synchronous'):
        logging.info('%s', line)
    training = job_config.configure(synchronous, {'run': None}, path, gin_bindings, shared_arguments())
    evaluation = dataclasses.replace(training, job=names.Configurable(evaluate, evaluate.__module__, 'evaluate'))

    def train_job(stop: threading.Event, hooks: Hooks) -> None:
        def restored() -> None:
            job_config.save(run_dir, training)
            hooks.on_restored()

        texts = lambda: {**training.texts(), **_code()}  # noqa: E731
        own = dataclasses.replace(hooks, on_restored=restored, describe=texts)
        dataclasses.replace(training, arguments={'run': Run(run_dir, stop, hooks=own)}).run()

    def evaluate_job(stop: threading.Event, hooks: Hooks) -> None:
        run = Run(run_dir, stop, connect_timeout_secs=_NO_TIMEOUT_SECS, hooks=hooks)
        dataclasses.replace(evaluation, arguments={'run': run}).run()

    _run(run_dir, train_job, evaluate_job)


def shared_arguments() -> job_config.SharedArguments:
    """Returns which bindings of the train and the collect job hold for the synchronous job, by its arguments."""
    both = inspect.signature(synchronous).parameters.keys() & inspect.signature(train).parameters.keys()
    return {
        **{name: f'train.{name}' for name in both},
        'learner_options': 'train.options',
        'num_environments': 'collect.num_environments',
        'collect_options': 'collect.options',
    }


def _code() -> dict[str, str]:
    return {'run/code_revision': code_revision()}


def _run(
    run_dir: RunDir,
    training: Callable[[threading.Event, Hooks], None],
    evaluation: Callable[[threading.Event, Hooks], None],
) -> None:
    """Runs both in threads and waits until they have ended. An error of one stops the other, and is raised.

    So does Ctrl-C: training saves a checkpoint before it ends.

    Args:
      run_dir: the run's directory; it is created.
      training: gets an event that stops it when set, and its hooks: evaluation begins with `on_restored`.
      evaluation: gets the same event, and its own hooks.
    """
    run_dir.make()
    stop = threading.Event()
    turns = _Turns(stop)
    evaluations: list[concurrent.futures.Future[None]] = []

    def guarded_evaluation() -> None:
        try:
            evaluation(stop, Hooks(on_evaluated=turns.evaluated))
        except BaseException:
            stop.set()
            raise
        finally:
            turns.evaluated(math.inf)

    threads = background.ending_with_threads(stop)
    with _drawn(run_dir), threads, concurrent.futures.ThreadPoolExecutor(2, 'tflearn') as pool:
        try:
            hooks = Hooks(lambda: evaluations.append(pool.submit(guarded_evaluation)), on_exported=turns.wait)
            pool.submit(training, stop, hooks).result()
            for future in evaluations:
                future.result()
        except BaseException:
            stop.set()
            raise


class _Turns:
    """Lets training wait for evaluation."""

    def __init__(self, stop: threading.Event):
        self._stop, self._changed, self._step = stop, threading.Condition(), -math.inf

    def evaluated(self, step: float) -> None:
        """Ends waits for the evaluations up to a train step."""
        with self._changed:
            self._step = max(self._step, step)
            self._changed.notify_all()

    def wait(self, step: int) -> None:
        """Waits for the evaluations up to a train step, or for the stop."""
        with self._changed:
            while self._step < step and not self._stop.is_set():
                self._changed.wait(_POLL_SECS)


@contextlib.contextmanager
def _drawn(run_dir: RunDir) -> Iterator[None]:
    """Draws the run in a notebook during the block."""
    if local.in_notebook():
        over = threading.Event()
        view = local.make_view(sys.stdout, run_dir)
        thread = background.Thread(lambda: supervisor.watch(run_dir, view, over.is_set), 'notebook_view')
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join(_JOIN_SECS)
    else:
        yield
