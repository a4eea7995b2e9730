"""What jobs that train write about the run: their progress, summaries, the status and the result."""

import contextlib
import dataclasses
import json
import pathlib
from collections.abc import Callable, Iterator, Mapping

import tensorflow as tf
from absl import logging

from tflearn.core import strategies, workers
from tflearn.core.waiting import Stopped
from tflearn.files.run_dir import RunDir, read_json, write_json
from tflearn.jobs.run import Run
from tflearn.jobs.train_settings import Device
from tflearn.learner import preemption, worker_files
from tflearn.learner.stop_conditions import StopConditions
from tflearn.learner.summaries import Summaries


class Progress(tf.train.experimental.PythonState):
    """The run's counts over all sessions; they belong in the checkpoint.

    Attributes:
      policy_version: the newest version of the weights that act; -1 in a checkpoint that does not have it.
      secs: the time of collecting and training [seconds]. In a session's first call, which compiles, only waiting for
        data counts.
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


class CollectSummaries:
    """Writes collectors' metrics to TensorBoard with the run's environment steps as the step."""

    def __init__(self, directory: pathlib.Path):
        """The event file is made with the first episode.

        Args:
          directory: the event files' directory, used for no others.
        """
        self._summaries, self._written_at = Summaries(directory), -1

    def write(self, metrics: Mapping[str, float | None]) -> None:
        """Writes the `metrics` of `reports.ReportReader` that are not None, if there are new environment steps."""
        env_steps = int(metrics.get('env_steps') or 0)
        if env_steps > self._written_at and metrics.get('mean_return') is not None:
            self._written_at = env_steps
            self._summaries.write_values(env_steps, metrics, 'collect')

    def close(self) -> None:
        """Closes the event file."""
        self._summaries.close()


def reason(
    run_dir: RunDir, stop_conditions: StopConditions, train_step: int, env_steps: int, secs: float
) -> str | None:
    """Returns why training is over: a requested stop, or a stop condition; None while it goes on."""
    request = read_json(run_dir.stop_request)
    if request is not None:
        return str(request.get('reason', 'stop requested'))
    return stop_conditions.reached(train_step, env_steps, secs)


def of_total(train_step: int, stop_conditions: StopConditions) -> str:
    """Returns the train step, for the log, and the run's number of train steps if it has one."""
    total = stop_conditions.num_train_steps
    return f'{train_step}' if total is None else f'{train_step} of {total}'


def write_result(run_dir: RunDir, why: str, train_step: int, env_steps: int, secs: float) -> None:
    """Writes the run's result, after which the run writes nothing else."""
    result = {'reason': why, 'train_step': train_step, 'env_steps': env_steps, 'seconds': round(secs, 1)}
    write_json(run_dir.train_result, result)
    logging.info('finished: %s, at train step %d, %d environment steps', why, train_step, env_steps)


@contextlib.contextmanager
def only_learner(run: Run, device: Device) -> Iterator[tuple[Run, tf.distribute.Strategy, Callable[[], None]]]:
    """Makes this process the only learner of the run, or one of its workers, for the time of the block.

    It gives the run with the directory that this worker writes to, the strategy that trains, and a function that sets
    the job's status to 'stopped', which is called if the block raises Stopped.

    Raises:
      RuntimeError: if another process is the run's learner.
      PeerStopped: if another worker has died, or this machine will be stopped.
    """
    strategies.use_threads(device.inter_op_threads)  # before any other use of TensorFlow
    strategy = strategies.make(device.strategy)
    with (
        preemption.watched(device.watches_maintenance, run.stop),
        workers.peer_failures(strategy),
        worker_files.writable_run_dir(strategy, run.dir) as own_dir,
    ):
        try:
            with own_dir.own('train', run.stop):
                run = dataclasses.replace(run, dir=own_dir)
                status = run.status('train')
                yield run, strategy, lambda: status.update('stopped')
        except Stopped:
            status.update('stopped')
