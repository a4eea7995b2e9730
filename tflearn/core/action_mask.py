"""ActionMask: the part of an observation that marks the legal actions."""

from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.trajectories import time_step as ts
from tf_agents.typing import types

from tflearn.core.errors import UserValueError
from tflearn.core.types import EnvironmentSpecs, integer_bounds, leaf_paths


class ActionMask:
    """Divides observations into the mask of legal actions and the rest, which enters the networks.

    The mask is a tensor of the observation, of any numbers or booleans: 0 for an illegal action.
    For a Discrete action it has one number for each choice; for a MultiDiscrete one those of the
    first number's choices, then the second's, and so on.

    Where nothing is legal, as in padding or after an episode's end, everything counts as legal, so
    that no value or probability is undefined; `check` refuses such a mask in a step in which an
    action is taken.
    """

    def __init__(self, specs: EnvironmentSpecs, path: str):
        """
        Args:
          specs: the environment's specs.
          path: the path of the mask in the observation, such as 'action_mask' or 'robot.legal'; see
            `leaf_paths`.

        Raises:
          ValueError: if the observation has no such part, or no other, the action is not Discrete
            or MultiDiscrete, or the mask does not have its shape.
        """
        paths, leaves, action = leaf_paths(specs.observation), tf.nest.flatten(specs.observation), specs.action
        if path not in paths or len(paths) == 1:
            raise UserValueError(
                f"got action_mask='{path}' and an observation with the parts {', '.join(paths)}; need one of several "
                'parts'
            )
        bounds = None if tf.nest.is_nested(action) else integer_bounds(action)
        if bounds is None:
            raise UserValueError(
                f"got action_mask='{path}' for the action {action}; need a Discrete or MultiDiscrete one"
            )
        self.path, self._paths, self._index = path, paths, paths.index(path)
        self._shape, self._dtype = action.shape, action.dtype.as_numpy_dtype
        self._start, self._sizes = bounds[0], (bounds[1] - bounds[0] + 1).reshape(-1)
        mask = leaves[self._index]
        if mask.shape != (self._sizes.sum(),):
            raise UserValueError(
                f"got action_mask='{path}' of shape {mask.shape}; need ({self._sizes.sum()},): a number for each "
                f'choice of the action {action}'
            )

    def __call__(self, observation: Any) -> tuple[dict[str, Any], Any]:
        """Returns the other parts by their paths, and the mask, bool [..., number of choices].

        It is TF-Agents' `observation_and_action_constraint_splitter`. Takes observations [...,
        *spec], or their spec.
        """
        leaves = tf.nest.flatten(observation)
        mask = leaves.pop(self._index)
        rest = dict(zip([path for path in self._paths if path != self.path], leaves, strict=True))
        if isinstance(mask, tf.TypeSpec):
            return rest, mask
        parts = [part | ~tf.reduce_any(part, axis=-1, keepdims=True) for part in self._parts(mask)]
        return rest, parts[0] if len(parts) == 1 else tf.concat(parts, axis=-1)

    def _parts(self, mask: Any) -> list[tf.Tensor]:
        """Returns the mask's part for each number of the action,
        bool [..., number of its choices].
        """
        legal = tf.cast(mask, tf.bool)
        if len(self._sizes) == 1:
            return [legal]
        # TFLite divides neither booleans nor by sizes of 64 bits.
        return [part > 0 for part in tf.split(tf.cast(legal, tf.int32), self._sizes.tolist(), axis=-1)]

    def check(self, time_step: ts.TimeStep, step: int) -> None:
        """Checks that something is legal in time steps [B] of numpy arrays,
        where an action is to be taken.

        Args:
          time_step: the time steps.
          step: the number of the step, for the message.

        Raises:
          ValueError: naming the environment and the step in which nothing is legal.
        """
        first_choices = np.cumsum([0, *self._sizes[:-1]])
        mask = np.asarray(tf.nest.flatten(time_step.observation)[self._index]) != 0
        possible = np.logical_or.reduceat(mask, first_choices, axis=1).all(axis=1)
        stuck = np.flatnonzero(~possible & (time_step.step_type != ts.StepType.LAST))
        if stuck.size:
            raise UserValueError(
                f"got no legal action in '{self.path}' of environment {stuck[0]} in step {step}; need at least one; "
                "correct the environment's mask, or let the episode end there"
            )

    def assert_possible(self, time_step: ts.TimeStep) -> None:
        """Makes a program fail for time steps [B] in which nothing is legal where an action is to be taken. In a graph.

        An observation of zeros always passes, since loaders such as TF-Agents' run a policy once on
        zeros.
        """
        leaves = tf.nest.flatten(time_step.observation)
        parts = self._parts(leaves[self._index])
        possible = tf.reduce_all([tf.reduce_any(part, axis=-1) for part in parts], axis=0)
        zeros = [leaf == tf.zeros((), leaf.dtype) for leaf in leaves]
        empty = [tf.reduce_all(leaf, axis=list(range(1, leaf.shape.rank))) for leaf in zeros]
        passes = possible | (time_step.step_type == ts.StepType.LAST) | tf.reduce_all(empty, axis=0)
        found = [f'got no legal action in {self.path} in row', tf.argmin(tf.cast(passes, tf.int32))]
        tf.debugging.Assert(tf.reduce_all(passes), [*found, 'need at least one'])

    def sample(self, observation: Any, random: np.random.Generator) -> np.ndarray:
        """Draws legal actions [B, *shape] of observations [B] of numpy arrays,
        each with the same probability.
        """
        mask = np.asarray(tf.nest.flatten(observation)[self._index]) != 0
        drawn = np.where(mask, 1.0, 0.0) + random.random(mask.shape)
        parts = np.split(drawn, np.cumsum(self._sizes)[:-1], axis=1)
        chosen = np.stack([part.argmax(axis=1) for part in parts], axis=1)
        return (chosen.reshape(len(mask), *self._shape) + self._start).astype(self._dtype)

    def log_probability(self, observation: Any, action: np.ndarray) -> np.ndarray:
        """Returns the log-probabilities with which `sample` draws the actions [B, *shape],
        float64 [B].
        """
        mask = np.asarray(tf.nest.flatten(observation)[self._index]) != 0
        ends = np.cumsum(self._sizes)
        num_legal = np.stack([part.sum(axis=1) for part in np.split(mask, ends[:-1], axis=1)], axis=1)
        places = np.reshape(action - self._start, (len(mask), -1)).astype(int) + ends - self._sizes
        legal = np.take_along_axis(mask, places, axis=1)
        return np.where(legal, -np.log(np.maximum(num_legal, 1.0)), -np.inf).sum(axis=1)

    def even(self, observation: Any) -> np.ndarray:
        """Returns the probabilities with which `sample` draws each choice of a Discrete action,
        float64 [B, A].
        """
        mask = np.asarray(tf.nest.flatten(observation)[self._index]) != 0
        return mask / np.maximum(mask.sum(axis=1, keepdims=True), 1.0)


def make_mask(specs: EnvironmentSpecs, path: str | None) -> tuple[ActionMask | None, types.NestedTensorSpec]:
    """Returns the mask at a path, None for no path, and the spec of the observation without it."""
    if path is None:
        return None, specs.observation
    mask = ActionMask(specs, path)
    return mask, mask(specs.observation)[0]


def mask_of(policy: Any) -> ActionMask | None:
    """Returns the mask of a TF-Agents policy, or of the one that it wraps; None if it has none."""
    while policy is not None:
        splitter = getattr(policy, 'observation_and_action_constraint_splitter', None)
        if isinstance(splitter, ActionMask):
            return splitter
        policy = getattr(policy, 'wrapped_policy', None)
    return None
