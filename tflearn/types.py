"""What packages expect of each other: environments, policies, agents, sources of batches, and their factories."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
import tensorflow as tf
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import policy_step
from tf_agents.trajectories import time_step as ts
from tf_agents.typing import types

from tflearn.errors import UserValueError
from tflearn.experience import Experience

WEIGHTS = 'weights'  # importance weights in the info of a batch


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


class VideoFactory(Protocol):
    """Makes an environment that films its episodes; everything but the folder is bound beforehand."""

    def __call__(self, folder: str) -> BatchedEnvironment:
        """Makes a batch of one environment whose episodes become films in `folder`."""


class ActingPolicy(Protocol):
    """What acts in place of a TF-Agents policy: compiled here, or served elsewhere."""

    def initial_state(self, batch_size: int) -> Any:
        """Returns the policy state [B, ...] before a first step."""

    def step(self, time_step: ts.TimeStep, policy_state: Any) -> policy_step.PolicyStep:
        """Acts on time steps [B] of numpy arrays; action and info are numpy [B, ...]."""

    def check(self, time_step: ts.TimeStep) -> None:
        """Raises ValueError if time steps [B] are not what the policy takes."""


class EvaluationPolicy(Protocol):
    """What the evaluator asks of a policy: a loaded SavedModel or a `CompiledPolicy` fulfils it."""

    def initial_state(self, batch_size: int) -> Any:
        """Returns the policy state [B, ...] before a first step; () where there is none."""

    def action(self, time_step: ts.TimeStep, policy_state: Any) -> tuple[Any, Any]:
        """Acts on time steps [B] of numpy arrays.

        Returns:
          (action, policy state): a nest of numpy arrays [B, ...], and what the next call is to be given. Where a time
          step is FIRST, the policy starts its state anew by itself.
        """


@runtime_checkable
class BatchSource(Protocol):
    """Batches that are drawn inside of a learner's compiled program: faster than a dataset's iterator.

    Attributes:
      max_draw_steps: batches of one draw, at most.
      error: why there are no more batches; None if there are, or it was closed.
    """

    max_draw_steps: int

    @property
    def error(self) -> Exception | None: ...

    def grant(self, num_steps: int) -> int:
        """Waits until train steps may be taken. Returns how many now, at most `num_steps`; 0 if there will be none."""

    def draw(self, num_steps: tf.Tensor, seed: tf.Tensor) -> types.NestedTensor:
        """Draws batches. Returns what `batch` needs to get them one by one: a nest of tensors [num_steps, ...]."""

    def batch(self, drawn: types.NestedTensor, i: tf.Tensor) -> tuple[types.NestedTensor, dict[str, tf.Tensor]]:
        """Returns data and info of batch `i` of a draw: nests of tensors [B, ...], for all replicas of this process.

        Info may hold `WEIGHTS`, float32 [B]: importance weights for `Agent.train`.
        """

    def close(self) -> None:
        """Closes the source; a waiting learner returns. May be called from any thread."""


class Agent(Protocol):
    """What the rest of the system asks of an agent: a part of TF-Agents' `TFAgent`, which fulfils it."""

    policy: Any
    collect_policy: Any
    collect_data_spec: types.NestedTensorSpec
    training_data_spec: types.NestedTensorSpec
    train_step_counter: tf.Variable

    def initialize(self) -> Any:
        """Sets up what a first train step needs (target networks)."""

    def train(self, experience: types.NestedTensor, weights: types.Tensor | None = None) -> Any:
        """Takes one gradient step on a batch [B, T, ...]. Returns a LossInfo (loss, extra)."""

    def loss(self, experience: types.NestedTensor, weights: types.Tensor | None = None) -> Any:
        """Returns the LossInfo without any update."""


class AgentFactory(Protocol):
    """Makes an agent for an environment; hyperparameters are bound beforehand."""

    def __call__(self, specs: EnvironmentSpecs, train_step: tf.Variable, experience: Experience) -> Agent:
        """Makes the agent. What `experience` says (its sequence length, say) is taken from there, not told again."""


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
