"""ActionProbabilities: how likely an exported policy, or uniformly random actions,
are to take given actions.

SavedModels hold the parameters of distributions, not their classes. The names of the parameters
tell the class:

    logits                                categorical, counted from the action's minimum
    loc                                   one action, of a greedy policy
    loc, scale_diag                       normal; an action at or beyond a bound stands for all of them, since the
                                          environment clips: its probability is that of the tail
    distribution: {loc, scale_diag}       normal, squashed by tanh into the bounds (TF-Agents' SquashToSpecNormal)
    mixture_distribution: {logits},       even draws from windows, which are the same in all rows, of one number
    components_distribution: {low, high}  (`agents.smoothing`); of a vector {low, high} stand in a `distribution`
    numbers                               of the user's own (`NetworkOptions.make_head`): the SavedModel computes its
                                          densities, at bounds too

All are in the environment's unit. A number whose bounds are equal is a constant, and left out.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from tf_agents.trajectories import time_step as ts

from tflearn.core.action_mask import ActionMask
from tflearn.core.errors import UserValueError
from tflearn.core.types import EnvironmentSpecs
from tflearn.policies.loader import LoadedPolicy
from tflearn.policies.signatures import NUMBERS

OWN = 'density'  # a function of an action's tensor, in place of the parameters of a distribution of the user's own
NORMAL, SQUASHED, SMOOTHED = (
    {'loc', 'scale_diag'},
    {'distribution'},
    {'mixture_distribution', 'components_distribution'},
)
# Float32 actions reach the bounds themselves, where the density has no limit.
_LARGEST_TANH = 1 - 1e-7


class NoDensityError(UserValueError):
    """A policy always takes the same floats, which have no density."""


class ActionProbabilities:
    """The probabilities, for floats the densities, of actions as they are served:
    with a temperature and random ones.

    Attributes:
      num_choices: the number of choices of a single Discrete action; None for any other.
      edges: numbers, in order, between which the density of a single number is the same, from the
        least to the greatest one; None of others.
    """

    def __init__(
        self,
        policy: LoadedPolicy | None,
        specs: EnvironmentSpecs,
        epsilon: float,
        action_mask: ActionMask | None,
        temperature: float = 1.0,
    ):
        """
        Args:
          policy: the policy; None stands for uniform actions.
          specs: the environment's specs.
          epsilon: the share of uniform actions, in [0, 1]; 1 without a policy.
          action_mask: the part of the observation that marks legal actions; uniform actions are
            legal ones.
          temperature: divides the logits of a policy that draws, before random actions are mixed
            in.

        Raises:
          ValueError: if the policy draws its actions and was exported without the distribution, or
            with another one than this file knows; if it always takes the same floats, which have no
            density; or if it has no logits for a temperature.
        """
        self._policy, self._epsilon, self._mask = policy, 1.0 if policy is None else epsilon, action_mask
        self._temperature = temperature
        self._leaves: Sequence[Any] = tf.nest.flatten(specs.action)
        single = not tf.nest.is_nested(specs.action) and not specs.action.shape.rank
        integer = specs.action.dtype.is_integer if single else False
        self.num_choices = int(specs.action.maximum - specs.action.minimum) + 1 if integer else None
        self.edges: np.ndarray | None = None
        windows: list[Any] = []
        if policy is not None:
            zeros = tf.nest.map_structure(lambda s: np.zeros((1, *s.shape), s.dtype.as_numpy_dtype), specs.time_step)
            parameters = self._parameters(policy, zeros, policy.initial_state(1))[0]
            self._check(policy, parameters)
            if parameters[0].keys() == SMOOTHED and single:
                windows = [parameters[0]['components_distribution'][name] for name in ('low', 'high')]
        if single and not integer and (windows or policy is None):
            ends = [specs.action.minimum, specs.action.maximum, *windows]
            self.edges = np.unique(np.concatenate([np.ravel(each).astype(np.float64) for each in ends]))

    def log_probability(self, time_step: ts.TimeStep, policy_state: Any, action: Any) -> tuple[np.ndarray, Any]:
        """Returns the log-probabilities of actions, float64 [B], and the policy's next state.

        Args:
          time_step: time steps [B] of numpy arrays.
          policy_state: the policy's state before them; () without a policy.
          action: a nest of numpy arrays [B, ...].
        """
        if self._policy is None:
            return self._mixed((), time_step, action), policy_state
        parameters, policy_state = self._parameters(self._policy, time_step, policy_state)
        return self._mixed(parameters, time_step, action), policy_state

    def _mixed(self, parameters: Sequence[Any], time_step: ts.TimeStep, action: Any) -> np.ndarray:
        """Returns the log-probabilities of actions, float64 [B],
        by the parameters of the policy's own.
        """
        actions = tf.nest.flatten(action)
        uniform = self._uniform(time_step.observation, action, actions) if self._epsilon else None
        if self._policy is None:
            return np.asarray(uniform)
        own = np.sum(
            [_log_probability(*each) for each in zip(parameters, self._leaves, actions, strict=True)],
            axis=0,
        )
        if uniform is None:
            return np.asarray(own)
        # Uniform numbers never are a bound, so where the policy's own probability is a tail's they
        # have none.
        for found, spec, leaf in zip(parameters, self._leaves, actions, strict=True):
            if found.keys() == NORMAL:
                clipped = ((leaf <= spec.minimum) | (leaf >= spec.maximum)) & (spec.minimum < spec.maximum)
                uniform = np.where(clipped.reshape(len(leaf), -1).any(axis=1), -np.inf, uniform)
        with np.errstate(divide='ignore'):
            shares = np.log1p(-self._epsilon), np.log(self._epsilon)
        return np.asarray(np.logaddexp(own + shares[0], uniform + shares[1]))

    def probabilities(
        self, time_step: ts.TimeStep, policy_state: Any, edges: np.ndarray | None = None
    ) -> tuple[np.ndarray, Any]:
        """Returns the probabilities of the choices of a single Discrete action, float64 [B, A],
        and the next state.

        Of a single number they are those of what is between two neighbours of `edges`, which have
        all of `self.edges`.
        """
        spec, size = self._leaves[0], len(time_step.step_type)
        parameters: Sequence[Any] = ()
        if self._policy is not None:
            parameters, policy_state = self._parameters(self._policy, time_step, policy_state)
        if edges is not None:
            middles = (edges[1:] + edges[:-1]) / 2
            columns = [np.exp(self._mixed(parameters, time_step, np.full(size, each))) for each in middles]
            return np.stack(columns, axis=1) * np.diff(edges), policy_state
        # All at once: there may be thousands.
        number = self.num_choices or 0
        even = np.full((size, number), 1 / number) if self._mask is None else self._mask.even(time_step.observation)
        if self._policy is None:
            return even, policy_state
        own = _of_choices(parameters[0], spec, number)
        return (1 - self._epsilon) * own + self._epsilon * even, policy_state

    def _parameters(self, policy: LoadedPolicy, time_step: ts.TimeStep, state: Any) -> tuple[list[Any], Any]:
        """Returns the parameters for each tensor of the action, and the next policy state."""
        computed = policy.distribution(time_step, state)
        if computed is None:
            if policy.is_stochastic:
                raise UserValueError(
                    f'got the policy {policy.path}, which draws its actions and was exported without their '
                    "probabilities; need 'greedy_policy' with an epsilon, or 'raw_policy'"
                )
            action, state = policy.action(time_step, state)
            return [{'loc': leaf} for leaf in tf.nest.flatten(action)], state
        found = by_leaf(computed[0])
        if policy.has_log_probability:
            own = functools.partial(self._own_log_probability, policy, time_step, state)
            found = [{OWN: functools.partial(own, i)} if NUMBERS in each else each for i, each in enumerate(found)]
        if self._temperature != 1:  # of logits alone, see _check
            found = [
                {'logits': np.divide(each['logits'], self._temperature)} if each.keys() == {'logits'} else each
                for each in found
            ]
        return found, computed[1]

    def _own_log_probability(
        self, policy: LoadedPolicy, time_step: ts.TimeStep, state: Any, i: int, action: np.ndarray
    ) -> np.ndarray:
        """Returns the log-probabilities of tensor `i` of actions, float64 [B], as the policy computes them."""
        leaves = [np.zeros((len(action), *spec.shape), spec.dtype.as_numpy_dtype) for spec in self._leaves]
        leaves[i] = action.astype(leaves[i].dtype)
        return policy.log_probability(time_step, state, leaves)[i].astype(np.float64)

    def _check(self, policy: LoadedPolicy, parameters: Sequence[Mapping[str, Any]]) -> None:
        for found, spec in zip(parameters, self._leaves, strict=True):
            names, integer = found.keys(), spec.dtype.is_integer
            if self._temperature != 1 and names != {'logits'}:
                raise UserValueError(
                    f'got temperature={self._temperature:g} for the policy {policy.path} without logits; need one that '
                    'draws by them, or temperature=1'
                )
            if not integer and np.all(spec.minimum == spec.maximum):
                continue
            if names == {'loc'} and not integer:
                raise NoDensityError(
                    f'got the policy {policy.path}, which always takes the same floats: no action has a density; '
                    "need one that draws them, such as 'raw_policy' or 'collect_policy'"
                )
            if names == SQUASHED and found['distribution'].keys() == NORMAL and not integer:
                continue
            if names == SMOOTHED and not integer and spec.shape.rank <= 1:
                continue
            if names == {OWN}:
                continue
            if names not in (({'logits'}, {'loc'}) if integer else (NORMAL,)):
                raise UserValueError(
                    f'got the policy {policy.path}, whose distribution has {", ".join(names)}; need logits, loc, loc '
                    'and scale_diag, or a function log_probability beside it; export it again'
                )

    def _uniform(self, observation: Any, action: Any, actions: Sequence[np.ndarray]) -> np.ndarray:
        if self._mask is not None:
            return self._mask.log_probability(observation, action)
        total = 0.0
        for spec in self._leaves:
            sizes = np.broadcast_to(spec.maximum, spec.shape) - np.broadcast_to(spec.minimum, spec.shape).astype(float)
            sizes = sizes + spec.dtype.is_integer
            total -= float(np.log(sizes[sizes > 0]).sum())
        return np.full(len(actions[0]), total)


def by_leaf(parameters: Any) -> list[Any]:
    """Returns the parameters of each tensor of the action, of a nest of dicts of them;
    see the module.
    """
    if isinstance(parameters, Mapping):
        names = parameters.keys()
        if names in (SQUASHED, SMOOTHED) or any(not isinstance(value, Mapping) for value in parameters.values()):
            return [parameters]
        return [leaf for name in sorted(parameters) for leaf in by_leaf(parameters[name])]
    return [leaf for value in parameters for leaf in by_leaf(value)]


def _log_probability(parameters: Mapping[str, Any], spec: Any, action: np.ndarray) -> np.ndarray:
    """Returns the log-probabilities of one tensor of the action, float64 [B]."""
    if 'logits' in parameters:
        logits = tf.nn.log_softmax(np.asarray(parameters['logits'], np.float64)).numpy()
        each = np.take_along_axis(logits, (action - spec.minimum)[..., np.newaxis].astype(int), axis=-1)[..., 0]
    elif OWN in parameters:
        each = parameters[OWN](action)
    elif parameters.keys() == SMOOTHED:
        with np.errstate(divide='ignore'):
            each = _smoothed(parameters, action)
    elif parameters.keys() in (SQUASHED, NORMAL):
        density = _squashed if parameters.keys() == SQUASHED else _clipped_normal
        with np.errstate(divide='ignore', invalid='ignore'):
            each = density(parameters, spec, np.asarray(action, np.float64))
        each = np.where(np.equal(spec.minimum, spec.maximum), 0.0, each)
    else:
        each = np.where(np.equal(action, parameters['loc']), 0.0, -np.inf)
    return each.reshape(len(each), -1).sum(axis=1)


def _of_choices(parameters: Mapping[str, Any], spec: Any, number: int) -> np.ndarray:
    """Returns the probabilities of all choices of a Discrete action, [B, A]."""
    if 'logits' in parameters:
        return np.asarray(tf.nn.softmax(np.asarray(parameters['logits'], np.float64)))
    return np.equal(np.asarray(parameters['loc'])[:, np.newaxis] - spec.minimum, np.arange(number)).astype(np.float64)


def _squashed(parameters: Mapping[str, Any], spec: Any, action: np.ndarray) -> np.ndarray:
    mean, magnitude = (spec.maximum + spec.minimum) / 2, (spec.maximum - spec.minimum) / 2
    tanh = np.clip((action - mean) / magnitude, -_LARGEST_TANH, _LARGEST_TANH)
    inner = _normal(parameters['distribution']).log_prob(np.arctanh(tanh)).numpy()
    return inner - np.log1p(-(tanh**2)) - np.log(magnitude)


def _smoothed(parameters: Mapping[str, Any], action: np.ndarray) -> np.ndarray:
    components = parameters['components_distribution']
    components = components.get('distribution', components)
    logits, low, high = (
        np.asarray(each, np.float64)
        for each in (parameters['mixture_distribution']['logits'], components['low'], components['high'])
    )
    low, high = (each.reshape(*logits.shape, -1) for each in (low, high))
    action = np.asarray(action, np.float64).reshape(len(logits), 1, -1)
    is_within = ((low <= action) & (action <= high)).all(axis=2)
    return np.log((tf.nn.softmax(logits).numpy() * is_within / (high - low).prod(axis=2)).sum(axis=1))


def _clipped_normal(parameters: Mapping[str, Any], spec: Any, action: np.ndarray) -> np.ndarray:
    normal, low, high = _normal(parameters), np.float64(spec.minimum), np.float64(spec.maximum)
    below = np.where(action <= low, normal.log_cdf(low), normal.log_prob(action))
    return np.where(action >= high, normal.log_survival_function(high), below)


def _normal(parameters: Mapping[str, Any]) -> Any:
    return tfp.distributions.Normal(*(np.asarray(parameters[name], np.float64) for name in ('loc', 'scale_diag')))
