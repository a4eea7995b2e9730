"""EvaluationReport: where the evaluate job writes its evaluations."""

import contextlib
import time
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from tflearn.actors import learning_curve
from tflearn.actors.evaluation_record import Evaluation, EvaluationRecord, value
from tflearn.actors.evaluator import EpisodeStatistics, Progress
from tflearn.core import side_tasks
from tflearn.files.run_dir import RunDir
from tflearn.files.status import Status
from tflearn.jobs.evaluate_settings import EvaluateOptions
from tflearn.jobs.evaluated_policies import Candidate

# Drawing takes a core away from training, so it is limited to one image in a few seconds and to a
# share of the time.
_MIN_SECS_BETWEEN_IMAGES = 5.0
_MAX_SHARE_OF_TIME = 0.05

_MAX_LOGGED = 12

# What the status has of `Progress` while an evaluation goes on.
_OF_PROGRESS = ('episodes_ended', 'episodes_wanted', 'evaluation_steps', 'evaluation_secs_left')


class EvaluationReport:
    """Writes evaluations to the record, TensorBoard, the status file,
    the learning curve and the log.

    Attributes:
      record: all evaluations.
    """

    def __init__(self, run_dir: RunDir, options: EvaluateOptions, target: float | None):
        """
        Args:
          run_dir: the run's directory.
          options: the job's options: the policy's name, for the learning curve's title, and its
            target metric.
          target: the target of that metric, for the learning curve and the status.
        """
        self.record = EvaluationRecord(run_dir.evaluations)
        self._run_dir, self._options = run_dir, options
        self._policy = options.policy.replace('_', ' ')
        self._target_return = target if options.target_metric == 'return' else None
        self._status = Status(run_dir.status('evaluate'))
        self._writer: tf.summary.SummaryWriter | None = None
        self._drawn = len(self.record.evaluations) if run_dir.learning_curve.exists() else 0
        self._next_image_at = 0.0
        self._status.update(
            'waiting for a policy',
            target_return=self._target_return,
            target=target,
            target_metric=options.target_metric,
            **dict.fromkeys(('train_step', 'mean_return', 'num_episodes', *_OF_PROGRESS)),
            **self._best(None),
        )

    def set_state(self, state: str) -> None:
        """Sets the job's state in the status file."""
        self._status.update(state)

    def progress(self, progress: Progress) -> None:
        """Shows how far the evaluation is; it is a sign of life, too."""
        numbers = (progress.episodes, progress.num_episodes, progress.steps, progress.secs_left)
        state = 'waiting for simulators' if progress.waits else 'running'
        self._status.update(state, **dict(zip(_OF_PROGRESS, numbers, strict=True)))

    def add(self, candidate: Candidate, statistics: EpisodeStatistics) -> Evaluation:
        """Adds an evaluation to the record, and returns it."""
        evaluation = {
            'train_step': candidate.train_step,
            'env_steps': candidate.metadata.get('env_steps'),
            **statistics.as_json(),
            'exported_at': candidate.metadata.get('exported_at'),
        }
        if statistics.incomplete:
            evaluation['incomplete'] = statistics.incomplete
        metrics = {key: evaluation[key] for key in ('train_step', 'mean_return', 'num_episodes')}
        self.record.append(evaluation)
        logging.info('train step %d: %s', candidate.train_step, describe(statistics))
        if value(evaluation, self._options.target_metric) is None:
            logging.warning(
                'got no %s (EvaluateOptions.target_metric) in these episodes; they have return, length, %s',
                self._options.target_metric, ', '.join(evaluation['metrics']),
            )  # fmt: skip
        if statistics.dropped_episodes:
            logging.warning(
                'dropped %d of the episodes, because their environments failed; ran others instead',
                statistics.dropped_episodes,
            )
        self._status.update(
            'running',
            dropped_episodes=statistics.dropped_episodes,
            **metrics,
            **dict.fromkeys(_OF_PROGRESS),
            **self._best(evaluation),
        )
        self._summarize(evaluation)
        if time.monotonic() >= self._next_image_at:
            self.draw()
        return evaluation

    def _best(self, newest: Evaluation | None) -> dict[str, float | None]:
        """Returns the status's metrics that compare evaluations;
        of the target metric if that is not the return.
        """
        metric = self._options.target_metric
        found = {'best_mean_return': self.record.best()}
        if metric != 'return':
            found['target_value'] = None if newest is None else value(newest, metric)
            found['best_target_value'] = self.record.best(metric, self._options.lower_is_better)
        return found

    def close(self) -> None:
        """Writes what is left, draws the final learning curve, and closes the event file."""
        self.record.write()
        self.draw()
        if self._writer:
            with self._summarizing():
                self._writer.close()

    def draw(self) -> None:
        """Draws the learning curve if there are new evaluations."""
        if self._drawn < len(self.record.evaluations):
            with side_tasks.guarded(f'draw {self._run_dir.learning_curve}'):
                self._draw(self.record.evaluations)

    def _draw(self, evaluations: Sequence[Evaluation]) -> None:
        start = time.monotonic()
        title = f'{self._run_dir.root.name}: {self._policy}'
        learning_curve.draw(self._run_dir.learning_curve, {'mean return': evaluations}, title, self._target_return)
        # The link exists already, or the file system has no links.
        with contextlib.suppress(OSError):
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
        metrics |= {f'mean_{name}': mean for name, mean in evaluation['metrics'].items()}
        if interval:
            metrics |= {'mean_return_low': interval[0], 'mean_return_high': interval[1]}
        axes = {'evaluate': evaluation['train_step'], 'evaluate_by_env_steps': evaluation['env_steps']}
        with self._summarizing():
            if self._writer is None:
                directory = self._run_dir.summaries('evaluate')
                self._writer = tf.summary.create_file_writer(str(directory))
            with self._writer.as_default(step=0):
                for axis, step in axes.items():
                    for name, value in metrics.items():
                        if step is not None:
                            tf.summary.scalar(f'{axis}/{name}', value, step)
            self._writer.flush()

    def _summarizing(self) -> contextlib.AbstractContextManager[None]:
        return side_tasks.guarded(f'write summaries to {self._run_dir.summaries("evaluate")}')


def describe(statistics: EpisodeStatistics) -> str:
    """Returns the result of an evaluation on one line:
    the return, and the numbers of the environments' info.
    """
    low, high = statistics.mean_return_interval
    infos = [f'{name} {mean:.4g}' for name, mean in statistics.means.items() if name.startswith('info')]
    more = [f'and {len(infos) - _MAX_LOGGED} more'] if len(infos) > _MAX_LOGGED else []
    incomplete = [f'incomplete: {statistics.incomplete}'] if statistics.incomplete else []
    result = (
        f'mean return {statistics.mean_return:.2f} of {statistics.num_episodes} episodes (95% of such means within '
        f'{low:.2f} ... {high:.2f})'
    )
    return '; '.join([result, *([', '.join(infos[:_MAX_LOGGED] + more)] if infos else []), *incomplete])
