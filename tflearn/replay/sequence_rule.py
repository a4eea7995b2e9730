"""SequenceRule: which rows of an episode end a sequence, and what stands after its last step. The one place for it.

Rows follow TF-Agents' convention: after an episode's last step comes a boundary row (LAST -> FIRST) with its last
observation, in which no action was taken. In a row of an environment that was rebuilt (not LAST, but -> FIRST) only the
observation counts.
"""

from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from tflearn.core.errors import UserValueError
from tflearn.core.experience import Slicing

FIRST, LAST = 0, 2  # step types
_TERMINATED = 0.0  # discount
_EPISODES_TO_WARN, _EPISODES_TO_JUDGE = 10, 100  # before it is known how long episodes are
_UNUSED_SHARE = 0.01


def ends_episode(step_type: np.ndarray, next_step_type: np.ndarray) -> np.ndarray:
    """Returns for each row whether it is the last one of its episode: a boundary row, or that of a rebuilt one."""
    return (step_type == LAST) | (next_step_type == FIRST)


def terminates(step_type: np.ndarray, discount: np.ndarray) -> np.ndarray:
    """Returns for each row whether its step terminated its episode, so that nothing is bootstrapped after it."""
    return (step_type != LAST) & (discount == _TERMINATED)


def boundary_row(rows: Any) -> Any:
    """Returns the last row [1, ...] of a Trajectory [T, ...] as the one between two episodes: no action was taken."""
    row = tf.nest.map_structure(lambda column: column[-1:], rows)
    return row._replace(
        step_type=np.full_like(row.step_type, LAST),
        next_step_type=np.full_like(row.next_step_type, FIRST),
        reward=tf.nest.map_structure(np.zeros_like, row.reward),
        discount=np.ones_like(row.discount),
    )


class SequenceRule:
    """The rule of a `Slicing`. Ages count an episode's rows from 1 on, those that are repeated as history included.

    The boundary row is repeated so that each step is in a sequence. A truncated episode with fewer rows than a sequence
    gives none, unless it is padded. Where sequences cross episodes, the ends of episodes are ignored.

    Attributes:
      length: rows of an item.
      history: how often the first row of an episode is repeated before it.
    """

    def __init__(self, slicing: Slicing):
        """Takes how steps become items."""
        self.length, self._stride = slicing.num_rows, slicing.stride
        self._pad, self._future = slicing.pad_episodes, slicing.future_steps
        self.history = 0 if slicing.cross_episodes else slicing.history_steps

    def repeats(self, age: np.ndarray, has_boundary: np.ndarray, terminated: np.ndarray) -> np.ndarray:
        """Returns how often the boundary row of each episode is repeated, int [E].

        Args:
          age: int [E], that of the boundary row.
          has_boundary: bool [E], whether the episode ends with one.
          terminated: bool [E], whether its last step terminated it.
        """
        until_last_step_begins = self.length - self.history - 2  # then each step begins a sequence
        if self._pad and self._stride == 1:
            repeats = np.full(len(age), until_last_step_begins)
        elif self._pad:
            missing = self.length - self._future - age
            repeats = np.where(missing > 0, missing, missing % self._stride) + self._future
        else:
            # After termination nothing is bootstrapped, so each of the last steps begins a sequence. After truncation
            # that would change how far the bootstrapped value is discounted.
            repeats = np.where(terminated, until_last_step_begins, self._future)
        return np.where(has_boundary, repeats, 0)

    def ends_sequence(self, age: np.ndarray) -> np.ndarray:
        """Returns whether a sequence ends with a row of this age."""
        excess = age - self.length
        return excess >= 0 if self._stride == 1 else (excess >= 0) & (excess % self._stride == 0)

    def ends_one_more(self, age: np.ndarray) -> np.ndarray:
        """Returns whether one more sequence ends with an episode's last row of this age: the stride passes over it."""
        excess = age - self.length
        return (excess > 0) & (excess % self._stride > 0) & (not self._pad)

    def offsets(self, ages: np.ndarray, takes_end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns where the sequences of several episodes begin: the index of the episode, and the offset in it.

        Args:
          ages: int [E], those of the episodes' last rows.
          takes_end: bool [E], whether the rows end with the episode.
        """
        last = ages - self.length
        count = np.where(last < 0, 0, last // self._stride + 1 + (takes_end & self.ends_one_more(ages)))
        episodes, index = ranges(count)
        return episodes, np.minimum(index * self._stride, last[episodes])


def ranges(lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns for ranges of these lengths, one after the other: the number of each element's range, and its index."""
    numbers = np.repeat(np.arange(len(lengths)), lengths)
    return numbers, np.arange(len(numbers)) - (np.cumsum(lengths) - lengths)[numbers]


class UnusedSteps:
    """Counts the steps of episodes that give no sequence, on which nothing trains; warns of them.

    Attributes:
      num_steps: the number of these steps.
    """

    def __init__(self, slicing: Slicing):
        """Counts nothing yet."""
        self._slicing = slicing
        self.num_steps = 0
        self._all_steps = self._num_episodes = self._longest = self._warned_above = 0

    def add(self, lengths: np.ndarray, unused: np.ndarray) -> None:
        """Adds episodes that ended.

        Args:
          lengths: int [E], their steps.
          unused: bool [E], whether they gave no sequence.

        Raises:
          ValueError: if many episodes have ended, and none gave a sequence.
        """
        if not lengths.size:
            return
        self._num_episodes += len(lengths)
        self._all_steps += int(lengths.sum())
        if not unused.any():
            return
        self.num_steps += int(lengths[unused].sum())
        self._longest = max(self._longest, int(lengths[unused].max()))
        if self._num_episodes >= _EPISODES_TO_JUDGE and self.num_steps == self._all_steps:
            raise UserValueError(f'got {self._seen(self._num_episodes)}; {self._advice()}')
        share = self.num_steps / max(self._all_steps, 1)
        if self._num_episodes >= _EPISODES_TO_WARN and share > _UNUSED_SHARE and self.num_steps > self._warned_above:
            self._warned_above = 10 * self.num_steps
            logging.warning('%.2g of the steps are never trained on: %s; %s', share, self._seen(), self._advice())

    def _seen(self, num_episodes: int | None = None) -> str:
        which = 'episodes' if num_episodes is None else f'{num_episodes} episodes, all'
        return f'{which} of at most {self._longest} steps without a sequence of {self._slicing.sequence_length} rows'

    def _advice(self) -> str:
        return (
            f'need Slicing.sequence_length of at most {self._longest + 1}, or Slicing.pad_episodes=True for agents '
            'that leave boundary rows out (all packaged ones but DQN)'
        )
