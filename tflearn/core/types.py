"""The interfaces that packages share: environments, policies, agents, and their factories."""

import dataclasses
import difflib
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, get_args

import numpy as np
import tensorflow as tf
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import policy_step
from tf_agents.trajectories import time_step as ts
from tf_agents.typing import types
from tf_agents.utils import nest_utils

from tflearn.core.errors import UserTypeError, UserValueError

if TYPE_CHECKING:  # a policy is loaded without the settings of a learner's data
    from tflearn.core.experience import Experience

WEIGHTS = 'weights'  # importance weights in the info of a batch
DEMONSTRATED = 'demonstrated'  # which items of a batch are demonstrations, bool [B], in its info
# In the info of environments: bool [B], which of them have no episode and return FIRST.
IDLE = 'idle'


def waits_for_episodes(info: Mapping[str, np.ndarray]) -> bool:
    """Returns whether no environment has an episode,
    by the `BatchedEnvironment.info` of the newest step.
    """
    return IDLE in info and bool(np.all(info[IDLE]))


@dataclasses.dataclass(frozen=True)
class EnvironmentSpecs:
    """Specs of one environment, without outer (batch or time) dimensions.

    Attributes:
      observation: nest of tensor specs.
      action: nest of bounded tensor specs.
      reward: a scalar float32, unless the task has several rewards.
    """

    observation: types.NestedTensorSpec
    action: types.NestedTensorSpec
    reward: types.NestedTensorSpec = dataclasses.field(default_factory=lambda: tf.TensorSpec((), tf.float32, 'reward'))

    def __post_init__(self) -> None:
        object.__setattr__(self, 'observation', tf.nest.map_structure(_that_can_be_drawn, self.observation))

    @property
    def time_step(self) -> ts.TimeStep:
        """The time step's spec: step_type int32, reward, discount float32 in [0, 1],
        observation.
        """
        return ts.time_step_spec(self.observation, self.reward)


def _that_can_be_drawn(spec: tf.TensorSpec) -> tf.TensorSpec:
    """Returns the spec, with bounds that have its rank if it is uint8.

    TF-Agents draws such values to make variables, up to the bound and 1, which is 0 for a scalar
    255 in NumPy 2.
    """
    if spec.dtype != tf.uint8 or not spec.shape.rank:
        return spec
    bounded = tensor_spec.BoundedTensorSpec.from_spec(spec)
    bounds = (np.atleast_1d(bound) for bound in (bounded.minimum, bounded.maximum))
    return tensor_spec.BoundedTensorSpec(spec.shape, spec.dtype, *bounds, spec.name)


class BatchedEnvironment(Protocol):
    """`num_environments` copies of an environment, stepped together.

    Time steps are nests of numpy arrays, every leaf with the leading dimension [B] =
    [num_environments]. An environment whose last time step was LAST ignores its next action and
    returns FIRST (reward 0, discount 1), as in TF-Agents and in gymnasium's next-step autoreset.
    Termination is LAST with discount 0; truncation (a time limit) is LAST with discount 1, so that
    a learner bootstraps from the last observation. The caller may keep the arrays of a time step:
    later steps do not change them.

    Actions are arrays [B, ...] of the spec's dtypes. Floats are clipped to their bounds before an
    environment gets them. The caller's array is not changed, and the data should hold it: the
    policy's probabilities refer to it. Integers out of bounds and floats that are not finite raise
    a ValueError, in every step.

    An environment that fails is rebuilt and returns FIRST (reward 0, discount 1) in the same step.
    So FIRST after a time step that was not LAST means that this action, its reward and its result
    have to be discarded.
    """

    num_environments: int
    specs: EnvironmentSpecs

    @property
    def info(self) -> Mapping[str, np.ndarray]:
        """Additional values of the newest step; empty after `reset`.

        Numeric arrays [B, ...], NaN or 0 where an environment gave no value. A key that has
        appeared once stays. 'executed_action', of the action's dtype and shape, is the action that
        was executed if it differs from the one that `step` was given (apart from clipping). 'idle'
        marks environments that have no episode at the moment and return FIRST: no failures, see
        `tflearn.environments.external_env`.
        """

    @property
    def num_rebuilt(self) -> int:
        """The number of environments rebuilt so far."""

    def reset(self) -> ts.TimeStep:
        """Starts a new episode in every environment. Returns FIRST time steps [B]."""

    def step(self, action: Any) -> ts.TimeStep:
        """Applies `action` (nest of arrays [B, ...]). Returns time steps [B].

        Raises:
          ValueError: if the action has another structure, shape or dtype, is not finite, or has
            integers out of bounds.
        """

    def close(self) -> None:
        """Closes the environments. May be called twice."""


class EnvironmentFactory(Protocol):
    """Makes a batched environment; all other arguments are bound beforehand."""

    def __call__(self, num_environments: int, seed: int | None) -> BatchedEnvironment:
        """Makes `num_environments` copies with the seeds seed, seed + 1, ... (None draws a seed).

        A copy with several agents is as many rows of the batch: its `num_environments` is greater
        then.
        """


# (folder=...) -> an environment of gymnasium, or a batch of one environment, that writes videos of
# its episodes to that folder.
VideoFactory = Callable[..., Any]


class ActingPolicy(Protocol):
    """A policy as an actor uses it: compiled in this process, or served by another one."""

    def initial_state(self, batch_size: int) -> Any:
        """Returns the policy state [B, ...] before a first step."""

    def step(self, time_step: ts.TimeStep, policy_state: Any) -> policy_step.PolicyStep:
        """Acts on time steps [B] of numpy arrays. Returns action and info as numpy arrays [B, ...]."""

    def check(self, time_step: ts.TimeStep) -> None:
        """Raises ValueError if time steps [B] do not match the policy's spec."""


class EvaluationPolicy(Protocol):
    """A policy as the evaluator uses it: a loaded SavedModel or a `CompiledPolicy`."""

    def initial_state(self, batch_size: int) -> Any:
        """Returns the policy state [B, ...] before a first step; () where there is none."""

    def action(self, time_step: ts.TimeStep, policy_state: Any) -> tuple[Any, Any]:
        """Acts on time steps [B] of numpy arrays.

        Returns:
          (action, policy state): a nest of numpy arrays [B, ...], and the state to pass to the next
          call. Where a time step is FIRST, the policy resets its state itself.
        """


class Agent(Protocol):
    """The part of TF-Agents' `TFAgent` that tflearn uses."""

    policy: Any
    collect_policy: Any
    collect_data_spec: types.NestedTensorSpec
    training_data_spec: types.NestedTensorSpec
    train_step_counter: tf.Variable

    def initialize(self) -> Any:
        """Prepares the first train step (target networks)."""

    def train(self, experience: types.NestedTensor, weights: types.Tensor | None = None) -> Any:
        """Takes one gradient step on a batch [B, T, ...]. Returns a LossInfo (loss, extra)."""

    def loss(self, experience: types.NestedTensor, weights: types.Tensor | None = None) -> Any:
        """Returns the LossInfo without an update."""


class AgentFactory(Protocol):
    """Makes an agent for an environment; hyperparameters are bound beforehand."""

    def __call__(self, specs: EnvironmentSpecs, train_step: tf.Variable, experience: 'Experience') -> Agent:
        """Makes the agent. Settings of the data, such as the sequence length,
        come from `experience`.
        """


def check_agent(agent: Any) -> None:
    """Raises TypeError if what a factory returned is no agent."""
    needed = ('policy', 'collect_policy', 'collect_data_spec', 'train_step_counter', 'initialize', 'train', 'loss')
    if missing := [name for name in needed if not hasattr(agent, name)]:
        raise UserTypeError(
            f'got make_agent that returned a {type(agent).__name__} without {", ".join(missing)}; need a TF-Agents '
            'agent, or an object with the attributes of tflearn.core.types.Agent'
        )


def is_keras_3(given: Any) -> bool:
    """Returns whether something is a class or object of Keras 3, where `tf.keras` is Keras 2."""
    kind = given if isinstance(given, type) else type(given)
    packages = {each.__module__.partition('.')[0] for each in kind.__mro__}
    return 'keras' in packages - {tf.keras.layers.Layer.__module__.partition('.')[0]}


def check_keras(what: str, given: Any) -> None:
    """Raises TypeError for a class or object of Keras 3: `what` names it."""
    if is_keras_3(given):
        kind = given if isinstance(given, type) else type(given)
        raise UserTypeError(
            f'got {what}, a {kind.__name__} of the package keras, which is Keras 3; need Keras 2; take it from tf.keras'
        )


def check_agent_factory(name: str, factory: Callable[..., Any]) -> None:
    """Raises TypeError for an `AgentFactory` that cannot be called as one;
    `name` is that of the argument.
    """
    check_call(name, factory, 'functools.partial(dqn.make_agent, gamma=0.99)', 'specs', 'train_step', 'experience')


def check_call(name: str, function: Callable[..., Any], example: str, *positional: str, **named: Any) -> None:
    """Checks that a function can be called with the arguments that it will get.

    Args:
      name: the name of the argument that it is, for the error.
      function: the function.
      example: one that can be.
      positional: what its arguments without a name are.
      named: its arguments with a name.

    Raises:
      TypeError: if it cannot, or is no function.
    """
    if not callable(function):
        raise UserTypeError(f'got {name}={function!r}; need a function, such as {example}; see docs/python.md')
    bound: tuple[tuple[Any, ...], Mapping[str, Any]] = (), {}
    called: Any = function
    while isinstance(called, functools.partial):
        bound, called = ((*called.args, *bound[0]), {**called.keywords, **bound[1]}), called.func
    try:
        signature = inspect.signature(called)
    except ValueError:  # Some classes of C have none.
        return
    # What wraps a function, as gin does, may add arguments.
    bind = signature.bind_partial if hasattr(called, '__wrapped__') else signature.bind
    try:
        bind(*bound[0], *positional, **{**bound[1], **named})
    except TypeError as error:
        unknown = next((other for other in bound[1] if repr(other) in str(error)), '')
        near = difflib.get_close_matches(unknown, signature.parameters, 1)
        own = {key: each.annotation for key, each in signature.parameters.items() if key not in positional}
        need = as_field(unknown, own) or f'a function that does, such as {example}'
        raise UserTypeError(
            f'got {name}={getattr(called, "__name__", called)}, which cannot be called with '
            f'{", ".join((*positional, *named))}: {error}{f" (did you mean {near[0]}?)" if near else ""}; need {need}'
        ) from None


def as_field(unknown: str, annotations: Mapping[str, Any]) -> str:
    """Returns how an unknown argument is given as a field of another one, such as 'loss=SACLoss(gamma=...)';
    '' if it is no field.

    Args:
      unknown: the argument.
      annotations: the types of the arguments that there are, by name.
    """
    for name, annotation in annotations.items():
        for kind in (annotation, *get_args(annotation)):
            if isinstance(kind, type) and dataclasses.is_dataclass(kind) and unknown in kind.__dataclass_fields__:
                return f'{name}={kind.__name__}({unknown}=...)'
    return ''


def specs_of(make_environment: EnvironmentFactory) -> EnvironmentSpecs:
    """Makes one environment, reads its specs, and closes it."""
    environment = make_environment(num_environments=1, seed=0)
    try:
        return environment.specs
    finally:
        environment.close()


def check_batch(value: Any, spec: types.NestedTensorSpec, num_environments: int, name: str) -> None:
    """Checks the structure, dtypes and shapes of a nest of numpy arrays [B, ...] against its spec.

    Raises:
      ValueError: if a leaf differs; it names the leaf.
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
    """Returns the bounds of an integer tensor:
    (minimum, maximum), int64, both of the tensor's shape.

    Returns:
      None if the tensor is of another dtype or has no bounds. The dtype's own limits do not count
      as bounds.
    """
    if not spec.dtype.is_integer or not hasattr(spec, 'minimum') or spec.dtype == tf.uint64:
        return None
    minimum, maximum = (np.broadcast_to(bound, spec.shape).astype(np.int64) for bound in (spec.minimum, spec.maximum))
    unbounded = np.any(maximum == spec.dtype.max) or (spec.dtype.min < 0 and np.any(minimum == spec.dtype.min))
    return None if unbounded else (minimum, maximum)


def with_shape(
    spec: tf.TensorSpec, shape: tuple[int, ...], change: Callable[[np.ndarray], np.ndarray]
) -> tf.TensorSpec:
    """Returns the spec of another shape; `change` makes its bounds from bounds of the old shape."""
    if not isinstance(spec, tensor_spec.BoundedTensorSpec):
        return tf.TensorSpec(shape, spec.dtype, spec.name)
    old = (np.broadcast_to(bound, spec.shape) for bound in (spec.minimum, spec.maximum))
    bounds = [np.broadcast_to(change(bound), shape) for bound in old]
    return tensor_spec.BoundedTensorSpec(shape, spec.dtype, *bounds, spec.name)


def differ_in_start(one: types.TensorSpec, other: types.TensorSpec) -> bool:
    """Returns whether two tensors of integers have as many choices each,
    counted from other numbers.
    """
    bounds, others = integer_bounds(one), integer_bounds(other)
    if bounds is None or others is None or bounds[0].shape != others[0].shape:
        return False
    offsets = [bound - of_other for bound, of_other in zip(bounds, others, strict=True)]
    return bool(offsets[0].any() and (offsets[0] == offsets[1]).all())


def leaf_paths(nest: Any, prefix: str = '') -> list[str]:
    """Returns the paths of the leaves of a nest, such as 'arm.position' or '0',
    in the order of `tf.nest.flatten`.

    The path of a single leaf is 'observation'.
    """
    paths = (path for path, _ in nest_utils.flatten_with_tuple_paths(nest))
    return ['.'.join(map(str, (prefix, *path) if prefix else path)) or 'observation' for path in paths]


def named_leaves(nest: Any, prefix: str = '') -> dict[str, Any]:
    """Returns the leaves of a nest by their `leaf_paths`, in the order of `tf.nest.flatten`.

    Raises:
      ValueError: if two have the same path, as those of {'a.b': ..., 'a': {'b': ...}}.
    """
    paths = leaf_paths(nest, prefix)
    named = dict(zip(paths, tf.nest.flatten(nest), strict=True))
    if len(named) < len(paths):
        twice = ', '.join(sorted({path for path in paths if paths.count(path) > 1}))
        raise UserValueError(f'got several parts called {twice}; need names of their own; rename a key')
    return named


def zeros(spec: types.NestedTensorSpec, outer_dims: tuple[int, ...]) -> Any:
    """Returns a nest of zero tensors of `spec` with `outer_dims` in front,
    to trace a program with.
    """
    return tensor_spec.zero_spec_nest(tensor_spec.remove_outer_dims_nest(spec, 0), outer_dims=outer_dims)
