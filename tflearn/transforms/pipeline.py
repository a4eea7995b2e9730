"""Pipeline: a run's transforms, one after the other, made for the environment's specs."""

import copy
import itertools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tf_agents.trajectories import time_step as ts
from tf_agents.typing import types

from tflearn.errors import UserTypeError, UserValueError
from tflearn.transforms.transform import Transform
from tflearn.types import EnvironmentSpecs


class Pipeline:
    """Applies transforms in their order.

    Attributes:
      specs: the transformed specs, which the agent gets.
      state_spec: what the transforms keep between two steps of an episode while a policy acts; () if nothing.
      statistics: the modules with the transforms' variables, in their order.
    """

    def __init__(self, transforms: Sequence[Transform], specs: EnvironmentSpecs):
        """Prepares copies of the transforms, in the strategy's scope.

        Raises:
          ValueError: if a transform does not fit what the one before it returns, or stands behind one that it has to
            precede.
        """
        _check(transforms)
        self._transforms = [copy.copy(transform) for transform in transforms]
        for transform in self._transforms:
            specs = transform.transform_specs(specs)
        self.specs = specs
        states = tuple(transform.state_spec for transform in self._transforms)
        self.state_spec: types.NestedTensorSpec = states if tf.nest.flatten(states) else ()
        self.statistics = [transform.statistics for transform in self._transforms if transform.statistics is not None]

    @property
    def variables(self) -> list[tf.Variable]:
        """The transforms' variables."""
        return [variable for module in self.statistics for variable in module.variables]

    def transform_time_step(self, time_step: ts.TimeStep, states: Any) -> tuple[ts.TimeStep, Any]:
        """Returns transformed time steps [B] and the next states, of states [B, *state_spec]."""
        states = states or ((),) * len(self._transforms)
        after = []
        for transform, state in zip(self._transforms, states, strict=True):
            time_step, state = transform.transform_time_step(time_step, state)
            after.append(state)
        return time_step, tuple(after) if self.state_spec else ()

    def transform_experience(self, experience: Any) -> tuple[Any, list[Any]]:
        """Transforms a Trajectory [B, T, ...]. Returns it, and what each transform got, for `update`."""
        before = []
        for transform in self._transforms:
            before.append(experience)
            experience = transform.transform_experience(experience)
        return experience, before

    def update(self, before: Sequence[Any]) -> None:
        """Updates the transforms' statistics, in replica context, by what `transform_experience` returned."""
        for transform, experience in zip(self._transforms, before, strict=True):
            if transform.statistics is not None:
                transform.update(experience, _counts(experience))


def _check(transforms: Sequence[Transform]) -> None:
    if not transforms or isinstance(transforms, Transform):
        raise UserValueError(f'got transforms={transforms!r}; need a list of one or more')
    for transform in transforms:
        if not isinstance(transform, Transform):
            raise UserTypeError(
                f'got {transform!r} in transforms; need objects of tflearn.transforms, such as image.Scale()'
            )
    for before, after in itertools.pairwise(transforms):
        if after.stage < before.stage:
            name, other = type(after).__name__, type(before).__name__
            raise UserValueError(
                f'got {name} after {other} in transforms; need it before, since it computes rewards from what the '
                f'environment made; move {name} to the front'
            )


def _counts(experience: Any) -> tf.Tensor:
    """Returns float32 [B, T]: 1 for steps that were trained on, 0 for last rows and between two episodes."""
    counts = tf.cast(experience.next_step_type != ts.StepType.FIRST, tf.float32)
    return tf.pad(counts[:, :-1], [[0, 0], [0, 1]])
