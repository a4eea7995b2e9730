"""The weights of several rewards, read from a file while a run goes on."""

import math
import os

import tensorflow as tf
from absl import logging

from tflearn.core.errors import UserValueError
from tflearn.core.types import Agent
from tflearn.files.run_dir import RunDir, read_json


class RewardWeights:
    """Assigns an agent's reward weights what a file says, {"weights": [...]}, whenever it has changed.

    A file that cannot be used is logged, and changes nothing. What was assigned stays in checkpoints.
    """

    def __init__(self, agent: Agent, run_dir: RunDir):
        """
        Args:
          agent: the agent; one without reward weights reads no file.
          run_dir: the run's directory, which has the file.
        """
        self._variable: tf.Variable | None = getattr(agent, 'reward_weights', None)
        self._path = run_dir.reward_weights
        self._read: tuple[int, int] | None = None

    def __call__(self, step: int) -> None:
        """Reads the file if it is new; to be called between two train steps.

        Args:
          step: the train step, for the log.
        """
        if self._variable is None:
            return
        try:
            status = os.stat(self._path)
            if (read := (status.st_mtime_ns, status.st_size)) == self._read:
                return
            self._read = read
            weights = _weights(read_json(self._path) or {}, self._variable.shape[0], str(self._path))
        except OSError:  # there is none, or a link that leads nowhere
            return
        except UserValueError as error:
            logging.error('the reward weights stay as they are: %s', error)
            return
        self._variable.assign(weights)
        logging.info('train step %d: reward weights %s', step, weights)


def _weights(content: object, size: int, path: str) -> list[float]:
    weights = content.get('weights') if isinstance(content, dict) else None
    numbers = isinstance(weights, list) and all(
        isinstance(weight, int | float) and math.isfinite(weight) for weight in weights
    )
    if not isinstance(weights, list) or not numbers or len(weights) != size:
        raise UserValueError(f'got {content} in {path}; need {{"weights": [...]}} with {size} numbers')
    return [float(weight) for weight in weights]
