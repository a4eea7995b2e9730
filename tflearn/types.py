"""What an environment is to the rest of the system: its specs, and a batch of it that is stepped together."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import tensorflow as tf
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts
from tf_agents.typing import types

from tflearn.errors import UserValueError


@dataclasses.dataclass(frozen=True)
class EnvironmentSpecs:
    """Specs of one environment, without any outer (batch or time) dimension.

    Attributes:
      observation: nest of tensor specs.
      action: nest of tensor specs, bounded.
      reward: scalar float32 unless the task has several rewards.
    """

    observation: types.NestedTensorSpec
    action: types.NestedTensorSpec
    reward: types.NestedTensorSpec = dataclasses.field(default_factory=lambda: tf.TensorSpec((), tf.float32, 'reward'))

    @property
    def time_step(self) -> ts.TimeStep:
        """The time step's spec: step_type int32, reward, discount float32 in [0, 1], observation."""
        return ts.time_step_spec(self.observation, self.reward)


class BatchedEnvironment(Protocol):
    """`num_environments` copies of an environment, stepped together.

    Time steps are numpy, every leaf with the leading dimension [B] = [num_environments]. An environment whose last
    time step was LAST ignores its next action and answers with FIRST (reward 0, discount 1), as in TF-Agents and in
    gymnasium's next-step autoreset. Termination is LAST with discount 0; truncation (a time limit) is LAST with
    discount 1, so that a learner bootstraps from the last observation. The arrays of a time step are the caller's to
    keep: later steps leave them alone.

    Actions are arrays [B, ...] of the spec's dtypes. Floats are clipped to their bounds before an environment gets
    them; the action that was handed in stays as it is, and is what belongs in the data, since the policy's
    probabilities are of that one. Integers out of their bounds and floats that are not finite are a ValueError, in
    every step.

    An environment that fails is rebuilt and answers with FIRST (reward 0, discount 1) in the very step in which it
    failed. So FIRST after a time step that was not LAST says: this action, its reward and what it led to never were.
    """

    num_environments: int
    specs: EnvironmentSpecs

    @property
    def info(self) -> Mapping[str, np.ndarray]:
        """What the environments said besides, of the newest step; empty after `reset`.

        Numeric arrays [B, ...], NaN or 0 where an environment said nothing; keys that have appeared stay.
        'executed_action', of the action's dtype and shape, is what was done if that is not what `step` was given (not
        counting that `step` clips).
        """

    @property
    def num_rebuilt(self) -> int:
        """Environments rebuilt so far."""

    def reset(self) -> ts.TimeStep:
        """Starts new episodes everywhere. Returns FIRST time steps [B]."""

    def step(self, action: Any) -> ts.TimeStep:
        """Applies `action` (nest of arrays [B, ...]). Returns time steps [B].

        Raises:
          ValueError: for an action of another structure, shape or dtype, one that is not finite, or integers out of
            their bounds.
        """

    def close(self) -> None:
        """Frees what the environments hold. Calling it twice is fine."""


class EnvironmentFactory(Protocol):
    """Makes a batched environment; everything but these two is bound beforehand."""

    def __call__(self, num_environments: int, seed: int | None) -> BatchedEnvironment:
        """Makes `num_environments` copies, seeded with seed, seed+1, ... (None draws a seed)."""


def specs_of(make_environment: EnvironmentFactory) -> EnvironmentSpecs:
    """Makes one environment, reads its specs, and closes it."""
    environment = make_environment(num_environments=1, seed=0)
    try:
        return environment.specs
    finally:
        environment.close()


def check_batch(value: Any, spec: types.NestedTensorSpec, num_environments: int, name: str) -> None:
    """Checks a nest of numpy arrays [B, ...] against its spec: structure, dtypes, shapes.

    Raises:
      ValueError: naming the leaf that differs.
    """
    try:
        tf.nest.assert_same_structure(value, spec)
    except (ValueError, TypeError) as error:
        raise UserValueError(f'got a {name} of another structure than its spec; need {spec}') from error
    for leaf, leaf_spec in zip(tf.nest.flatten(value), tf.nest.flatten(spec), strict=True):
        array = np.asarray(leaf)
        shape = (num_environments, *leaf_spec.shape)
        if array.shape != shape or array.dtype != leaf_spec.dtype.as_numpy_dtype:
            raise UserValueError(
                f'got {name} {leaf_spec.name or ""} with shape {array.shape}, {array.dtype}; '
                f'need {shape}, {leaf_spec.dtype.name}'
            )


def integer_bounds(spec: types.TensorSpec) -> tuple[np.ndarray, np.ndarray] | None:
    """Returns the bounds of a tensor of integers: (minimum, maximum), int64, both of the tensor's shape.

    Returns:
      None for a tensor of other numbers, and for one without bounds; those of the dtype itself are none.
    """
    if not spec.dtype.is_integer or not hasattr(spec, 'minimum') or spec.dtype == tf.uint64:
        return None
    minimum, maximum = (np.broadcast_to(bound, spec.shape).astype(np.int64) for bound in (spec.minimum, spec.maximum))
    unbounded = np.any(maximum == spec.dtype.max) or (spec.dtype.min < 0 and np.any(minimum == spec.dtype.min))
    return None if unbounded else (minimum, maximum)


def zeros(spec: types.NestedTensorSpec, outer_dims: tuple[int, ...]) -> Any:
    """Returns a nest of zero tensors of `spec` with `outer_dims` in front: something to trace a program with."""
    return tensor_spec.zero_spec_nest(tensor_spec.remove_outer_dims_nest(spec, 0), outer_dims=outer_dims)
