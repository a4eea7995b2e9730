"""EvaluationReport: where the evaluate job writes its evaluations."""

import contextlib
import math
import time
from typing import Any

import tensorflow as tf
from absl import logging

from tflearn.actors import learning_curve
from tflearn.actors.evaluation_record import Evaluation, EvaluationRecord
from tflearn.actors.evaluator import EpisodeStatistics
from tflearn.jobs.evaluated_policies import Candidate
from tflearn.run_dir import RunDir, Status

# Drawing takes a core away from training, so it is limited to one image in a few seconds and to a share of the time.
_MIN_SECS_BETWEEN_IMAGES = 5.0
_MAX_SHARE_OF_TIME = 0.05


class EvaluationReport:
    """Writes evaluations to the record, TensorBoard, the status file, the learning curve and the log.

    Attributes:
      record: all evaluations.
    """

    def __init__(self, run_dir: RunDir, policy: str, target_return: float | None):
        """
        Args:
          run_dir: the run's directory.
          policy: the evaluated policy's name, for the learning curve's title.
          target_return: the job's target return, for the learning curve and the status.
        """
        self.record = EvaluationRecord(run_dir.evaluations)
        self._run_dir = run_dir
        self._policy = policy.replace('_', ' ')
        self._target_return = target_return
        self._status = Status(run_dir.status('evaluate'), 'evaluate')
        self._writer = tf.summary.create_file_writer(str(run_dir.summaries('evaluate')))
        self._drawn = len(self.record.evaluations) if run_dir.learning_curve.exists() else 0
        self._next_image_at = 0.0
        metrics = dict.fromkeys(('train_step', 'mean_return', 'num_episodes'))
        best = self.record.best_mean_return
        self._status.update('waiting for a policy', best_mean_return=best, target_return=target_return, **metrics)

    def set_state(self, state: str) -> None:
        """Sets the job's state in the status file."""
        self._status.update(state)

    def add(self, candidate: Candidate, statistics: EpisodeStatistics) -> Evaluation:
        """Adds an evaluation to the record, and returns it."""
        low, high = statistics.mean_return_interval
        evaluation = {
            'train_step': candidate.train_step,
            'env_steps': candidate.metadata.get('env_steps'),
            'mean_return': statistics.mean_return,
            'num_episodes': statistics.num_episodes,
            'returns': list(statistics.returns),
            'mean_return_interval': [low, high] if math.isfinite(low) else None,
            'mean_length': statistics.mean_length,
            'dropped_episodes': statistics.dropped_episodes,
            'exported_at': candidate.metadata.get('exported_at'),
        }
        if statistics.mean_returns:
            evaluation['mean_returns'] = list(statistics.mean_returns)
        metrics = {key: evaluation[key] for key in ('train_step', 'mean_return', 'num_episodes')}
        self.record.append(evaluation)
        logging.info(
            'train step %d: mean return %.2f of %d episodes (95%% of such means within %.2f ... %.2f)',
            *metrics.values(),
            low,
            high,
        )
        if statistics.dropped_episodes:
            logging.warning(
                'dropped %d of the episodes, because their environments failed; ran others instead',
                statistics.dropped_episodes,
            )
        self._status.update(
            'running',
            best_mean_return=self.record.best_mean_return,
            dropped_episodes=statistics.dropped_episodes,
            **metrics,
        )
        self._summarize(evaluation)
        if time.monotonic() >= self._next_image_at:
            self.draw()
        return evaluation

    def close(self) -> None:
        """Draws the final learning curve and closes the event file."""
        self.draw()
        self._writer.close()

    def draw(self) -> None:
        """Draws the learning curve if there are new evaluations."""
        evaluations = self.record.evaluations
        if self._drawn == len(evaluations):
            return
        start = time.monotonic()
        title = f'{self._run_dir.root.name}: {self._policy}'
        learning_curve.draw(self._run_dir.learning_curve, {'mean return': evaluations}, title, self._target_return)
        with contextlib.suppress(OSError):  # the link exists already, or the file system has no links
            self._run_dir.evaluation_image.symlink_to(self._run_dir.learning_curve.name)
        end = time.monotonic()
        self._drawn = len(evaluations)
        self._next_image_at = end + max(_MIN_SECS_BETWEEN_IMAGES, (end - start) / _MAX_SHARE_OF_TIME)

    def _summarize(self, evaluation: Evaluation) -> None:
        returns, interval = evaluation['returns'], evaluation['mean_return_interval']
        metrics: dict[str, Any] = {
            'mean_return': evaluation['mean_return'],
            'min_return': min(returns),
            'max_return': max(returns),
            'mean_episode_length': evaluation['mean_length'],
            'dropped_episodes': evaluation['dropped_episodes'],
        }
        metrics |= {f'mean_return_{i}': value for i, value in enumerate(evaluation.get('mean_returns', ()))}
        if interval:
            metrics |= {'mean_return_low': interval[0], 'mean_return_high': interval[1]}
        axes = {'evaluate': evaluation['train_step'], 'evaluate_by_env_steps': evaluation['env_steps']}
        with self._writer.as_default(step=0):
            for axis, step in axes.items():
                for name, value in metrics.items():
                    if step is not None:
                        tf.summary.scalar(f'{axis}/{name}', value, step)
        self._writer.flush()
