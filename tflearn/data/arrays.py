"""Episodes of arrays: the steps of a log, one row each, become the rows of episodes,
with their ends.
"""

import contextlib
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts
from tf_agents.trajectories import trajectory

from tflearn.core.errors import UserValueError
from tflearn.core.types import EnvironmentSpecs
from tflearn.data import columns
from tflearn.data.writer import EpisodeWriter

FIRST, MID, LAST = int(ts.StepType.FIRST), int(ts.StepType.MID), int(ts.StepType.LAST)


def from_arrays(
    directory: str | pathlib.Path,
    observation: Any,
    action: Any,
    reward: np.ndarray,
    *,
    episode: np.ndarray | None = None,
    truncated: np.ndarray | None = None,
    policy_info: Any = (),
    specs: EnvironmentSpecs | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> None:
    """Writes steps to a data set; see docs/your-logs.md.

    Args:
      directory: the data set's directory; episodes are added to what it holds.
      observation: what was seen before each action: an array, or a nest of arrays, [N, ...].
      action: what was done, an array or nest [N, ...].
      reward: what came of it, [N].
      episode: the name or number of each step's episode, [N]; steps of one stand together, in their
        order. Without it each step is an episode of its own.
      truncated: whether the episode was cut off after the step, although the task went on, bool
        [N]; it counts for the last step of each episode.
      policy_info: what is known of the policy, such as {'log_probability': float32 [N]} for
        off-policy evaluation.
      specs: the specs of the environment. Without them observations have no bounds, and an action
        of integers is a choice from 0 to the greatest one of the data.
      metadata: what is known of the data. JSON.

    Raises:
      ValueError: if the arrays do not have one row for each step, or the data set has other
        columns.
    """
    given = (observation, action, np.asarray(reward, np.float32), policy_info)
    observation, action, reward, policy_info = tf.nest.map_structure(np.asarray, given)
    leaves = tf.nest.flatten((observation, action, reward, policy_info))
    num_steps, found = len(reward), sorted({len(leaf) for leaf in leaves})
    if found != [num_steps] or not num_steps:
        raise UserValueError(f'got arrays of {" and ".join(map(str, found))} rows; need as many of each, at least 1')
    ids = np.arange(num_steps) if episode is None else np.asarray(episode)
    begins = np.flatnonzero(np.r_[True, ids[1:] != ids[:-1]])
    if len(begins) != len(np.unique(ids)):
        raise UserValueError('got an episode whose steps do not stand together; need them sorted; sort by `episode`')
    specs = specs or EnvironmentSpecs(spec(observation), tf.nest.map_structure(action_spec, action))
    stored = columns.columns_of(columns.data_spec(specs, spec(policy_info)))
    writer = EpisodeWriter(pathlib.Path(directory), specs, stored, metadata=metadata)
    with contextlib.closing(writer):
        rows = rows_of(observation, action, reward, policy_info, begins, truncated)
        writer.write_records(writer.encoder.encode_together(*rows))


def rows_of(
    observation: Any,
    action: Any,
    reward: np.ndarray,
    policy_info: Any,
    begins: np.ndarray,
    truncated: np.ndarray | None = None,
) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    """Returns complete episodes as `EpisodeWriter.write_all` takes them.

    Their steps stand one after the other; `begins` are the first ones', int64 [E]. Nobody knows
    what was seen after the last action. The row there repeats the last observation, which counts
    only where an episode was cut off.
    """
    num_steps = len(reward)
    ends = np.r_[begins[1:], num_steps]
    is_last = np.zeros(num_steps, bool)
    is_last[ends - 1] = True
    rows = np.repeat(np.arange(num_steps), 1 + is_last)
    after = np.cumsum(ends - begins + 1)
    begins, boundary = np.r_[0, after[:-1]], after - 1
    step_type = np.full(len(rows), MID, np.int32)
    next_step_type, discount, rewards = step_type.copy(), np.ones(len(rows), np.float32), reward[rows]
    step_type[begins], step_type[boundary] = FIRST, LAST
    next_step_type[boundary - 1], next_step_type[boundary] = LAST, FIRST
    discount[boundary - 1] = 0.0 if truncated is None else np.asarray(truncated, np.float32)[ends - 1]
    rewards[boundary] = 0.0
    observation, action, policy_info = tf.nest.map_structure(
        lambda leaf: leaf[rows], (observation, action, policy_info)
    )
    steps = trajectory.Trajectory(step_type, observation, action, policy_info, next_step_type, rewards, discount)
    return tf.nest.flatten(steps), begins, after


def spec(arrays: Any) -> Any:
    """Returns the specs of one row of arrays [N, ...]."""
    return tf.nest.map_structure(lambda array: tf.TensorSpec(array.shape[1:], array.dtype), arrays)


def action_spec(array: np.ndarray) -> tf.TypeSpec:
    """Returns the spec of an action [N, ...]: its bounds are those of the data, of integers from 0 on."""
    if array.dtype.kind == 'f':
        return tensor_spec.BoundedTensorSpec(array.shape[1:], array.dtype, array.min(), array.max())
    return tensor_spec.BoundedTensorSpec(array.shape[1:], array.dtype, 0, array.max())
