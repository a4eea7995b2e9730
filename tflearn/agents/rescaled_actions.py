"""Agents that work on actions in [-1, 1], whatever the environment's unit is.

Learning rates, deviations and entropies are of one size then. What policies return, and what is
stored, exported and recorded, is in the environment's unit: the parameters of distributions too, so
that densities are those of the environment's actions. An agent's factory is decorated with
`rescaled`, as by `algorithm.factory`: policies convert the actions that they return, and batches
are converted when they are trained on. Where all bounds are -1 and 1 already, the agent stays as it
is.

A float whose bounds are equal is a constant: the agent does not see it, and policies add it.
Integers are counted from 0 for the agent, whatever their minimum is. Integers and floats without
finite bounds stay as they are.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from tf_agents.distributions import shifted_categorical
from tf_agents.distributions import utils as distribution_utils
from tf_agents.policies import greedy_policy, tf_policy
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import policy_step
from tf_agents.trajectories import time_step as ts
from tf_agents.typing import types

from tflearn.agents.actor_value import DIST_PARAMS
from tflearn.core.agent_data import WrappedAgent, WrappingPolicy
from tflearn.core.errors import UserValueError
from tflearn.core.types import Agent, EnvironmentSpecs, integer_bounds
from tflearn.networks import own_heads


class ActionRescaling:
    """Converts actions between an environment's unit and [-1, 1].

    Attributes:
      specs: the environment's specs, with the agent's actions: float32 in [-1, 1], and integers
        from 0 on; () is a tensor of constants only.
    """

    def __init__(self, specs: EnvironmentSpecs, rescales: bool = True):
        """
        Args:
          specs: the environment's specs.
          rescales: False leaves floats as they are.

        Raises:
          ValueError: if all numbers of the action are constants.
        """
        leaves = tf.nest.flatten(specs.action)
        self._environment_specs = specs
        self._leaves = [_leaf(spec, rescales) for spec in leaves]
        if leaves and not any(leaf.agent_spec for leaf in self._leaves):
            raise UserValueError(
                f'got the action {specs.action}, whose bounds are equal: all its numbers are constants; need at least '
                'one to choose; correct the bounds of the action space'
            )
        action = tf.nest.pack_sequence_as(specs.action, [leaf.agent_spec or () for leaf in self._leaves])
        self._is_identity = not any(isinstance(leaf, _Rescaled | _Counted) for leaf in self._leaves)
        self.specs = specs if self._is_identity else EnvironmentSpecs(specs.observation, action, specs.reward)

    def wrapped(self, agent: Agent) -> Agent:
        """Returns an agent for `specs` as one for the environment's specs."""
        if self._is_identity:
            return agent
        return RescaledAgent(agent, self)

    def policy(self, policy: tf_policy.TFPolicy) -> tf_policy.TFPolicy:
        """Returns `policy` for the environment's actions; a greedy one remains a greedy policy of another one."""
        if isinstance(policy, greedy_policy.GreedyPolicy):
            return greedy_policy.GreedyPolicy(self.policy(policy.wrapped_policy))
        return RescaledPolicy(policy, self)

    @property
    def environment_specs(self) -> EnvironmentSpecs:
        """The environment's specs."""
        return self._environment_specs

    def to_environment(self, action: Any) -> Any:
        """Returns actions [..., *agent's spec] in the environment's unit, [..., *environment's spec]."""
        return self._map(lambda leaf, value, like: leaf.to_environment(value, like), action)

    def to_agent(self, action: Any) -> Any:
        """Returns actions [..., *environment's spec] in the agent's unit, [..., *agent's spec]."""
        pairs = zip(self._leaves, tf.nest.flatten(action), strict=True)
        rescaled = [() if leaf.agent_spec is None else leaf.to_agent(value) for leaf, value in pairs]
        return tf.nest.pack_sequence_as(self._environment_specs.action, rescaled)

    def distribution(self, distribution: Any) -> Any:
        """Returns a nest of distributions of the agent's actions as those of the environment's."""
        return self._map(lambda leaf, value, like: leaf.distribution(value, like), distribution)

    def info_spec(self, spec: Any) -> Any:
        """Returns the spec of `info_to_environment`, of the agent's policy info."""
        return self._map_parameters(lambda leaf, parameters: leaf.parameters_spec(parameters), spec)

    def info_to_environment(self, info: Any) -> Any:
        """Returns the policy info with the parameters of distributions, if it has any, in the environment's unit."""
        return self._map_parameters(lambda leaf, parameters: leaf.parameters_to_environment(parameters), info)

    def info_to_agent(self, info: Any) -> Any:
        """Returns the policy info with the parameters of distributions, if it has any, in the agent's unit."""
        return self._map_parameters(lambda leaf, parameters: leaf.parameters_to_agent(parameters), info)

    def _map(self, function: Callable[[Any, Any, Any], Any], values: Any) -> Any:
        """Maps each leaf of the agent's action; constants get the first one, for its outer dimensions."""
        found = iter(_flatten_up_to(self.specs.action, values))
        given = [None if leaf.agent_spec is None else next(found) for leaf in self._leaves]
        pairs = [(leaf.agent_spec, value) for leaf, value in zip(self._leaves, given, strict=True)]
        first = next(pair for pair in pairs if pair[0])
        mapped = [function(leaf, value, first) for leaf, value in zip(self._leaves, given, strict=True)]
        return tf.nest.pack_sequence_as(self._environment_specs.action, mapped)

    def _map_parameters(self, function: Callable[[Any, Any], Any], info: Any) -> Any:
        if not isinstance(info, Mapping) or DIST_PARAMS not in info:
            return info
        found = _flatten_up_to(self.specs.action, info[DIST_PARAMS])
        leaves = [leaf for leaf in self._leaves if leaf.agent_spec]
        mapped = [function(leaf, parameters) for leaf, parameters in zip(leaves, found, strict=True)]
        return {**info, DIST_PARAMS: tf.nest.pack_sequence_as(self.specs.action, mapped)}


def rescaled(make_agent: Callable[..., Agent]) -> Callable[..., Agent]:
    """Decorates an agent's factory: it gets specs of rescaled actions, and what it makes is wrapped.

    An `actor_network` of one's own works on the environment's floats, and so does `smoothing`.
    """

    @functools.wraps(make_agent)
    def make(specs: EnvironmentSpecs, *args: Any, **arguments: Any) -> Agent:
        is_own = any(arguments.get(name) is not None for name in ('actor_network', 'smoothing'))
        rescaling = ActionRescaling(specs, rescales=not is_own)
        return rescaling.wrapped(make_agent(rescaling.specs, *args, **arguments))

    return make


class RescaledAgent(WrappedAgent):
    """An agent whose actions are in the environment's unit; see the module."""

    def __init__(self, agent: Agent, rescaling: ActionRescaling):
        """
        Args:
          agent: the agent, for `rescaling.specs`.
          rescaling: how actions are converted.
        """
        super().__init__(
            agent, rescaling.policy(agent.policy), rescaling.policy(agent.collect_policy), 'rescaled_agent'
        )
        self.train_sequence_length = getattr(agent, 'train_sequence_length', None)
        # In a function, since TensorFlow would wrap lists and dictionaries in attributes.
        self._rescaling = lambda: rescaling

    @property
    def collect_data_spec(self) -> Any:
        """See `WrappedAgent`."""
        rescaling, spec = self._rescaling(), self._agent.collect_data_spec
        info = rescaling.info_spec(spec.policy_info)
        return spec._replace(action=rescaling.environment_specs.action, policy_info=info)

    def convert(self, experience: Any) -> tuple[Any, Any]:
        """See `WrappedAgent`."""
        rescaling = self._rescaling()
        action, info = rescaling.to_agent(experience.action), rescaling.info_to_agent(experience.policy_info)
        return experience._replace(action=action, policy_info=info), None


class RescaledPolicy(WrappingPolicy, tf_policy.TFPolicy):
    """A policy that returns the actions of another one in the environment's unit."""

    def __init__(self, policy: tf_policy.TFPolicy, rescaling: ActionRescaling):
        """
        Args:
          policy: the policy, for `rescaling.specs`.
          rescaling: how actions are converted.
        """
        super().__init__(
            policy.time_step_spec,
            rescaling.environment_specs.action,
            policy_state_spec=policy.policy_state_spec,
            info_spec=rescaling.info_spec(policy.info_spec),
            clip=False,  # the other one clips
            observation_and_action_constraint_splitter=policy.observation_and_action_constraint_splitter,
            name=policy.name,
        )
        self._wrap(policy, rescaling)

    def _get_initial_state(self, batch_size: types.Int) -> Any:
        return self._wrapped_policy.get_initial_state(batch_size)

    def _action(self, time_step: ts.TimeStep, policy_state: Any, seed: Any) -> policy_step.PolicyStep:
        step, (rescaling,) = self._wrapped_policy.action(time_step, policy_state, seed), self._parts()
        return self._converted(step, rescaling.to_environment(step.action))

    def _distribution(self, time_step: ts.TimeStep, policy_state: Any) -> policy_step.PolicyStep:
        step, (rescaling,) = self._wrapped_policy.distribution(time_step, policy_state), self._parts()
        return self._converted(step, rescaling.distribution(step.action))

    def _converted(self, step: policy_step.PolicyStep, action: Any) -> policy_step.PolicyStep:
        return step._replace(action=action, info=self._parts()[0].info_to_environment(step.info))


class _Unchanged:
    """A tensor of the action that stays as it is."""

    def __init__(self, spec: types.TensorSpec):
        self.agent_spec: types.TensorSpec | None = spec

    def to_environment(self, values: Any, like: Any) -> Any:
        return values

    def to_agent(self, values: Any) -> Any:
        return values

    def distribution(self, distribution: Any, like: Any) -> Any:
        return distribution

    def parameters_spec(self, parameters: Any) -> Any:
        return parameters

    def parameters_to_environment(self, parameters: Any) -> Any:
        return parameters

    def parameters_to_agent(self, parameters: Any) -> Any:
        return parameters


class _Rescaled(_Unchanged):
    """A tensor of floats: middle + half * the agent's. If it has constants, the agent's is a vector of the others."""

    def __init__(self, spec: types.BoundedTensorSpec):
        low, high = (np.broadcast_to(bound, spec.shape).astype(np.float64) for bound in (spec.minimum, spec.maximum))
        varies = high > low
        self._spec, self._dtype = spec, tf.float64 if spec.dtype == tf.float64 else tf.float32
        dtype = self._dtype.as_numpy_dtype
        self._bounds = low.astype(spec.dtype.as_numpy_dtype), high.astype(spec.dtype.as_numpy_dtype)
        self._half = np.where(varies, high / 2 - low / 2, 0).astype(dtype)
        self.log_factor = float(np.log(self._half[varies]).sum())  # of the range of all numbers to the agent's
        self._middle = np.where(varies, high / 2 + low / 2, low).astype(dtype)
        # The numbers that vary in the flat tensor; and the place of each of its numbers among
        # these, 0 for constants.
        self._varying = None if varies.all() else np.flatnonzero(varies)
        self._places = np.maximum(np.cumsum(varies.ravel()) - 1, 0)
        shape = spec.shape if self._varying is None else tf.TensorShape([self._varying.size])
        agent_spec = tensor_spec.BoundedTensorSpec(shape, tf.float32, -1.0, 1.0, spec.name)
        self.agent_spec = agent_spec if varies.any() else None

    def to_environment(self, values: Any, like: Any) -> tf.Tensor:
        if self.agent_spec is None:
            return self._constants(*like)
        values = self._spread(values)
        moved = tf.cast(self._middle + self._half * values, self._spec.dtype)
        # Rounding does not leave the bounds; draws beyond them stay what they are.
        return tf.where(tf.abs(values) <= 1, tf.clip_by_value(moved, *self._bounds), moved)

    def to_agent(self, values: tf.Tensor) -> tf.Tensor:
        low, high = self._bounds
        half = np.where(self._half > 0, self._half, 1)
        moved = tf.cast((tf.cast(values, self._dtype) - self._middle) / half, tf.float32)
        moved = tf.where((values >= low) & (values <= high), tf.clip_by_value(moved, -1.0, 1.0), moved)
        return self._gathered(moved)

    def distribution(self, distribution: Any, like: Any) -> tfp.distributions.Distribution:
        if self.agent_spec is None:
            spec, first = like
            first = first.mode() if isinstance(first, tfp.distributions.Distribution) else first
            return tfp.distributions.Deterministic(self._constants(spec, first))
        if isinstance(distribution, tfp.distributions.Deterministic):
            return tfp.distributions.Deterministic(self.to_environment(distribution.mode(), like))
        if isinstance(distribution, own_heads.ByNumbers):
            return _Moved(distribution, self)
        if isinstance(distribution, distribution_utils.SquashToSpecNormal):
            return self._squashed(distribution.input_distribution)
        if isinstance(distribution, tfp.distributions.MultivariateNormalDiag):
            made = self.parameters_to_environment({'loc': distribution.mean(), 'scale_diag': distribution.stddev()})
            return tfp.distributions.MultivariateNormalDiag(**made)
        if isinstance(distribution, tfp.distributions.Independent):
            made = self.parameters_to_environment({'loc': distribution.mean(), 'scale': distribution.stddev()})
            return tfp.distributions.Independent(tfp.distributions.Normal(**made), self._spec.shape.rank)
        raise NotImplementedError(f'got a {type(distribution).__name__}; need one of the distributions above')

    def parameters_spec(self, parameters: Mapping[str, tf.TensorSpec]) -> Any:
        if own_heads.NUMBERS in parameters:
            return parameters
        return {name: tf.TensorSpec(self._spec.shape, self._spec.dtype, spec.name) for name, spec in parameters.items()}

    def parameters_to_environment(self, parameters: Mapping[str, tf.Tensor]) -> Any:
        """Converts 'loc', and deviations of any other name; but not what a distribution of one's own is made of."""
        if own_heads.NUMBERS in parameters:
            return parameters
        return {
            name: self.to_environment(value, None)
            if name == 'loc'
            else tf.cast(self._half * self._spread(value), self._spec.dtype)
            for name, value in parameters.items()
        }

    def parameters_to_agent(self, parameters: Mapping[str, tf.Tensor]) -> Any:
        if own_heads.NUMBERS in parameters:
            return parameters
        half = np.where(self._half > 0, self._half, 1)
        return {
            name: self.to_agent(value)
            if name == 'loc'
            else self._gathered(tf.cast(tf.cast(value, self._dtype) / half, tf.float32))
            for name, value in parameters.items()
        }

    def _squashed(self, normal: tfp.distributions.Distribution) -> tfp.distributions.Distribution:
        if self._varying is None and self._spec.dtype == tf.float32:
            return distribution_utils.SquashToSpecNormal(normal, self._spec)
        # Constants are squashed into bounds that are equal, so that their parameters do not matter.
        constant = tf.constant(self._half == 0)
        loc, scale = (tf.cast(self._spread(value), self._spec.dtype) for value in (normal.mean(), normal.stddev()))
        made = tfp.distributions.MultivariateNormalDiag(
            tf.where(constant, tf.zeros_like(loc), loc), tf.where(constant, tf.ones_like(scale), scale)
        )
        return distribution_utils.SquashToSpecNormal(made, self._spec)

    def _constants(self, agent_spec: types.TensorSpec, values: tf.Tensor) -> tf.Tensor:
        """Returns the constants with the outer dimensions of another tensor of the agent's action."""
        outer = tf.shape(values)[: values.shape.rank - agent_spec.shape.rank]
        return tf.broadcast_to(self._bounds[0], tf.concat([outer, self._spec.shape], axis=0))

    def _spread(self, values: tf.Tensor) -> tf.Tensor:
        """Returns the agent's numbers at their places in the environment's tensor; constants have any number."""
        values = tf.cast(values, self._dtype)
        if self._varying is None:
            return values
        spread = tf.gather(values, self._places, axis=-1)
        return tf.reshape(spread, tf.concat([tf.shape(values)[:-1], self._spec.shape], axis=0))

    def _gathered(self, values: tf.Tensor) -> tf.Tensor:
        """Returns the numbers that vary of [..., *environment's spec]."""
        if self._varying is None:
            return values
        outer = tf.shape(values)[: values.shape.rank - self._spec.shape.rank]
        flat = tf.reshape(values, tf.concat([outer, [self._places.size]], axis=0))
        return tf.gather(flat, self._varying, axis=-1)


class _Moved(own_heads.ByNumbers):
    """A distribution by numbers, of the environment's actions."""

    def __init__(self, distribution: own_heads.ByNumbers, rescaling: _Rescaled):
        """Takes that of the agent's actions, and their conversion."""
        super().__init__(distribution.parameters[own_heads.NUMBERS], lambda _: distribution, 'Moved')
        self._rescaling = rescaling

    def sample(self, sample_shape: Any = (), seed: Any = None, name: str = 'sample', **_: Any) -> tf.Tensor:
        return self._rescaling.to_environment(self.inner.sample(sample_shape, seed, name), None)

    def log_prob(self, value: tf.Tensor, name: str = 'log_prob', **_: Any) -> tf.Tensor:
        return self.inner.log_prob(self._rescaling.to_agent(value), name) - self._rescaling.log_factor

    def mode(self, name: str = 'mode', **_: Any) -> tf.Tensor:
        return self._rescaling.to_environment(self.inner.mode(name), None)

    def entropy(self, name: str = 'entropy', **_: Any) -> tf.Tensor:
        return self.inner.entropy(name) + self._rescaling.log_factor


class _Counted(_Unchanged):
    """A tensor of integers: their minimum + the agent's, which are counted from 0."""

    def __init__(self, spec: types.BoundedTensorSpec, minimum: np.ndarray, maximum: np.ndarray):
        self._minimum, self._last = (each.astype(spec.dtype.as_numpy_dtype) for each in (minimum, maximum - minimum))
        self.agent_spec = tensor_spec.BoundedTensorSpec(
            spec.shape, spec.dtype, np.zeros_like(minimum), maximum - minimum, spec.name
        )

    def to_environment(self, values: Any, like: Any) -> tf.Tensor:
        return values + self._minimum

    def to_agent(self, values: Any) -> tf.Tensor:
        # Zeros pad data; where 0 is no choice, they become the first one, so that no index is out
        # of bounds.
        counted = values - self._minimum
        return tf.where(values == 0, tf.clip_by_value(counted, 0, self._last), counted)

    def distribution(self, distribution: Any, like: Any) -> tfp.distributions.Distribution:
        if isinstance(distribution, tfp.distributions.Deterministic):
            return tfp.distributions.Deterministic(self.to_environment(distribution.mode(), like))
        if isinstance(distribution, tfp.distributions.Categorical):
            logits, dtype = distribution.logits_parameter(), distribution.dtype
            return shifted_categorical.ShiftedCategorical(logits, dtype=dtype, shift=self._minimum)
        raise NotImplementedError(f'got a {type(distribution).__name__}; need one of the distributions above')


def _leaf(spec: types.TensorSpec, rescales: bool) -> _Unchanged:
    if rescales and _needs_rescaling(spec):
        return _Rescaled(spec)
    bounds = integer_bounds(spec)
    return _Unchanged(spec) if bounds is None or not bounds[0].any() else _Counted(spec, *bounds)


def _needs_rescaling(spec: types.TensorSpec) -> bool:
    if not spec.dtype.is_floating or not hasattr(spec, 'minimum'):
        return False
    with np.errstate(over='ignore', invalid='ignore'):
        if not np.isfinite(np.asarray(spec.maximum) - spec.minimum).all():
            return False  # the algorithms refuse it
    is_unit = spec.dtype == tf.float32 and np.all(np.asarray(spec.minimum) == -1) and np.all(spec.maximum == 1)
    return not is_unit


def _flatten_up_to(like: Any, nest: Any) -> list[Any]:
    """Returns the parts of a nest at the leaves of another one, in the order of `tf.nest.flatten`."""
    if not tf.nest.is_nested(like):
        return [nest]
    if isinstance(like, Mapping):
        return [part for key in sorted(like) for part in _flatten_up_to(like[key], nest[key])]
    return [part for one, other in zip(like, nest, strict=True) for part in _flatten_up_to(one, other)]
