"""The synchronous job with the evaluate job beside it, in this process,
with their progress on stderr.
"""

import concurrent.futures
import contextlib
import dataclasses
import functools
import inspect
import math
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from absl import logging

from tflearn.api import run_check
from tflearn.config import files, going_on, job_config, names
from tflearn.core import background, progress_log
from tflearn.files.run_dir import RunDir
from tflearn.jobs.collect_settings import CollectOptions
from tflearn.jobs.evaluate import evaluate
from tflearn.jobs.run import Hooks, Run
from tflearn.jobs.synchronous import synchronous
from tflearn.jobs.train import train
from tflearn.jobs.train_settings import Initial, grouped
from tflearn.launch import local, supervisor
from tflearn.launch.code_revision import code_revision

_NO_TIMEOUT_SECS = float('inf')
_POLL_SECS = 0.2  # after which a stop is noticed
_JOIN_SECS = 10.0
# Evaluations do not play episodes that were trained on.
EVALUATION_SEED = 1_000_000


@progress_log.printed(unless=local.in_notebook)
def of_objects(run_dir: RunDir, arguments: Mapping[str, Any], evaluation: Mapping[str, Any]) -> None:
    """Runs both jobs with Python objects as arguments.

    Args:
      run_dir: the run's directory.
      arguments: those of the synchronous job that this function does not give, or single settings
        of its groups.
      evaluation: those of the evaluate job.

    Raises:
      ValueError: if an argument cannot be used.
    """
    arguments = grouped(arguments)
    stop_conditions = arguments['stop_conditions']
    limit = arguments.get('collect_options', CollectOptions()).max_env_steps
    stop_conditions.check(limit)
    others = {'target_return': evaluation.get('target_return'), 'CollectOptions.max_env_steps': limit}
    others['Plateau.patience'] = getattr(evaluation.get('plateau'), 'patience', None)
    going_on.reopen(run_dir, {**stop_conditions.given(), **others})
    seed = arguments.get('initial', Initial()).seed
    with _both_jobs(run_dir) as jobs:
        jobs.evaluate = functools.partial(
            evaluate,
            run=jobs.evaluation,
            idle_timeout_secs=_NO_TIMEOUT_SECS,
            make_environment=arguments['make_environment'],
            seed=None if seed is None else seed + EVALUATION_SEED,
            **evaluation,
        )
        training = functools.partial(synchronous, run=jobs.training(describe=_code), **arguments)
        jobs.threads.submit(training).result()


@progress_log.printed(unless=local.in_notebook)
def of_gin_file(run_dir: RunDir, gin_file: str, gin_bindings: Sequence[str]) -> None:
    """Runs both jobs as a gin file configures them.
    What this process had bound with gin before is forgotten.

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

    with _both_jobs(run_dir) as jobs:

        def restored() -> None:
            job_config.save(run_dir, training)
            jobs.begin_evaluation()

        jobs.evaluate = dataclasses.replace(evaluation, arguments={'run': jobs.evaluation}).run
        run = jobs.training(on_restored=restored, describe=lambda: {**training.texts(), **_code()})
        jobs.threads.submit(dataclasses.replace(training, arguments={'run': run}).run).result()


def shared_arguments() -> job_config.SharedArguments:
    """Returns which bindings of the train and the collect job hold for the synchronous job,
    by its arguments.
    """
    both = inspect.signature(synchronous).parameters.keys() & inspect.signature(train).parameters.keys()
    return {
        **{name: f'train.{name}' for name in both},
        'learner_options': 'train.options',
        'num_environments': 'collect.num_environments',
        'collect_options': 'collect.options',
    }


def _code() -> dict[str, str]:
    return {'run/code_revision': code_revision()}


class _Jobs:
    """What the two jobs of a run have in common.
    Evaluation begins when training has restored its checkpoint.

    Attributes:
      threads: the threads of both.
      evaluation: the run of the evaluate job.
      evaluate: runs that job.
    """

    evaluate: Callable[[], object]

    def __init__(self, run_dir: RunDir, stop: threading.Event, threads: concurrent.futures.Executor):
        self.threads, self._stop, self._run_dir = threads, stop, run_dir
        self._turns = _Turns(stop)
        hooks = Hooks(on_evaluated=self._turns.evaluated)
        self.evaluation = Run(run_dir, stop, connect_timeout_secs=_NO_TIMEOUT_SECS, hooks=hooks)
        self._evaluations: list[concurrent.futures.Future[None]] = []

    def training(self, **hooks: Any) -> Run:
        """Returns the run of the job that trains, with more hooks."""
        own = Hooks(**{'on_restored': self.begin_evaluation, 'on_exported': self._turns.wait, **hooks})
        return Run(self._run_dir, self._stop, hooks=own)

    def begin_evaluation(self) -> None:
        """Starts the evaluate job."""
        self._evaluations.append(self.threads.submit(self._guarded_evaluation))

    def wait(self) -> None:
        """Waits until the evaluate job has ended, if it has begun; raises its error."""
        for future in self._evaluations:
            future.result()

    def _guarded_evaluation(self) -> None:
        try:
            self.evaluate()
        except BaseException:
            self._stop.set()
            raise
        finally:
            self._turns.evaluated(math.inf)


@contextlib.contextmanager
def _both_jobs(run_dir: RunDir) -> Iterator[_Jobs]:
    """Creates the run's directory, and the threads of both jobs;
    waits for them at the end of the block.

    An error of one stops the other, and is raised. So do Ctrl-C and SIGTERM: training saves a checkpoint before it
    ends. Then the signal does what it would have done to this process: it ends, or KeyboardInterrupt is raised.
    """
    run_dir.make()
    stop = threading.Event()
    # On another thread: the interrupted one may hold the event's lock.
    signals = local.StopSignals(lambda: background.Thread(stop.set, 'stop').start())
    ending, executor = background.ending_with_threads(stop), concurrent.futures.ThreadPoolExecutor(2, 'tflearn')
    with _drawn(run_dir), ending, executor as threads, signals:
        jobs = _Jobs(run_dir, stop, threads)
        try:
            yield jobs
            jobs.wait()
        except BaseException:
            stop.set()
            raise
    if signals.received:
        local.take_effect(signals.received[0])


class _Turns:
    """Makes training wait for evaluation."""

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
