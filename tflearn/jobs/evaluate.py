"""The evaluate job: how good the newest exported policy is, again and again, until the run has reached its end."""

import contextlib
import pathlib
import threading
import time
from typing import Any

import tensorflow as tf
from absl import logging

from tflearn.actors import learning_curve
from tflearn.actors.evaluation_record import Evaluation, EvaluationRecord
from tflearn.actors.evaluator import EpisodeStatistics, Evaluator
from tflearn.policies import loader, versions
from tflearn.policies.loader import LoadedPolicy
from tflearn.run_dir import RunDir, Status, read_json, write_json
from tflearn.specs import BatchedEnvironment, EnvironmentFactory
from tflearn.waiting import Stopped, wait_until

# Pictures take a core away from training: one each few seconds at the most, and few when they take long.
_LEAST_SECS_BETWEEN_PICTURES = 5.0
_MOST_SHARE_OF_TIME = 0.05


def evaluate(
    *,
    run_dir: RunDir,
    connect_timeout_secs: float,
    stop: threading.Event,
    make_environment: EnvironmentFactory,
    num_episodes: int = 20,
    num_environments: int = 10,
    target_return: float | None = None,
    idle_timeout_secs: float = 3600.0,
    seed: int | None = None,
) -> None:
    """Evaluates the newest exported policy whenever there is a new one, and ends the run when it is good enough.

    It appends to `RunDir.evaluations`, draws the learning curve, and writes `RunDir.done` when the train job has
    finished and its last policy is evaluated. A job that is started again goes on where it was.

    Args:
      run_dir: of the run; the train job exports its policies there.
      connect_timeout_secs: how long to wait for the first policy.
      stop: ends the job when set.
      make_environment: makes the environment.
      num_episodes: of one evaluation.
      num_environments: stepped together; never more than `num_episodes`.
      target_return: asks the train job to finish when the mean return has reached this, and does so again in
        `num_episodes` other episodes of the same policy. None trains to the end.
      idle_timeout_secs: how long to wait for the next policy, and for the end of training.
      seed: of the environment; None draws one.

    Raises:
      TimeoutError: if no policy comes in time.
      ValueError: for unfit arguments, a policy of another environment, a damaged file, or a train job that finished
        without a policy.
    """
    if line := run_dir.done_line():
        logging.info(line)
        return
    for name, value in (('num_episodes', num_episodes), ('num_environments', num_environments)):
        if value < 1:
            raise ValueError(f'got {name}={value}; need at least 1')
    batch_size = min(num_environments, num_episodes)
    with (
        contextlib.closing(make_environment(num_environments=batch_size, seed=seed)) as environment,
        contextlib.closing(_Report(run_dir, target_return)) as report,
    ):
        timeouts = (connect_timeout_secs, idle_timeout_secs)
        try:
            _Evaluation(run_dir, report, environment, num_episodes, target_return, stop, *timeouts).run()
        except Stopped:
            report.say('stopped')


class _Report:
    """Tells everybody about evaluations: record, TensorBoard, status, picture, log."""

    def __init__(self, run_dir: RunDir, target_return: float | None):
        self.record = EvaluationRecord(run_dir.evaluations)
        self._run_dir = run_dir
        self._target_return = target_return
        self._status = Status(run_dir.status('evaluate'), 'evaluate')
        self._writer = tf.summary.create_file_writer(str(run_dir.summaries('evaluate')))
        self._drawn = len(self.record.evaluations) if run_dir.learning_curve.exists() else 0
        self._next_picture_at = 0.0
        figures = dict.fromkeys(('train_step', 'mean_return', 'num_episodes'))
        best = self.record.best_mean_return
        self._status.update('waiting for a policy', best_mean_return=best, target_return=target_return, **figures)

    def say(self, state: str) -> None:
        """Changes the job's state."""
        self._status.update(state)

    def add(self, policy: LoadedPolicy, statistics: EpisodeStatistics) -> Evaluation:
        """Takes in one evaluation. Returns it as it is in the record."""
        evaluation = {
            'train_step': policy.train_step,
            'env_steps': policy.metadata.get('env_steps'),
            'mean_return': statistics.mean_return,
            'num_episodes': statistics.num_episodes,
            'returns': list(statistics.returns),
            'exported_at': policy.metadata.get('exported_at'),
        }
        figures = {key: evaluation[key] for key in ('train_step', 'mean_return', 'num_episodes')}
        self.record.append(evaluation)
        logging.info('train step %d: mean return %.2f of %d episodes', *figures.values())
        self._status.update('running', best_mean_return=self.record.best_mean_return, **figures)
        self._summarize(policy.train_step, statistics)
        if time.monotonic() >= self._next_picture_at:
            self.draw()
        return evaluation

    def close(self) -> None:
        self.draw()
        self._writer.close()

    def _summarize(self, train_step: int, statistics: EpisodeStatistics) -> None:
        with self._writer.as_default(step=train_step):
            tf.summary.scalar('evaluate/mean_return', statistics.mean_return)
            tf.summary.scalar('evaluate/min_return', min(statistics.returns))
            tf.summary.scalar('evaluate/max_return', max(statistics.returns))
            tf.summary.scalar('evaluate/mean_episode_length', statistics.mean_length)
        self._writer.flush()

    def draw(self) -> None:
        """Draws the learning curve, unless that was done."""
        evaluations = self.record.evaluations
        if self._drawn == len(evaluations):
            return
        start = time.monotonic()
        title = f'{self._run_dir.root.name}: greedy policy'
        learning_curve.draw(self._run_dir.learning_curve, {'mean return': evaluations}, title, self._target_return)
        end = time.monotonic()
        self._drawn = len(evaluations)
        self._next_picture_at = end + max(_LEAST_SECS_BETWEEN_PICTURES, (end - start) / _MOST_SHARE_OF_TIME)


class _Evaluation:
    """Follows the exported policies to the end of the run."""

    def __init__(
        self,
        run_dir: RunDir,
        report: _Report,
        environment: BatchedEnvironment,
        num_episodes: int,
        target_return: float | None,
        stop: threading.Event,
        connect_timeout_secs: float,
        idle_timeout_secs: float,
    ):
        self._run_dir = run_dir
        self._policies = run_dir.greedy_policy
        self._report = report
        self._environment = environment
        self._evaluator = Evaluator(environment, num_episodes)
        self._target_return = target_return
        self._stop = stop
        self._connect_timeout_secs = connect_timeout_secs
        self._idle_timeout_secs = idle_timeout_secs
        self._last: Evaluation | None = None

    def run(self) -> None:
        """Evaluates until training has ended, then says that the run is done."""
        request = self._request_before()
        while request is None and (policy := self._next_policy()):
            self._last = self._play(policy)
            if self._reached(self._last):
                request = self._confirm(policy)
        self._finish(request)

    def _next_policy(self) -> LoadedPolicy | None:
        """Waits for a policy that is not in the record. Returns None when there will be none: training has ended."""
        ended = self._run_dir.train_result.exists
        while True:
            # Asked before looking for policies, because the train job exports its last one before it says so.
            no_more = ended()
            policy = loader.load_newest(self._policies)
            self._last = self._report.record.find(policy.metadata) if policy else None
            if policy and self._last is None:
                return policy
            if no_more:
                return None
            self._report.say('waiting for a policy')
            newest, timeout_secs = (
                (policy.train_step, self._idle_timeout_secs) if policy else (None, self._connect_timeout_secs)
            )
            loader.wait_for_newer(self._policies, newest, timeout_secs, self._stop, unless=ended)

    def _play(self, policy: LoadedPolicy) -> Evaluation:
        self._report.say('running')
        policy.check(self._environment.specs)
        return self._report.add(policy, self._evaluator.run(policy, self._stop))

    def _reached(self, evaluation: Evaluation) -> bool:
        return self._target_return is not None and evaluation['mean_return'] >= self._target_return

    def _confirm(self, policy: LoadedPolicy) -> dict[str, Any] | None:
        """Evaluates the policy once more. Asks the train job to finish and returns the request if it is good again."""
        # From now on the train job must not prune it: it may become the run's result.
        if not versions.keep(policy.path):
            return None
        self._last = None
        try:
            self._last = self._play(policy)
        finally:
            if self._last is None or not self._reached(self._last):
                versions.unkeep(policy.path)
        if not self._reached(self._last):
            logging.info('reached the target return of %g only once; training goes on', self._target_return)
            return None
        reason = f'target_return {self._target_return:g} reached at train step {policy.train_step}'
        request = {'reason': reason, 'evaluation': self._last}
        write_json(self._run_dir.stop_request, request)
        return request

    def _request_before(self) -> dict[str, Any] | None:
        """Returns what an earlier life of this job asked of the train job, if the policy is still there."""
        request = read_json(self._run_dir.stop_request)
        if request is None or 'evaluation' not in request:
            return None
        return request if versions.is_whole(self._version(request['evaluation'])) else None

    def _version(self, evaluation: Evaluation) -> pathlib.Path:
        return self._policies / str(evaluation['train_step'])

    def _finish(self, request: dict[str, Any] | None) -> None:
        """Waits for the train job's result and writes DONE."""
        self._report.say('waiting for the end of training')
        path = self._run_dir.train_result
        what = f'the end of training, {path}'
        result = wait_until(lambda: read_json(path), what, self._idle_timeout_secs, self._stop)
        evaluation = request['evaluation'] if request else self._last
        if evaluation is None:
            raise ValueError(
                f'got a train job that finished without a policy in {self._policies}; need one to evaluate'
            )
        self._report.draw()
        keys = ('train_step', 'mean_return', 'num_episodes', 'returns')
        done = {
            'reason': request['reason'] if request else result['reason'],
            **{key: result[key] for key in ('train_step', 'env_steps', 'seconds')},
            'policy': str(self._version(evaluation).relative_to(self._run_dir.root)),
            'evaluation': {key: evaluation[key] for key in keys},
        }
        write_json(self._run_dir.done, done)
        self._report.say(f'finished: {done["reason"]}')
        logging.info('done: %s; mean return %.2f', done['reason'], evaluation['mean_return'])
